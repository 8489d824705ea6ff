"""Events per second that one `surefoot archive` process moves from Kafka into an archive.

All events are written before it starts: those of runs of three steps, with 1 kB of payload in each
event. The archive is moto's server in this process, spoken to over HTTP as S3 is, or a folder. The
rate is from its first partition's beginning to its last commit, as its own log tells them.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any, Literal

from benchmarks.records import AGENT, run_name
from benchmarks.site import ROOT, create_topics, producer
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import encode
from surefoot.state.machine.model import EventRecord, EventType, Status, jsonable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from tests.support.aws import REGION, aws_server, client

STEPS = 3
_BUCKET = "archive-bench"
_PAYLOAD = b'"%s"' % (b"x" * 1_000)


async def measure(
    kind: Literal["s3", "folder"], settings: Settings, *, runs: int
) -> dict[str, Any]:
    """One row."""
    await create_topics(settings)
    written = await _write(settings, runs)
    with ExitStack() as stack:
        extra = _s3(stack) if kind == "s3" else _folder(stack)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = await asyncio.to_thread(_archive, settings, extra)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = [line for line in lines if line["event"] == "archived"]
    events = sum(line["events"] for line in files)
    if events != written:
        raise RuntimeError(f"{events} events archived, where {written} were written")
    times = [datetime.fromisoformat(line["timestamp"]) for line in lines]
    begins = [t for t, line in zip(times, lines, strict=True) if line["event"] == "archive_begins"]
    took_s = (max(times) - min(begins)).total_seconds()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "kind": kind,
        "events": events,
        "files": len(files),
        "events_per_s": events / took_s,
        "cpu_ms_per_event": cpu_s * 1000 / events,
        "rss_mb": after.ru_maxrss / 1e3,
    }


def _archive(settings: Settings, extra: Mapping[str, str]) -> list[dict[str, Any]]:
    """What it said."""
    env = {
        "SUREFOOT_APP": settings.app,
        "SUREFOOT_BOOTSTRAP_SERVERS": settings.bootstrap_servers or "",
        "SUREFOOT_PARTITIONS": str(settings.partitions),
    }
    done = subprocess.run(
        [sys.executable, "-m", "surefoot", "archive", "benchmarks/agents.py", "--once"],
        cwd=ROOT,
        env={**os.environ, **env, **extra},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def _s3(stack: ExitStack) -> dict[str, str]:
    url = stack.enter_context(aws_server())
    client(url, "s3").create_bucket(
        Bucket=_BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    return {
        "SUREFOOT_ARCHIVE": f"s3://{_BUCKET}/bench",
        "SUREFOOT_AWS_ENDPOINT_URL": url,
        "SUREFOOT_AWS_REGION": REGION,
    }


def _folder(stack: ExitStack) -> dict[str, str]:
    folder = stack.enter_context(TemporaryDirectory(prefix="surefoot-bench-"))
    return {"SUREFOOT_ARCHIVE": f"file://{folder}"}


async def _write(settings: Settings, runs: int) -> int:
    """Returns how many events."""
    topic, now_ms, sent = AgentTopics(settings.app, AGENT).events, SystemClock().now_ms(), []
    async with producer(settings, linger_ms=5, max_batch_size=262_144) as kafka:
        for number in range(runs):
            run_id = run_name(number)
            place = partition_of(run_id, settings.partitions)
            for seq in range(-1, STEPS):
                value = _event(run_id, seq, now_ms)
                sent.append(await kafka.send(topic, value, run_id.encode(), place))
        await asyncio.gather(*sent)
    return len(sent)


def _event(run_id: str, seq: int, now_ms: int) -> bytes:
    kind: EventType = "step.completed"
    status: Status = "running"
    if seq < 0:
        kind = "run.started"
    elif seq == STEPS - 1:
        kind, status = "run.completed", "completed"
    over = status == "completed"
    return encode(
        "Event",
        jsonable(
            EventRecord(
                type=kind,
                run_id=run_id,
                agent=AGENT,
                version=1,
                status=status,
                seq=max(seq, 0),
                at_ms=now_ms,
                step="work",
                next_step=None if over else "work",
                payload=None if over else _PAYLOAD,
                result=_PAYLOAD if over else None,
            )
        ),
    )
