"""A closed loop: so many runs at a time, each step durable before the run's next one begins.

A step's period is the time from one step of a run to its next, as a reader of committed events has
them (load.py). So it holds the commit, the task read back, the step, and the wait for its turn.

    fsync       a file: as many records of 1 kB as runs are appended, then fsync; again and again
    embedded    the engine on the embedded log; its one process has the load, too
    bare        the bare loop of bare.py, with one transactional producer for all partitions
    engine      worker processes on Kafka

    python -m benchmarks.closed SECONDS     prints `embedded`; settings from SUREFOOT_... variables
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.agents import agent
from benchmarks.load import drive
from benchmarks.records import AGENT, STATE_BYTES
from benchmarks.site import (
    READY_S,
    Process,
    arguments,
    cpu_s,
    create_topics,
    environment,
    folder_on_disk,
    process,
    quantile,
    row_of,
)
from benchmarks.throughput import STEPS
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.worker import spare_what_is_loaded, work
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import AgentTopics

IN_FLIGHT = (1, 64, 256, 1_024)
PROCESSES = (1, 2, 4)
#: so many runs at a time are also measured on one partition
_ON_ONE = 64
#: the file of the row `fsync` is emptied when it is so long
_FILE_BYTES = 256 * 1_048_576
_EVERY_S = 0.1

Kind = Literal["fsync", "embedded", "bare", "engine"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What one row measures. None: the kind has no such thing."""

    kind: Kind
    in_flight: int
    partitions: int | None = None
    processes: int = 1


def setups(in_flight: Sequence[int], processes: Sequence[int], partitions: int) -> list[Setup]:
    """Every row, each beside what it is compared with. A process has at least one partition."""
    found = []
    for runs in in_flight:
        found += [Setup("fsync", runs), Setup("embedded", runs, partitions)]
        for places in sorted({partitions, 1} if runs == _ON_ONE else {partitions}):
            found.append(Setup("bare", runs, places))
            found += [Setup("engine", runs, places, each) for each in processes if each <= places]
    return found


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with its rate and the p50 of its period over those of the bare loop on as many
    partitions and of the file, with as many runs at a time. None: that was not measured."""
    bare = {(row["in_flight"], row["partitions"]): row for row in rows if row["kind"] == "bare"}
    file = {row["in_flight"]: row for row in rows if row["kind"] == "fsync"}
    return [
        {
            **row,
            **_over("bare", row, bare.get((row["in_flight"], row["partitions"]))),
            **_over("fsync", row, file.get(row["in_flight"])),
        }
        for row in rows
    ]


def _over(
    name: str, row: Mapping[str, Any], under: Mapping[str, Any] | None
) -> dict[str, float | None]:
    return {
        f"{value}_over_{name}": row[value] / under[value] if under else None
        for value in ("steps_per_s", "ms_p50")
    }


async def measure(
    setup: Setup, settings: Settings, *, seconds: float, broker_pid: int | None
) -> dict[str, Any]:
    """One row, with `settings.in_flight` runs at a time on `settings.partitions` partitions."""
    match setup.kind:
        case "fsync":
            row = await asyncio.to_thread(_fsync, setup.in_flight, seconds)
        case "embedded":
            with folder_on_disk() as folder:
                log = {"SUREFOOT_LOG": f"sqlite:///{folder / 'log.db'}"}
                args = ["benchmarks.closed", str(seconds)]
                row = await row_of(args, environment(settings) | log)
        case "bare":
            args = [*arguments("bare", STEPS), "1"]
            row = await _kafka([args], settings, seconds, broker_pid)
        case "engine":
            workers = [arguments("engine", STEPS, slot) for slot in range(setup.processes)]
            row = await _kafka(workers, settings, seconds, broker_pid)
    return asdict(setup) | {"broker_cpu_ms_per_step": None, "load_cpu_ms_per_step": None} | row


def _fsync(in_flight: int, seconds: float) -> dict[str, Any]:
    """One fsync for as many appends as are waiting: the shortest way to a durable record."""
    records = b"x" * (STATE_BYTES * in_flight)
    took_ms: list[float] = []
    with folder_on_disk() as folder, (folder / "log").open("ab", buffering=0) as file:
        used_s, begun_s = time.thread_time(), time.perf_counter()
        last_s = begun_s
        while last_s - begun_s < seconds:
            if file.tell() >= _FILE_BYTES:
                file.truncate(0)
            file.write(records)
            os.fsync(file.fileno())
            now_s = time.perf_counter()
            took_ms.append((now_s - last_s) * 1000)
            last_s = now_s
        used_s = time.thread_time() - used_s
    steps = len(took_ms) * in_flight
    return {
        "steps": steps,
        "seconds": last_s - begun_s,
        "steps_per_s": steps / (last_s - begun_s),
        "ms_p50": quantile(took_ms, 0.5),
        "ms_p99": quantile(took_ms, 0.99),
        "cpu_ms_per_step": used_s * 1000 / steps,
    }


async def _kafka(
    workers: Sequence[Sequence[str]], settings: Settings, seconds: float, broker_pid: int | None
) -> dict[str, Any]:
    await create_topics(settings)
    with ExitStack() as stack:
        children = [stack.enter_context(process(args, settings)) for args in workers]

        def cpu() -> dict[str, float]:
            for child in children:
                child.check()
            used_s = {
                "cpu": sum(cpu_s(child.pid) for child in children),
                "load_cpu": time.process_time(),
            }
            return used_s | ({} if broker_pid is None else {"broker_cpu": cpu_s(broker_pid)})

        async with open_backend(settings, SystemClock()) as backend:
            await _joined(backend, settings, children)
            return await drive(backend, settings, steps=STEPS, seconds=seconds, cpu=cpu)


async def _joined(backend: Backend, settings: Settings, children: Sequence[Process]) -> None:
    """Until all of them are members of the group."""
    group = AgentTopics(settings.app, AGENT).group
    async with asyncio.timeout(READY_S):
        while (await backend.groups().look(group, (), 0))[0] < len(children):
            for child in children:
                child.check()
            await asyncio.sleep(_EVERY_S)


async def _embedded(settings: Settings, seconds: float) -> dict[str, Any]:
    clock, stop = SystemClock(), asyncio.Event()
    async with open_backend(settings, clock, owner=True) as backend:
        async with backend.topics() as topics:
            await topics.apply(specs_for([AGENT], settings))
        spare_what_is_loaded()
        working = asyncio.create_task(
            work([agent], settings, backend, clock, stop, asyncio.Event(), slot=0)
        )

        def cpu() -> dict[str, float]:
            if working.done():
                working.result()
            return {"cpu": time.process_time()}

        try:
            return await drive(backend, settings, steps=STEPS, seconds=seconds, cpu=cpu)
        finally:
            stop.set()
            await working


if __name__ == "__main__":
    logging.configure()
    print(json.dumps(asyncio.run(_embedded(load_settings(), float(sys.argv[1])))))
