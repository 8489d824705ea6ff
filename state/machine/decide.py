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
from surefoot.state.machine.decision import DecisionBuilder, InputRefused, Rules, at_work, illegal
from surefoot.state.machine.model import (
    COMMANDS_KEPT,
    NO_MEMORY,
    OPERATIONS,
    TERMINAL,
    AnswerQuestion,
    BudgetExceeded,
    Cancel,
    CarryForward,
    ChildDone,
    Decision,
    Defer,
    DeliverSignal,
    EntryRecorded,
    Failure,
    Input,
    Operation,
    Park,
    Pause,
    Record,
    ResolveCall,
    Resume,
    RetryRun,
    Rewind,
    Run,
    StartRun,
    State,
    Status,
    StepFailed,
    StepReturned,
    TimedOut,
)
from surefoot.state.machine.operations import cancel, is_resolved, resolve, resume, retry, rewind
from surefoot.state.machine.step_ends import (
    answer,
    append_messages,
    child_done,
    is_decided,
    journaled,
    raised,
    returned,
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
        (None, StartRun): _ON,
        (None, DeliverSignal): frozenset({None}),
        ("running", Defer): frozenset({"pending"}),
        ("running", CarryForward): frozenset({"running"}),
        ("waiting", TimedOut): _ON | {"failed"},
        ("waiting", AnswerQuestion): _ON | {"failed"},
        ("waiting", ChildDone): _ON | _ENDS | {"attention"},
        ("paused", Resume): _ON | _ENDS | {"attention"},
        ("attention", RetryRun): _ON | _ENDS | {"attention"},
        ("failed", RetryRun): _ON,
        ("attention", ResolveCall): _ON | {"failed"},
    }
    for status in can_work:
        on = _PARKED if status == "paused" else _ON
        table[status, StepReturned] = on | _ENDS
        table[status, StepFailed] = on | {"failed"}
        table[status, BudgetExceeded] = on - {"running"}
        table[status, EntryRecorded] = frozenset({status})
        table[status, Park] = frozenset({"attention"})
    for status in alive:
        # What has not begun has nothing to be undone.
        begun: tuple[Status, ...] = () if status == "pending" else ("running",)
        table[status, Cancel] = frozenset((*begun, "cancelled"))
        table[status, DeliverSignal] = frozenset({status}) | (
            _ON if status == "waiting" else frozenset()
        )
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


def decide(rules: Rules, state: State, input_: Input, now_ms: int) -> Decision:
    """Apply one input to one run. Pure: `state` is not changed."""
    run = state.run
    builder = DecisionBuilder(rules, dict(state.entries), now_ms)
    status = run.status if run is not None else None
    try:
        if isinstance(input_, OPERATIONS) and _repeated(run, state, input_):
            builder.emit(run, "command.repeated", id=input_.id, by=input_.by)
            return Decision(run, tuple(builder.records))
        if (status, type(input_)) not in TABLE:
            raise illegal(status, input_)
        after = _apply(builder, run, input_)
    except InputRefused as error:
        if not isinstance(input_, OPERATIONS):
            return Decision(run, refused=error.refusal)
        builder = DecisionBuilder(rules, {}, now_ms)
        builder.refuse(run, input_, error.refusal)
        return Decision(run, tuple(builder.records), error.refusal)
    if after is not None and isinstance(input_, OPERATIONS):
        kept = (*after.commands, input_.id)[-COMMANDS_KEPT:]
        after = replace(after, commands=kept)
    return Decision(after, tuple(builder.records))


def ignored_start(start: StartRun, failure: Failure, now_ms: int) -> tuple[Record, ...]:
    """For the history: the start was ignored, and why. A parent is told that this child will not
    come."""
    builder = DecisionBuilder(Rules(agent=start.agent), {}, now_ms)
    run = _new_run(builder, start)
    builder.emit(run, "start.ignored", failure=failure)
    if run.parent is not None:
        tell_parent(builder, run, run.parent, None, failure)
    return tuple(builder.records)


