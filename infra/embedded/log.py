"""The embedded log: the Log port without Kafka, for one process.

The broker keeps the records: in memory (memory.py), or in a SQLite file (broker.py). Keeps the same
contract as the Kafka adapter (tests/integration/log/test_log_contract.py), with one difference: a
member reads the coordinator's state directly, so its lease needs no proof and does not expire
between polls.

Every call that is a request on Kafka yields to other tasks, and none waits for time to pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import structlog

from surefoot.infra.kafka.assignor import Claim, share_out
from surefoot.state.errors import OutcomeUnknown, RecordRefused, Unavailable
from surefoot.state.names.topics import AgentTopics, TopicSpec, fence_id
from surefoot.state.ports.log import (
    INPUT_KINDS,
    Assignment,
    Committed,
    ConsumerRecord,
    InputGone,
    InputKind,
    ProducerRecord,
)

log = structlog.get_logger(__name__)

#: length of a member's lease, in seconds
LEASE_S = 8.0
#: a restore held up by an open transaction for this long fails, in seconds
RESTORE_DEADLINE_S = 20.0
#: most records read from one partition at a time
READ_MOST = 1_000

#: (topic, number of the partition)
TopicPartition = tuple[str, int]


class EmbeddedBroker(Protocol):
    """Topics, transactional ids and the offsets of consumer groups.

    One event loop; a method that is not `async` neither waits nor yields.
    """

    #: called when there may be more to read; a dict to keep the order
    listeners: dict[Callable[[], None], None]

    def create(self, specs: Iterable[TopicSpec]) -> list[str]:
        """Create the missing topics; returns their names."""

    def describe(self, names: Iterable[str]) -> dict[str, TopicSpec]:
        """Return those of the topics that exist."""

    def begin_offset(self, place: TopicPartition) -> int:
        """Return the first offset still retained.

        Raises: NoSuchTopic — as every method that takes a place."""

    def end_offset(self, place: TopicPartition) -> int:
        """Return the high watermark: the offset of the next record to be written."""

    def stable_end(self, place: TopicPartition) -> int:
        """Return the last stable offset: readers of committed records stop before it."""

    def read(
        self, place: TopicPartition, position: int, most: int
    ) -> tuple[list[ConsumerRecord], int]:
        """Return at most `most` committed records from that position on, and the next position.

        Raises: Unavailable."""

    def offset_at(self, place: TopicPartition, time_ms: int) -> int | None:
        """Return the offset of the first record at or after that time; None if there is none."""

    async def append(self, outs: Sequence[ProducerRecord]) -> list[int]:
        """Write records outside of any transaction; returns their offsets once they are durable.

        Raises: NoSuchTopic, RecordTooLarge — nothing was written; Unavailable."""

    def publish(self, outs: Sequence[ProducerRecord]) -> None:
        """Write records soon, without waiting. Raises NoSuchTopic, RecordTooLarge."""

    async def take(self, transactional_id: str) -> int:
        """Return a new epoch of that id. Fences the former one and aborts its open transaction.

        Raises: Unavailable."""

    def begin(self, transactional_id: str, epoch: int, outs: Sequence[ProducerRecord]) -> Any:
        """Begin a transaction that contains these records.

        Raises: FencedError, NoSuchTopic, RecordTooLarge — nothing was written.
        """

    async def commit(
        self, transaction: Any, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[int]]:
        """Commit the transaction together with the group's offsets; durable.

        Returns: for each partition written to, the offsets of its records, in order.
        Raises: FencedError — nothing was written; OutcomeUnknown.
        Under cancellation: the commit continues.
        """

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """Return the group's offset (next to read); None if never committed.

        An offset that retention has passed is reported as the first retained one."""


class EmbeddedGroup:
    """The coordinator of one agent's consumer group: static members, eager rebalances."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.generation = 0
        #: by instance; None: gone without leaving, and still a member
        self._members: dict[str, EmbeddedLog | None] = {}
        self._claims: dict[str, Claim] = {}
        self._rebalancing: asyncio.Task[None] | None = None
        self._again = False

    def join(self, instance: str, member: EmbeddedLog) -> None:
        """Add a member. A known instance gets its partitions back without a rebalance."""
        known = instance in self._members and not self._again
        self._members[instance] = member
        if known:
            _, partitions = self._claims[instance]
            asyncio.get_running_loop().call_soon(member.assigned, partitions, self.generation)
        else:
            self._claims[instance] = (-1, frozenset())
            self._rebalance()

    def leave(self, instance: str) -> None:
        self._members.pop(instance, None)
        self._claims.pop(instance, None)
        self._rebalance()

    def vanish(self, instance: str) -> None:
        """The member's process is gone. Its partitions wait for it: sessions do not expire."""
        if instance in self._members:
            self._members[instance] = None

    def _rebalance(self) -> None:
        self._again = True
        if self._rebalancing is None or self._rebalancing.done():
            self._rebalancing = asyncio.get_running_loop().create_task(self._share_out())

    async def _share_out(self) -> None:
        while self._again:
            self._again = False
            here = [member for member in self._members.values() if member is not None]
            await asyncio.gather(*(member.give_back() for member in here))
        if not self._members:
            return
        self.generation += 1
        for instance, partitions in share_out(self._claims, self.partitions).items():
            self._claims[instance] = (self.generation, frozenset(partitions))
        for instance, member in list(self._members.items()):
            if member is not None:
                member.assigned(self._claims[instance][1], self.generation)


