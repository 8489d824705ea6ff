"""The engine on the embedded log, against a bare sqlite3 loop that writes the same records.

Every number is durable (WAL, synchronous=FULL) and of one process on one core:

    bare        one transaction of the file for each step, by hand; nothing else is done
    log         the embedded log without the engine: so many commits of one step each in flight
    engine      worker, committer and executor, as `surefoot serve` has them

    python -m benchmarks.embedded KIND STEPS IN_FLIGHT RUNS        prints one row as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from benchmarks.agents import agent
from benchmarks.records import AGENT, Template, applied, chain, payload, run_name
from benchmarks.site import folder_on_disk, row_of
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.processes.worker import BATCH_OVERHEAD
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.schemas.codec.codec import decode
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import APPLIED_KEY, AgentTopics
from surefoot.state.ports.log import ConsumerRecord, Headers, ProducerRecord
from surefoot.state.records.encoding import Wire, start_out

Kind = Literal["bare", "log", "engine"]
KINDS: tuple[Kind, ...] = ("bare", "log", "engine")

SETTINGS = load_settings(app="bench")
TOPICS = AgentTopics(SETTINGS.app, AGENT)
#: start commands in one append
_TOGETHER = 500
#: without any progress for this long something is wrong, in seconds
_STUCK_S = 60.0


async def measure(kind: Kind, *, steps: int, in_flight: int, runs: int) -> dict[str, Any]:
    """One row, by a child process."""
    arguments = [kind, str(steps), str(in_flight), str(runs)]
    return await row_of(["benchmarks.embedded", *arguments], {})


def _bare(path: Path, steps: int, runs: int) -> float:
    """Returns the seconds that it took."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, topic, key, value)")
    db.execute("CREATE TABLE offsets (topic PRIMARY KEY, next)")
    last = applied(SETTINGS.app, SETTINGS.partitions)
    templates = chain(SETTINGS.app, SETTINGS.partitions, steps)
    began_s = time.perf_counter()
    for seq, records in enumerate(templates):
        source = TOPICS.tasks if seq else TOPICS.commands
        for number in range(runs):
            key = run_name(number).encode()
            rows = [(record.topic, key, record.value) for record in (*records, last)]
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO records (topic, key, value) VALUES (?, ?, ?)", rows)
            db.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?)", (source, number + 1))
            db.execute("COMMIT")
    took_s = time.perf_counter() - began_s
    db.close()
    return took_s


async def _log(path: Path, steps: int, in_flight: int, runs: int) -> float:
    """Returns the seconds that it took."""
    last = applied(SETTINGS.app, SETTINGS.partitions)
    templates = chain(SETTINGS.app, SETTINGS.partitions, steps)
    async with _broker(path) as broker:
        epochs = [await broker.take(str(n)) for n in range(SETTINGS.partitions)]
        left = ((seq, number) for seq in range(steps) for number in range(runs))

        async def commit_on() -> None:
            for seq, number in left:
                run_id = run_name(number)
                partition = partition_of(run_id, SETTINGS.partitions)
                outs = [_out(each, run_id.encode(), seq, partition) for each in templates[seq]]
                outs.append(_out(last, APPLIED_KEY, seq, partition))
                transaction = broker.begin(str(partition), epochs[partition], outs)
                source = TOPICS.tasks if seq else TOPICS.commands
                await broker.commit(transaction, TOPICS.group, {(source, partition): number + 1})

        began_s = time.perf_counter()
        await asyncio.gather(*(commit_on() for _ in range(in_flight)))
        return time.perf_counter() - began_s


def _out(template: Template, key: bytes, seq: int, partition: int) -> ProducerRecord:
    source = f"{TOPICS.tasks}/{partition}/12345".encode()
    headers: Headers = (
        ("sf-txn", b"0" * 32),
        ("sf-src", source),
        ("sf-run", key),
        ("sf-seq", b"%d" % seq),
        *template.headers,
    )
    return ProducerRecord(template.topic, partition, key, template.value, headers)


