"""What control flow costs: a recorded call, a signal to a waiting run, a fork, a sleeping run.

Every row is one worker process (the fork: one, and four) on topics of its own.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.records import AGENT
from benchmarks.site import (
    Process,
    cpu_s,
    create_topics,
    events_reader,
    process,
    producer,
    quantile,
    written,
)
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import decode
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import command_out

_DEADLINE_S = 180.0


def _worker(slot: int = 0) -> list[str]:
    return ["surefoot", "worker", "benchmarks/control_agent.py", "--slot", str(slot)]


def _command(settings: Settings, run_id: str, kind: str, **fields: Any) -> ProducerRecord:
    return command_out(
        settings.app,
        settings.partitions,
        AGENT,
        run_id=run_id,
        kind=kind,
        sent_ms=SystemClock().now_ms(),
        **fields,
    )


async def _send(client: AIOKafkaProducer, out: ProducerRecord) -> None:
    await client.send_and_wait(out.topic, out.value, out.key, out.partition)


async def _next(reader: AIOKafkaConsumer, run_id: str, kind: str, worker: Process) -> None:
    """Read on to the next event of that kind of the run."""
    async with asyncio.timeout(_DEADLINE_S):
        async for record in reader:
            worker.check()
            if record.key == run_id.encode() and decode(record.value, "Event")[1]["type"] == kind:
                return


async def signals(settings: Settings, *, warm_up: int, count: int) -> dict[str, Any]:
    """From the acknowledged signal until a reader has the step that it lets go on, and the run
    waits again; one run, one signal at a time."""
    await create_topics(settings)
    took_ms = []
    async with events_reader(settings) as reader, producer(settings) as client:
        with process(_worker(), settings) as worker:
            start = _command(settings, "r", "start", step="ask", payload=b"0")
            await _send(client, start)
            await _next(reader, "r", "step.completed", worker)
            for number in range(warm_up + count):
                out = _command(settings, "r", "signal", id=f"s{number}", name="go", payload=b"1")
                await _send(client, out)
                acknowledged_s = time.perf_counter()
                await _next(reader, "r", "step.completed", worker)
                took_ms.append((time.perf_counter() - acknowledged_s) * 1000)
    counted = took_ms[warm_up:]
    return {
        "signals": count,
        "ms_p50": quantile(counted, 0.5),
        "ms_p99": quantile(counted, 0.99),
        "ms_max": max(counted),
    }


async def fork(settings: Settings, *, branches: int, processes: int) -> dict[str, Any]:
    """From the acknowledged start of a run that forks until a reader has its end. A warm-up run of
    few branches comes first."""
    await create_topics(settings)
    async with events_reader(settings) as reader, producer(settings) as client:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(process(_worker(slot), settings)) for slot in range(processes)
            ]
            await _send(client, _command(settings, "warm", "start", step="fork", payload=b"20"))
            await _next(reader, "warm", "run.completed", workers[0])
            out = _command(settings, "r", "start", step="fork", payload=b"%d" % branches)
            await _send(client, out)
            began_s = time.perf_counter()
            await _next(reader, "r", "run.completed", workers[0])
            took_s = time.perf_counter() - began_s
    return {
        "processes": processes,
        "branches": branches,
        "seconds": took_s,
        "branches_per_s": branches / took_s,
    }


async def sleepers(settings: Settings, *, runs: int, idle_s: float) -> dict[str, Any]:
    """Memory of a worker with that many sleeping runs over that of one with none, and the CPU that
    it uses while all of them sleep."""
    await create_topics(settings)
    async with events_reader(settings) as reader:
        with process(_worker(), settings) as worker:
            watched = psutil.Process(worker.pid)
            async with producer(settings, linger_ms=5, max_batch_size=262_144) as client:
                await _send(client, _command(settings, "first", "start", step="doze"))
                await _next(reader, "first", "step.completed", worker)
                empty = watched.memory_info().rss
                began_s = time.perf_counter()
                sent = []
                for number in range(runs):
                    out = _command(settings, f"sleeper-{number:07}", "start", step="doze")
                    sent.append(await client.send(out.topic, out.value, out.key, out.partition))
                await asyncio.gather(*sent)
            await _all_written(reader, 2 * runs, worker)
            filled_s = time.perf_counter() - began_s
            full = watched.memory_info().rss
            before_s = cpu_s(worker.pid)
            await asyncio.sleep(idle_s)
            used_s = cpu_s(worker.pid) - before_s
    return {
        "runs": runs,
        "bytes_per_run": (full - empty) / runs,
        "runs_per_s": runs / filled_s,
        "cpu_share_asleep": used_s / idle_s,
        "rss_mb": full / 1e6,
    }


async def _all_written(reader: AIOKafkaConsumer, events: int, worker: Process) -> None:
    """Wait until so many events have been committed."""
    before = -1
    while (now := await written(reader)) < events or now > before:
        worker.check()
        before = now
        await asyncio.sleep(1.0)
