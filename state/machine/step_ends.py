"""Handles step outcomes and whatever ends a wait; either can lead to the other.

A step may end in a wait that is over at once, since signals are kept; and the end of a wait may be
the outcome of a step, in its pool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from surefoot.schemas.payload import strict_json
from surefoot.state.machine import again, wait_rules
from surefoot.state.machine.actions import keep
from surefoot.state.machine.advance import (
    end,
    fail,
    go_on,
    journaled_cost,
    overspent,
    park,
    spawn_and_tell,
    start_child,
)
from surefoot.state.machine.decision import (
    DecisionBuilder,
    EventDetails,
    InputRefused,
    RunChanges,
    unless_paused,
)
from surefoot.state.machine.model import (
    NO_MEMORY,
    Amount,
    AwaitInput,
    BudgetExceeded,
    ChildDone,
    CommandRecord,
    Complete,
    Entry,
    EntryRecorded,
    Failure,
    GoTo,
    HandOver,
    Memory,
    Run,
    StartChildren,
    StepFailed,
    StepReturned,
    TimedOut,
    WaitState,
    Work,
    total,
)
from surefoot.state.machine.pooled_step import decode_outcome


def returned(builder: DecisionBuilder, run: Run, input_: StepReturned) -> Run:
    """Commit the step, and advance the run as its body's return value says."""
    before = run
    changes: RunChanges = {
        "status": unless_paused(run, "running"),
        "version": input_.version or run.version,
        "seq": run.seq + 1,
        "attempt": 0,
        "due_ms": None,
        "wait": None,
        "failure": None,
        "carry": input_.carry,
        "memory": _remembered(builder, run, input_),
    }
    if isinstance(input_.then, GoTo):
        changes |= _next_step(builder, run, input_.then)
    keep(builder, run)
    follow = builder.update(run, **changes)
    append_messages(builder, run.run_id, run.memory.thread if run.memory else 0, input_.messages)
    told: EventDetails = {
        "of": before,
        "step": before.step,
        "effects": tuple(effect.run_id for effect in input_.effects),
        "children": sum(command.kind == "start" for command in input_.commands),
        "started_ms": input_.started_ms,
    }
    builder.records.extend(input_.effects)
    builder.records.extend(input_.commands)
    for identity in input_.read:
        if f"s:{identity}" in builder.entries:
            builder.forget(f"s:{identity}")
    match input_.then:
        case Complete():
            return _complete(builder, follow, input_.then.result, told)
        case HandOver():
            return _hand_over(builder, follow, input_.then, told)
        case GoTo():
            told["version"] = True
            builder.emit(follow, "step.completed", **told)
            return go_on(builder, follow)
        case AwaitInput():
            follow = _begin_wait(builder, follow, input_.then)
            told["version"] = True
            builder.emit(follow, "step.completed", **told)
            return end_wait_if_ready(builder, follow)
        case StartChildren():
            wait = WaitState(
                kind="children",
                since_ms=builder.now_ms,
                then=input_.then.join,
                mode=input_.then.mode,
                limit=input_.then.limit,
                branches=input_.then.branches,
            )
            follow = follow._replace(step=input_.then.join, payload=b"null")
            told["version"] = True
            return end_wait_if_ready(
                builder, spawn_and_tell(builder, follow, wait, "step.completed", told)
            )
    assert_never(input_.then)


def _remembered(builder: DecisionBuilder, run: Run, input_: StepReturned) -> Memory | None:
    """Return the run's memory after this step; None while it is empty."""
    if run.memory is None and not input_.messages and input_.plan is None:
        return None
    was = run.memory or NO_MEMORY
    spent = was.spent
    if was.granted:
        mine = (Amount("ms", input_.took_ms), Amount("steps", 1))
        spent = total(spent, journaled_cost(builder, run), input_.cost, mine)
    return replace(
        was,
        plan=was.plan if input_.plan is None else input_.plan,
        thread=was.thread + len(input_.messages),
        spent=spent,
    )


def append_messages(
    builder: DecisionBuilder, run_id: str, first: int, messages: tuple[bytes, ...]
) -> None:
    """Append to the run's thread."""
    for number, message in enumerate(messages, first):
        builder.write_entry(
            Entry(
                run_id=run_id,
                slot=f"m:{number}",
                kind="message",
                value=message,
                at_ms=builder.now_ms,
            )
        )


def _next_step(builder: DecisionBuilder, run: Run, go: GoTo) -> RunChanges:
    """Return the changes of a run that continues with another step, now or later."""
    due_ms = go.at_ms
    if go.after_ms is not None:
        due_ms = builder.now_ms + go.after_ms
    changes: RunChanges = {"step": go.step, "payload": go.payload, "due_ms": due_ms}
    if due_ms is not None and run.status != "paused":
        changes["status"] = "waiting"
    return changes


