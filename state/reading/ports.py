"""What reads runs, and sends commands to them, as Protocols."""

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

from surefoot.state.machine.model import Memory, Parent, Status, WaitState
from surefoot.state.ports.log import Position
from surefoot.state.reading.query import Activity, HistoryPage, PageCursor, RunQuery


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
    #: what it will be when its compensation is over
    ending: Status | None = None
    #: tells a repeated start from another one
    input_digest: bytes = b""
    #: read from the archive: the log has no such run any more
    archived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Part of a list of runs."""

    runs: Sequence[RunView]
    #: how many there are on all pages
    matches: int
    #: where the next page begins; None: this is the last one
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a run's partition holds that no worker has finished."""

    partition: int
    #: records after the committed offset; one in work counts
    commands: int
    tasks: int
    #: members of the agent's consumer group
    workers: int
    #: what to type to have one
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

        `by`: what asks for it, where its run_id does not say so.

        Raises: Unavailable — it may or may not have been written; asking again with the same
        run_id makes one run.
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
        """Ask something of a run. `fields`: those of schemas/avro/Command.avsc; `id` makes it safe
        to ask again. `stored`: the payload is one that stands in the log, pointers and all.
        Returns and raises like `start`."""


class RunReader(Protocol):
    """Reads committed state and history only."""

    async def get(self, agent: str, run_id: str) -> RunView | None: ...

    async def list(
        self, agent: str, *, status: Status | None = None, limit: int = 50
    ) -> Sequence[RunView]:
        """Most recently updated first."""

    def events(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        """(offset, event) of one run from the offset after `after`, then live; ends after the
        event that ends the run."""

    def answers(
        self, agent: str, run_id: str
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """Events of one run from now on: whatever is committed once this has been entered is
        among them. A watcher that is too slow is let go.

        Raises: Unavailable — the log cannot be read just now.
        """

    async def latest(self, agent: str, run_id: str) -> RunView | None:
        """The run as of everything that has been committed by now. Raises Unavailable."""

    async def counts(self, agent: str) -> Mapping[tuple[int, Status], int]:
        """How many runs there are of each (version of the agent, status)."""

    async def backlog(self, agent: str, run_id: str) -> Backlog:
        """How much stands before a run in its partition. Raises Unavailable."""


class Views(Protocol):
    """What an agent's runs look like from far away (state/reading/statistics.py), as JSON values.
    Every answer has `lag`: how many events are not in it, and for how long the oldest has not been.

    All raise Unavailable while a partition is nobody's, or cannot be read.
    """

    async def summary(self, agent: str) -> dict[str, Any]:
        """`statuses`: of each, how many runs, since when the oldest, how many of which age."""

    async def attention(self, agent: str, limit: int) -> dict[str, Any]:
        """`runs` that need a person, those that have waited longest first; `total` of them."""

    async def windows(self, agent: str, minutes: int) -> dict[str, Any]:
        """`windows`: what each step came to in each of the last minutes, the present included;
        `steps`: in all of them together."""

    async def run(self, agent: str, run_id: str) -> dict[str, Any]:
        """`run`: where it stands; None where it is not known."""


class RunBrowser(RunReader, Protocol):
    """The same for people who look at many runs, and at long ones."""

    async def page(self, agent: str, query: RunQuery) -> RunPage:
        """Most recently updated first. Raises Unavailable."""

    async def activity(self, agent: str, now_ms: int, *, bucket_ms: int, buckets: int) -> Activity:
        """What the agent has been doing up to now. Raises Unavailable."""

    async def past(self, agent: str, run_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """The latest events of one run that stand before the offset `before`. A page can have
        fewer than `limit` although there are more: looking for them has a limit, too.

        Raises: Unavailable — the log cannot be read just now.
        """

    async def effect(self, effect_id: str, since_ms: int) -> dict[str, Any] | None:
        """The latest event of the effect's delivery, which was asked for at that time; None: it has
        not begun, or its history has expired. Raises Unavailable."""


class Readiness(Protocol):
    async def check(self, agent: str) -> None:
        """Commit a real transaction to the agent's state topic. Raises Unavailable with why not."""
