"""What the commands need of whatever the records are kept in: Kafka, or the embedded log.

`backends.py` opens the one that the settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from surefoot.state.ports import In, Log, Out, Position, Readiness
from surefoot.state.topics import AgentTopics, TopicSpec


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as it is there."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class TopicAdmin(Protocol):
    """Creates and verifies topics."""

    async def apply(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create what is missing, then verify everything. Returns the names created.

        Raises: ConfigError — a topic is wrong; it is not altered, the message says how to.
        """

    async def verify(self, specs: Sequence[TopicSpec]) -> None:
        """Raises ConfigError that lists every topic that is not as it must be, with the fix."""

    async def describe(self, names: Sequence[str]) -> dict[str, Found]:
        """Those of the topics that exist."""


class Tail(Protocol):
    """Hands every committed record of a topic to a function, in the order of each partition; goes
    on by itself after any failure. The function and the positions change without an await between
    them."""

    #: next offset, by partition
    positions: dict[int, int]

    def start(self) -> None:
        """Begin in the background. Safe to call twice."""

    async def started(self) -> None:
        """Wait until the first position of every partition is known."""

    async def reach(self, partition: int, offset: int) -> None:
        """Wait until everything committed before `offset` has been handed out."""

    async def stop(self) -> None: ...


class Lookups(Protocol):
    """Reads pieces of one topic."""

    topic: str

    async def one(self, partition: int, offset: int) -> In:
        """The first committed record at or after `offset`; waits for one."""

    async def page(
        self, partition: int, start: int, until: int, wanted: Callable[[bytes | None], bool]
    ) -> tuple[list[In], int]:
        """Records whose key is wanted, of a piece of the partition that begins at `start` and ends
        at `until` at the latest. Returns them and where the next page begins."""

    async def stop(self) -> None: ...


class Offsets(Protocol):
    """Asks where things stand; reads no records."""

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """High watermark by partition: everything written so far lies before it."""

    async def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Offset by partition of the first record that retention has left."""

    async def at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """Offset of the first record of that time or later; None when there is none."""

    async def stop(self) -> None: ...


class Groups(Protocol):
    @property
    def start_worker(self) -> str:
        """What to type to have a member."""

    async def look(
        self, group: str, topics: Sequence[str], partition: int
    ) -> tuple[int, dict[str, int | None]]:
        """How many members the group has, and its committed offset (next to read; None: it has
        none) in that partition of each topic."""


class Appender(Protocol):
    async def append(self, out: Out, what: str, *, deadline_s: float) -> Position:
        """Write one record; returns once it will not be lost. `what` it is goes into the error.

        Raises: RecordTooLarge — nothing was written; Unavailable — it may or may not have been
        written, or may still be: ask again with the same id.
        Under cancellation: like Unavailable.
        """

    async def stop(self) -> None:
        """Close it, within a deadline. Safe to call twice."""


class Probe(Readiness, Protocol):
    async def stop(self) -> None:
        """Close it, within a deadline. Safe to call twice."""


class Backend(Protocol):
    """Everything that one process needs of the log, on one event loop."""

    @property
    def name(self) -> str:
        """For a person: what it is, and where."""

    def topics(self) -> AbstractAsyncContextManager[TopicAdmin]:
        """Raises Unavailable when it cannot be reached."""

    def log(self, topics: AgentTopics, slot: int) -> Log:
        """A member of the agent's consumer group; `slot` tells those of one machine apart."""

    def tail(
        self,
        topic: str,
        apply: Callable[[In], None],
        *,
        from_end: bool,
        partitions: Iterable[int] | None = None,
    ) -> Tail: ...

    def lookups(self, topic: str) -> Lookups: ...

    def offsets(self) -> Offsets: ...

    def groups(self) -> Groups: ...

    def appender(self) -> Appender: ...

    def readiness(self) -> Probe: ...
