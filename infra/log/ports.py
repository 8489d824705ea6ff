"""The ports to a log, whether it is Kafka or the embedded log.

`infra/open_log.py` opens the one that the settings name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from surefoot.state.diagnosis.cluster import ClusterView, LogDirectory, OpenTransaction
from surefoot.state.names.topics import AgentTopics, TopicSpec
from surefoot.state.ports.log import ConsumerRecord, Log, Position, ProducerRecord
from surefoot.state.ports.sources import SourceLog, SourceOffsets
from surefoot.state.reading.lag import AgentStanding
from surefoot.state.reading.ports import Readiness


@dataclass(frozen=True, slots=True)
class Found:
    """An existing topic."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class TopicAdmin(Protocol):
    """Creates and verifies topics. Every method raises Unavailable if the log does not answer."""

    async def apply(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create the missing topics, then verify all. Returns the names created.

        Raises: ConfigError — a topic is wrong; it is not altered, and the message says how to fix
            it.
        """

    async def served(self, specs: Sequence[TopicSpec]) -> None:
        """Wait until topics just created can be used, also by consumer groups."""

    async def verify(self, specs: Sequence[TopicSpec]) -> None:
        """Check all topics.

        Raises: ConfigError — lists every topic that is not as required, with the fix.
        """

    async def partitions(self, names: Sequence[str]) -> dict[str, int]:
        """Return the partition count of each topic that exists."""

    async def names(self) -> list[str]:
        """Return the names of all existing topics, including those of other applications."""


class Tail(Protocol):
    """Passes every committed record of a topic to a function, in order within each partition.

    Resumes by itself after any failure. The function and the positions change without an await
    between them."""

    #: next offset, by partition
    positions: dict[int, int]

    def start(self) -> None:
        """Start in the background. Safe to call twice."""

    async def started(self) -> None:
        """Wait until the first position of every partition is known."""

    async def reach(self, partition: int, offset: int) -> None:
        """Wait until everything committed before `offset` has been passed on."""

    async def stop(self) -> None: ...


class Lookups(Protocol):
    """Reads ranges of one topic."""

    topic: str

    async def one(self, partition: int, offset: int) -> ConsumerRecord:
        """Return the first committed record at or after `offset`; waits for one."""

    async def page(
        self, partition: int, start: int, until: int, wanted: Callable[[bytes | None], bool]
    ) -> tuple[list[ConsumerRecord], int]:
        """Read one page of a partition between offsets `start` and `until`.

        Returns: the records whose key is `wanted`, and the offset where the next page begins."""

    async def stop(self) -> None: ...


class Offsets(Protocol):
    """Asks for offsets; reads no records."""

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the high watermark by partition: everything written so far lies before it."""

    async def stables(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the last stable offset by partition: records beyond it cannot be read yet."""

    async def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of the first record still retained, by partition."""

    async def at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """Return the offset of the first record at or after that time; None if there is none."""

    async def stop(self) -> None: ...


class Groups(Protocol):
    @property
    def start_worker(self) -> str:
        """The command that starts a member."""

    async def look(
        self, group: str, topics: Sequence[str], partition: int
    ) -> tuple[int, dict[str, int | None]]:
        """Return the group's member count, and its committed offset in each topic's partition.

        The offset is the next to read; None: none committed."""


class Standings(Protocol):
    async def look(self, agents: Sequence[str]) -> Sequence[AgentStanding]:
        """Return offsets, lag and members of these agents' topics, in the order of the agents.

        Concurrent commits may or may not be included."""

    async def stop(self) -> None: ...


class ClusterAdmin(Protocol):
    """Asks brokers about themselves.

    Every method raises Unavailable if they do not answer, and NotAllowed if they may not."""

    async def view(self, topics: Sequence[str]) -> ClusterView:
        """Return who is in the cluster, and where the replicas of these topics are."""

    async def directories(self) -> Sequence[LogDirectory]:
        """Return the folders of every broker in the cluster, with the room on their disks."""

    async def open_transactions(self, topics: Sequence[str]) -> Sequence[OpenTransaction]:
        """Return the transactions that are open in a partition of these topics."""

    async def stop(self) -> None: ...


class Appender(Protocol):
    async def append(self, out: ProducerRecord, what: str, *, deadline_s: float) -> Position:
        """Write one record; returns once it is durable. The error message names it as `what`.

        Raises: RecordTooLarge — nothing was written; Unavailable — it may have been written, or may
            still be: repeat it with the same id.
        Under cancellation: as for Unavailable.
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
        """Join the group. Every partition is assigned paused.

        Raises: Unavailable.
        """

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """Return committed records.

        Raises: Unavailable; OffsetGone — the partition has to be taken over again."""

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int, position: int | None = None) -> None: ...

    def reached(self, partition: int) -> int:
        """Return the next offset to read; it also moves past markers and aborted records."""

    async def standing(self, partition: int) -> SourceOffsets:
        """Return the partition's offsets.

        Raises: Unavailable.
        """

    async def commit(self, partition: int, offset: int) -> None:
        """Commit the next offset to read.

        Raises: Unavailable; FencedError — another member has the partition."""

    async def stop(self) -> None:
        """Leave the group and close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a log supports."""

    #: several processes can run agents, each with a share of the partitions
    many_processes: bool
    #: agents can listen to topics of other applications
    topic_triggers: bool


class Backend(Protocol):
    """All that a process needs of the log, on one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def name(self) -> str:
        """The kind of log and its location, for people."""

    @property
    def views_file(self) -> Path | None:
        """The file with the views of this log; None: several processes share views, in topics."""

    def topics(self) -> AbstractAsyncContextManager[TopicAdmin]:
        """Open a TopicAdmin.

        Raises: Unavailable — the log cannot be reached.
        """

    def log(self, topics: AgentTopics, slot: int) -> Log:
        """Return a member of the agent's group; `slot` distinguishes members of one machine."""

    def source(self, topics: AgentTopics, topic: str, group: str, slot: int) -> SourceLog:
        """Return a member of `group`, which turns records of the app's own topic into commands.

        `topics` are those of the agent that the commands are for."""

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

    def cluster(self) -> ClusterAdmin | None:
        """Return what asks the brokers; None: the log has none."""

    def appender(self) -> Appender: ...

    def readiness(self) -> Probe: ...

    def archive_log(self, topics: AgentTopics) -> ArchiveLog:
        """Return a member of the group that archives the agent's events."""

    def show(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return a record that was kept elsewhere as it stood in the log, as readers see it."""
