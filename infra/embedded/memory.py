"""The embedded log's broker in memory: topics, transactions, epochs and offsets as on Kafka.

It shows Kafka's visible behaviour:

- an offset is one record; the marker that ends a transaction takes one in every partition that the
  transaction wrote to, and aborted records keep theirs;
- readers of committed records stop at the last stable offset: before the first record of an open
  transaction;
- a transactional id has an epoch. Taking the id raises it, which aborts the former holder's open
  transaction and fences the holder;
- records, markers and the group's offsets of one transaction become visible at once. (On Kafka the
  markers reach one partition after the other; nobody can rely on that.)

Nothing here waits or has a task of its own. One thread, no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.infra.embedded.log import TopicPartition
from surefoot.state.errors import FencedError, NoSuchTopic, RecordTooLarge
from surefoot.state.names.topics import TopicSpec
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.records.sizes import record_size


@dataclass(slots=True, eq=False)
class EmbeddedTransaction:
    """Records of one producer that become visible together, or never."""

    transactional_id: str
    epoch: int
    #: offset of its first record, by partition
    places: dict[TopicPartition, int] = field(default_factory=dict)
    #: offsets of its records, in order, by partition
    offsets: dict[TopicPartition, list[int]] = field(default_factory=dict)
    #: None: still open
    committed: bool | None = None


#: a record and its transaction; a marker has no record
_Slot = tuple[ConsumerRecord | None, EmbeddedTransaction | None]


class MemoryPartition:
    """The content of each offset of one partition."""

    def __init__(self) -> None:
        #: the first offset that exists
        self.start = 0
        self._slots: list[_Slot] = []
        #: open transactions and their first offset, oldest first
        self._open: dict[EmbeddedTransaction, int] = {}

    @property
    def end(self) -> int:
        """Return the high watermark: the offset of the next record to be written."""
        return self.start + len(self._slots)

    @property
    def stable_end(self) -> int:
        """Return the last stable offset."""
        return min(self._open.values(), default=self.end)

    def append(self, record: ConsumerRecord, transaction: EmbeddedTransaction | None) -> None:
        if transaction is not None:
            self._open.setdefault(transaction, self.end)
        self._slots.append((record, transaction))

    def mark(self, transaction: EmbeddedTransaction) -> None:
        """Append the marker that ends the transaction."""
        del self._open[transaction]
        self._slots.append((None, transaction))

    def read(self, position: int, most: int | None = None) -> tuple[list[ConsumerRecord], int]:
        """Return the committed records from there to the last stable offset, and the next position.

        `most` limits how many offsets are scanned; None: all."""
        end = self.stable_end
        if most is not None:
            end = min(end, max(position, self.start) + most)
        slots = self._slots[max(0, position - self.start) : end - self.start]
        records = [
            record
            for record, transaction in slots
            if record is not None and (transaction is None or transaction.committed)
        ]
        return records, max(position, end)

    def delete_before(self, offset: int) -> None:
        """Delete records, as retention does."""
        del self._slots[: offset - self.start]
        self.start = offset


class MemoryBroker:
    """Topics, producers and the offsets of consumer groups."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._topics: dict[str, list[MemoryPartition]] = {}
        self._specs: dict[str, TopicSpec] = {}
        self._epochs: dict[str, int] = {}
        self._open: dict[str, EmbeddedTransaction] = {}
        #: committed offsets (next to read) by group
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        #: called when there may be more to read; a dict to keep the order
        self.listeners: dict[Callable[[], None], None] = {}

    def create(self, specs: Iterable[TopicSpec]) -> list[str]:
        """Create the missing topics; returns their names."""
        new = [spec for spec in specs if spec.name not in self._topics]
        for spec in new:
            self._topics[spec.name] = [MemoryPartition() for _ in range(spec.partitions)]
            self._specs[spec.name] = spec
        return [spec.name for spec in new]

    def has(self, topic: str) -> bool:
        return topic in self._topics

    def describe(self, names: Iterable[str]) -> dict[str, TopicSpec]:
        """Return those of the topics that exist."""
        return {name: self._specs[name] for name in names if name in self._specs}

    def partition(self, topic: str, partition: int) -> MemoryPartition:
        """Raises: NoSuchTopic."""
        try:
            return self._topics[topic][partition]
        except (KeyError, IndexError):
            raise NoSuchTopic(
                f"there is no topic {topic} with a partition {partition}: check the agent's name"
            ) from None

    def write(self, outs: Sequence[ProducerRecord]) -> list[int]:
        """Append records outside of any transaction. Returns their offsets.

        Raises: NoSuchTopic, RecordTooLarge — nothing was written.
        """
        self._check(outs)
        offsets = [self._append(out, None) for out in outs]
        self._tell()
        return offsets

    async def append(self, outs: Sequence[ProducerRecord]) -> list[int]:
        """Like `write`."""
        return self.write(outs)

    def publish(self, outs: Sequence[ProducerRecord]) -> None:
        """Like `write`."""
        self.write(outs)

    # Reading ---------------------------------------------------------------------------------

    def begin_offset(self, place: TopicPartition) -> int:
        return self.partition(*place).start

    def end_offset(self, place: TopicPartition) -> int:
        return self.partition(*place).end

    def stable_end(self, place: TopicPartition) -> int:
        return self.partition(*place).stable_end

    def read(
        self, place: TopicPartition, position: int, most: int
    ) -> tuple[list[ConsumerRecord], int]:
        return self.partition(*place).read(position, most)

    def offset_at(self, place: TopicPartition, time_ms: int) -> int | None:
        """Return the offset of the first committed record at or after that time, or None."""
        records, _ = self.partition(*place).read(0)
        return next((record.offset for record in records if record.timestamp_ms >= time_ms), None)

    # Transactions ----------------------------------------------------------------------------

    async def take(self, transactional_id: str) -> int:
        """Return a new epoch of that id. Fences the former one and aborts its open transaction."""
        epoch = self._epochs.get(transactional_id, -1) + 1
        self._epochs[transactional_id] = epoch
        left_open = self._open.get(transactional_id)
        if left_open is not None:
            self._end(left_open, committed=False)
        return epoch

    def begin(
        self, transactional_id: str, epoch: int, outs: Sequence[ProducerRecord]
    ) -> EmbeddedTransaction:
        """Begin a transaction that contains these records.

        Raises: FencedError, NoSuchTopic, RecordTooLarge — nothing was written.
        """
        self._fence(transactional_id, epoch)
        self._check(outs)
        transaction = self._open[transactional_id] = EmbeddedTransaction(transactional_id, epoch)
        for out in outs:
            place = (out.topic, out.partition)
            offset = self._append(out, transaction)
            transaction.places.setdefault(place, offset)
            transaction.offsets.setdefault(place, []).append(offset)
        return transaction

    async def commit(
        self, transaction: EmbeddedTransaction, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[int]]:
        """Commit the transaction together with the group's offsets.

        Returns: for each partition written to, the offsets of its records, in order.
        Raises: FencedError."""
        self._fence(transaction.transactional_id, transaction.epoch)
        self._offsets.setdefault(group, {}).update(offsets)
        self._end(transaction, committed=True)
        return transaction.offsets

    def abort(self, transaction: EmbeddedTransaction) -> None:
        self._end(transaction, committed=False)

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """Return the group's offset (next to read); None if never committed.

        An offset that retention has passed is reported as the first retained one."""
        offset = self._offsets.get(group, {}).get(place)
        return None if offset is None else max(offset, self.partition(*place).start)

    def _fence(self, transactional_id: str, epoch: int) -> None:
        newest = self._epochs.get(transactional_id)
        if newest != epoch:
            raise FencedError(f"{transactional_id}: epoch {epoch} is over, {newest} holds")

    def _end(self, transaction: EmbeddedTransaction, *, committed: bool) -> None:
        transaction.committed = committed
        del self._open[transaction.transactional_id]
        for place in transaction.places:
            self.partition(*place).mark(transaction)
        self._tell()

    # Records ---------------------------------------------------------------------------------

    def _check(self, outs: Sequence[ProducerRecord]) -> None:
        for out in outs:
            self.partition(out.topic, out.partition)
            size, limit = record_size(out), int(self._specs[out.topic].config["max.message.bytes"])
            if size > limit:
                raise RecordTooLarge(
                    f"a record of {size} bytes for {out.topic}", size=size, limit=limit
                )

    def _append(self, out: ProducerRecord, transaction: EmbeddedTransaction | None) -> int:
        log = self._topics[out.topic][out.partition]
        offset = log.end
        now_ms = self._clock.now_ms()
        record = ConsumerRecord(
            out.topic, out.partition, offset, now_ms, out.key, out.value, tuple(out.headers)
        )
        log.append(record, transaction)
        return offset

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()
