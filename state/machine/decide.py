"""What a run does next: one pure function over one table.

    decide(rules, state, input, now_ms) -> Decision(run', records, refused)

No I/O, no clock, no randomness. An input that is illegal in the run's status changes nothing: the
decision has the same run and the reason; if the input was a command, one event informs its sender.

The records do not include the checkpoint; the committer writes the decision's run. Decisions
compose: several inputs of one run may be applied in sequence, and only the last run committed, with
the records of all of them.

A run that waits for its time only (backoff, sleep) stays `waiting` with `due_ms`. The owner runs
its step when that time comes, and the outcome is applied directly to the waiting run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import inherit_actions
from surefoot.state.machine.advance import go_on, overspent, park, tell_parent
from surefoot.state.machine.commands import COMMANDS, Statuses, row_of
from surefoot.state.machine.decision import DecisionBuilder, InputRefused, Rules, at_work
from surefoot.state.machine.model import (
    CAN_WORK,
    COMMANDS_KEPT,
    NO_MEMORY,
    ON,
    TERMINAL,
    BudgetExceeded,
    CarryForward,
    ChildDone,
    Decision,
    Defer,
    Entries,
    EntryRecorded,
    Failure,
    Input,
    Operation,
    Park,
    Record,
    Run,
    StartRun,
    State,
    Status,
    StepFailed,
    StepReturned,
    TimedOut,
)
from surefoot.state.machine.step_ends import (
    append_messages,
    child_done,
    journaled,
    raised,
    returned,
    timed_out,
)

_ENDS: Final[Statuses] = frozenset(TERMINAL)

#: names of inputs for people and logs, commands last
WORDS: Final[Mapping[type[Input], str]] = {
    StartRun: "start",
    Defer: "a place in the queue",
    CarryForward: "carrying the task forward",
    StepReturned: "a result of the step",
    StepFailed: "a failure of the step",
    BudgetExceeded: "a question for more budget",
    EntryRecorded: "a record of a call",
    Park: "setting aside",
    TimedOut: "a timeout",
    ChildDone: "the end of a child",
    **{row.input: row.word for row in COMMANDS.values()},
}


def _table() -> dict[tuple[Status | None, type[Input]], Statuses]:
    """Map (status, None: no such run; type of input) to the statuses that can follow."""
    table: dict[tuple[Status | None, type[Input]], Statuses] = {
        (None, StartRun): ON,
        ("running", Defer): frozenset({"pending"}),
        ("running", CarryForward): frozenset({"running"}),
        ("waiting", TimedOut): ON | {"failed"},
        ("waiting", ChildDone): ON | _ENDS | {"attention"},
    }
    for status in CAN_WORK:
        on: Statuses = frozenset({"paused"}) if status == "paused" else ON
        table[status, StepReturned] = on | _ENDS
        table[status, StepFailed] = on | {"failed"}
        table[status, BudgetExceeded] = on - {"running"}
        table[status, EntryRecorded] = frozenset({status})
        table[status, Park] = frozenset({"attention"})
    for status in ("paused", "attention"):
        table[status, ChildDone] = frozenset({status})
    for row in COMMANDS.values():
        for before, after in row.legal.items():
            table[before, row.input] = after
    return table


#: Any pair that is not here is refused. A command that was taken before, or asks for the present
#: state, is answered as repeated and changes nothing.
TABLE: Final = _table()


def decide(rules: Rules, state: State, input_: Input, now_ms: int) -> Decision:
    """Apply one input to one run. Pure: `state` is not changed."""
    run = state.run
    builder = DecisionBuilder(rules, dict(state.entries), now_ms)
    status = run.status if run is not None else None
    try:
        if isinstance(input_, Operation) and _repeated(run, state.entries, input_):
            builder.emit(run, "command.repeated", id=input_.id, by=input_.by)
            return Decision(run, tuple(builder.records))
        if (status, type(input_)) not in TABLE:
            raise _illegal(status, input_)
        after = _apply(builder, run, input_)
    except InputRefused as error:
        if not isinstance(input_, Operation):
            return Decision(run, refused=error.refusal)
        builder = DecisionBuilder(rules, {}, now_ms)
        builder.refuse(run, input_, error.refusal)
        return Decision(run, tuple(builder.records), error.refusal)
    if after is not None and isinstance(input_, Operation):
        kept = (*after.commands, input_.id)[-COMMANDS_KEPT:]
        after = after._replace(commands=kept)
    return Decision(after, tuple(builder.records))


def ignored_start(start: StartRun, failure: Failure, now_ms: int) -> tuple[Record, ...]:
    """Return the records of a start that was ignored: an event with the reason.

    A parent is notified that this child will not run.
    """
    builder = DecisionBuilder(Rules(agent=start.agent), {}, now_ms)
    run = _new_run(builder, start)
    builder.emit(run, "start.ignored", failure=failure)
    if run.parent is not None:
        tell_parent(builder, run, run.parent, None, failure)
    return tuple(builder.records)


def _apply(builder: DecisionBuilder, run: Run | None, input_: Input) -> Run | None:
    if isinstance(input_, StartRun):
        return _start(builder, input_)
    if isinstance(input_, Operation):
        row = row_of(input_)
        allowed = row.who(run, input_)
        if allowed and input_.by not in allowed:
            names = ", ".join(allowed)
            raise InputRefused("not_allowed", f"only {names} may {row.word}; not {input_.by!r}")
        return row.decide(builder, run, input_)
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
            run = at_work(run, input_.work)._replace(due_ms=None)
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
        case _:
            assert_never(input_)
    return run


def _repeated(run: Run | None, entries: Entries, input_: Operation) -> bool:
    """Whether the command was taken before, or asks for the present state.

    Raises: InputRefused — the question already has a different answer.
    """
    row = row_of(input_)
    if run is None:
        return None in row.legal and row.already(run, entries, input_)
    return input_.id in run.commands or row.already(run, entries, input_)


def _illegal(status: Status | None, input_: Input) -> InputRefused:
    """Return the refusal of an input that the table does not allow."""
    name = WORDS[type(input_)]
    if status is None:
        return InputRefused("unknown_run", f"{name} is not possible: there is no such run")
    if status in TERMINAL:
        return InputRefused("too_late", f"{name} comes too late: the run is {status}")
    return InputRefused("not_possible", f"{name} is not possible: the run is {status}")


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
    inherit_actions(builder, run, input_.actions, input_.repeat)
    builder.emit(run, "run.started", version=True, by=input_.by)
    return go_on(builder, run, task=False)