class EmbeddedLog:
    """Implements ports.Log for one agent: one member of its consumer group."""

    def __init__(
        self, *, broker: EmbeddedBroker, group: EmbeddedGroup, topics: AgentTopics, slot: int
    ) -> None:
        self._broker = broker
        self._group = group
        self._topics = topics
        self._instance = f"{topics.group}.{slot}"
        self._kinds: dict[InputKind, str] = {"commands": topics.commands, "tasks": topics.tasks}
        self._on_change: Callable[[Assignment], None] | None = None
        self._on_rebalance: Callable[[], Awaitable[None]] | None = None
        self._news = asyncio.Event()
        self._mine: frozenset[int] = frozenset()
        self._generation = -1
        self._rebalancing = True
        self._gone = False
        self._paused: set[int] = set()
        #: next offset to read, of this member's partitions
        self._positions: dict[tuple[InputKind, int], int] = {}

    @property
    def partitions(self) -> int:
        return self._group.partitions

    async def start(
        self,
        on_change: Callable[[Assignment], None],
        on_rebalance: Callable[[], Awaitable[None]],
    ) -> None:
        self._on_change = on_change
        self._on_rebalance = on_rebalance
        self._broker.listeners[self._news.set] = None
        self._group.join(self._instance, self)
        await asyncio.sleep(0)

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        await asyncio.sleep(0)
        self._news.clear()
        found = self._fetch()
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            found = self._fetch()
        return found

    def _fetch(self) -> list[tuple[InputKind, ConsumerRecord]]:
        found: list[tuple[InputKind, ConsumerRecord]] = []
        after: dict[tuple[InputKind, int], int] = {}
        for (kind, partition), position in self._positions.items():
            if partition in self._paused:
                continue
            place = (self._kinds[kind], partition)
            if position < (begin := self._broker.begin_offset(place)):
                self._positions[kind, partition] = begin
                raise InputGone(kind, partition, position, begin)
            records, after[kind, partition] = self._broker.read(place, position, READ_MOST)
            found += ((kind, record) for record in records)
        self._positions |= after  # only once all partitions were read, so that no record is skipped
        return found

    def pause(self, partition: int) -> None:
        if partition in self._mine:
            self._paused.add(partition)

    def resume(
        self, partition: int, positions: Mapping[InputKind, int | None] | None = None
    ) -> None:
        if partition not in self._mine:
            return
        for kind, position in (positions or {}).items():
            self._positions[kind, partition] = position or 0
        self._paused.discard(partition)
        self._news.set()

    async def positions(self, partition: int) -> dict[InputKind, int]:
        if partition not in self._mine or partition in self._paused:
            return {}
        found: dict[InputKind, int] = {}
        for kind, topic in self._kinds.items():
            position = self._positions[kind, partition]
            if position >= self._broker.stable_end((topic, partition)):
                found[kind] = position
        return found

    async def own(self, partition: int) -> EmbeddedOwnership:
        await asyncio.sleep(0)
        if self._gone:
            raise Unavailable("SF3009", "this member is gone")
        epoch = await self._broker.take(fence_id(self._topics.group, partition))
        return self._owned(partition, epoch)

    def _owned(self, partition: int, epoch: int) -> EmbeddedOwnership:
        return EmbeddedOwnership(self._broker, self._topics, partition, epoch)

    def publish(self, records: Sequence[ProducerRecord]) -> None:
        for record in records:
            try:
                self._broker.publish([record])
            except RecordRefused as error:
                log.warning("publish_dropped", topic=record.topic, error=str(error))

    def lease_left_s(self) -> float:
        return 0.0 if self._rebalancing or self._gone else LEASE_S

    def lease_s(self) -> float:
        return 0.0  # all owners are in this process, and a dropped one is stopped

    async def stop(self, *, leave: bool) -> None:
        if self._gone:
            return
        self.vanish()
        if leave:
            self._group.leave(self._instance)
        await asyncio.sleep(0)

    def vanish(self) -> None:
        """Disappear, as after SIGKILL: the group is not notified, and reading stops."""
        self._gone = True
        self._mine = frozenset()
        self._positions.clear()
        self._broker.listeners.pop(self._news.set, None)
        self._group.vanish(self._instance)

    # Membership ------------------------------------------------------------------------------

    async def give_back(self) -> None:
        """Give back the partitions; the rebalance waits for this."""
        self._rebalancing = True
        if self._mine and self._on_rebalance is not None:
            await self._on_rebalance()
        await self._rejoin()

    async def _rejoin(self) -> None:
        await asyncio.sleep(0)

    def assigned(self, now: frozenset[int], generation: int) -> None:
        if self._gone:
            return
        # With no generation in between, no other member can have owned the partitions in both.
        kept = now & self._mine if generation == self._generation + 1 else frozenset()
        change = Assignment(gained=now - kept, retained=kept, lost=self._mine - now)
        self._mine, self._generation = now, generation
        self._paused = set(now)
        self._positions = {
            (kind, partition): self._broker.committed(self._topics.group, (topic, partition)) or 0
            for partition in sorted(now)
            for kind, topic in self._kinds.items()
        }
        assert self._on_change is not None
        self._on_change(change)
        self._rebalancing = False  # with it the lease is valid, also for the steps' thread


