"""The SourceLog port on Apache Kafka: a topic of another application, through aiokafka.

The facts about aiokafka in log.py hold here too. The fence is the epoch of one transactional id for
each partition of the topic, whichever member owns it. The client never resets a position itself
(auto_offset_reset="none"): state.declare.topics decides where to begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    for_code,
)

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka.log import FETCH_WAIT_MS, MAX_POLL_INTERVAL_MS, join_s, record_of
from surefoot.infra.kafka.txn import TransactionalProducer, commit_deadline_s
from surefoot.infra.kafka_client.batches import readable
from surefoot.infra.kafka_client.clients import close_client, leave_group
from surefoot.infra.kafka_client.errors import start_client, unavailable
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.kafka_client.tail import admin_client
from surefoot.infra.kafka_client.transactions import Membership
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import FencedError, OutcomeUnknown, Unavailable
from surefoot.state.names.topics import AgentTopics, fence_id
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.ports.sources import OffsetGone, SourceOffsets, StartPosition

log = structlog.get_logger(__name__)

#: how often to look for a missing topic, in seconds
MISSING_POLL_S = 2.0


class KafkaSourceLog:
    """Implements SourceLog: one member of one trigger's group."""

    def __init__(
        self,
        *,
        topics: AgentTopics,
        topic: str,
        settings: Settings,
        clock: Clock,
        slot: int,
        group: str,
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._group = group
        self._settings = settings
        self._clock = clock
        self._instance = f"{settings.instance}.{slot}"
        #: since when a missing topic has been waited for: its first events count
        self._missing_since_ms: int | None = None
        self._consumer: AIOKafkaConsumer | None = None
        #: for requests: on the reading consumer's connection they would wait behind the long poll
        self._asker: AIOKafkaConsumer | None = None

    async def settle_start(self, start: StartPosition) -> None:
        producer = TransactionalProducer(f"{self._group}.start", self._settings, self._clock)
        asker = self._new_consumer()
        try:
            partitions = await self._existing()
            await start_client(asker)
            # Fenced: of several concurrent callers, only one finds no committed offset.
            await producer.start()
            standings = {tp: await self._standing(asker, tp) for tp in partitions}
            if any(each.committed is not None for each in standings.values()):
                return
            places = {tp: each.first for tp, each in standings.items()}
            if start == "latest":
                places = {tp: each.end for tp, each in standings.items()}
                if (since_ms := self._missing_since_ms) is not None:
                    found = await asker.offsets_for_times(dict.fromkeys(partitions, since_ms))
                    places |= {tp: at.offset for tp, at in found.items() if at is not None}
            await producer.transact([], places, Membership(self._group))
            log.info(
                "trigger_begins",
                topic=self._topic,
                agent=self._topics.agent,
                start=start,
                offsets={tp.partition: offset for tp, offset in places.items()},
            )
        except (TimeoutError, KafkaError, FencedError, OutcomeUnknown) as error:
            raise unavailable(f"where to begin in {self._topic}", error, self._settings) from error
        finally:
            try:
                await close_client(asker)
            finally:
                await producer.retire()

    async def _existing(self) -> list[TopicPartition]:
        """Wait for the topic to exist, and return its partitions.

        Describes it by name only once it is listed: describing a missing topic could create it."""
        admin = admin_client(self._settings)
        try:
            await start_client(admin)
            while self._topic not in await admin.list_topics():
                if self._missing_since_ms is None:
                    self._missing_since_ms = self._clock.now_ms()
                    log.warning("topic_missing", topic=self._topic, agent=self._topics.agent)
                await asyncio.sleep(MISSING_POLL_S)
            (told,) = await admin.describe_topics([self._topic])
        finally:
            await close_client(admin)
        if told["error_code"]:
            raise Unavailable(
                "SF3002", f"topic {self._topic}: {for_code(told['error_code']).__name__}"
            )
        return [TopicPartition(self._topic, p["partition"]) for p in told["partitions"]]

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        asker = self._new_consumer()
        consumer = self._new_consumer(group_instance_id=self._instance)
        try:
            await start_client(asker)
            await start_client(consumer)
        except BaseException as error:
            await close_client(asker, consumer)
            if isinstance(error, KafkaError):
                raise unavailable("cannot join", error, self._settings, starting=True) from error
            raise
        self._asker, self._consumer = asker, consumer
        listener = _Listener(consumer, on_assigned, on_revoked)
        consumer.subscribe([self._topic], listener=listener)

    def _new_consumer(self, group_instance_id: str | None = None) -> AIOKafkaConsumer:
        settings = self._settings
        return with_failover(
            AIOKafkaConsumer(
                **(settings.kafka() | {"client_id": f"{self._group}.{self._instance}"}),
                group_id=self._group,
                group_instance_id=group_instance_id,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="none",
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
                request_timeout_ms=settings.producer_request_timeout_ms + FETCH_WAIT_MS,
                fetch_max_wait_ms=FETCH_WAIT_MS,
            ),
            join_s=join_s(settings),
        )

    @property
    def _live(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "start() comes first"
        return self._consumer

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        try:
            batches = await readable(self._live.getmany(timeout_ms=int(timeout_s * 1000)))
        except NoOffsetForPartitionError:
            return []  # its position is set once the partition has an owner
        except OffsetOutOfRangeError as error:
            (place,) = error.args[0]
            raise OffsetGone(place.partition) from error
        except KafkaError as error:
            raise unavailable(f"reading {self._topic}", error, self._settings) from error
        return [record_of(record) for records in batches.values() for record in records]

    def pause(self, partition: int) -> None:
        tp = self._place(partition)
        if tp in self._live.assignment():
            self._live.pause(tp)

    def resume(self, partition: int, position: int | None = None) -> None:
        tp = self._place(partition)
        if tp not in self._live.assignment():
            return
        if position is not None:
            self._live.seek(tp, position)
        self._live.resume(tp)

    def position(self, partition: int) -> int | None:
        consumer, tp = self._live, self._place(partition)
        if tp not in consumer.assignment() or tp in consumer.paused():
            return None
        end = consumer.last_stable_offset(tp)
        state = consumer._subscription.subscription.assignment.state_value(tp)
        if end is None or not state.has_valid_position or state.position < end:
            return None
        return int(state.position)

    async def own(self, partition: int) -> KafkaSourceOwnership:
        identity = fence_id(self._group, partition)
        producer = TransactionalProducer(identity, self._settings, self._clock)
        await producer.start()
        return KafkaSourceOwnership(self, self._place(partition), producer)

    async def _standing(self, asker: AIOKafkaConsumer, tp: TopicPartition) -> SourceOffsets:
        async with asyncio.timeout(commit_deadline_s(self._settings)):
            committed = await asker.committed(tp)
            firsts, ends = await asker.beginning_offsets([tp]), await asker.end_offsets([tp])
        return SourceOffsets(committed, firsts[tp], ends[tp])

    @never_cut_short
    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        asker, self._asker = self._asker, None
        if consumer is not None:
            await leave_group(consumer)
            await close_client(consumer)
        if asker is not None:
            await close_client(asker)


class KafkaSourceOwnership:
    """Implements SourceOwnership: one partition under one producer epoch."""

    def __init__(
        self, log_: KafkaSourceLog, tp: TopicPartition, producer: TransactionalProducer
    ) -> None:
        self._log = log_
        self._tp = tp
        self._producer = producer

    async def standing(self) -> SourceOffsets:
        asker = self._log._asker
        assert asker is not None, "start() comes first"
        try:
            return await self._log._standing(asker, self._tp)
        except (TimeoutError, KafkaError) as error:
            raise unavailable("committed offset", error, self._log._settings) from error

    async def commit(self, records: Sequence[ProducerRecord], offset: int) -> None:
        member = Membership(self._log._group)
        await self._producer.transact(records, {self._tp: offset}, member)

    async def close(self) -> None:
        await self._producer.retire()


class _Listener(ConsumerRebalanceListener):
    """Pauses first: the new assignment is live before the callback."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        self._consumer = consumer
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        del revoked
        await self._on_revoked()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._consumer.pause(*assigned)
        self._on_assigned(frozenset(tp.partition for tp in assigned))