def raised(builder: DecisionBuilder, run: Run, input_: StepFailed) -> Run:
    """Schedule another attempt, or fail the run if there is none."""
    memory = run.memory
    if memory is not None and memory.granted:
        memory = replace(memory, spent=total(memory.spent, (Amount("ms", input_.took_ms),)))
    failed = builder.update(run, attempt=run.attempt + 1, failure=input_.failure, memory=memory)
    if input_.retry_in_ms is None:
        return fail(builder, failed, input_.failure, of=run, started_ms=input_.started_ms)
    failed = failed._replace(
        status=unless_paused(run, "waiting"),
        due_ms=builder.now_ms + input_.retry_in_ms,
    )
    for slot, entry in list(
        builder.entries.items()
    ):  # what was journaled holds for the next attempt
        if entry.kind == "reserved":
            builder.forget(slot)
    builder.emit(failed, "step.retrying", of=run, step=run.step, started_ms=input_.started_ms)
    return failed


def journaled(builder: DecisionBuilder, run: Run, input_: EntryRecorded) -> None:
    """Keep the entry that the step in progress wants kept, or delete it."""
    if input_.value is None and input_.failure is None and not input_.cost:
        if input_.slot in builder.entries:
            builder.forget(input_.slot)
        return
    taken = builder.entries.get(input_.takes) if input_.takes is not None else None
    if taken is not None and taken.kind == "again":
        again.note_doubt(builder, run, input_.slot)
    elif taken is not None:
        builder.forget(taken.slot)
    builder.write_entry(
        Entry(
            run_id=run.run_id,
            slot=input_.slot,
            kind=input_.kind,
            seq=run.seq,
            epoch=run.epoch,
            digest=input_.digest,
            value=input_.value,
            failure=input_.failure,
            cost=input_.cost,
            name=run.step if input_.action else None,
            by=taken.by if taken is not None else None,
            at_ms=builder.now_ms,
        )
    )


def _complete(builder: DecisionBuilder, run: Run, result: bytes, told: EventDetails) -> Run:
    if run.ending == "failed":
        return end(builder, run._replace(payload=b""), "failed", told, failure=run.reason)
    if run.ending == "cancelled":
        return end(builder, run, "cancelled", told)
    return end(builder, run, "completed", told, result=result)


def _hand_over(builder: DecisionBuilder, run: Run, then: HandOver, told: EventDetails) -> Run:
    """Start the heir, and complete this run.

    The heir answers to this run's parent, unless this run itself has to report how it ended.
    """
    run = run._replace(forks=run.forks + 1)
    heir = wait_rules.child_id(run.run_id, run.forks, 0)
    theirs, ours = (run.parent, None) if run.ending is None else (None, run.parent)
    start = CommandRecord(
        agent=then.to.agent,
        run_id=heir,
        kind="start",
        step=then.to.step,
        payload=then.to.payload,
        parent=theirs,
        traceparent=run.traceparent,
        tracestate=run.tracestate,
        baggage=run.baggage,
    )
    again.note_fork(builder, run, run.forks)
    builder.records.append(again.annotate_start(builder.entries, run.forks, start))
    result = strict_json({"handed_to": {"agent": then.to.agent, "run_id": heir}})
    run = run._replace(parent=ours)
    return _complete(builder, run, result, told | {"children": 1})


def _begin_wait(builder: DecisionBuilder, run: Run, then: AwaitInput) -> Run:
    asked = None if then.about is None else wait_rules.question(run, then.about)
    wait = WaitState(
        kind="signal" if asked is None else "approval",
        since_ms=builder.now_ms,
        then=then.then,
        on_timeout=then.on_timeout,
        names=then.names,
        mode=then.mode,
        need=then.need,
        question=asked,
        by=then.by,
    )
    due_ms = then.until_ms if then.timeout_ms is None else builder.now_ms + then.timeout_ms
    return run._replace(
        status=unless_paused(run, "waiting"),
        step=then.then,
        payload=b"null",
        wait=wait,
        due_ms=due_ms,
    )


def end_wait_if_ready(builder: DecisionBuilder, run: Run) -> Run:
    """Continue if what the run waits for has arrived."""
    wait = run.wait
    if run.status != "waiting" or wait is None:
        return run
    match wait.kind:
        case "signal":
            return _look_for_signals(builder, run, wait)
        case "children" | "pool":
            return _look_for_children(builder, run, wait)
    return run


def _look_for_signals(builder: DecisionBuilder, run: Run, wait: WaitState) -> Run:
    for entry in wait_rules.signals(builder.entries):
        reason = mismatch(builder, wait, entry.name, entry.value or b"null")
        if reason is not None:
            failure = Failure(code="bad_payload", message=reason)
            builder.emit(
                run,
                "signal.unread",
                id=entry.id,
                name=entry.name,
                by=entry.by,
                payload=entry.value,
                failure=failure,
            )
            builder.forget(entry.slot)
    found = wait_rules.matched(wait, builder.entries)
    if found is None:
        return run
    payload = wait_rules.signals_payload(wait, found)
    for entry in found:
        builder.forget(entry.slot)
    return _wait_over(builder, run, payload)


