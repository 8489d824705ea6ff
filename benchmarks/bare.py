"""The yardstick: consume, transform, produce in transactions, by hand with aiokafka.

It writes what the engine writes for the same runs (records, sizes, headers, one transaction per
partition and batch, at most so many inputs in flight) and nothing else that the engine does: no
steps are run, nothing is encoded, no state is kept, no failure is survived.

    python -m benchmarks.bare STEPS         until SIGTERM; settings from SUREFOOT_... variables
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.records import AGENT, applied, chain
from surefoot.infra.kafka_client.clients import BATCH_BYTES
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import APPLIED_KEY, AgentTopics

#: longest wait for an input, in ms
_POLL_MS = 500


class Lane:
    """One partition: what one poll returns is one transaction."""

    def __init__(
        self, consumer: AIOKafkaConsumer, settings: Settings, partition: int, steps: int
    ) -> None:
        topics = AgentTopics(settings.app, AGENT)
        self._consumer = consumer
        self._group = topics.group
        self._partition = partition
        self._commands = TopicPartition(topics.commands, partition)
        self._tasks = TopicPartition(topics.tasks, partition)
        self._share = max(1, settings.in_flight // settings.partitions)
        self._chain = chain(settings.app, settings.partitions, steps)
        self._applied = applied(settings.app, settings.partitions)
        self._clock = SystemClock()
        self._producer = AIOKafkaProducer(
            **settings.kafka(),
            transactional_id=topics.transactional_id(partition),
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
        found: dict[TopicPartition, list[Any]] = await poll(self._tasks, max_records=self._share)
        left = self._share - len(found.get(self._tasks, ()))
        if left:
            found |= await poll(self._commands, max_records=left)
        if not found:
            found = await poll(
                self._tasks, self._commands, timeout_ms=_POLL_MS, max_records=self._share
            )
        return found

    async def _transact(self, batches: dict[TopicPartition, list[Any]]) -> None:
        producer, partition = self._producer, self._partition
        txn = ("sf-txn", self._clock.unique().encode())
        await producer.begin_transaction()
        sent = []
        for place, records in batches.items():
            for record in records:
                seq = 0
                if place == self._tasks:
                    seq = int(dict(record.headers)["sf-seq"]) + 1
                source = f"{place.topic}/{partition}/{record.offset}".encode()
                headers = [
                    txn,
                    ("sf-src", source),
                    ("sf-run", record.key),
                    ("sf-seq", b"%d" % seq),
                ]
                for out in self._chain[seq]:
                    sent.append(  # noqa: PERF401  (each send is awaited before the next)
                        await producer.send(
                            out.topic, out.value, record.key, partition, headers=headers
                        )
                    )
        last = self._applied
        sent.append(
            await producer.send(last.topic, last.value, APPLIED_KEY, partition, headers=[txn])
        )
        await asyncio.gather(*sent)
        offsets = {place: records[-1].offset + 1 for place, records in batches.items()}
        await producer.send_offsets_to_transaction(offsets, self._group)
        await producer.commit_transaction()


async def run(settings: Settings, steps: int) -> None:
    """Serve every partition, all at once."""
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
    lanes = [Lane(consumer, settings, partition, steps) for partition in range(settings.partitions)]
    await asyncio.gather(*(lane.serve() for lane in lanes))


if __name__ == "__main__":
    logging.configure()
    asyncio.run(run(load_settings(), int(sys.argv[1])))
