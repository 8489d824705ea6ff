"""What the commands need of whatever the records are kept in: Kafka, or the embedded log.

`infra/open_log.py` opens the one that the settings name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from surefoot.state.names.topics import AgentTopics, TopicSpec
from surefoot.state.ports.log import ConsumerRecord, Log, Position, ProducerRecord
from surefoot.state.ports.sources import SourceLog, SourceOffsets
from surefoot.state.reading.lag import AgentStanding
from surefoot.state.reading.ports import Readiness


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as it is there."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class TopicAdmin(Protocol):
    """Creates and verifies topics. Each method raises Unavailable when the log does not answer."""

    async def apply(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create what is missing, then verify everything. Returns the names created.

        Raises: ConfigError — a topic is wrong; it is not altered, the message says how to.
        """

    async def served(self, specs: Sequence[TopicSpec]) -> None:
        """Wait until topics that have only just been made can be used, by groups as well."""

    async def verify(self, specs: Sequence[TopicSpec]) -> None:
        """Raises ConfigError that lists every topic that is not as it must be, with the fix."""

    async def partitions(self, names: Sequence[str]) -> dict[str, int]:
        """How many partitions those of the topics have that exist."""

    async def names(self) -> list[str]:
        """Of every topic that exists, other people's included."""


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

    async def one(self, partition: int, offset: int) -> ConsumerRecord:
        """The first committed record at or after `offset`; waits for one."""

    async def page(
        self, partition: int, start: int, until: int, wanted: Callable[[bytes | None], bool]
    ) -> tuple[list[ConsumerRecord], int]:
        """Records whose key is wanted, of a piece of the partition that begins at `start` and ends
        at `until` at the latest. Returns them and where the next page begins."""

    async def stop(self) -> None: ...


class Offsets(Protocol):
    """Asks where things stand; reads no records."""

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """High watermark by partition: everything written so far lies before it."""

    async def stables(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Last stable offset by partition: what lies behind it cannot be read yet."""

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


class Standings(Protocol):
    async def look(self, agents: Sequence[str]) -> Sequence[AgentStanding]:
        """Where the topics of these agents stand, in their order. What is committed in the same
        moment may or may not be among it."""

    async def stop(self) -> None: ...


class Appender(Protocol):
    async def append(self, out: ProducerRecord, what: str, *, deadline_s: float) -> Position:
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


class ArchiveLog(Protocol):
    """One agent's events, as one member of the group that archives them."""

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        """Join the group; every partition is assigned paused. Raises Unavailable."""

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """Committed records only. Raises Unavailable; OffsetGone — the partition has to be begun
        anew."""

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int, position: int | None = None) -> None: ...

    def reached(self, partition: int) -> int:
        """Next offset to be read, what is no record of anybody's stepped over."""

    async def standing(self, partition: int) -> SourceOffsets:
        """Raises Unavailable."""

    async def commit(self, partition: int, offset: int) -> None:
        """The next offset to read. Raises Unavailable; FencedError — somebody else has the
        partition."""

    async def stop(self) -> None:
        """Leave the group and close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What can be done with a log, whatever it is."""

    #: more than one process runs agents, each a share of the partitions
    many_processes: bool
    #: agents listen to topics of other programs
    topic_triggers: bool


class Backend(Protocol):
    """Everything that one process needs of the log, on one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def name(self) -> str:
        """For a person: what it is, and where."""

    @property
    def views_file(self) -> Path | None:
        """Where one process keeps the views of this log; None: several share them, in topics."""

    def topics(self) -> AbstractAsyncContextManager[TopicAdmin]:
        """Raises Unavailable when it cannot be reached."""

    def log(self, topics: AgentTopics, slot: int) -> Log:
        """A member of the agent's consumer group; `slot` tells those of one machine apart."""

    def source(self, topics: AgentTopics, topic: str, group: str, slot: int) -> SourceLog:
        """A topic of the app's own, as a member of that group sees it which makes commands of its
        records; `topics` are those of the agent that it is for."""

    def tail(
        self,
        topic: str,
        apply: Callable[[ConsumerRecord], None],
        *,
        from_end: bool,
        partitions: Iterable[int] | None = None,
    ) -> Tail: ...

    def lookups(self, topic: str) -> Lookups: ...

    def offsets(self) -> Offsets: ...

    def groups(self) -> Groups: ...

    def standings(self) -> Standings: ...

    def appender(self) -> Appender: ...

    def readiness(self) -> Probe: ...

    def archive_log(self, topics: AgentTopics) -> ArchiveLog:
        """A member of the group that archives the agent's events."""
