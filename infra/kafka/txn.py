"""One transactional producer, used for one epoch.

Any outcome other than a clean commit retires the producer. A commit is clean only when its EndTxn
was sent exactly once and its TxnOffsetCommit at most once. After a timeout or a lost socket,
aiokafka resends both with the same epoch and reports success, while the first request may still be
under way. A late EndTxn would decide a later transaction of the same epoch (KAFKA-17754), and a
late TxnOffsetCommit would set the group's offsets back. A new epoch makes both harmless.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    InvalidProducerEpoch,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.metadata import MetadataRequest

from surefoot.infra.kafka_client.clients import BATCH_BYTES, close_client
from surefoot.infra.kafka_client.errors import start_client, unavailable
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import (
    FencedError,
    NoSuchTopic,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
)
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ProducerRecord

#: valid topic names. Source: Kafka, org.apache.kafka.common.internals.Topic
_NAMED = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: how long a producer may take to close before it is cut off, in seconds
RETIRE_S = 2.0


def commit_deadline_s(settings: Settings) -> float:
    """Seconds after which the broker has decided any transaction that it received."""
    return settings.transaction_timeout_ms / 1000 + 2.0


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception: the first one ends the transaction, others need no report."""
    if not future.cancelled():
        future.exception()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Records of one partition on their way to the broker."""

    written: asyncio.Future[Any]
    place: TopicPartition
    count: int
    #: size of its largest record, in bytes
    largest: int


class TransactionalProducer:
    """A fenced producer; one transaction at a time."""

    def __init__(self, transactional_id: str, settings: Settings, clock: Clock) -> None:
        self.transactional_id = transactional_id
        self._settings = settings
        self._clock = clock
        self._producer = self._new()
        #: EndTxn and TxnOffsetCommit requests sent for the transaction in progress
        self._ends_sent = self._offsets_sent = 0

    def _new(self) -> AIOKafkaProducer:
        settings = self._settings
        producer = AIOKafkaProducer(
            **(settings.kafka() | {"client_id": self.transactional_id}),
            transactional_id=self.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            request_timeout_ms=settings.producer_request_timeout_ms,
            # A topic's size limit applies to batches.
            max_batch_size=min(BATCH_BYTES, settings.record_max_bytes),
            acks="all",
        )
        sender = producer._sender
        end = sender._do_txn_commit

        async def ending(commit_result: Any) -> Any:
            self._ends_sent += 1
            return await end(commit_result)

        add = sender._do_txn_offset_commit

        async def adding(offsets: Any, group_id: Any) -> Any:
            self._offsets_sent += 1
            return await add(offsets, group_id)

        manager = producer._txn_manager
        promise = manager.add_offsets_to_txn

        def promising(*args: Any) -> asyncio.Future[None]:
            # The task that waits for it may be cancelled before it fails.
            added: asyncio.Future[None] = promise(*args)
            added.add_done_callback(_looked_at)
            return added

        sender._do_txn_commit = ending
        sender._do_txn_offset_commit = adding
        manager.add_offsets_to_txn = promising
        return producer

    async def start(self) -> None:
        """Fence the former owner; waits until its open transaction is decided.

        Raises: Unavailable — the producer is then retired.
        """
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                await start_client(self._producer)
        except (TimeoutError, KafkaError, AssertionError) as error:
            # aiokafka asserts that a broker is known, which may not hold after an outage
            await self.retire()
            raise unavailable(
                f"cannot start {self.transactional_id}", error, self._settings
            ) from error
        except asyncio.CancelledError:
            await self.retire()
            raise

    async def transact(
        self, records: Sequence[ProducerRecord], offsets: Mapping[TopicPartition, int], group: str
    ) -> dict[TopicPartition, int]:
        """Write everything in one transaction, or nothing.

        Returns: the next offset of every partition written to.
        Raises: as ports.Ownership.commit.
        Under cancellation: the transaction continues until its own deadline; its outcome is
        unknown."""
        task = asyncio.ensure_future(self._transact(records, offsets, group))
        try:
            done, _ = await asyncio.wait({task}, timeout=commit_deadline_s(self._settings))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise OutcomeUnknown(
                f"{self.transactional_id}: no answer within {commit_deadline_s(self._settings):g} s"
            )
        try:
            return task.result()
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise FencedError(f"{self.transactional_id}: {error!r}") from error
        except (RecordRefused, OutcomeUnknown):
            raise
        except (KafkaError, AssertionError, asyncio.CancelledError) as error:
            # aiokafka guards its own transaction states with assertions
            raise OutcomeUnknown(f"{self.transactional_id}: {error!r}") from error

    async def _transact(
        self, records: Sequence[ProducerRecord], offsets: Mapping[TopicPartition, int], group: str
    ) -> dict[TopicPartition, int]:
        producer = self._producer
        self._ends_sent = self._offsets_sent = 0
        for topic in {record.topic for record in records}:
            await self._require(producer, topic)
        await producer.begin_transaction()
        try:
            sent = await self._send(producer, records)
        except IllegalOperation:
            # aiokafka gave up the transaction during the sends; its waiter holds the cause
            producer._txn_manager._transaction_waiter.result()
            raise
        # A failed send does not fail the transaction, so each result is checked before the commit.
        # Offsets are added after the sends: while they are being added, a broker that verifies
        # transactions (KIP-890) rejects produce requests.
        if sent:
            await asyncio.wait([batch.written for batch in sent])
        errors = [batch.written.exception() for batch in sent]
        for batch, error in zip(sent, errors, strict=True):
            if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
                await self._replace()
                raise RecordTooLarge(
                    "the broker refused a batch of records for its size",
                    size=batch.largest,
                    limit=self._settings.record_max_bytes,
                )
        ends = {batch.place: batch.written.result().offset + batch.count for batch in sent}
        await producer.send_offsets_to_transaction(offsets, group)
        await producer.commit_transaction()
        if self._ends_sent != 1 or self._offsets_sent > 1:
            raise OutcomeUnknown(
                f"{self.transactional_id}: EndTxn was sent {self._ends_sent} times, "
                f"TxnOffsetCommit {self._offsets_sent} times"
            )
        return ends

    async def _require(self, producer: AIOKafkaProducer, topic: str) -> None:
        """Raise NoSuchTopic if the topic does not exist: no retry would help.

        Only a broker can say so; while none answers, aiokafka reports every topic as unknown. An
        invalid name is rejected here, because aiokafka could not even encode the request."""
        if not _NAMED.fullmatch(topic):
            raise NoSuchTopic(f"no topic can be called {topic!r}: check the agent's name")
        client = producer.client
        if client.cluster.partitions_for_topic(topic):
            return
        try:
            await client._wait_on_metadata(topic)
        except UnknownTopicOrPartitionError as error:
            answer = await client.send(client.get_random_node(), MetadataRequest([topic]))
            codes = [told[0] for told in answer.topics if told[1] == topic]
            if codes not in ([UnknownTopicOrPartitionError.errno], [InvalidTopicError.errno]):
                raise
            raise NoSuchTopic(
                f"there is no topic {topic}: check the agent's name, or run "
                "`surefoot topics apply` for that agent"
            ) from error

    async def _send(
        self, producer: AIOKafkaProducer, records: Sequence[ProducerRecord]
    ) -> list[_Batch]:
        """Send the records in explicit batches, which saves a future and a lookup per record.

        The records of a partition stay in order."""
        now_ms = self._clock.now_ms()
        by_place: dict[TopicPartition, list[ProducerRecord]] = {}
        for record in records:
            by_place.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        sent: list[_Batch] = []
        for place, outs in by_place.items():
            left = iter(outs)
            out = next(left, None)
            while out is not None:
                builder, largest = producer.create_batch(), 0
                while out is not None:
                    added = builder.append(
                        timestamp=now_ms, key=out.key, value=out.value, headers=list(out.headers)
                    )
                    if added is None:  # full
                        break
                    largest = max(largest, added.size)
                    out = next(left, None)
                builder.close()
                count = builder.record_count()
                written = await producer.send_batch(builder, place.topic, partition=place.partition)
                written.add_done_callback(_looked_at)
                sent.append(_Batch(written, place, count, largest))
        return sent

    async def _replace(self) -> None:
        """Replace the producer by one with a new epoch.

        A refused batch leaves a gap in the old epoch's sequence numbers. Starting the new producer
        aborts the old transaction."""
        await self.retire()
        self._producer = self._new()
        try:
            await start_client(self._producer)
        except KafkaError as error:
            raise OutcomeUnknown(f"{self.transactional_id}: {error!r}") from error

    async def retire(self) -> None:
        """Close without commit or abort; the id's next producer settles an open transaction."""
        await close_client(self._producer, within_s=RETIRE_S)
