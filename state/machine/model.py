"""The values of the core: a run, what happens to it, and what it writes.

Times are epoch milliseconds, UTC. Payloads and results are strict JSON bytes (schemas.payload).
"""

from __future__ import annotations

from collections.abc import (
    Mapping,
)
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, Literal, NamedTuple

from surefoot.state.errors.scrubbing import scrub

Status = Literal[
    "pending", "running", "waiting", "paused", "attention", "completed", "failed", "cancelled"
]
TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
#: in these a step may be in work
CAN_WORK: Final[tuple[Status, ...]] = ("pending", "running", "waiting", "paused")
ALIVE: Final[tuple[Status, ...]] = (*CAN_WORK, "attention")
#: what a run is that goes on
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

#: longest failure message that is stored, in characters
MESSAGE_MAX = 4096
#: ids of so many latest commands are kept to recognise a repeated one
COMMANDS_KEPT = 32
#: so many latest answers are kept to tell which one is in force
DECIDED_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something did not work; bounded, and without credentials, as it goes everywhere."""

    code: str
    message: str
    kind: str = ""
    step: str | None = None
    attempt: int = 0
    #: where in the author's code: `FILE:LINE in FUNCTION`, in the order of the calls
    frames: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean = scrub(self.message.encode("utf-8", "backslashreplace").decode())
        if len(clean) > MESSAGE_MAX:
            clean = clean[: MESSAGE_MAX - 1] + "…"
        object.__setattr__(self, "message", clean)


# What a run is ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of one thing: tokens, money (millionths), ms (of step bodies), steps."""

    what: str
    amount: int


Amounts = tuple[Amount, ...]


def total(*parts: Amounts) -> Amounts:
    """The sum, thing by thing, in the order of their names."""
    sums: dict[str, int] = {}
    for part in parts:
        for each in part:
            sums[each.what] = sums.get(each.what, 0) + each.amount
    return tuple(Amount(what, sums[what]) for what in sorted(sums))


def over(spent: Amounts, granted: Amounts) -> str | None:
    """The first thing of which more is spent than granted; what is not granted is not limited."""
    limits = {each.what: each.amount for each in granted}
    for each in spent:
        if each.amount > limits.get(each.what, each.amount):
            return each.what
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A child run that is, or will be, started."""

    agent: str
    #: None: the agent's start step
    step: str | None
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Whom a run tells when it is over: its parent, which waits for it as a branch of a fork; or,
    with fork 0, the run that has started it as number `branch` and is told by a signal."""

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
    #: the step that goes on with what has come; None: the run's own next step
    then: str | None = None
    #: the step that goes on when `due_ms` comes first; None: the run fails
    on_timeout: str | None = None
    names: tuple[str, ...] = ()
    #: signal: one (its payload is the input), any, all, count (a list of signals is);
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
    """One item of a run's to-do list."""

    id: str
    text: str
    state: str = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """How a question was answered."""

    question: str
    #: 1 or 0
    approved: int
    by: str | None
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a run carries from step to step beside its payload."""

    plan: tuple[PlanItem, ...] = ()
    #: messages in its thread
    thread: int = 0
    spent: Amounts = ()
    granted: Amounts = ()
    decided: tuple[Decided, ...] = ()


NO_MEMORY: Final = Memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of an agent, as its latest checkpoint tells it."""

    run_id: str
    agent: str
    #: version of the agent that the run is pinned to
    version: int
    status: Status
    #: committed steps so far; the step to run next has this number
    seq: int
    #: the step to run next; of a terminal run, its last one
    step: str
    #: attempts of that step that are over
    attempt: int
    payload: bytes
    created_ms: int
    updated_ms: int
    #: tells a repeated start from another start with the same run_id
    input_digest: bytes
    due_ms: int | None = None
    result: bytes | None = None
    failure: Failure | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    #: how often it was sent back to an earlier version
    epoch: int = 0
    #: epoch that is part of the keys of its effects; 0: none
    emit: int = 0
    #: forks so far; part of the run_id of each child
    forks: int = 0
    wait: WaitState | None = None
    #: what the waiting step handed on: third argument of the step to run next
    carry: bytes | None = None
    parent: Parent | None = None
    memory: Memory | None = None
    #: what the run will be when its compensation is over, and why
    ending: Status | None = None
    reason: Failure | None = None
    #: ids of the latest commands
    commands: tuple[str, ...] = ()

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def timed(self) -> bool:
        """It waits for its time and for nothing else: then its step is run."""
        return self.status == "waiting" and self.wait is None


