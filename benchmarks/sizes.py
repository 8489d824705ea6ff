"""What a finished run leaves: bytes in each topic, and memory and time in whoever owns it.

    python -m benchmarks.sizes

A worker on a broker of its own takes runs of five steps with 1 kB of state, from a backlog. Bytes
are those of the log's segments in one replica, with batches and markers, uncompressed, before
compaction. Receipts are the final checkpoints of these runs, under other names, folded as a
takeover does: the resident memory that they add, and the CPU time for each.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.records import AGENT
from benchmarks.site import create_topics, events_reader, process, start_runs
from surefoot.infra.broker.find import start_broker
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.run_store import RunStore

RUNS, STEPS = 2_000, 5
#: events of a run: its start, and each step
EVENTS = STEPS + 1
RECEIPTS, BATCH = 200_000, 1_000


async def finish(settings: Settings) -> list[tuple[bytes, bytes]]:
    """Have a worker do all runs; return the keys and values of their final checkpoints."""
    await create_topics(settings)
    await start_runs(settings, RUNS, STEPS)
    with process(("surefoot", "worker", "benchmarks/agents.py"), settings) as worker:
        async with events_reader(settings) as reader:
            left = RUNS * EVENTS
            while left > 0:
                worker.check()
                left -= sum(map(len, (await reader.getmany(timeout_ms=1_000)).values()))
    final: dict[bytes, bytes] = {}
    topic = AgentTopics(settings.app, AGENT).state
    async with AIOKafkaConsumer(**settings.kafka(), isolation_level="read_committed") as consumer:
        places = [TopicPartition(topic, partition) for partition in range(settings.partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        for place, end in (await consumer.end_offsets(places)).items():
            while await consumer.position(place) < end:
                for record in (await consumer.getmany(place, timeout_ms=1_000)).get(place, []):
                    if record.key.startswith(b"run-") and b"|" not in record.key:
                        final[record.key] = record.value
    return list(final.items())


def in_log(settings: Settings, data: Path) -> dict[str, float]:
    """Bytes a run in each topic of the agent."""
    topics = AgentTopics(settings.app, AGENT)
    names = {kind: getattr(topics, kind) for kind in ("commands", "tasks", "state", "events")}
    return {
        kind: sum(file.stat().st_size for file in data.glob(f"{name}-*/*.log")) / RUNS
        for kind, name in names.items()
    }


def in_memory(final: Sequence[tuple[bytes, bytes]]) -> dict[str, float]:
    """Bytes of a receipt in memory, and what it costs to restore it, in microseconds."""
    store, took_s = RunStore(), 0.0
    gc.collect()
    before = psutil.Process().memory_info().rss
    for first in range(0, RECEIPTS, BATCH):
        batch = []
        for number in range(first, first + BATCH):
            (key, value), name = final[number % len(final)], b"fin-%08d" % number
            batch.append(ConsumerRecord("state", 0, number, 0, name, value.replace(key, name)))
        began = time.process_time()
        store.apply(batch)
        took_s += time.process_time() - began
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    if len(store.receipts) != RECEIPTS:
        raise RuntimeError(f"{len(store.receipts)} receipts of {RECEIPTS}")
    return {
        "bytes_in_record": sum(len(value) for _, value in final) / len(final),
        "bytes_in_memory": grown / RECEIPTS,
        "cpu_us_restored": took_s * 1e6 / RECEIPTS,
    }


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="surefoot-sizes-") as folder,
        start_broker(ways=("java",), folder=Path(folder)) as broker,
    ):
        settings = load_settings(app="sizes", bootstrap_servers=broker.bootstrap)
        final = asyncio.run(finish(settings))
        found = {
            "log_bytes_a_run": in_log(settings, Path(folder) / "data"),
            "receipt": in_memory(final),
        }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
