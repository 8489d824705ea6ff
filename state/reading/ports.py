"""Protocols for reading runs and for sending commands to them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.machine.model import Memory, Parent, Status, WaitState
from surefoot.state.ports.log import Position
from surefoot.state.reading.query import Activity, HistoryPage, PageCursor, RunQuery
from surefoot.state.reading.statistics import (
    AttentionJson,
    RunStandingJson,
    SummaryJson,
    WindowsJson,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as the outside sees it."""

    run_id: str
    agent: str
    version: int
    status: Status
    seq: int
    step: str
    attempt: int
    created_ms: int
    updated_ms: int
    due_ms: int | None
    payload: bytes
    result: bytes | None
    failure: Mapping[str, Any] | None
    epoch: int = 0
    wait: WaitState | None = None
    carry: bytes | None = None
    memory: Memory | None = None
    parent: Parent | None = None
    #: its status once its compensation is over
    ending: Status | None = None
    #: distinguishes a repeated start from a different one
    input_digest: bytes = b""
    #: how often it has started children, or a pooled step
    forks: int = 0
    #: read from the archive: the log no longer has this run
    archived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Part of a list of runs."""

    runs: Sequence[RunView]
    #: number of runs on all pages
    matches: int
    #: where the next page begins; None: this is the last one
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The unfinished records in a run's partition."""

    partition: int
    #: records after the committed offset, including those in progress
    commands: int
    tasks: int
    #: members of the agent's consumer group
    workers: int
    #: command that starts a worker
    start_worker: str = "surefoot worker AGENT.py"


class Commands(Protocol):
    async def start(
        self,
        agent: str,
        run_id: str,
        payload: bytes,
        *,
        traceparent: str | None = None,
        tracestate: str | None = None,
        baggage: str | None = None,
        by: str | None = None,
        deadline_s: float,
    ) -> Position:
        """Ask for a run. Returns once all in-sync replicas have the command.

        Args:    by: who asks for it, if the run_id does not tell
        Raises:  Unavailable - it may or may not have been written; ask again with the same run_id,
                 which makes one run
        """

    async def send(
        self,
        agent: str,
        run_id: str,
        kind: str,
        *,
        stored: bool = False,
        deadline_s: float,
        **fields: Any,
    ) -> Position:
        """Send a command to a run.

        Args:    fields: those of schemas/avro/Command.avsc; with an `id` it is safe to send again.
                 stored: the payload comes from the log, pointers included
        Returns and raises like `start`.
        """


class RunReader(Protocol):
    """Reads only committed state and history."""

    async def get(self, agent: str, run_id: str) -> RunView | None: ...

    async def list(
        self, agent: str, *, status: Status | None = None, limit: int = 50
    ) -> Sequence[RunView]:
        """Return an agent's runs, most recently updated first."""

    def events(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[tuple[int, AvroEvent], None]:
        """Yield (offset, event) of one run from the offset after `after`, then live; ends after the
        event that ends the run."""

    def answers(
        self, agent: str, run_id: str
    ) -> AbstractAsyncContextManager[AsyncIterator[AvroEvent]]:
        """Yield the events of one run from now on: everything committed after entering the context
        is included. A watcher that is too slow is dropped.

        Raises: Unavailable - the log cannot be read
        """

    async def latest(self, agent: str, run_id: str) -> RunView | None:
        """Return the run as of everything committed so far. Raises Unavailable."""

    async def counts(self, agent: str) -> Mapping[tuple[int, Status], int]:
        """Return the number of runs by (version of the agent, status)."""

    async def backlog(self, agent: str, run_id: str) -> Backlog:
        """Return how much is queued in the run's partition. Raises Unavailable."""


class Views(Protocol):
    """Aggregated views of an agent's runs (state/reading/statistics.py), as JSON values.

    Every answer has `lag`: how many events it does not include yet, and how long the oldest of them
    has waited. All methods raise Unavailable while a partition has no owner or cannot be read.
    """

    async def summary(self, agent: str) -> SummaryJson:
        """Return `statuses`: of each, the number of runs, the oldest one's time, and the ages."""

    async def attention(self, agent: str, limit: int) -> AttentionJson:
        """Return `runs` that need a person, longest waiting first, and their number as `total`."""

    async def windows(self, agent: str, minutes: int) -> WindowsJson:
        """Return `windows`: the results of each step in each of the last minutes, the current one
        included; and `steps`: the same over all these minutes."""

    async def run(self, agent: str, run_id: str) -> RunStandingJson:
        """Return `run`: where it stands; None if unknown."""


class RunBrowser(RunReader, Protocol):
    """A RunReader for people who look at many runs, and at long ones."""

    async def page(self, agent: str, query: RunQuery) -> RunPage:
        """Return one page of runs, most recently updated first. Raises Unavailable."""

    async def activity(self, agent: str, now_ms: int, *, bucket_ms: int, buckets: int) -> Activity:
        """Return the agent's recent activity, up to now. Raises Unavailable."""

    async def past(self, agent: str, run_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """Return the latest events of one run before the offset `before`. A page may have fewer
        than `limit` although there are more, since the search for them is limited too.

        Raises: Unavailable - the log cannot be read
        """

    async def effect(self, effect_id: str, since_ms: int) -> AvroEvent | None:
        """Return the latest event of the delivery of an effect that was asked for at `since_ms`;
        None: it has not begun, or its history has expired. Raises Unavailable."""


class Readiness(Protocol):
    async def check(self, agent: str) -> None:
        """Commit a real transaction to the agent's state topic. Raises Unavailable, saying why."""
