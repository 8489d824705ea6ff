"""A simulated Kafka broker: what it decides, and when it has decided it. Nothing here waits.

A transaction is decided at once. That is seen partition by partition, as its markers are written;
until all are, its producer gets nothing done.

Where each transaction has an epoch of its own (KIP-890), a request of an earlier one is refused,
except for an EndTxn that comes again. Below that (KIP-98), an EndTxn names an epoch and no
transaction, so that one which was delayed decides whatever is open when it arrives (KAFKA-17754).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)

from surefoot.infra.embedded.memory import EmbeddedTransaction, MemoryPartition
from surefoot.infra.kafka_client.transactions import Batch, Membership, ProducerEpoch
from surefoot.infra.simulation.time import VirtualClock
from surefoot.state.names.topics import TopicSpec
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from tests.simulation.groups import Groups

#: how long a marker takes, in seconds; and a slow one
_MARKER_S, _SLOW_MARKER_S = 0.004, 3.0


@dataclass(slots=True, eq=False)
class Transaction(EmbeddedTransaction):
    """One transaction."""

    since_s: float = 0.0
    groups: set[str] = field(default_factory=set)
    #: markers that are still to be written
    marks: int = 0


@dataclass(slots=True)
class Producer:
    """What the coordinator knows of one transactional id."""

    id: int
    epoch: int = -1
    timeout_s: float = 10.0
    open: Transaction | None = None
    #: decided, and not all of its markers are written
    ending: Transaction | None = None
    #: how the latest transaction of the latest epoch ended, for an EndTxn that comes again
    last: bool | None = None
    #: offsets by the sequence number of a batch, of this epoch
    batches: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    #: sequence numbers that come next, in this epoch
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def bump(self) -> None:
        self.epoch += 1
        self.batches.clear()
        self.sequences.clear()


class Marker(NamedTuple):
    """The end of a transaction in one partition."""

    place: TopicPartition
    offset: int
    transactional_id: str
    epoch: int
    commit: bool


class Sample(NamedTuple):
    """A group's offset as it was set."""

    at_ms: int
    group: str
    place: TopicPartition
    offset: int
    stable_end: int


