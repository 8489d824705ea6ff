"""From the SIGKILL of the only worker process to the next committed step.

The supervisor runs as a user runs it, under a light and steady load. A step counts when a reader of
committed records has it and its records are younger than the kill. Also told: until every partition
has committed a step again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import count
from typing import Any

import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.site import (
    Process,
    command,
    create_topics,
    events_reader,
    process,
    producer,
    quantile,
    step_of,
)
from benchmarks.throughput import STEPS
from surefoot.infra.runtime.settings import Settings

#: runs started per second, of five steps each
RUNS_PER_S = 20
_DEADLINE_S = 90.0


class Watch:
    """Per partition: the youngest step seen, and when it was seen; epoch ms."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._changed = asyncio.Event()

    async def follow(self, reader: AIOKafkaConsumer) -> None:
        """Until cancelled."""
        async for record in reader:
            step = step_of(record)
            if step is not None:
                self._seen[step.partition] = step.at_ms
                self._changed.set()

    async def until(self, partitions: int, after_ms: int) -> float:
        """Wait until that many partitions have committed a step younger than `after_ms`; returns
        the seconds since then."""
        async with asyncio.timeout(_DEADLINE_S):
            while sum(at_ms > after_ms for at_ms in self._seen.values()) < partitions:
                self._changed.clear()
                await self._changed.wait()
        return (_now_ms() - after_ms) / 1000


async def measure(settings: Settings, *, kills: int, settle_s: float) -> dict[str, Any]:
    """`kills` kills, each of a worker that has served every partition and then lived for
    `settle_s` seconds: the supervisor makes one that keeps dying wait."""
    await create_topics(settings)
    watch = Watch()
    first_s: list[float] = []
    all_s: list[float] = []
    args = ["surefoot", "worker", "benchmarks/agents.py", "--processes", "1"]
    async with events_reader(settings) as reader, producer(settings) as client:
        with process(args, settings) as supervisor:
            async with asyncio.TaskGroup() as background:
                tasks = [
                    background.create_task(watch.follow(reader)),
                    background.create_task(_load(client, settings)),
                ]
                await watch.until(settings.partitions, 0)
                for _ in range(kills):
                    await asyncio.sleep(settle_s)
                    killed_ms = _kill_worker(supervisor)
                    first_s.append(await watch.until(1, killed_ms))
                    all_s.append(await watch.until(settings.partitions, killed_ms))
                for task in tasks:
                    task.cancel()
    return {
        "kills": kills,
        "first_step_s": first_s,
        "first_step_s_p50": quantile(first_s, 0.5),
        "first_step_s_max": max(first_s),
        "all_partitions_s": all_s,
        "all_partitions_s_p50": quantile(all_s, 0.5),
        "all_partitions_s_max": max(all_s),
    }


def _kill_worker(supervisor: Process) -> int:
    """Returns when, in epoch ms."""
    supervisor.check()
    worker, *_ = psutil.Process(supervisor.pid).children()  # behind it, its spare
    os.kill(worker.pid, signal.SIGKILL)
    return _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _load(client: AIOKafkaProducer, settings: Settings) -> None:
    for number in count():
        out = command(settings, number, STEPS)
        await client.send_and_wait(out.topic, out.value, out.key, out.partition)
        await asyncio.sleep(1 / RUNS_PER_S)
