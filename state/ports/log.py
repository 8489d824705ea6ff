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
    """One record as read: raw bytes, and where it stood."""

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
    """Retention has deleted records of an input that had not been read: `start` to before `end`."""

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
class Assignment:
    """A change of what this worker is to own, in partitions of the agent.

    `retained` were ours before and nobody else can have had them in between.
    """

    gained: frozenset[int]
    retained: frozenset[int]
    lost: frozenset[int]


class Log(Protocol):
    """One agent's topics, as one worker of its consumer group sees them."""

    @property
    def partitions(self) -> int:
        """How many partitions every topic of the agent has."""

    async def start(
        self,
        on_change: Callable[[Assignment], None],
        on_rebalance: Callable[[], Awaitable[None]],
    ) -> None:
        """Join the group.

        `on_rebalance` is awaited before the worker joins anew, while its partitions are still its
        own: the others wait for it. `on_change` is called with every gained partition already
        paused; it must not block."""

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        """Read what has come in. Never cancel it: only its own timeout may end it.

        Raises: InputGone — the next poll reads on from what is left."""

    def pause(self, partition: int) -> None:
        """Stop reading both inputs of the partition."""

    def resume(
        self, partition: int, positions: Mapping[InputKind, int | None] | None = None
    ) -> None:
        """Read on; from `positions` (next offset to read, None = the beginning) where given."""

    async def positions(self, partition: int) -> dict[InputKind, int]:
        """Next offset to read of each input that has been read to its end (last stable offset),
        transaction markers stepped over. An input with more to read is left out."""

    async def own(self, partition: int) -> Ownership:
        """Take the partition over: fences the former owner and settles its open transaction.

        Raises: Unavailable — nothing has changed hands for certain; call again.
        """

    def publish(self, records: Sequence[ProducerRecord]) -> None:
        """Write records outside of any transaction, soon and at best effort: partial output. Does
        not wait; what cannot be written is dropped and logged."""

    def lease_left_s(self) -> float:
        """Seconds for which this worker may still believe that its partitions are its own.

        Counted from the last proof by the group coordinator, and shorter than the session
        timeout, so that it is over before the group gives them to anybody else.
        """

    def lease_s(self) -> float:
        """For how long a former owner that still runs may believe that a partition is its own after
        it was taken over: one whose name another process has taken is not waited for (KIP-345)."""

    async def stop(self, *, leave: bool) -> None:
        """Close; with `leave` the group is told, so that others take over at once."""


class Ownership(Protocol):
    """One partition of one agent, held under one producer epoch."""

    async def committed(self) -> dict[InputKind, int | None]:
        """Committed offsets (next to read) as the broker has them now; None = never committed.

        Raises: Unavailable.
        """

    async def begins(self) -> dict[InputKind, int]:
        """Offset of the first record of each input that retention has left. Raises Unavailable."""

    async def restore(
        self, start: int | None, apply: Callable[[list[ConsumerRecord]], None]
    ) -> int:
        """Feed every committed state record from offset `start` (None = the beginning) to the high
        watermark to `apply`, in order. Returns the position reached: the next offset.

        Raises: Unavailable — no progress within the deadline; what was applied stays applied.
        """

    async def commit(
        self, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> int:
        """Write all `records` and the offsets (next to read) in one transaction, or nothing.

        Returns the next offset of the state partition after the transaction. Cancelling it does
        not stop the transaction: the outcome is then unknown.

        Raises: FencedError — a newer owner exists, and sees whether this was written;
        RecordRefused — nothing was written, this ownership can go on;
        OutcomeUnknown — anything else: retire this ownership, take a new one, read back.
        """

    async def close(self) -> None:
        """Give it up; an open transaction is left to be fenced. Safe to call twice."""
