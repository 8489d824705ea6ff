"""Does a worker's memory stay flat, however many records go through it?

    python -m tests.longrun.memory --records 1000000

A real worker on an embedded log in a file runs one-step runs, each with an id of its own. What is
meant to be kept of a finished run is its receipt, while the dedup window is open; that is made
short, so that nothing is left that may grow. Resident memory is measured after a warm-up and after
each quarter, each time with the receipts expired. What is kept of each record grows in every
quarter; the caches of SQLite and of the allocator grow in some, whenever they have to hold more at
a time than ever before.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from surefoot import Agent, Context, Done
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.names.topics import OUTBOX, AgentTopics, agent_specs, dead_spec
from surefoot.state.records.encoding import Wire, start_out

APP, PARTITIONS = "memory", 2
#: a run of one step: its command, checkpoint, two events, and its part of what says how far we are
RECORDS_A_RUN = 4
WARM_UP = 4_000
_QUARTERS = 4
_ROUND = 1_000
_WINDOW_MS = 500

agent = Agent("flat")


@agent.step
async def one(ctx: Context, payload: dict[str, str]) -> Done:
    """Hands back what it was given."""
    return Done(payload)


@dataclass(frozen=True, slots=True)
class Flat:
    """What was measured, in records and bytes."""

    records: int
    #: after the warm-up, and after each quarter of the records
    resident: tuple[int, ...]
    #: runs and receipts that the worker still knows of
    known: int

    @property
    def bytes_a_record(self) -> float:
        return (self.resident[-1] - self.resident[0]) / self.records

    @property
    def least_bytes_a_record(self) -> float:
        """Of the quarter in which it grew the least: what is kept of every record."""
        least = min(after - before for before, after in pairwise(self.resident))
        return least / (self.records / _QUARTERS)


async def measure(records: int, folder: Path) -> Flat:
    clock = SystemClock()
    broker = SqliteBroker(folder / "flat.db", clock, owner=True)
    broker.create([dead_spec(APP, 1_000_000)])
    for name in (agent.name, OUTBOX):
        broker.create(agent_specs(APP, name, PARTITIONS, 1_000_000))
    topics = AgentTopics(APP, agent.name)
    executor = Executor(clock)
    executor.start()
    worker = Worker(
        agent=agent,
        log=EmbeddedLog(broker=broker, group=EmbeddedGroup(PARTITIONS), topics=topics, slot=0),
        wire=Wire(APP, topics, PARTITIONS),
        executor=executor,
        clock=clock,
        limits=OwnerLimits(dedup_window_ms=_WINDOW_MS, idle_commit_s=0.1),
        in_flight=64,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop, drain_s=5.0, abort=asyncio.Event()))
    try:
        await _through(broker, worker, topics, 0, WARM_UP)
        resident = [await _resident(worker)]
        runs = records // RECORDS_A_RUN // _QUARTERS
        for quarter in range(_QUARTERS):
            first = WARM_UP + quarter * runs
            await _through(broker, worker, topics, first, first + runs)
            resident.append(await _resident(worker))
        return Flat(runs * _QUARTERS * RECORDS_A_RUN, tuple(resident), _known(worker))
    finally:
        stop.set()
        await running
        executor.stop()
        await broker.close()


async def _through(
    broker: SqliteBroker, worker: Worker, topics: AgentTopics, first: int, last: int
) -> None:
    """Have so many runs go through."""
    body = json.dumps({"text": "x" * 500}).encode()
    for at in range(first, last, _ROUND):
        outs = [
            start_out(APP, PARTITIONS, agent.name, f"run-{n:09}", body, sent_ms=0)
            for n in range(at, min(at + _ROUND, last))
        ]
        await broker.append(outs)
        while not _caught_up(broker, topics):
            await asyncio.sleep(0.01)
            _forget(worker)


def _caught_up(broker: SqliteBroker, topics: AgentTopics) -> bool:
    places = [(topics.commands, number) for number in range(PARTITIONS)]
    return all(
        (broker.committed(topics.group, place) or 0) >= broker.end_offset(place) for place in places
    )


def _forget(worker: Worker) -> None:
    """Have the owners look for receipts whose time is over now, and not once a minute."""
    for owner in worker.owners.values():
        owner.expiry.look_s = 0.0


async def _resident(worker: Worker) -> int:
    """Bytes, when nothing of the runs is known any more."""
    while _known(worker):
        _forget(worker)
        await asyncio.sleep(0.02)
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _known(worker: Worker) -> int:
    stores = [owner.store for owner in worker.owners.values()]
    return sum(len(store.live) + len(store.receipts) + len(store.entries) for store in stores)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.longrun.memory")
    parser.add_argument("--records", type=int, default=1_000_000)
    asked = parser.parse_args(argv)
    logging.configure(level="ERROR")
    with tempfile.TemporaryDirectory() as folder:
        flat = asyncio.run(measure(asked.records, Path(folder)))
    told = asdict(flat) | {
        "bytes_a_record": round(flat.bytes_a_record, 2),
        "least_bytes_a_record": round(flat.least_bytes_a_record, 2),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
