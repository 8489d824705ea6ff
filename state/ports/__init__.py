"""What the shells need from the outside world, as Protocols.

`Log` and `Ownership` are what a worker needs; `Commands`, `RunReader` and `Readiness` are what the
producers need; `Clock` and `Deliver` keep time and HTTP out of everything but infra/.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from surefoot.schemas.pointer import Pointer
from surefoot.state.machine.model import Journaled, Memory, Parent, Status, Wait
from surefoot.state.reading.query import Activity, HistoryPage, Place, RunQuery

#: the two input topics of an agent
InputKind = Literal["commands", "tasks"]
INPUT_KINDS: tuple[InputKind, InputKind] = ("commands", "tasks")

Headers = Sequence[tuple[str, bytes]]


class In(NamedTuple):
    """One record as read: raw bytes, and where it stood."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Out(NamedTuple):
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

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, In]]:
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

    def publish(self, records: Sequence[Out]) -> None:
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

    async def restore(self, start: int | None, apply: Callable[[list[In]], None]) -> int:
        """Feed every committed state record from offset `start` (None = the beginning) to the high
        watermark to `apply`, in order. Returns the position reached: the next offset.

        Raises: Unavailable — no progress within the deadline; what was applied stays applied.
        """

    async def commit(self, records: Sequence[Out], offsets: Mapping[InputKind, int]) -> int:
        """Write all `records` and the offsets (next to read) in one transaction, or nothing.

        Returns the next offset of the state partition after the transaction. Cancelling it does
        not stop the transaction: the outcome is then unknown.

        Raises: FencedError — a newer owner exists, and sees whether this was written;
        RecordRefused — nothing was written, this ownership can go on;
        OutcomeUnknown — anything else: retire this ownership, take a new one, read back.
        """

    async def close(self) -> None:
        """Give it up; an open transaction is left to be fenced. Safe to call twice."""


class Piece(NamedTuple):
    """A piece of partial output of an attempt."""

    run_id: str
    name: str
    seq: int
    attempt: int
    #: begin, text, end
    kind: str
    #: characters of this output before this piece
    offset: int
    text: str


class Engine(Protocol):
    """What an attempt of a step needs of the engine that runs it. Used on the loop of the steps."""

    async def record(self, note: Journaled) -> None:
        """Return once the note is committed. Never returns when the attempt no longer counts."""

    async def invoke(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a function of the author's: awaited when it is async, in a thread otherwise."""

    def publish(self, piece: Piece) -> None:
        """Write a piece of partial output to the stream topic, soon and at best effort."""

    def lease_left_s(self) -> float:
        """See Log.lease_left_s."""

    async def alone(self) -> None:
        """Return once no former owner of the run can believe any more that the run is its own."""

    def monotonic_s(self) -> float:
        """See Clock.monotonic_s."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, epoch ms UTC."""

    def monotonic_s(self) -> float:
        """Seconds that only ever go up, also while the process is stopped."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def unique(self) -> str:
        """A new id: URL-safe, ordered by time to the millisecond."""


class Blobs(Protocol):
    """Keeps what is too large for the log."""

    @property
    def name(self) -> str:
        """For a person: where it is kept."""

    async def put(self, pointer: Pointer, content: bytes) -> None:
        """Return once it will not be lost. Storing it again changes nothing.

        Raises: Unavailable — it may or may not have been stored; StoreRefused, which is one.
        """

    async def get(self, pointer: Pointer) -> bytes | None:
        """What is stored there, whatever it is; None: nothing. Raises as put."""

    def keys(self) -> AsyncIterator[tuple[str, int]]:
        """(key, size in bytes) of everything that is stored. Raises Unavailable."""

    async def delete(self, key: str) -> None:
        """Return once it is gone, or was not there. Raises Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    #: at most the first KiB
    body: bytes


class Deliver(Protocol):
    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Send one request; redirects are not followed. Raises RetryableError when no answer came
        (then it may or may not have been acted upon)."""


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
    wait: Wait | None = None
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
    next: Place | None


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
    """What an agent's runs look like from far away (state/reading/statistics.py), as JSON values. Every
    answer has `lag`: how many events are not in it, and for how long the oldest has not been.

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
