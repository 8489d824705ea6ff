"""The log of one agent, as a worker sees it, and its records."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

#: the two input topics of an agent
InputKind = Literal["commands", "tasks"]


INPUT_KINDS: tuple[InputKind, InputKind] = ("commands", "tasks")


Headers = Sequence[tuple[str, bytes]]


class ConsumerRecord(NamedTuple):
    """One record as read: raw bytes, and its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class ProducerRecord(NamedTuple):
    """One record to write. The partition is always explicit."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class InputGone(Exception):
    """Retention has deleted unread records of an input: offsets from `start` to before `end`."""

    def __init__(self, kind: InputKind, partition: int, start: int, end: int) -> None:
        super().__init__(kind, partition, start, end)
        self.kind: InputKind = kind
        self.partition = partition
        self.start = start
        self.end = end


@dataclass(frozen=True, slots=True)
class Position:
    """Where a record was written."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a committed transaction's records are, as far as their partition's owner needs it."""

    #: next offset of the state partition
    state_end: int
    #: offset of each record of the partition's tasks topic, in the order in which they were given
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """A change of the partitions of the agent that this worker owns.

    Partitions in `retained` were ours before, and nobody else can have had them in between.
    """

    gained: frozenset[int]
    retained: frozenset[int]
    lost: frozenset[int]


class Log(Protocol):
    """One agent's topics, as one worker of its consumer group sees them."""

    @property
    def partitions(self) -> int:
        """Number of partitions of every topic of the agent."""

    async def start(
        self,
        on_change: Callable[[Assignment], None],
        on_rebalance: Callable[[], Awaitable[None]],
    ) -> None:
        """Join the group.

        Args: on_change: called with every gained partition already paused, and before there is a
              lease again; must not block.
              on_rebalance: awaited before the worker joins again, while it still owns its
              partitions; the rest of the group waits for it
        """

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        """Read the records that have arrived. Never cancel it: only its timeout may end it.

        Raises: InputGone - the next poll continues with what is left
        """

    def pause(self, partition: int) -> None:
        """Stop reading both inputs of the partition."""

    def resume(
        self, partition: int, positions: Mapping[InputKind, int | None] | None = None
    ) -> None:
        """Read on; from `positions` if given (next offset to read, None = the beginning)."""

    async def positions(self, partition: int) -> dict[InputKind, int]:
        """Return the next offset to read of each input that has been read to its end (last stable
        offset), past transaction markers. An input with more to read is left out."""

    async def own(self, partition: int) -> Ownership:
        """Take the partition over: fence the former owner and settle its open transaction.

        Raises: Unavailable - the takeover is not certain; call again
        """

    def publish(self, records: Sequence[ProducerRecord]) -> None:
        """Write records outside transactions, soon and best effort: partial output. Does not wait;
        a record that cannot be written is dropped and logged."""

    def lease_left_s(self) -> float:
        """Return the seconds for which this worker may still assume that it owns its partitions.

        Counted from the group coordinator's last proof, and shorter than the session timeout, so
        that it ends before the group gives the partitions to another member.
        """

    def lease_s(self) -> float:
        """Return for how long a former owner that still runs may assume that it owns a partition
        after a takeover: the group does not wait for a member whose name another process took
        (KIP-345)."""

    async def stop(self, *, leave: bool) -> None:
        """Close. With `leave`, tell the group, so that others take over at once."""


class Ownership(Protocol):
    """One partition of one agent, held under one producer epoch."""

    async def committed(self) -> dict[InputKind, int | None]:
        """Return the broker's committed offsets (next to read) as of now; None = never committed.

        Raises: Unavailable
        """

    async def begins(self) -> dict[InputKind, int]:
        """Return the offset of the first record that retention has kept, of each input. Raises
        Unavailable."""

    async def restore(
        self, start: int | None, apply: Callable[[list[ConsumerRecord]], None]
    ) -> int:
        """Pass every committed state record from offset `start` (None = the beginning) to the high
        watermark to `apply`, in order. Returns the position reached: the next offset.

        Raises: Unavailable - no progress within the deadline; what was applied stays applied
        """

    async def name_owner(self, offsets: Mapping[InputKind, int]) -> None:
        """Say beside the committed offsets, which these are, whose the partition is now. Precedes
        the first commit: a later taker can then end what this owner leaves open.

        Raises: Unavailable; OutcomeUnknown - take the partition again
        """

    async def commit(
        self, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        """Write all `records` and the offsets (next to read) in one transaction, or nothing.

        At least one record is of the state partition.

        Returns: where the records are
        Raises:  FencedError - a newer owner exists, and sees whether this was written;
                 RecordRefused - nothing was written, this ownership can continue;
                 OutcomeUnknown - anything else: retire this ownership, take a new one, read back
        Under cancellation: the transaction continues; its outcome is unknown
        """

    async def close(self) -> None:
        """Give the partition up; an open transaction is left to be fenced. Safe to call twice."""