EntryKind = Literal[
    "call", "reserved", "intent", "partial", "signal", "branch", "message", "done", "past", "again"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One increment of a run, under a slot of its own in the state topic, so that it costs what
    is new and not the whole run."""

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
    """What another run has done, or begun, with ctx.once; or, without a step, whatever others have
    done."""

    run_id: str
    step: str
    #: NAME#N; without a step: how many forks of the run have done it, or nothing: the run itself
    call: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class State:
    """All that is known of one run: its checkpoint (None: there is none) and its entries by slot,
    in the order in which they were written."""

    run: Run | None
    entries: Entries = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A start command that a step's commit sends to another agent (the outbox, for one)."""

    agent: str
    run_id: str
    payload: bytes
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


# What becomes of a run when a step's body has returned --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTo:
    """Another step is next, `after_ms` from now or at `at_ms` at the earliest."""

    step: str
    payload: bytes
    after_ms: int | None = None
    at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The run is over."""

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
    #: instead of `timeout_ms`, a time
    until_ms: int | None = None
    on_timeout: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChildren:
    """Start child runs, and go on with `join` when they are over."""

    branches: tuple[Branch, ...]
    join: str
    #: join: all results, the first failure fails the run; collect: all outcomes; one: the result
    mode: str
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Another run goes on in this one's place: it answers to this one's parent."""

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
    #: what asks for it, where its run_id does not say so
    by: str | None = None
    #: of the run that this one is a copy of, or of those whose place it may be taking
    actions: tuple[Action, ...] = ()
    #: names of actions that may be done again
    repeat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """Keep a started run for later: another one of its lane goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryForward:
    """Ask again for the step in work, so that its old offset can be committed."""

    #: what whoever asks why the run stands there should know of that step
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Which attempt something comes from: of a run that has moved on, it counts no more."""

    seq: int
    attempt: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReturned:
    """The step's body returned."""

    work: Work
    then: StepResult
    #: handed on to the step after the wait
    carry: bytes | None = None
    effects: tuple[Effect, ...] = ()
    #: to other runs
    commands: tuple[CommandRecord, ...] = ()
    messages: tuple[bytes, ...] = ()
    #: ids of the signals that the step has taken out of the run's inbox
    read: tuple[str, ...] = ()
    #: None: as it was
    plan: tuple[PlanItem, ...] | None = None
    #: of calls that are journaled elsewhere, in a pool
    cost: Amounts = ()
    started_ms: int | None = None
    took_ms: int = 0
    #: version of the agent that ran it
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """The step's body failed. `retry_in_ms` None: no further attempt can help or is left."""

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
    #: of calls that are journaled elsewhere, in a pool
    cost: Amounts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecorded:
    """Something of the attempt in work is to be kept: a call's result, an intent, partial text."""

    work: Work
    slot: str
    kind: EntryKind
    digest: bytes | None = None
    #: None with no failure and no cost: forget the slot
    value: bytes | None = None
    failure: Failure | None = None
    cost: Amounts = ()
    #: it is an action: of ctx.once
    action: bool = False
    #: slot of the earlier action that this stands for from now on
    takes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """A person has to look: nothing is guessed, nothing is run. `work` None: whatever is next."""

    failure: Failure
    work: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The time of a wait is over."""

    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDone:
    """A branch is over: with a result, or with why there is none."""

    fork: int
    branch: int
    child: str
    result: bytes | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What somebody asks of a run: one of those in state/machine/commands.py."""

    #: of this command: a repeated one changes nothing
    id: str
    #: who asks
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    run_id: str
    seq: int
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
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
    """A command to another run: start a child, tell a parent, cancel."""

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
    #: start: as of StartRun
    actions: tuple[Action, ...] = ()
    repeat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Tombstone of one entry."""

    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecord:
    """A run out of attempts: holds what it takes to start its last step again."""

    run_id: str
    step: str
    payload: bytes
    failure: Failure
    attempts: int


Record = TaskRecord | EventRecord | Effect | CommandRecord | Entry | Forget | DeadRecord


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an input moved nothing: a stable word, and a sentence for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What one input does to one run. One that is not legal has `refused` and moves nothing; if it
    was a command, its records tell whoever sent it."""

    run: Run | None
    records: tuple[Record, ...] = ()
    refused: Refusal | None = None


#: types of fields that the codec takes as they are
_AS_IS: Final = frozenset({type(None), str, int, bytes})


def jsonable(value: Any) -> dict[str, Any]:
    """The fields of one of these values, as the codec takes them."""
    fields = {name: getattr(value, name) for name in value.__slots__}
    for name, item in fields.items():
        if type(item) not in _AS_IS:
            fields[name] = _plain(item)
    return fields


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
    #: begin, text, end
    kind: str
    #: characters of this output before this piece
    offset: int
    text: str
