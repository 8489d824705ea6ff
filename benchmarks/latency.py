"""How long one step takes when nothing else goes on: from the acknowledgement of the command that
starts a run of one step until a reader of committed records has its run.completed.

Both kinds take the same way: a command is read, one transaction with the same records is written,
the event is read. One run at a time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.site import (
    Kind,
    arguments,
    command,
    create_topics,
    events_reader,
    process,
    producer,
    quantile,
    step_of,
)
from surefoot.infra.runtime.settings import Settings
from surefoot.state.ports.log import ProducerRecord

#: for one run, the start of the process included, in seconds
_DEADLINE_S = 60.0


async def measure(kind: Kind, settings: Settings, *, warm_up: int, count: int) -> dict[str, Any]:
    """`count` runs, after some that are not counted."""
    await create_topics(settings)
    async with events_reader(settings) as reader, producer(settings) as client:
        with process(arguments(kind, 1), settings) as worker:
            took_ms = []
            for number in range(warm_up + count):
                worker.check()
                took_ms.append(await _one(client, reader, command(settings, number, 1)))
    counted = took_ms[warm_up:]
    return {
        "kind": kind,
        "runs": count,
        "ms_p50": quantile(counted, 0.5),
        "ms_p99": quantile(counted, 0.99),
        "ms_max": max(counted),
    }


async def _one(client: AIOKafkaProducer, reader: AIOKafkaConsumer, out: ProducerRecord) -> float:
    """Milliseconds from acknowledged to seen."""
    async with asyncio.timeout(_DEADLINE_S):
        await client.send_and_wait(out.topic, out.value, out.key, out.partition)
        acknowledged_s = time.perf_counter()
        async for record in reader:
            step = step_of(record)
            if step is not None and step.run_id == out.key:
                break
    return (time.perf_counter() - acknowledged_s) * 1000
