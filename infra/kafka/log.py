"""The Log port on Apache Kafka, through aiokafka.

Facts about aiokafka 0.14 that this module relies on (the version is pinned; tests/integration
checks every private name used here):

- Its assignment callback is no barrier. The new assignment is live before the callback, and no
  heartbeat is sent while it runs. So the callback pauses everything as its first statement, tells
  the worker, and returns.
- It raises for an out-of-range position either before it returns other partitions' records or
  after, so no records are lost.
- Every rebalance is eager and resets positions and pauses, including those of retained partitions.
  Retained partitions are sought back to their owner's position.
- It sends OffsetFetch without the stable flag, and TxnOffsetCommit without a generation (KIP-447).
  So both go through a client of our own (shared.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka.assignor import CopartitionedSticky
from surefoot.infra.kafka.shared import UNSTABLE_S, Holding, SharedTransactions
from surefoot.infra.kafka.txn import RETIRE_S, commit_deadline_s
from surefoot.infra.kafka_client.batches import readable
from surefoot.infra.kafka_client.clients import close_client, leave_group
from surefoot.infra.kafka_client.errors import start_client, unavailable
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.kafka_client.publisher import Publisher
from surefoot.infra.kafka_client.transactions import Membership
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, OutcomeUnknown, Unavailable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import (
    Assignment,
    Committed,
    ConsumerRecord,
    InputGone,
    InputKind,
    ProducerRecord,
)

log = structlog.get_logger(__name__)

#: fraction of the session timeout for which a proof of membership is trusted
LEASE_SHARE = 0.8
#: how often another member of the same name may oust this one within a session and a rebalance
OUSTED_MOST = 3
UNKNOWN_MEMBER_ID = 25
#: error code that aiokafka does not know
FENCED_INSTANCE_ID = 82
#: a member whose loop has not polled for this long leaves the group
MAX_POLL_INTERVAL_MS = 60_000
#: how long the broker holds back a fetch that finds no records
FETCH_WAIT_MS = 500


def join_s(settings: Settings) -> float:
    """How long a join may take, in seconds. No longer: a silently dead connection keeps the member
    out of its group for this long."""
    return (settings.rebalance_timeout_ms + settings.producer_request_timeout_ms) / 1000


class KafkaLog:
    """Implements ports.Log for one agent: one member of its consumer group."""

    def __init__(
        self, *, topics: AgentTopics, partitions: int, settings: Settings, clock: Clock, slot: int
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._instance = f"{topics.group}.{settings.instance}.{slot}"
        self._kinds: dict[str, InputKind] = {topics.commands: "commands", topics.tasks: "tasks"}
        self._assignor = CopartitionedSticky((topics.commands, topics.tasks), partitions)
        self._consumer: AIOKafkaConsumer | None = None
        self._on_change: Callable[[Assignment], None] | None = None
        self._on_rebalance: Callable[[], Awaitable[None]] | None = None
        self._mine: frozenset[int] = frozenset()
        self._member = Membership(topics.group)
        self._rebalancing = True
        self._proved_s = float("-inf")
        #: latest times at which another member ousted this one; monotonic seconds
        self._ousted_s: deque[float] = deque(maxlen=OUSTED_MOST)
        self._publisher = Publisher(settings)
        self._shared = SharedTransactions(self._instance, settings, clock)

    @property
    def partitions(self) -> int:
        return self._partitions

    async def start(
        self,
        on_change: Callable[[Assignment], None],
        on_rebalance: Callable[[], Awaitable[None]],
    ) -> None:
        settings = self._settings
        self._on_change = on_change
        self._on_rebalance = on_rebalance
        consumer = with_failover(
            AIOKafkaConsumer(
                **(settings.kafka() | {"client_id": self._instance}),
                group_id=self._topics.group,
                group_instance_id=self._instance,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="none",
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
                request_timeout_ms=settings.producer_request_timeout_ms + FETCH_WAIT_MS,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                partition_assignment_strategy=(self._assignor,),
            ),
            join_s=join_s(settings),
        )
        try:
            await start_client(consumer)
        except BaseException as error:
            await close_client(consumer)
            if isinstance(error, KafkaError):
                raise unavailable("cannot join", error, settings, starting=True) from error
            raise
        self._consumer = consumer
        self._watch_membership()
        self._consumer.subscribe(
            [self._topics.commands, self._topics.tasks], listener=_Listener(self)
        )

    @property
    def _live(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "start() comes first"
        return self._consumer

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        if self._ousted:
            raise ConfigError(
                "SF3011",
                f"another process is member {self._instance!r} of group {self._topics.group}, as "
                "this one is; end one of the two, or give each an identity of its own with "
                "SUREFOOT_INSTANCE",
            )
        try:
            batches = await readable(self._live.getmany(timeout_ms=int(timeout_s * 1000)))
        except NoOffsetForPartitionError:
            return []  # a partition that is just being assigned
        except OffsetOutOfRangeError as error:
            ((tp, offset),) = error.args[0].items()
            await self._go_on(tp, offset)
            return []
        except KafkaError as error:
            raise unavailable("reading", error, self._settings) from error
        return [
            (self._kinds[tp.topic], record_of(record))
            for tp, records in batches.items()
            for record in records
        ]

    async def _go_on(self, tp: TopicPartition, offset: int) -> None:
        """Seek to the beginning of the log after an out-of-range offset.

        No remaining record is missed.

        Raises: InputGone — records before the beginning are gone; Unavailable."""
        consumer = self._live
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                begin = (await consumer.beginning_offsets([tp]))[tp]
        except (TimeoutError, KafkaError) as error:
            raise unavailable("where the inputs begin", error, self._settings) from error
        if tp not in consumer.assignment():
            return
        place = self._place(tp)
        if not place.has_valid_position or place.position != offset:
            return  # its owner has set a new position
        consumer.seek(tp, begin)
        if begin > offset:
            raise InputGone(self._kinds[tp.topic], tp.partition, offset, begin)

    def pause(self, partition: int) -> None:
        assigned = self._live.assignment()
        self._live.pause(*(tp for tp in self._inputs(partition) if tp in assigned))

    def resume(
        self, partition: int, positions: Mapping[InputKind, int | None] | None = None
    ) -> None:
        consumer = self._live
        assigned = consumer.assignment()
        for tp in self._inputs(partition):
            if tp not in assigned:
                continue
            if positions is not None:
                consumer.seek(tp, positions[self._kinds[tp.topic]] or 0)
            consumer.resume(tp)

    async def positions(self, partition: int) -> dict[InputKind, int]:
        consumer = self._live
        assigned = consumer.assignment()
        ends: dict[InputKind, int] = {}
        for tp in self._inputs(partition):
            if tp not in assigned or tp in consumer.paused():
                continue
            end = consumer.last_stable_offset(tp)
            state = self._place(tp)
            if end is not None and state.has_valid_position and state.position >= end:
                ends[self._kinds[tp.topic]] = state.position
        return ends

    def _place(self, tp: TopicPartition) -> Any:
        """Return aiokafka's state for the partition."""
        return self._live._subscription.subscription.assignment.state_value(tp)

    def lso_lag(self) -> int:
        """Return how many input offsets open transactions hold back, as of the latest fetches."""
        if self._consumer is None:
            return 0
        consumer = self._consumer
        places = consumer.assignment()
        ends = [(consumer.highwater(tp), consumer.last_stable_offset(tp)) for tp in places]
        # both are known after the first fetch
        return sum(max(0, end - stable) for end, stable in ends if end and stable)

    async def own(self, partition: int) -> KafkaOwnership:
        return KafkaOwnership(self, await self._shared.take(partition))

    def publish(self, records: Sequence[ProducerRecord]) -> None:
        self._publisher.publish(records)

    def lease_left_s(self) -> float:
        if self._rebalancing:
            return 0.0
        return max(0.0, self._proved_s + self.lease_s() - self._clock.monotonic_s())

    def lease_s(self) -> float:
        return self._settings.session_timeout_ms / 1000 * LEASE_SHARE

    @never_cut_short
    async def stop(self, *, leave: bool) -> None:
        await self._publisher.close()
        await self._shared.close()
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if leave:
            await self._leave(consumer)
        await close_client(consumer)

    def _inputs(self, partition: int) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for topic in self._kinds]

    # Membership ------------------------------------------------------------------------------

    def _watch_membership(self) -> None:
        """Record every response by which the coordinator proves that this member is in the group.

        A proof counts from the time its request was sent."""
        consumer = self._live
        coordinator = consumer._coordinator
        send = coordinator._send_req

        async def sending(request: Any) -> Any:
            asked_s = self._clock.monotonic_s()
            if isinstance(request, JoinGroupRequest) and self._ousted:
                # `poll`, which ends the worker, may be waiting for the result of this join.
                error = KafkaError("another process has this one's identity")
                consumer._subscription.abort_waiters(error)
                raise error
            response = await send(request)
            if isinstance(request, HeartbeatRequest | SyncGroupRequest | JoinGroupRequest):
                code = response.error_code
                if code == FENCED_INSTANCE_ID:
                    self._ousted_s.append(asked_s)
                    response.error_code = UNKNOWN_MEMBER_ID  # join again with a new member id
                elif code == UNKNOWN_MEMBER_ID and self._in_session(asked_s):
                    self._ousted_s.append(asked_s)
                elif not code and not isinstance(request, JoinGroupRequest):
                    self._proved_s = asked_s
            return response

        coordinator._send_req = sending

    def _in_session(self, now_s: float) -> bool:
        return now_s - self._proved_s < self._settings.session_timeout_ms / 1000

    @property
    def _ousted(self) -> bool:
        """Whether other processes with this member's name have ousted it too often.

        A member that joins under the name of a live one ousts it (KIP-345). aiokafka rejoins and
        ousts the other in turn, so two processes of one name would alternate for ever. The one
        ousted too often gives up."""
        ousted, settings = self._ousted_s, self._settings
        span_s = (settings.session_timeout_ms + settings.rebalance_timeout_ms) / 1000
        return len(ousted) == OUSTED_MOST and ousted[-1] - ousted[0] < span_s

    async def _leave(self, consumer: AIOKafkaConsumer) -> None:
        await leave_group(consumer)

    async def _revoked(self) -> None:
        """Give partitions back. Heartbeats continue, unlike in the assignment callback."""
        self._rebalancing = True
        if self._mine and self._on_rebalance is not None:
            await self._on_rebalance()
        await self._shared.hold()

    def _assigned(self, assigned: set[TopicPartition]) -> None:
        consumer = self._live
        consumer.pause(*assigned)
        for tp in assigned:  # aiokafka would keep asking for a position
            consumer.seek(tp, 0)
        now = frozenset(tp.partition for tp in assigned)
        coordinator, former = consumer._coordinator, self._member
        member = Membership(
            self._topics.group, coordinator.generation, coordinator.member_id, self._instance
        )
        # With no generation in between, and no process of this one's name (it would have changed
        # the member id), nobody else can have owned the partitions in both.
        kept = now & self._mine if member.follows(former) else frozenset()
        change = Assignment(gained=now - kept, retained=kept, lost=self._mine - now)
        self._mine, self._member = now, member
        self._assignor.owned = (member.generation, now)
        self._shared.admit(member, now, kept)
        assert self._on_change is not None
        self._on_change(change)
        self._rebalancing = False  # with it the lease is valid, also for the steps' thread