class SimBroker:
    """All topics, producers and groups."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        later: Callable[[float, Callable[[], None]], object],
        *,
        bumps_epochs: bool,
    ) -> None:
        """`later` has something done after so many seconds."""
        #: whether each transaction has an epoch of its own
        self.bumps_epochs = bumps_epochs
        self._clock = clock
        self._random = random
        self._later = later
        self.topics: dict[str, list[MemoryPartition]] = {}
        self.producers: dict[str, Producer] = {}
        self.groups = Groups(clock, self.tell)
        #: every offset that was ever committed, in order
        self.samples: list[Sample] = []
        #: every record that was ever appended, and its transaction: compaction takes none of them
        self.everything: list[tuple[ConsumerRecord, Transaction | None]] = []
        self.markers: list[Marker] = []
        #: chance of a slow marker
        self.slow_markers = 0.0
        #: slow ones so far
        self.slow = 0
        #: markers that are still to be written
        self.unmarked = 0
        #: whether what a step did inside was part of the transaction that was decided last
        self.journaled = False
        self._journaling: set[Transaction] = set()
        self.wake: dict[asyncio.Event, None] = {}
        #: requests refused for their epoch, and transactions aborted; EndTxn answered once more
        self.fenced = self.repeated = 0

    def create(self, specs: Sequence[TopicSpec]) -> None:
        for spec in specs:
            self.topics[spec.name] = [MemoryPartition() for _ in range(spec.partitions)]

    def partition(self, place: tuple[str, int]) -> MemoryPartition:
        return self.topics[place[0]][place[1]]

    def tell(self) -> None:
        for event in list(self.wake):
            event.set()

    def append(self, out: ProducerRecord) -> int:
        """A record outside of any transaction."""
        offset = self._append(out, None)
        self.tell()
        return offset

    def _append(self, out: ProducerRecord, transaction: Transaction | None) -> int:
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

    def init_producer(self, name: str, timeout_s: float) -> ProducerEpoch:
        """InitProducerId: a new epoch. What is open is aborted, and the epoch given once it is.

        Raises: ConcurrentTransactions."""
        producer = self.producers.setdefault(name, Producer(len(self.producers)))
        if producer.open is not None:
            self._abort(producer)
        if producer.ending is not None:
            raise ConcurrentTransactions
        producer.bump()
        producer.timeout_s = timeout_s
        producer.last = None
        return ProducerEpoch(producer.id, producer.epoch)

    def _current(self, name: str, by: ProducerEpoch, refuse: type[KafkaError]) -> Producer:
        """Raises: `refuse` — the producer has another epoch."""
        producer = self.producers[name]
        self._time_out(producer)
        if producer.epoch != by.epoch:
            self.fenced += 1
            raise refuse
        if producer.ending is not None:
            raise ConcurrentTransactions
        return producer

    def time_out(self) -> None:
        """Abort the transactions that have been open for too long."""
        for producer in self.producers.values():
            self._time_out(producer)

    def _time_out(self, producer: Producer) -> None:
        transaction = producer.open
        if transaction is not None:
            late_s = self._clock.monotonic_s() - transaction.since_s
            if late_s > producer.timeout_s:
                self._abort(producer)

    def _abort(self, producer: Producer) -> None:
        """Abort what is open, whatever its producer says."""
        self.fenced += 1
        producer.bump()
        self._decide(producer, commit=False)

    def _opened(self, name: str, producer: Producer) -> Transaction:
        if producer.open is None:
            since_s = self._clock.monotonic_s()
            producer.open = Transaction(name, producer.epoch, since_s=since_s)
        return producer.open

    def add_partitions(
        self, name: str, by: ProducerEpoch, places: Iterable[TopicPartition]
    ) -> None:
        """AddPartitionsToTxn."""
        producer = self._current(name, by, InvalidProducerEpoch)
        transaction = self._opened(name, producer)
        for place in places:
            transaction.places.setdefault(place, self.partition(place).end)

    def add_offsets(self, name: str, by: ProducerEpoch, group: str) -> None:
        """AddOffsetsToTxn."""
        producer = self._current(name, by, InvalidProducerEpoch)
        self._opened(name, producer).groups.add(group)

    def produce(
        self, name: str, by: ProducerEpoch, batches: Iterable[Batch]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Produce. A batch that comes again is answered as the first time.

        Returns: for each partition the offset of its first record, or what went wrong."""
        done: dict[TopicPartition, int | KafkaError] = {}
        for batch in batches:
            try:
                done[batch.place] = self._produce(name, by, batch)
            except KafkaError as error:
                done[batch.place] = error
        return done

    def _produce(self, name: str, by: ProducerEpoch, batch: Batch) -> int:
        producer = self._current(name, by, InvalidProducerEpoch)
        place = batch.place
        known = producer.batches.setdefault(place, {})
        if batch.sequence in known:
            return known[batch.sequence]
        if batch.sequence != producer.sequences.get(place, 0):
            raise OutOfOrderSequenceNumber
        if self.bumps_epochs:
            self.add_partitions(name, by, [place])
        transaction = producer.open
        if transaction is None or place not in transaction.places:
            raise InvalidTxnState
        known[batch.sequence] = self.partition(place).end
        for out in batch.records:
            self._append(out, transaction)
        producer.sequences[place] = batch.sequence + len(batch.records)
        return known[batch.sequence]

    def commit_offsets(
        self,
        name: str,
        by: ProducerEpoch,
        member: Membership,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """TxnOffsetCommit. In the old protocol the coordinator of the group is not told which
        transaction is open: the offsets belong to whichever ends next."""
        producer = self._current(name, by, InvalidProducerEpoch)
        if self.bumps_epochs:
            self._opened(name, producer).groups.add(member.group)
        self.groups.commit(name, member, offsets)

    def name_member(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        """OffsetCommit."""
        self.groups.name(member, offsets)
        self._sample(member.group, offsets)

    def end_txn(self, name: str, by: ProducerEpoch, *, commit: bool) -> ProducerEpoch:
        """EndTxn: of whatever is open in that epoch. Returns the epoch of the next transaction."""
        self.journaled = False
        producer = self.producers[name]
        if self._comes_again(producer, by):
            if producer.last is not commit:
                raise InvalidTxnState
            if producer.ending is not None:
                raise ConcurrentTransactions
            self.repeated += 1
            return ProducerEpoch(producer.id, producer.epoch)
        self._current(name, by, ProducerFenced)
        if producer.open is None:
            raise InvalidTxnState
        if self.bumps_epochs:
            producer.bump()
        self._decide(producer, commit=commit)
        return ProducerEpoch(producer.id, producer.epoch)

    def _comes_again(self, producer: Producer, by: ProducerEpoch) -> bool:
        """Whether an EndTxn is of the transaction that was decided last."""
        over = producer.open is None and producer.last is not None
        return over and by.epoch == producer.epoch - self.bumps_epochs

    def _decide(self, producer: Producer, *, commit: bool) -> None:
        """End what is open, and have its markers written, each in its own time."""
        transaction, producer.open = producer.open, None
        assert transaction is not None
        transaction.committed = producer.last = commit
        self.journaled = commit and transaction in self._journaling
        marks = [
            *(partial(self._mark, place, producer.epoch) for place in transaction.places),
            *(partial(self._settle, group) for group in sorted(transaction.groups)),
        ]
        transaction.marks = len(marks)
        self.unmarked += len(marks)
        producer.ending = transaction if marks else None
        for mark in marks:
            slow = bool(self.slow_markers) and self._random.random() < self.slow_markers
            longest_s = _SLOW_MARKER_S if slow else _MARKER_S
            self.slow += slow
            self._later(
                self._random.random() * longest_s, partial(self._ended, producer, transaction, mark)
            )

    def _ended(
        self, producer: Producer, transaction: Transaction, mark: Callable[[Transaction], None]
    ) -> None:
        mark(transaction)
        transaction.marks -= 1
        self.unmarked -= 1
        if not transaction.marks:
            producer.ending = None
        self.tell()

    def _mark(self, place: TopicPartition, epoch: int, transaction: Transaction) -> None:
        log = self.partition(place)
        name, commit = transaction.transactional_id, bool(transaction.committed)
        self.markers.append(Marker(place, log.end, name, epoch, commit))
        log._open.setdefault(transaction, log.end)  # a partition may be added and never written
        log.mark(transaction)

    def _settle(self, group: str, transaction: Transaction) -> None:
        name, commit = transaction.transactional_id, bool(transaction.committed)
        self._sample(group, self.groups.end(group, name, committed=commit))

    def _sample(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        for place, offset in offsets.items():
            stable_end = self.partition(place).stable_end
            self.samples.append(Sample(self._clock.now_ms(), group, place, offset, stable_end))

    # Reading ---------------------------------------------------------------------------------

    def read(
        self, place: tuple[str, int], position: int, most: int, *, committed: bool
    ) -> tuple[list[ConsumerRecord], int]:
        log = self.partition(place)
        if committed:
            return log.read(position, most)
        at = max(position, log.start)
        slots = log._slots[at - log.start : at - log.start + most]
        return [record for record, _ in slots if record is not None], at + len(slots)

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