def _apply(builder: DecisionBuilder, run: Run | None, input_: Input) -> Run | None:
    if isinstance(input_, StartRun):
        return _start(builder, input_)
    if isinstance(input_, DeliverSignal):
        return signal(builder, run, input_)
    assert run is not None
    match input_:
        case Defer():
            run = builder.update(run, status="pending")
            builder.emit(run, "run.accepted")
        case CarryForward():
            if input_.failure is not None:
                run = builder.update(run, failure=input_.failure)
            builder.task(run)
        case StepReturned():
            run = returned(builder, at_work(run, input_.work), input_)
        case StepFailed():
            run = raised(builder, at_work(run, input_.work), input_)
        case BudgetExceeded():
            run = replace(at_work(run, input_.work), due_ms=None)
            run = overspent(builder, run, input_.what, input_.message, input_.cost)
        case EntryRecorded():
            journaled(builder, at_work(run, input_.work), input_)
        case Park():
            if input_.work is not None:
                run = at_work(run, input_.work)
            run = park(builder, run, input_.failure)
        case TimedOut():
            run = timed_out(builder, run, input_)
        case ChildDone():
            run = child_done(builder, run, input_)
        case AnswerQuestion():
            run = answer(builder, run, input_)
        case Pause():
            run = builder.update(run, status="paused")
            builder.emit(run, "run.paused", id=input_.id, by=input_.by)
        case Resume():
            run = resume(builder, run, input_)
        case Cancel():
            run = cancel(builder, run, input_)
        case RetryRun():
            run = retry(builder, run, input_)
        case ResolveCall():
            run = resolve(builder, run, input_)
        case Rewind():
            run = rewind(builder, run, input_)
        case _:
            assert_never(input_)
    return run


def _repeated(run: Run | None, state: State, input_: Operation) -> bool:
    """The command was taken before, or asks for what is already so.

    Raises: Refused — an answer to a question that was answered otherwise.
    """
    if isinstance(input_, DeliverSignal) and f"s:{input_.id}" in state.entries:
        return True
    if run is None:
        return False
    if input_.id in run.commands:
        return True
    match input_:
        case Pause():
            return run.status == "paused"
        case Resume():
            return run.status in ("running", "waiting")
        case Cancel():
            ending = None if run.terminal else run.ending
            return "cancelled" in (run.status, ending)
        case RetryRun():
            return run.status == "running"
        case ResolveCall():
            return is_resolved(run, state.entries, input_)
        case AnswerQuestion():
            return is_decided(run, input_)
    return False


def _new_run(builder: DecisionBuilder, input_: StartRun) -> Run:
    memory = input_.memory
    if builder.rules.budget and (memory is None or not memory.granted):
        memory = replace(memory or NO_MEMORY, granted=builder.rules.budget)
    if input_.messages or memory is not None:
        memory = replace(memory or NO_MEMORY, thread=len(input_.messages))
    early = [signal.id for signal in wait_rules.signals(builder.entries) if signal.id is not None]
    return Run(
        run_id=input_.run_id,
        agent=input_.agent,
        version=input_.version,
        status="running",
        seq=0,
        step=input_.step,
        attempt=0,
        payload=input_.payload,
        created_ms=builder.now_ms,
        updated_ms=builder.now_ms,
        input_digest=input_.input_digest,
        traceparent=input_.traceparent,
        tracestate=input_.tracestate,
        baggage=input_.baggage,
        parent=input_.parent,
        carry=input_.carry,
        memory=memory,
        commands=tuple(early[-COMMANDS_KEPT:]),
    )


def _start(builder: DecisionBuilder, input_: StartRun) -> Run:
    run = _new_run(builder, input_)
    append_messages(builder, run.run_id, 0, input_.messages)
    inherit(builder, run, input_.actions, input_.repeat)
    builder.emit(run, "run.started", version=True, by=input_.by)
    return go_on(builder, run, task=False)