class KafkaOwnership:
    """Implements ports.Ownership: one partition, for as long as it is assigned."""

    def __init__(self, log_: KafkaLog, holding: Holding) -> None:
        self._log = log_
        self._holding = holding
        self._partition = holding.partition
        self._settings = log_._settings
        self._topics = log_._topics
        self._reader: AIOKafkaConsumer | None = None

    async def committed(self) -> dict[InputKind, int | None]:
        inputs = self._log._inputs(self._partition)
        found = await self._log._shared.committed(self._holding, self._topics.group, inputs)
        return {self._log._kinds[tp.topic]: found[tp].offset for tp in inputs}

    async def begins(self) -> dict[InputKind, int]:
        inputs = self._log._inputs(self._partition)
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                found = await (await self._open_reader()).beginning_offsets(inputs)
        except (TimeoutError, KafkaError) as error:
            raise unavailable("where the inputs begin", error, self._settings) from error
        return {self._log._kinds[tp.topic]: offset for tp, offset in found.items()}

    async def restore(
        self, start: int | None, apply: Callable[[list[ConsumerRecord]], None]
    ) -> int:
        tp = TopicPartition(self._topics.state, self._partition)
        try:
            reader = await self._open_reader()
            reader.assign([tp])
            reader.seek(tp, start or 0)
            return await self._read_to_end(reader, tp, apply)
        except (TimeoutError, KafkaError) as error:
            doing = f"restore of {tp.topic}/{tp.partition}"
            raise unavailable(doing, error, self._settings) from error
        finally:
            await self._close_reader()

    async def name_owner(self, offsets: Mapping[InputKind, int]) -> None:
        try:
            await self._log._shared.name(self._holding, self._places(offsets))
        except OutcomeUnknown:
            self._log._live._coordinator.request_rejoin()  # in the next generation it is refused
            raise

    async def _open_reader(self) -> AIOKafkaConsumer:
        """Return a consumer used only for the takeover.

        On the worker's own connection, a request would wait behind the long poll."""
        if self._reader is None:
            self._reader = with_failover(
                AIOKafkaConsumer(
                    **(self._settings.kafka() | {"client_id": f"{self._log._instance}.restore"}),
                    isolation_level="read_committed",
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                    request_timeout_ms=self._settings.producer_request_timeout_ms + FETCH_WAIT_MS,
                    fetch_max_wait_ms=100,
                )
            )
            await start_client(self._reader)
        return self._reader

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_client(reader, within_s=RETIRE_S)

    async def _read_to_end(
        self,
        consumer: AIOKafkaConsumer,
        tp: TopicPartition,
        apply: Callable[[list[ConsumerRecord]], None],
    ) -> int:
        """Read up to the high watermark.

        Waits for any open transaction below it, and ends one that the former owner leaves open. The
        position decides when the end is reached, as it moves past markers, aborted records and
        compacted ranges.

        Raises: Unavailable — no progress for `restore_s`."""
        clock, shared = self._log._clock, self._log._shared
        progress_s, fenced = clock.monotonic_s(), False
        async with asyncio.timeout(commit_deadline_s(self._settings)):
            target = await shared.high_watermark(tp)
        position = -1
        deadline_s = self._log._settings.deadlines.restore_s
        while True:
            batches = await readable(consumer.getmany(tp, timeout_ms=50))
            apply([record_of(record) for record in batches.get(tp, ())])
            reached = await consumer.position(tp)
            if reached >= target:
                return int(reached)
            if reached > position:
                position, progress_s = reached, clock.monotonic_s()
            elif not fenced and self._is_held(consumer, tp, progress_s):
                fenced = True
                await shared.fence(self._holding.former)
            elif clock.monotonic_s() - progress_s > deadline_s:
                raise Unavailable(
                    "SF3007",
                    f"restore of {tp.topic}/{tp.partition} stands at {reached} of {target} for "
                    f"{deadline_s:g} s; another producer's open transaction may hold it",
                )

    def _is_held(self, consumer: AIOKafkaConsumer, tp: TopicPartition, since_s: float) -> bool:
        """Return whether an open transaction has held back what comes next for too long."""
        end, stable = consumer.highwater(tp), consumer.last_stable_offset(tp)
        held = end is not None and stable is not None and stable < end
        return held and self._log._clock.monotonic_s() - since_s > UNSTABLE_S

    async def commit(
        self, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        places = self._places(offsets)
        written = await self._log._shared.commit(self._holding, records, places)
        mine: dict[str, list[int]] = {self._topics.state: [], self._topics.tasks: []}
        for out, offset in zip(records, written, strict=True):
            if out.partition == self._partition and out.topic in mine:
                mine[out.topic].append(offset)
        return Committed(mine[self._topics.state][-1] + 1, tuple(mine[self._topics.tasks]))

    def _places(self, offsets: Mapping[InputKind, int]) -> dict[TopicPartition, int]:
        return {
            TopicPartition(getattr(self._topics, kind), self._partition): offset
            for kind, offset in offsets.items()
        }

    @never_cut_short
    async def close(self) -> None:
        self._log._shared.drop(self._holding)
        await self._close_reader()


class _Listener(ConsumerRebalanceListener):
    def __init__(self, log_: KafkaLog) -> None:
        self._log = log_

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        del revoked
        await self._log._revoked()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._log._assigned(assigned)


def record_of(record: Any) -> ConsumerRecord:
    """Convert aiokafka's record."""
    return ConsumerRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )
