"""The core's values: a run, its inputs, and the records it writes.

Times are epoch milliseconds, UTC. Payloads and results are strict JSON bytes (schemas.payload).
"""

from __future__ import annotations

from collections.abc import (
    Mapping,
)
from dataclasses import dataclass, is_dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, overload

from surefoot.schemas.codec.records import (
    AvroAction,
    AvroDecided,
    AvroEntry,
    AvroEvent,
    AvroFailure,
    AvroMemory,
    AvroParent,
    AvroPlanItem,
    AvroStatus,
    AvroTask,
)
from surefoot.state.errors.scrubbing import scrub

Status = AvroStatus
TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
#: statuses in which a step may be in progress
CAN_WORK: Final[tuple[Status, ...]] = ("pending", "running", "waiting", "paused")
ALIVE: Final[tuple[Status, ...]] = (*CAN_WORK, "attention")
#: statuses of a run that continues
ON: Final[frozenset[Status | None]] = frozenset({"running", "waiting"})

EventType = Literal[
    "run.accepted",
    "run.started",
    "run.paused",
    "run.resumed",
    "run.retried",
    "run.resolved",
    "run.rewound",
    "run.cancelling",
    "run.failing",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.attention",
    "step.completed",
    "step.retrying",
    "budget.spent",
    "signal.received",
    "signal.unread",
    "approval.decided",
    "wait.over",
    "wait.timed_out",
    "child.finished",
    "command.repeated",
    "command.refused",
    "start.ignored",
]

#: longest stored failure message, in characters
MESSAGE_MAX = 4096
#: number of latest command ids kept to recognise a repeated command
COMMANDS_KEPT = 32
#: number of latest answers kept to tell which one is in force
DECIDED_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something failed. Bounded and without credentials, since it is shown everywhere."""

    code: str
    message: str
    kind: str = ""
    step: str | None = None
    attempt: int = 0
    #: position in the author's code: `FILE:LINE in FUNCTION`, outermost call first
    frames: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean = scrub(self.message.encode("utf-8", "backslashreplace").decode())
        if len(clean) > MESSAGE_MAX:
            clean = clean[: MESSAGE_MAX - 1] + "…"
        object.__setattr__(self, "message", clean)


# What a run is ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of one thing: tokens, money (millionths), ms (of step bodies), steps."""

    what: str
    amount: int


Amounts = tuple[Amount, ...]


def total(*parts: Amounts) -> Amounts:
    """Add up the amounts of each thing, sorted by its name."""
    sums: dict[str, int] = {}
    for part in parts:
        for each in part:
            sums[each.what] = sums.get(each.what, 0) + each.amount
    return tuple(Amount(what, sums[what]) for what in sorted(sums))


def over(spent: Amounts, granted: Amounts) -> str | None:
    """Return the first thing spent beyond its grant, or None. Without a grant it is unlimited."""
    limits = {each.what: each.amount for each in granted}
    for each in spent:
        if each.amount > limits.get(each.what, each.amount):
            return each.what
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A child run, started or still to be started."""

    agent: str
    #: None: the agent's start step
    step: str | None
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The run to notify when this one ends.

    With a fork, it is the parent, which waits for this run as a branch. With fork 0, it is the run
    that started this one as number `branch`; a signal notifies it.
    """

    agent: str
    run_id: str
    fork: int
    branch: int


