"""Many queued runs on many keys, one at a time of each: is a key starved, a run lost or doubled?

    python -m tests.longrun.queued --runs 100000 --keys 1000

A real broker, two worker processes, and kill -9 of one of them when a quarter is done (it comes
back as its supervisor would have it). tests/chaos/test_flow_control.py is the short version. One
line of JSON at the end: what was done in which time, and how far the keys were apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from surefoot.infra.broker.find import start_broker
from surefoot.infra.runtime import logging
from surefoot.schemas.codec.codec import decode
from surefoot.state.records.encoding import start_out
from tests.chaos.processes.agents import queued
from tests.chaos.processes.lives import lives
from tests.support.cluster import Cluster, cluster

_TOGETHER = 1_000
_STUCK_S = 120.0


class Book:
    """The history, as it is read."""

    def __init__(self, keys: int) -> None:
        self.done: Counter[str] = Counter()
        self.twice: list[str] = []
        #: runs of a key that have begun and not ended
        self.under_way: defaultdict[str, set[str]] = defaultdict(set)
        self.together = 0
        self.order: defaultdict[str, list[int]] = defaultdict(list)
        #: largest and smallest number of finished runs of a key, when half of all are done
        self.half: tuple[int, int] = (0, 0)
        self._keys = keys

    def note(self, event: dict[str, Any], runs: int) -> None:
        key, _, name = event["run_id"].partition("=")
        match event["type"]:
            case "step.completed" if event["seq"] == 0:
                self.under_way[key].add(name)
                self.together = max(self.together, len(self.under_way[key]))
                self.order[key].append(int(name[1:]))
            case "run.completed":
                self.under_way[key].discard(name)
                self.done[event["run_id"]] += 1
                if self.done[event["run_id"]] > 1:
                    self.twice.append(event["run_id"])
                if len(self.done) == runs // 2:
                    each = Counter(run.partition("=")[0] for run in self.done)
                    self.half = (max(each.values()), min(each.values(), default=0))
                    if len(each) < self._keys:
                        self.half = (self.half[0], 0)


async def measure(runs: int, keys: int, folder: Path) -> dict[str, Any]:
    with start_broker(None, ways=("java", "docker")) as broker:
        async with (
            cluster(broker.bootstrap, "queued", queued, partitions=6) as kafka,
            lives(kafka.settings, folder, "http://127.0.0.1:9") as children,
        ):
            began_s = time.monotonic()
            await _ask(kafka, runs, keys)
            asked_s = time.monotonic() - began_s
            first = await children.begin("queued")
            await children.begin("queued", slot=1)
            book = Book(keys)
            async with _history(kafka) as events:
                async for event in events:
                    book.note(event, runs)
                    if first.process.returncode is None and len(book.done) == runs // 4:
                        first.process.kill()
                        await first.ended()
                        await children.begin("queued")
                    if len(book.done) == runs:
                        break
    return {
        "runs": runs,
        "keys": keys,
        "asked_for_in_s": round(asked_s, 1),
        "done_in_s": round(time.monotonic() - began_s - asked_s, 1),
        "lost": runs - len(book.done),
        "twice": len(book.twice),
        "most_at_once_of_a_key": book.together,
        "out_of_order": sum(order != sorted(order) for order in book.order.values()),
        "half_way_most_and_least_of_a_key": book.half,
    }


async def _ask(kafka: Cluster, runs: int, keys: int) -> None:
    """All of one key first, then all of the next: fair is not what comes by itself."""
    settings = kafka.settings
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, acks="all")
    await producer.start()
    try:
        sent = []
        for number in range(runs):
            key, n = divmod(number, runs // keys)
            payload = json.dumps({"key": key, "n": n}).encode()
            run_id = queued.name_run(f"r{n}", payload)
            out = start_out(
                settings.app,
                settings.partitions,
                queued.name,
                run_id,
                payload,
                sent_ms=kafka.clock.now_ms(),
            )
            sent.append(
                await producer.send(
                    out.topic, out.value, out.key, out.partition, headers=list(out.headers)
                )
            )
            if len(sent) == _TOGETHER:
                await asyncio.gather(*sent)
                sent.clear()
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


@asynccontextmanager
async def _history(kafka: Cluster) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.settings.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    topic = kafka.topics(queued).events

    async def events() -> AsyncIterator[dict[str, Any]]:
        while True:
            async with asyncio.timeout(_STUCK_S):
                record = await consumer.getone()
            event: Any = decode(record.value or b"", "Event")[1]
            yield event

    try:
        consumer.assign([TopicPartition(topic, n) for n in range(kafka.settings.partitions)])
        yield events()
    finally:
        await consumer.stop()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.longrun.queued")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=1_000)
    asked = parser.parse_args(argv)
    logging.configure(level="ERROR")
    with tempfile.TemporaryDirectory(prefix="surefoot-queued-") as folder:
        told = asyncio.run(measure(asked.runs, asked.keys, Path(folder)))
    sys.stdout.write(json.dumps(told) + "\n")
    wrong = told["lost"] or told["twice"] or told["out_of_order"]
    return int(bool(wrong) or told["most_at_once_of_a_key"] > 1)


if __name__ == "__main__":
    sys.exit(main())