def mismatch(
    builder: DecisionBuilder, wait: WaitState, name: str | None, payload: bytes
) -> str | None:
    """Return why a signal with the right name cannot end the wait, or None."""
    known = wait.then in builder.rules.steps  # an unknown step: whoever runs it will check
    return wait_rules.refused_by(
        wait, name, payload, builder.rules.accepts if known else wait_rules.anything
    )


def _look_for_children(builder: DecisionBuilder, run: Run, wait: WaitState) -> Run:
    if wait.kind == "pool":
        return _look_for_outcome(builder, run)
    failure = wait_rules.failed_branch(wait, builder.entries)
    if failure is not None:
        return fail(builder, run, failure, of=run)
    if wait_rules.unfinished(wait, builder.entries):
        return run
    payload = wait_rules.results_payload(wait, builder.entries)
    builder.forget_all("signal", "call")
    return _wait_over(builder, run, payload)


def _look_for_outcome(builder: DecisionBuilder, run: Run) -> Run:
    """Take the outcome of the pool's run as the outcome of the step."""
    entry = builder.entries.get(wait_rules.slot_of(0))
    if entry is None:
        return run
    builder.forget(entry.slot)
    here = builder.update(run, status="running", wait=None)
    if entry.failure is not None:
        failed = here._replace(attempt=run.attempt + 1, failure=entry.failure)
        return fail(builder, failed, entry.failure, of=run)
    work = Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)
    try:
        outcome = decode_outcome(entry.value or b"null", work)
    except ValueError as error:
        return park(builder, here, Failure(code="bad_outcome", message=str(error), step=run.step))
    if isinstance(outcome, BudgetExceeded):
        here = here._replace(due_ms=None)
        return overspent(builder, here, outcome.what, outcome.message, outcome.cost)
    return returned(builder, here, outcome)


def _wait_over(builder: DecisionBuilder, run: Run, payload: bytes) -> Run:
    run = builder.update(run, status="running", payload=payload, wait=None, due_ms=None)
    builder.emit(run, "wait.over", next_step=run.step, payload=payload)
    return go_on(builder, run)


def timed_out(builder: DecisionBuilder, run: Run, input_: TimedOut) -> Run:
    """End a sleep, or a wait whose time is over.

    Holds even if the clock is set back before this is decided: no timer fires a second time.
    """
    if run.due_ms != input_.due_ms:
        raise InputRefused("stale", "the run no longer waits for that time")
    wait = run.wait
    if wait is None:
        return go_on(builder, builder.update(run, due_ms=None))
    if wait.kind == "budget":  # the sleep is over; an answer has no time limit
        return builder.update(run, due_ms=None)
    if wait.on_timeout is None:
        what = wait.question or ", ".join(wait.names)
        failure = Failure(code="wait_timeout", message=f"the wait for {wait.kind} {what} timed out")
        return fail(builder, builder.update(run), failure, of=run)
    follow = builder.update(
        run,
        status="running",
        step=wait.on_timeout,
        payload=run.carry or b"null",
        carry=None,
        wait=None,
        due_ms=None,
    )
    builder.emit(follow, "wait.timed_out", next_step=follow.step, payload=follow.payload)
    return go_on(builder, follow)


def child_done(builder: DecisionBuilder, run: Run, input_: ChildDone) -> Run:
    """Record the outcome of a branch, start the next one, and continue if it was the last."""
    wait = run.wait
    slot = wait_rules.slot_of(input_.branch)
    if wait is None or wait.fork != input_.fork or not 0 <= input_.branch < len(wait.branches):
        raise InputRefused("stale", "the run no longer waits for that child")
    if slot in builder.entries:
        raise InputRefused("stale", "that child's outcome is already recorded")
    was_started = wait_rules.branches_in_progress(wait, builder.entries) if wait.limit else []
    builder.write_entry(
        Entry(
            run_id=run.run_id,
            slot=slot,
            kind="branch",
            seq=run.seq,
            epoch=run.epoch,
            value=input_.result,
            failure=input_.failure,
            at_ms=builder.now_ms,
        )
    )
    builder.emit(run, "child.finished", name=input_.child, failure=input_.failure)
    if wait.limit:
        for index in wait_rules.branches_in_progress(wait, builder.entries):
            if index not in was_started:
                start_child(builder, run, wait, index)
    if input_.failure is None and len(builder.entries) < len(wait.branches):
        return run  # too few to be all: skip the scan
    return end_wait_if_ready(builder, run)