WaitKind = Literal["signal", "approval", "budget", "children", "pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitState:
    """What a waiting run waits for, besides its time."""

    kind: WaitKind
    since_ms: int
    #: step that receives the awaited input; None: the run's own next step
    then: str | None = None
    #: step to run if `due_ms` comes first; None: the run fails
    on_timeout: str | None = None
    names: tuple[str, ...] = ()
    #: signal: one (its payload is the input), any, all, count (a list of signals is the input);
    #: children: join, collect, one
    mode: str = ""
    need: int = 0
    question: str | None = None
    by: tuple[str, ...] = ()
    fork: int = 0
    limit: int = 0
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanItem:
    """An item of a run's to-do list."""

    id: str
    text: str
    state: str = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The answer to a question."""

    question: str
    #: 1 or 0
    approved: int
    by: str | None
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a run carries from step to step besides its payload."""

    plan: tuple[PlanItem, ...] = ()
    #: number of messages in its thread
    thread: int = 0
    spent: Amounts = ()
    granted: Amounts = ()
    decided: tuple[Decided, ...] = ()


NO_MEMORY: Final = Memory()


class Run(NamedTuple):
    """One execution of an agent, as of its latest checkpoint."""

    run_id: str
    agent: str
    #: version of the agent that the run is pinned to
    version: int
    status: Status
    #: number of committed steps, and so the number of the step to run next
    seq: int
    #: the step to run next; of a terminal run, its last step
    step: str
    #: finished attempts of that step
    attempt: int
    payload: bytes
    created_ms: int
    updated_ms: int
    #: distinguishes a repeated start from a different start with the same run_id
    input_digest: bytes
    due_ms: int | None = None
    result: bytes | None = None
    failure: Failure | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    #: how often the run was rewound
    epoch: int = 0
    #: epoch that is part of the keys of its effects; 0: none
    emit: int = 0
    #: number of forks so far; part of the run_id of each child
    forks: int = 0
    wait: WaitState | None = None
    #: what the waiting step handed over the wait: third argument of the step to run next
    carry: bytes | None = None
    parent: Parent | None = None
    memory: Memory | None = None
    #: status once its compensation is over, and the reason
    ending: Status | None = None
    reason: Failure | None = None
    #: ids of the latest commands
    commands: tuple[str, ...] = ()

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def timed(self) -> bool:
        """Whether it waits for its time only; its step runs when the time comes."""
        return self.status == "waiting" and self.wait is None


EntryKind = Literal[
    "call", "reserved", "intent", "partial", "signal", "branch", "message", "done", "past", "again"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One increment of a run, in a slot of its own in the state topic.

    Writing one costs the size of what is new, not of the whole run.
    """

    run_id: str
    slot: str
    kind: EntryKind
    seq: int = 0
    epoch: int = 0
    digest: bytes | None = None
    value: bytes | None = None
    failure: Failure | None = None
    id: str | None = None
    name: str | None = None
    by: str | None = None
    cost: Amounts = ()
    at_ms: int = 0


Entries = Mapping[str, Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What another run did, or began, with ctx.once; without a step: whatever other runs did."""

    run_id: str
    step: str
    #: NAME#N; without a step: the number of forks of the run that did it, or "": the run itself
    call: str
    digest: bytes


class State(NamedTuple):
    """All that is known of one run: its checkpoint (None: no such run) and its entries.

    Entries are keyed by slot, in the order in which they were written.
    """

    run: Run | None
    entries: Entries = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A start command that a step's commit sends to another agent, such as the outbox."""

    agent: str
    run_id: str
    payload: bytes
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


# What becomes of a run when a step's body has returned --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTo:
    """Run another step next, `after_ms` from now or at `at_ms` at the earliest."""

    step: str
    payload: bytes
    after_ms: int | None = None
    at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Complete the run."""

    result: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitInput:
    """Wait for signals, or for the answer to a question (`about`: what is to be approved)."""

    then: str
    names: tuple[str, ...] = ()
    mode: str = ""
    need: int = 0
    about: bytes | None = None
    by: tuple[str, ...] = ()
    timeout_ms: int | None = None
    #: epoch ms; instead of `timeout_ms`
    until_ms: int | None = None
    on_timeout: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChildren:
    """Start child runs, and run `join` when they are over."""

    branches: tuple[Branch, ...]
    join: str
    #: join: all results, the first failure fails the run; collect: all outcomes; one: the result
    mode: str
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Let another run take this one's place: it answers to this one's parent."""

    to: Branch


StepResult = GoTo | Complete | AwaitInput | StartChildren | HandOver


# What happens to a run ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """Begin a run. Serves as the task of its first step."""

    run_id: str
    agent: str
    version: int
    step: str
    payload: bytes
    input_digest: bytes
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    parent: Parent | None = None
    carry: bytes | None = None
    memory: Memory | None = None
    messages: tuple[bytes, ...] = ()
    #: who or what requested it, where the run_id does not say so
    by: str | None = None
    #: actions of the run that this one copies, or of the runs whose place it may take
    actions: tuple[Action, ...] = ()
    #: names of actions that may run again
    repeat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """Keep a started run for later: another run of its lane goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryForward:
    """Request the step in progress again, so that its old offset can be committed."""

    #: what the run shows of that step to explain why it does not advance
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The attempt that an input comes from. The input is stale once the run has moved on."""

    seq: int
    attempt: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReturned:
    """The step's body returned."""

    work: Work
    then: StepResult
    #: handed to the step after the wait
    carry: bytes | None = None
    effects: tuple[Effect, ...] = ()
    #: to other runs
    commands: tuple[CommandRecord, ...] = ()
    messages: tuple[bytes, ...] = ()
    #: ids of the signals that the step took from the run's inbox
    read: tuple[str, ...] = ()
    #: None: unchanged
    plan: tuple[PlanItem, ...] | None = None
    #: of calls journaled elsewhere, in a pool
    cost: Amounts = ()
    started_ms: int | None = None
    took_ms: int = 0
    #: version of the agent that ran it
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """The step's body failed. `retry_in_ms` None: retrying cannot help, or no attempt is left."""

    work: Work
    failure: Failure
    retry_in_ms: int | None
    started_ms: int | None = None
    took_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded:
    """The attempt asks for more of something than the run's budget has left."""

    work: Work
    what: str
    message: str
    #: of calls journaled elsewhere, in a pool
    cost: Amounts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecorded:
    """The attempt in progress wants an entry kept: a call's result, an intent, partial text."""

    work: Work
    slot: str
    kind: EntryKind
    digest: bytes | None = None
    #: None, with no failure and no cost: delete the slot
    value: bytes | None = None
    failure: Failure | None = None
    cost: Amounts = ()
    #: whether it is an action, made with ctx.once
    action: bool = False
    #: slot of the earlier action that this one replaces
    takes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Set the run aside until a person acts: nothing is guessed, nothing runs.

    `work` None: applies to whichever step is next.
    """

    failure: Failure
    work: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The time of a wait is over."""

    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDone:
    """A branch ended, with a result or a failure."""

    fork: int
    branch: int
    child: str
    result: bytes | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A command to a run: one of those in state/machine/commands.py."""

    #: id of this command; repeating it changes nothing
    id: str
    #: who sent it
    by: str | None = None


Input = (
    StartRun
    | Defer
    | CarryForward
    | StepReturned
    | StepFailed
    | BudgetExceeded
    | EntryRecorded
    | Park
    | TimedOut
    | ChildDone
    | Operation
)


# What a run writes, besides its checkpoint ---------------------------------------------------


class TaskRecord(NamedTuple):
    run_id: str
    seq: int
    step: str


class EventRecord(NamedTuple):
    """One entry of the history; the fields are those of schemas/avro/Event.avsc."""

    type: EventType
    run_id: str
    agent: str
    version: int
    status: Status
    seq: int
    at_ms: int
    step: str | None = None
    next_step: str | None = None
    attempt: int = 0
    started_ms: int | None = None
    due_ms: int | None = None
    effects: tuple[str, ...] = ()
    result: bytes | None = None
    failure: Failure | None = None
    epoch: int = 0
    id: str | None = None
    name: str | None = None
    by: str | None = None
    payload: bytes | None = None
    carry: bytes | None = None
    memory: Memory | None = None
    wait: WaitState | None = None
    children: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """A command to another run: start a child, notify a parent, cancel."""

    agent: str
    run_id: str
    kind: str
    id: str | None = None
    name: str | None = None
    step: str | None = None
    payload: bytes = b"null"
    parent: Parent | None = None
    failure: Failure | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    #: for a start: as in StartRun
    actions: tuple[Action, ...] = ()
    repeat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Tombstone of one entry."""

    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecord:
    """A run out of attempts: holds what is needed to start its last step again."""

    run_id: str
    step: str
    payload: bytes
    failure: Failure
    attempts: int


Record = TaskRecord | EventRecord | Effect | CommandRecord | Entry | Forget | DeadRecord


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an input was refused: a stable code, and a sentence for people."""

    code: str
    message: str


class Decision(NamedTuple):
    """The effect of one input on one run.

    An illegal input sets `refused` and changes nothing; the records of a refused command inform its
    sender.
    """

    run: Run | None
    records: tuple[Record, ...] = ()
    refused: Refusal | None = None


#: types of fields that the codec takes as they are
_AS_IS: Final = frozenset({type(None), str, int, bytes})


@overload
def jsonable(value: TaskRecord) -> AvroTask: ...
@overload
def jsonable(value: EventRecord) -> AvroEvent: ...
@overload
def jsonable(value: Entry) -> AvroEntry: ...
@overload
def jsonable(value: Failure) -> AvroFailure: ...
@overload
def jsonable(value: Parent) -> AvroParent: ...
@overload
def jsonable(value: Memory) -> AvroMemory: ...
@overload
def jsonable(value: PlanItem) -> AvroPlanItem: ...
@overload
def jsonable(value: Decided) -> AvroDecided: ...
@overload
def jsonable(value: Action) -> AvroAction: ...
@overload
def jsonable(value: Any) -> Any: ...
def jsonable(value: Any) -> Any:
    """Return a dict of the fields of one of these values, as the codec takes them."""
    if isinstance(value, tuple):
        names, items = value._fields, iter(value)  # type: ignore[attr-defined]
    else:
        names, items = value.__slots__, (getattr(value, name) for name in value.__slots__)
    return {
        name: item if type(item) in _AS_IS else _plain(item)
        for name, item in zip(names, items, strict=True)
    }


def _plain(item: Any) -> Any:
    if isinstance(item, tuple):
        return [_plain(each) for each in item]
    return jsonable(item) if is_dataclass(item) else item


class OutputPiece(NamedTuple):
    """A piece of partial output of an attempt."""

    run_id: str
    name: str
    seq: int
    attempt: int
    #: begin, text, or end
    kind: str
    #: characters of this output before this piece
    offset: int
    text: str
