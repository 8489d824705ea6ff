"""Events per second that one `surefoot views` process takes in.

*follow*: events of runs of four steps are written while the views are up. *from zero*: they were
all there, and nothing is kept; from the start of the process, its start included. *beside a
worker*: one worker process with a backlog of runs of five steps runs them as fast as it can, and
the views follow it, with the broker on the same machine.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Any, Literal

import httpx
import psutil

from benchmarks.records import AGENT
from benchmarks.site import (
    Process,
    all_steps,
    arguments,
    cpu_s,
    create_topics,
    events_reader,
    process,
    producer,
    start_runs,
)
from benchmarks.throughput import STEPS
from surefoot.infra.broker.config import free_ports
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import encode
from surefoot.state.machine.model import EventRecord, EventType, Status, jsonable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics

Kind = Literal["follow", "from zero", "beside a worker"]
KINDS: tuple[Kind, ...] = ("follow", "from zero", "beside a worker")

#: longest that a view may take to have all, in seconds
_STUCK_S = 300.0
#: how often it is asked; asking costs it something, too
_EVERY_S = 0.5
_KINDS: tuple[EventType, ...] = (
    "run.started",
    "step.completed",
    "step.completed",
    "step.completed",
    "run.completed",
)


async def measure(kind: Kind, settings: Settings, *, events: int) -> dict[str, Any]:
    """One row. `behind_s`: from the last event written until the view has all; `lag_ms_max`: the
    largest lag that it has told meanwhile."""
    await create_topics(settings)
    each = STEPS + 1 if kind == "beside a worker" else len(_KINDS)
    runs = events // each
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as folder:
        (port,) = free_ports(1)
        extra = {"SUREFOOT_VIEWS_PORT": str(port), "SUREFOOT_VIEWS_DIR": folder}
        url = f"http://127.0.0.1:{port}/views/{AGENT}/summary"
        if kind == "from zero":
            await _write(settings, runs)
        if kind == "beside a worker":
            await start_runs(settings, runs, STEPS)
        first = time.time()
        with process(["surefoot", "views", "benchmarks/agents.py"], settings, extra) as views:
            before_s = 0.0
            if kind != "from zero":
                await _until(url, 0, views)
                before_s = cpu_s(views.pid)
            match kind:
                case "from zero":
                    last = first
                    lag_ms = await _until(url, runs, views)
                case "follow":
                    first = time.time()
                    await _write(settings, runs)
                    last = time.time()
                    lag_ms = await _until(url, runs, views)
                case "beside a worker":
                    with process(arguments("engine", STEPS), settings):
                        lag_ms = await _until(url, runs, views)
            level = time.time()
            used_s = cpu_s(views.pid) - before_s
            rss = psutil.Process(views.pid).memory_info().rss
    if kind == "beside a worker":
        first, last = await _written(settings)
    count = runs * each
    return {
        "kind": kind,
        "events": count,
        "written_per_s": count / (last - first) if last > first else None,
        "events_per_s": count / (level - first),
        "behind_s": level - last,
        "lag_ms_max": lag_ms,
        "cpu_ms_per_event": used_s * 1000 / count,
        "rss_mb": rss / 1e6,
    }


async def _until(url: str, runs: int, child: Process) -> int:
    """Until so many runs are completed. Returns the largest lag on the way, in ms."""
    lag_ms = 0
    async with asyncio.timeout(_STUCK_S), httpx.AsyncClient() as client:
        while True:
            child.check()
            await asyncio.sleep(_EVERY_S)
            try:
                answer = await client.get(url)
            except httpx.TransportError:
                continue
            if answer.status_code == httpx.codes.OK:
                told = answer.json()
                lag_ms = max(lag_ms, int(told["lag"]["ms"]))
                if told["statuses"].get("completed", {"runs": 0})["runs"] == runs:
                    return lag_ms


async def _written(settings: Settings) -> tuple[float, float]:
    """When the first and the last step were committed; epoch seconds."""
    async with events_reader(settings) as reader:
        times = [step.at_ms for step in await all_steps(reader)]
    return min(times) / 1000, max(times) / 1000


async def _write(settings: Settings, runs: int) -> None:
    topic = AgentTopics(settings.app, AGENT).events
    now_ms = int(time.time() * 1000)
    async with producer(settings, linger_ms=5, max_batch_size=262_144) as writer:
        for number in range(runs):
            run_id = f"run-{number}"
            home = partition_of(run_id, settings.partitions)
            for seq, kind in enumerate(_KINDS):
                value = _event(kind, run_id, max(seq - 1, 0), now_ms + number // 100)
                await writer.send(topic, value, run_id.encode(), home)
        await writer.flush()


def _event(kind: EventType, run_id: str, seq: int, at_ms: int) -> bytes:
    over = kind == "run.completed"
    status: Status = "completed" if over else "running"
    record = EventRecord(
        type=kind,
        run_id=run_id,
        agent=AGENT,
        version=1,
        status=status,
        seq=seq,
        at_ms=at_ms,
        step=None if kind == "run.started" else "work",
        next_step=None if over else "work",
        started_ms=None if kind == "run.started" else at_ms - 7,
        payload=None if over else b'{"n":1}',
    )
    return encode("Event", jsonable(record))
