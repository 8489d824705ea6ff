"""The yardstick: consume, transform, produce in transactions, by hand with aiokafka.

It writes what the engine writes for the same runs (records, sizes, headers, at most so many inputs
in flight) and nothing else that the engine does: no steps are run, nothing is encoded, no state is
kept, no failure is survived. A transaction has what one poll of its producer's partitions returned;
without PRODUCERS, each partition has a producer of its own, as with the engine.

    python -m benchmarks.bare STEPS [PRODUCERS]     until SIGTERM; settings from SUREFOOT_...
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.records import AGENT, applied, chain
from surefoot.infra.kafka_client.clients import BATCH_BYTES
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import APPLIED_KEY, AgentTopics, fence_id

#: longest wait for an input, in ms
_POLL_MS = 500


class Lane:
    """Some partitions with one transactional producer: what one poll returns is one transaction."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        settings: Settings,
        partitions: Sequence[int],
        steps: int,
        share: int,
    ) -> None:
        topics = AgentTopics(settings.app, AGENT)
        self._consumer = consumer
        self._group = topics.group
        self._commands = [TopicPartition(topics.commands, number) for number in partitions]
        self._tasks = [TopicPartition(topics.tasks, number) for number in partitions]
        self._share = share
        self._chain = chain(settings.app, settings.partitions, steps)
        self._applied = applied(settings.app, settings.partitions)
        self._clock = SystemClock()
        self._producer = AIOKafkaProducer(
            **settings.kafka(),
            transactional_id=fence_id(topics.group, partitions[0]),
            transaction_timeout_ms=settings.transaction_timeout_ms,
            max_batch_size=BATCH_BYTES,
            acks="all",
        )

    async def serve(self) -> None:
        """Until cancelled."""
        await self._producer.start()
        while True:
            batches = await self._poll()
            if batches:
                await self._transact(batches)

    async def _poll(self) -> dict[TopicPartition, list[Any]]:
        """Up to the lane's share of what may be in flight; runs under way come first."""
        poll = self._consumer.getmany
        found: dict[TopicPartition, list[Any]] = await poll(*self._tasks, max_records=self._share)
        left = self._share - sum(map(len, found.values()))
        if left:
            found |= await poll(*self._commands, max_records=left)
        if not found:
            found = await poll(
                *self._tasks, *self._commands, timeout_ms=_POLL_MS, max_records=self._share
            )
        return found

    async def _transact(self, batches: dict[TopicPartition, list[Any]]) -> None:
        producer = self._producer
        txn = ("sf-txn", self._clock.unique().encode())
        await producer.begin_transaction()
        sent = []
        for place, records in batches.items():
            begins = place in self._commands
            for record in records:
                seq = 0 if begins else int(dict(record.headers)["sf-seq"]) + 1
                source = f"{place.topic}/{place.partition}/{record.offset}".encode()
                headers = [
                    txn,
                    ("sf-src", source),
                    ("sf-run", record.key),
                    ("sf-seq", b"%d" % seq),
                ]
                for out in self._chain[seq]:
                    sent.append(  # noqa: PERF401  (each send is awaited before the next)
                        await producer.send(
                            out.topic,
                            out.value,
                            record.key,
                            place.partition,
                            headers=[*headers, *out.headers],
                        )
                    )
        last = self._applied
        for partition in {place.partition for place in batches}:
            sent.append(  # noqa: PERF401
                await producer.send(last.topic, last.value, APPLIED_KEY, partition, headers=[txn])
            )
        await asyncio.gather(*sent)
        offsets = {place: records[-1].offset + 1 for place, records in batches.items()}
        await producer.send_offsets_to_transaction(offsets, self._group)
        await producer.commit_transaction()


async def run(settings: Settings, steps: int, producers: int) -> None:
    """Serve every partition, all at once; each producer has its share of them."""
    topics = AgentTopics(settings.app, AGENT)
    consumer = AIOKafkaConsumer(
        topics.commands,
        topics.tasks,
        **settings.kafka(),
        group_id=topics.group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    share = max(1, settings.in_flight // producers)
    lanes = [
        Lane(consumer, settings, range(first, settings.partitions, producers), steps, share)
        for first in range(producers)
    ]
    await asyncio.gather(*(lane.serve() for lane in lanes))


if __name__ == "__main__":
    logging.configure()
    chosen = load_settings()
    asked = int(sys.argv[2]) if len(sys.argv) > 2 else chosen.partitions  # noqa: PLR2004
    asyncio.run(run(chosen, int(sys.argv[1]), asked))