class EmbeddedOwnership:
    """Implements ports.Ownership: one partition under one producer epoch."""

    def __init__(
        self, broker: EmbeddedBroker, topics: AgentTopics, partition: int, epoch: int
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._partition = partition
        self._id = fence_id(topics.group, partition)
        self._epoch = epoch
        self._closed = False

    async def committed(self) -> dict[InputKind, int | None]:
        await asyncio.sleep(0)
        group = self._topics.group
        return {kind: self._broker.committed(group, self._input(kind)) for kind in INPUT_KINDS}

    async def begins(self) -> dict[InputKind, int]:
        return {kind: self._broker.begin_offset(self._input(kind)) for kind in INPUT_KINDS}

    async def name_owner(self, offsets: Mapping[InputKind, int]) -> None:
        del offsets  # nobody leaves a transaction open here

    async def restore(
        self, start: int | None, apply: Callable[[list[ConsumerRecord]], None]
    ) -> int:
        broker, place = self._broker, (self._topics.state, self._partition)
        target = broker.end_offset(place)
        await self._until_stable(place, target)
        position = start or 0
        while position < target:
            records, position = broker.read(place, position, READ_MOST)
            apply(records)
            await asyncio.sleep(0)
        return position

    async def _until_stable(self, place: TopicPartition, target: int) -> None:
        """Wait for the open transactions below `target` to end."""
        changed = asyncio.Event()
        self._broker.listeners[changed.set] = None
        try:
            async with asyncio.timeout(RESTORE_DEADLINE_S):
                while self._broker.stable_end(place) < target:
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise Unavailable("SF3007", f"an open transaction holds {self._topics.state}") from None
        finally:
            self._broker.listeners.pop(changed.set, None)

    async def commit(
        self, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        if self._closed:
            raise OutcomeUnknown("this ownership has been given up")
        transaction = self._broker.begin(self._id, self._epoch, records)
        await self._end()
        places = {self._input(kind): offset for kind, offset in offsets.items()}
        written = await self._broker.commit(transaction, self._topics.group, places)
        await self._answer()
        state = written[self._topics.state, self._partition]
        return Committed(state[-1] + 1, tuple(written.get(self._input("tasks"), ())))

    async def _end(self) -> None:
        """Hook: everything has been checked and is about to be committed."""
        await asyncio.sleep(0)

    async def _answer(self) -> None:
        """Hook: the transaction is committed, its owner does not know yet."""
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed = True

    def _input(self, kind: InputKind) -> TopicPartition:
        return (getattr(self._topics, kind), self._partition)
