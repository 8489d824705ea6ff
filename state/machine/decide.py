"""What a run does next: one pure function over one table.

    decide(rules, state, input, now_ms) -> Decision(run', records, refused)

No I/O, no clock, no randomness. An input that is not legal in the run's status moves nothing: the
decision has the same run and the reason; if it was somebody's command, one event tells them. The
checkpoint itself is not among the records; the committer writes the decision's run. Decisions
compose: several inputs of one run may be applied one after the other, and only the last run be
committed, with the records of all of them.

A run that waits for its time only (backoff, sleep) stays `waiting` with `due_ms`; the owner runs
its step when that time has come, and the outcome is applied to the waiting run directly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import inherit
from surefoot.state.machine.advance import go_on, overspent, park, tell_parent
from surefoot.state.machine.decision import Refused, Rules, Turn, at_work, illegal
from surefoot.state.machine.model import (
    COMMANDS_KEPT,
    NO_MEMORY,
    OPERATIONS,
    TERMINAL,
    Answer,
    Cancel,
    ChildDone,
    Decision,
    Failure,
    Forward,
    Input,
    Journaled,
    Operation,
    Overspent,
    Pause,
    Quarantine,
    Queue,
    Raised,
    Record,
    Resolve,
    Resume,
    RetryRun,
    Returned,
    Rewind,
    Run,
    Signal,
    Start,
    State,
    Status,
    TimedOut,
)
from surefoot.state.machine.operations import cancel, is_resolved, resolve, resume, retry, rewind
from surefoot.state.machine.step_ends import (
    answer,
    child_done,
    is_decided,
    journaled,
    raised,
    returned,
    say,
    signal,
    timed_out,
)

_ENDS: Final[frozenset[Status | None]] = frozenset(TERMINAL)
_ON: Final[frozenset[Status | None]] = frozenset({"running", "waiting"})
_PARKED: Final[frozenset[Status | None]] = frozenset({"paused"})


def _table() -> dict[tuple[Status | None, type[Input]], frozenset[Status | None]]:
    """status (None: no such run) x input -> the statuses that can follow."""
    can_work: tuple[Status, ...] = ("pending", "running", "waiting", "paused")
    alive: tuple[Status, ...] = (*can_work, "attention")
    table: dict[tuple[Status | None, type[Input]], frozenset[Status | None]] = {
        (None, Start): _ON,
        (None, Signal): frozenset({None}),
        ("running", Queue): frozenset({"pending"}),
        ("running", Forward): frozenset({"running"}),
        ("waiting", TimedOut): _ON | {"failed"},
        ("waiting", Answer): _ON | {"failed"},
        ("waiting", ChildDone): _ON | _ENDS | {"attention"},
        ("paused", Resume): _ON | _ENDS | {"attention"},
        ("attention", RetryRun): _ON | _ENDS | {"attention"},
        ("failed", RetryRun): _ON,
        ("attention", Resolve): _ON | {"failed"},
    }
    for status in can_work:
        on = _PARKED if status == "paused" else _ON
        table[status, Returned] = on | _ENDS
        table[status, Raised] = on | {"failed"}
        table[status, Overspent] = on - {"running"}
        table[status, Journaled] = frozenset({status})
        table[status, Quarantine] = frozenset({"attention"})
    for status in alive:
        # What has not begun has nothing to be undone.
        begun: tuple[Status, ...] = () if status == "pending" else ("running",)
        table[status, Cancel] = frozenset((*begun, "cancelled"))
        table[status, Signal] = frozenset({status}) | (_ON if status == "waiting" else frozenset())
    for status in ("paused", "attention"):
        table[status, ChildDone] = frozenset({status})
    for status in ("running", "waiting"):
        table[status, Pause] = _PARKED
    for status in (*alive, *sorted(TERMINAL)):
        table[status, Rewind] = _ON
    return table


#: What is not here is refused. A command that was taken before, or asks for what is already so, is
#: answered as repeated, and moves nothing.
TABLE: Final = _table()


def decide(rules: Rules, state: State, event: Input, now_ms: int) -> Decision:
    """Apply one input to one run. Pure: `state` is not changed."""
    run = state.run
    turn = Turn(rules, dict(state.entries), now_ms)
    status = run.status if run is not None else None
    try:
        if isinstance(event, OPERATIONS) and _repeated(run, state, event):
            turn.tell(run, "command.repeated", id=event.id, by=event.by)
            return Decision(run, tuple(turn.records))
        if (status, type(event)) not in TABLE:
            raise illegal(status, event)
        after = _apply(turn, run, event)
    except Refused as error:
        if not isinstance(event, OPERATIONS):
            return Decision(run, refused=error.refusal)
        turn = Turn(rules, {}, now_ms)
        turn.refuse(run, event, error.refusal)
        return Decision(run, tuple(turn.records), error.refusal)
    if after is not None and isinstance(event, OPERATIONS):
        kept = (*after.commands, event.id)[-COMMANDS_KEPT:]
        after = replace(after, commands=kept)
    return Decision(after, tuple(turn.records))


def ignored_start(start: Start, failure: Failure, now_ms: int) -> tuple[Record, ...]:
    """For the history: the start was ignored, and why. A parent is told that this child will not
    come."""
    turn = Turn(Rules(agent=start.agent), {}, now_ms)
    run = _new_run(turn, start)
    turn.tell(run, "start.ignored", failure=failure)
    if run.parent is not None:
        tell_parent(turn, run, run.parent, None, failure)
    return tuple(turn.records)


def _apply(turn: Turn, run: Run | None, event: Input) -> Run | None:
    if isinstance(event, Start):
        return _start(turn, event)
    if isinstance(event, Signal):
        return signal(turn, run, event)
    assert run is not None
    match event:
        case Queue():
            run = turn.moved(run, status="pending")
            turn.tell(run, "run.accepted")
        case Forward():
            if event.failure is not None:
                run = turn.moved(run, failure=event.failure)
            turn.task(run)
        case Returned():
            run = returned(turn, at_work(run, event.work), event)
        case Raised():
            run = raised(turn, at_work(run, event.work), event)
        case Overspent():
            run = replace(at_work(run, event.work), due_ms=None)
            run = overspent(turn, run, event.what, event.message, event.cost)
        case Journaled():
            journaled(turn, at_work(run, event.work), event)
        case Quarantine():
            if event.work is not None:
                run = at_work(run, event.work)
            run = park(turn, run, event.failure)
        case TimedOut():
            run = timed_out(turn, run, event)
        case ChildDone():
            run = child_done(turn, run, event)
        case Answer():
            run = answer(turn, run, event)
        case Pause():
            run = turn.moved(run, status="paused")
            turn.tell(run, "run.paused", id=event.id, by=event.by)
        case Resume():
            run = resume(turn, run, event)
        case Cancel():
            run = cancel(turn, run, event)
        case RetryRun():
            run = retry(turn, run, event)
        case Resolve():
            run = resolve(turn, run, event)
        case Rewind():
            run = rewind(turn, run, event)
        case _:
            assert_never(event)
    return run


def _repeated(run: Run | None, state: State, event: Operation) -> bool:
    """The command was taken before, or asks for what is already so.

    Raises: Refused — an answer to a question that was answered otherwise.
    """
    if isinstance(event, Signal) and f"s:{event.id}" in state.entries:
        return True
    if run is None:
        return False
    if event.id in run.commands:
        return True
    match event:
        case Pause():
            return run.status == "paused"
        case Resume():
            return run.status in ("running", "waiting")
        case Cancel():
            ending = None if run.terminal else run.ending
            return "cancelled" in (run.status, ending)
        case RetryRun():
            return run.status == "running"
        case Resolve():
            return is_resolved(run, state.entries, event)
        case Answer():
            return is_decided(run, event)
    return False


def _new_run(turn: Turn, event: Start) -> Run:
    memory = event.memory
    if turn.rules.budget and (memory is None or not memory.granted):
        memory = replace(memory or NO_MEMORY, granted=turn.rules.budget)
    if event.messages or memory is not None:
        memory = replace(memory or NO_MEMORY, thread=len(event.messages))
    early = [signal.id for signal in wait_rules.signals(turn.entries) if signal.id is not None]
    return Run(
        run_id=event.run_id,
        agent=event.agent,
        version=event.version,
        status="running",
        seq=0,
        step=event.step,
        attempt=0,
        payload=event.payload,
        created_ms=turn.now_ms,
        updated_ms=turn.now_ms,
        input_digest=event.input_digest,
        traceparent=event.traceparent,
        tracestate=event.tracestate,
        baggage=event.baggage,
        parent=event.parent,
        carry=event.carry,
        memory=memory,
        commands=tuple(early[-COMMANDS_KEPT:]),
    )


def _start(turn: Turn, event: Start) -> Run:
    run = _new_run(turn, event)
    say(turn, run.run_id, 0, event.messages)
    inherit(turn, run, event.actions)
    turn.tell(run, "run.started", version=True, by=event.by)
    return go_on(turn, run, task=False)
