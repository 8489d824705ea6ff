"""A simulated Kafka broker: what it decides, and when it has decided it. Nothing here waits.

Transactions are those of version 0 requests: an EndTxn names a producer's epoch and no transaction,
so that one which was delayed decides whatever is open when it arrives (KAFKA-17754). A request of
an older epoch is refused. Offsets that were committed in a transaction are looked up without the
stable flag: those of a transaction that is still open are not seen (KIP-447).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import InvalidTxnState, ProducerFenced

from surefoot.infra.embedded.log import TopicPartition
from surefoot.infra.embedded.memory import EmbeddedTransaction, MemoryPartition
from surefoot.infra.kafka.assignor import share_out
from surefoot.infra.simulation.time import VirtualClock
from surefoot.state.names.topics import TopicSpec
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord


@dataclass(slots=True)
class Producer:
    """What the coordinator knows of one transactional id."""

    epoch: int = -1
    open: EmbeddedTransaction | None = None
    since_s: float = 0.0
    timeout_s: float = 10.0
    #: how the latest transaction ended, for an EndTxn that comes again
    last: bool | None = None
    #: batches that have been taken, so that one that comes twice is taken once
    batches: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Member:
    """One static member of a group."""

    id: int
    #: the consumer that is it now
    consumer: Any
    seen_s: float
    joined: bool = False
    partitions: frozenset[int] = frozenset()


@dataclass(slots=True)
class Group:
    """One consumer group and its eager rebalances."""

    partitions: int
    generation: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    rebalancing_until_s: float | None = None
    made: int = 0
    rebalances: int = 0


class SimBroker:
    """All topics, producers and groups."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.topics: dict[str, list[MemoryPartition]] = {}
        self.specs: dict[str, TopicSpec] = {}
        self.producers: dict[str, Producer] = {}
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        #: (group, place, offset) of every commit of offsets, in order
        self.samples: list[tuple[str, TopicPartition, int]] = []
        #: every record that was ever appended, and its transaction: compaction takes none of them
        self.everything: list[tuple[ConsumerRecord, EmbeddedTransaction | None]] = []
        #: number of the commit that made a transaction visible
        self.commits = 0
        #: whether what a step did inside was part of the transaction that was decided last
        self.journaled = False
        self._journaling: set[EmbeddedTransaction] = set()
        self.wake: dict[asyncio.Event, None] = {}
        self.fenced = 0
        self.strays = 0

    def create(self, specs: Sequence[TopicSpec]) -> None:
        for spec in specs:
            self.specs[spec.name] = spec
            self.topics[spec.name] = [MemoryPartition() for _ in range(spec.partitions)]

    def partition(self, place: TopicPartition) -> MemoryPartition:
        return self.topics[place[0]][place[1]]

    def tell(self) -> None:
        for event in list(self.wake):
            event.set()

    def append(self, out: ProducerRecord) -> int:
        """A record outside of any transaction."""
        offset = self._append(out, None)
        self.tell()
        return offset

    def _append(self, out: ProducerRecord, transaction: EmbeddedTransaction | None) -> int:
        log = self.topics[out.topic][out.partition]
        offset = log.end
        if transaction is not None and b"|c:" in (out.key or b""):
            self._journaling.add(transaction)
        record = ConsumerRecord(
            out.topic,
            out.partition,
            offset,
            self._clock.now_ms(),
            out.key,
            out.value,
            tuple(out.headers),
        )
        log.append(record, transaction)
        self.everything.append((record, transaction))
        return offset

    # Transactions ----------------------------------------------------------------------------

    def init_producer(self, name: str, timeout_s: float) -> int:
        """InitProducerId: a new epoch; what the former one had open is aborted."""
        producer = self.producers.setdefault(name, Producer())
        if producer.open is not None:
            self.fenced += 1
            self._end(producer, committed=False)
        producer.epoch += 1
        producer.timeout_s = timeout_s
        producer.last = None
        producer.batches.clear()
        return producer.epoch

    def _current(self, name: str, epoch: int) -> Producer:
        producer = self.producers[name]
        if producer.epoch != epoch:
            self.fenced += 1
            raise ProducerFenced
        if producer.open is not None:
            late_s = self._clock.monotonic_s() - producer.since_s
            if late_s > producer.timeout_s:
                self._time_out(producer)
                raise ProducerFenced
        return producer

    def time_out(self) -> None:
        """End the transactions that have been open for too long."""
        for producer in self.producers.values():
            if (
                producer.open is not None
                and self._clock.monotonic_s() - producer.since_s > producer.timeout_s
            ):
                self._time_out(producer)

    def _time_out(self, producer: Producer) -> None:
        self._end(producer, committed=False)
        producer.epoch += 1

    def _opened(self, name: str, producer: Producer) -> EmbeddedTransaction:
        if producer.open is None:
            producer.open = EmbeddedTransaction(name, producer.epoch)
            producer.since_s = self._clock.monotonic_s()
            producer.offsets = {}
        return producer.open

    def produce(
        self, name: str, epoch: int, number: int, outs: Sequence[ProducerRecord]
    ) -> dict[TopicPartition, int]:
        """Produce, with the partition added to the transaction. A batch that comes again is
        answered as the first time. Returns the offset of the first record of each place."""
        producer = self._current(name, epoch)
        if number in producer.batches:
            return producer.batches[number]
        transaction = self._opened(name, producer)
        firsts: dict[TopicPartition, int] = {}
        for out in outs:
            place = (out.topic, out.partition)
            offset = self._append(out, transaction)
            transaction.places.setdefault(place, offset)
            firsts.setdefault(place, offset)
        producer.batches[number] = firsts
        return firsts

    def add_offsets(
        self, name: str, epoch: int, group: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """TxnOffsetCommit."""
        producer = self._current(name, epoch)
        self._opened(name, producer)
        producer.offsets.setdefault(group, {}).update(offsets)

    def end_txn(self, name: str, epoch: int, *, commit: bool) -> None:
        """EndTxn: of whatever is open."""
        producer = self._current(name, epoch)
        if producer.open is None:
            if producer.last is not commit:
                raise InvalidTxnState
            return  # it comes again
        self._end(producer, committed=commit)
        producer.last = commit

    def _end(self, producer: Producer, *, committed: bool) -> None:
        transaction, producer.open = producer.open, None
        assert transaction is not None
        transaction.committed = committed
        self.journaled = committed and transaction in self._journaling
        for place in transaction.places:
            self.partition(place).mark(transaction)
        if committed:
            for group, offsets in producer.offsets.items():
                self.offsets.setdefault(group, {}).update(offsets)
                self.samples += ((group, place, offset) for place, offset in offsets.items())
            self.commits += 1
        self.tell()

    # Reading ---------------------------------------------------------------------------------

    def read(
        self, place: TopicPartition, position: int, most: int, *, committed: bool
    ) -> tuple[list[ConsumerRecord], int]:
        log = self.partition(place)
        if committed:
            return log.read(position, most)
        at = max(position, log.start)
        slots = log._slots[at - log.start : at - log.start + most]
        return [record for record, _ in slots if record is not None], at + len(slots)

    def committed(self, group: str, place: TopicPartition) -> int | None:
        return self.offsets.get(group, {}).get(place)

    def compact(self, topic: str, *, keep_last: int) -> int:
        """What Kafka's cleaner does to all but the last records of each partition: of each key the
        latest committed record stays. Returns how many went. Offsets stay."""
        gone = 0
        for log in self.topics[topic]:
            end = min(log.stable_end, log.end - keep_last) - log.start
            latest: dict[bytes | None, int] = {}
            for at, (record, transaction) in enumerate(log._slots[: log.stable_end - log.start]):
                if record is not None and (transaction is None or transaction.committed):
                    latest[record.key] = at
            for at in range(max(0, end)):
                record, transaction = log._slots[at]
                if record is not None and (
                    (transaction is not None and not transaction.committed)
                    or latest[record.key] != at
                ):
                    log._slots[at] = (None, transaction)
                    gone += 1
        return gone

    # Groups ----------------------------------------------------------------------------------

    def group(self, name: str, partitions: int) -> Group:
        return self.groups.setdefault(name, Group(partitions))

    def join(self, group: Group, instance: str, consumer: Any, wait_s: float) -> int:
        """JoinGroup of a static member. One that takes an instance over in a stable group gets what
        that had, and nobody else notices (KIP-345). Returns the member id."""
        member = group.members.get(instance)
        group.made += 1
        now_s = self._clock.monotonic_s()
        if member is not None and member.consumer is not consumer:
            member.id, member.consumer, member.seen_s = group.made, consumer, now_s
            if group.rebalancing_until_s is None:
                member.joined = True
                return member.id
        elif member is None:
            member = group.members[instance] = Member(group.made, consumer, now_s)
        member.seen_s = now_s
        if group.rebalancing_until_s is None:
            self._rebalance(group, wait_s)
        member.joined = True
        self.settle(group)
        return member.id

    def _rebalance(self, group: Group, wait_s: float) -> None:
        group.rebalancing_until_s = self._clock.monotonic_s() + wait_s
        for member in group.members.values():
            member.joined = False
        self.tell()

    def settle(self, group: Group) -> None:
        """End the rebalance if everybody is here, or whoever is not has had the time."""
        until_s = group.rebalancing_until_s
        if until_s is None:
            return
        here = [member for member in group.members.values() if member.joined]
        if len(here) < len(group.members) and self._clock.monotonic_s() < until_s:
            return
        group.members = {name: m for name, m in group.members.items() if m.joined}
        group.rebalancing_until_s = None
        group.generation += 1
        group.rebalances += 1
        claims = {name: member.consumer.claim for name, member in group.members.items()}
        if claims:
            for name, shares in share_out(claims, group.partitions).items():
                group.members[name].partitions = frozenset(shares)
        self.tell()

    def leave(self, group: Group, instance: str, member_id: int, wait_s: float) -> None:
        member = group.members.get(instance)
        if member is not None and member.id == member_id:
            del group.members[instance]
            self._rebalance(group, wait_s)
            self.settle(group)

    def expire(self, session_s: float, wait_s: float) -> None:
        """Throw out the members that have not been heard of."""
        now_s = self._clock.monotonic_s()
        for group in self.groups.values():
            gone = [n for n, m in group.members.items() if now_s - m.seen_s > session_s]
            for name in gone:
                del group.members[name]
            if gone and group.rebalancing_until_s is None:
                self._rebalance(group, wait_s)
            self.settle(group)
