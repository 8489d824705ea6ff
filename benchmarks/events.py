"""Events per second that one trigger process turns into start commands, on one core.

All events, of about 200 bytes, are written before the process starts. The rate is from the first
committed start command to the last, by their timestamps.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from contextlib import suppress
from typing import Any

import psutil
from fastavro import schemaless_writer

from benchmarks.event_agent import SCHEMA, topic_of
from benchmarks.site import (
    commands_reader,
    cpu_s,
    create_topics,
    process,
    producer,
    start_times,
    written,
)
from surefoot.infra.kafka_client.topics import Topics
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.catalog import crc64
from surefoot.state.names.topics import TopicSpec

#: without any progress for this long something is wrong, in seconds
_STUCK_S = 60.0
_EVERY_S = 0.25


async def measure(kind: str, settings: Settings, *, events: int) -> dict[str, Any]:
    """One row. `kind`: json or avro."""
    await create_topics(settings)
    await _write(kind, settings, events)
    args = ["surefoot", "trigger", "benchmarks/event_agent.py", "--slot", "0"]
    async with commands_reader(settings) as reader:
        with process(args, settings) as child:
            with suppress(AttributeError):  # not every system can
                os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
            seen = 0
            async with asyncio.timeout(None) as deadline:
                while seen < events:
                    child.check()
                    now = await written(reader)
                    if now > seen:
                        seen = now
                        deadline.reschedule(asyncio.get_running_loop().time() + _STUCK_S)
                    await asyncio.sleep(_EVERY_S)
            times = await start_times(reader)
            used_s = cpu_s(child.pid)
            peak = psutil.Process(child.pid).memory_info().rss
    if len(times) != events:
        raise RuntimeError(f"{len(times)} start commands, where {events} were asked for")
    took_s = (max(times.values()) - min(times.values())) / 1000
    return {
        "encoding": kind,
        "events": events,
        "events_per_s": events / took_s,
        "cpu_ms_per_event": used_s * 1000 / events,
        "rss_mb": peak / 1e6,
    }


async def _write(kind: str, settings: Settings, events: int) -> None:
    topic = topic_of(settings.app, kind)
    async with Topics(settings) as topics:
        await topics.apply(
            [
                TopicSpec(
                    name=topic_of(settings.app, each), partitions=settings.partitions, config={}
                )
                for each in ("json", "avro")
            ]
        )
    async with producer(settings, linger_ms=5, max_batch_size=262_144) as client:
        sent = []
        for number in range(events):
            value = _event(kind, number)
            sent.append(await client.send(topic, value, partition=number % settings.partitions))
        await asyncio.gather(*sent)


def _event(kind: str, number: int) -> bytes:
    value = {
        "id": f"order-{number}",
        "total": number,
        "items": [f"sku-{number + n}" for n in range(5)],
        "note": "leave it at the door, ring twice, and mind the dog in the yard",
    }
    if kind == "json":
        return json.dumps(value).encode()
    out = io.BytesIO(b"\xc3\x01" + crc64(SCHEMA))
    out.seek(0, io.SEEK_END)
    schemaless_writer(out, SCHEMA, value)
    return out.getvalue()