async def _engine(path: Path, steps: int, in_flight: int, runs: int) -> dict[str, Any]:
    """From the first committed step to the last one, as the events tell."""
    clock = SystemClock()
    async with _broker(path) as broker:
        for first in range(0, runs, _TOGETHER):
            numbers = range(first, min(runs, first + _TOGETHER))
            await broker.append([_start(number, steps, clock.now_ms()) for number in numbers])
        executor = Executor(clock)
        executor.start()
        worker = Worker(
            agent=agent,
            log=EmbeddedLog(
                broker=broker, group=EmbeddedGroup(SETTINGS.partitions), topics=TOPICS, slot=0
            ),
            wire=Wire(SETTINGS.app, TOPICS, SETTINGS.partitions),
            executor=executor,
            clock=clock,
            limits=OwnerLimits(record_bytes=SETTINGS.record_max_bytes - BATCH_OVERHEAD),
            in_flight=in_flight,
        )
        stop = asyncio.Event()
        began_s = time.process_time()
        working = asyncio.create_task(worker.run(stop, drain_s=10.0, abort=asyncio.Event()))
        await _until_written(broker, runs * (steps + 1))
        used_s = time.process_time() - began_s
        stop.set()
        await working
        executor.stop()
        times = _step_times(broker)
    if len(times) != runs * steps:
        raise RuntimeError(f"{len(times)} different steps, where {runs * steps} were asked for")
    took_s = (max(times.values()) - min(times.values())) / 1000
    return {"seconds": took_s, "cpu_ms_per_step": used_s * 1000 / len(times)}


def _start(number: int, steps: int, now_ms: int) -> ProducerRecord:
    return start_out(
        SETTINGS.app, SETTINGS.partitions, AGENT, run_name(number), payload(steps), sent_ms=now_ms
    )


async def _until_written(broker: SqliteBroker, events: int) -> None:
    news = asyncio.Event()
    broker.listeners[news.set] = None
    places = [(TOPICS.events, partition) for partition in range(SETTINGS.partitions)]
    while sum(broker.end_offset(place) for place in places) < events:
        news.clear()
        async with asyncio.timeout(_STUCK_S):
            await news.wait()


def _step_times(broker: SqliteBroker) -> dict[tuple[str, int], int]:
    """When each step was committed (epoch ms), by run and number. A step that was committed twice
    ends the measurement."""
    times: dict[tuple[str, int], int] = {}
    for record in _all(broker, TOPICS.events):
        event = decode(record.value, "Event")[1]
        if event["type"] in ("step.completed", "run.completed"):
            key = (event["run_id"], event["seq"])
            if key in times:
                raise RuntimeError(f"step {key} was committed twice")
            times[key] = record.timestamp_ms
    return times


def _all(broker: SqliteBroker, topic: str) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    for partition in range(SETTINGS.partitions):
        place = (topic, partition)
        found += broker.read(place, 0, broker.end_offset(place) + 1)[0]
    return found


@asynccontextmanager
async def _broker(path: Path) -> AsyncIterator[SqliteBroker]:
    broker = SqliteBroker(path, SystemClock(), owner=True)
    try:
        broker.create(specs_for([AGENT], SETTINGS))
        yield broker
    finally:
        await broker.close()


def _row(kind: str, steps: int, in_flight: int, runs: int) -> dict[str, Any]:
    with suppress(AttributeError):  # not every system can
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with folder_on_disk() as folder:
        path = folder / "log.db"
        match kind:
            case "bare":
                in_flight = 1
                told: dict[str, Any] = {"seconds": _bare(path, steps, runs)}
            case "log":
                told = {"seconds": asyncio.run(_log(path, steps, in_flight, runs))}
            case _:
                told = asyncio.run(_engine(path, steps, in_flight, runs))
    return {
        "kind": kind,
        "steps_per_run": steps,
        "in_flight": in_flight,
        "steps": runs * steps,
        "steps_per_s": runs * steps / told["seconds"],
        "cpu_ms_per_step": None,
        **told,
    }


if __name__ == "__main__":
    logging.configure()
    what, *numbers = sys.argv[1:]
    print(json.dumps(_row(what, *map(int, numbers))))
