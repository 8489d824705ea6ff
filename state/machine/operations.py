"""What operators ask of a run: resume, cancel, retry, resolve, rewind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import set_back
from surefoot.state.machine.advance import compensate, end, fail, go_on, spawn_and_tell
from surefoot.state.machine.decision import DecisionBuilder, InputRefused
from surefoot.state.machine.model import (
    NO_MEMORY,
    Cancel,
    Entries,
    Entry,
    Failure,
    Forget,
    ResolveCall,
    Resume,
    RetryRun,
    Rewind,
    Run,
    WaitState,
)
from surefoot.state.machine.step_ends import append_messages, end_wait_if_ready


def resume(builder: DecisionBuilder, run: Run, input_: Resume) -> Run:
    """Go on from where the run was paused."""
    wait = run.wait
    run = builder.update(
        run, status="running" if wait is None and run.due_ms is None else "waiting"
    )
    told: dict[str, Any] = {"id": input_.id, "by": input_.by}
    if wait is not None and wait.branches and not wait.fork:
        return end_wait_if_ready(builder, spawn_and_tell(builder, run, wait, "run.resumed", told))
    builder.emit(run, "run.resumed", **told)
    return go_on(builder, run) if wait is None else end_wait_if_ready(builder, run)


def cancel(builder: DecisionBuilder, run: Run, input_: Cancel) -> Run:
    """Give up the run and its children, through its compensation if it has one."""
    if run.ending is not None:
        raise InputRefused("not_possible", f"{run.step!r} is already doing what a failed run does")
    builder.records.extend(wait_rules.cancel_children(run, builder.entries))
    told = {"of": run, "step": run.step, "id": input_.id, "by": input_.by}
    if builder.rules.on_cancel is not None and run.status != "pending":
        why = Failure(code="cancelled", message=f"cancelled by {input_.by or 'somebody'}")
        return compensate(builder, run, builder.rules.on_cancel, "cancelled", why, told)
    return end(builder, run, "cancelled", told)


def retry(builder: DecisionBuilder, run: Run, input_: RetryRun) -> Run:
    """Try again what failed or needed a person; attempts are counted anew, results are kept."""
    if run.status == "failed" and run.ending is not None and not run.payload:
        raise InputRefused(
            "compensated", "its compensation has run; rewind it to an earlier version instead"
        )
    wait = run.wait
    told: dict[str, Any] = {"next_step": run.step, "id": input_.id, "by": input_.by}
    gave_up = run.status == "failed"  # and has cancelled the children that were under way
    due_ms = None if run.attempt else run.due_ms  # a backoff is cut short, a sleep is not
    run = builder.update(run, status="running", attempt=0, due_ms=due_ms, failure=None, result=None)
    if gave_up:
        _forget_failures(builder, run)
    if wait is None:
        builder.emit(run, "run.retried", **told)
        return go_on(builder, run)
    if wait.branches and (gave_up or not wait.fork):
        for slot, entry in list(builder.entries.items()):
            if entry.kind == "branch" and entry.failure is not None:
                builder.forget(slot)
        return end_wait_if_ready(builder, spawn_and_tell(builder, run, wait, "run.retried", told))
    if wait.kind in ("signal", "approval"):
        due_ms = None if due_ms is None else builder.now_ms + due_ms - wait.since_ms
        wait = replace(wait, since_ms=builder.now_ms)
    run = replace(run, status="waiting", wait=wait, due_ms=due_ms)
    builder.emit(run, "run.retried", **told)
    return end_wait_if_ready(builder, run)


def _forget_failures(builder: DecisionBuilder, run: Run) -> None:
    """What was recorded as failed for good is tried again; what has a result keeps it."""
    for entry in list(builder.entries.values()):
        mine = (entry.seq, entry.epoch) == (run.seq, run.epoch)
        if entry.kind == "call" and entry.failure is not None and mine:
            builder.forget(entry.slot)


def _in_doubt(run: Run, entries: Entries) -> Entry | None:
    """The first call of the step in work of which nobody knows whether it happened."""
    for entry in entries.values():
        if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch):
            return entry
    return None


def is_resolved(run: Run, entries: Entries, input_: ResolveCall) -> bool:
    """Whether what is told is on record already, and nothing else in doubt. That something did not
    happen leaves no record: it is done by then, or about to be."""
    if input_.choice == "give_up":
        why = run.reason or run.failure
        return why is not None and why.code == "given_up"
    settled = input_.choice == "happened" and _in_doubt(run, entries) is None
    return settled and any(
        entry.kind in ("call", "done") and entry.name is not None and entry.value == input_.result
        for entry in entries.values()
    )


def resolve(builder: DecisionBuilder, run: Run, input_: ResolveCall) -> Run:
    """A person has found out what became of the call that was in doubt."""
    doubt = _in_doubt(run, builder.entries)
    if doubt is None:
        raise InputRefused("nothing_in_doubt", "no call of this run is in doubt; use retry")
    run = builder.update(run, status="running")
    told: dict[str, Any] = {
        "id": input_.id,
        "by": input_.by,
        "name": input_.choice,
        "payload": input_.result,
    }
    if input_.choice == "give_up":
        builder.emit(run, "run.resolved", **told)
        failure = Failure(code="given_up", message=f"{doubt.slot.removeprefix('c:')} was given up")
        return fail(builder, run, failure, of=run)
    if input_.choice == "happened":
        known = replace(doubt, kind="call", value=input_.result, name=run.step)
        builder.write_entry(replace(known, at_ms=builder.now_ms))
    elif input_.choice == "did_not":
        builder.forget(doubt.slot)
    else:
        raise InputRefused(
            "bad_choice", f"choose happened, did_not or give_up; got {input_.choice[:40]!r}"
        )
    run = replace(run, attempt=0, failure=None, due_ms=None, wait=None)
    builder.emit(run, "run.resolved", next_step=run.step, **told)
    return go_on(builder, run)


def rewind(builder: DecisionBuilder, run: Run, input_: Rewind) -> Run:
    """Become an earlier version again, in a new epoch."""
    if input_.epoch != run.epoch:
        raise InputRefused("stale_epoch", f"the run is in epoch {run.epoch} by now; look again")
    if input_.step not in builder.rules.steps:
        raise InputRefused("unknown_step", f"the agent has no step {input_.step!r} any more")
    if not 0 <= input_.seq <= run.seq:
        raise InputRefused("no_such_version", f"the run has versions 0 to {run.seq}")
    if input_.wait is not None and input_.wait.kind not in ("signal", "approval"):
        raise InputRefused(
            "no_such_version",
            f"version {input_.seq} waits for {input_.wait.kind}; go back to an earlier one, or to "
            "the one after it",
        )
    builder.records.extend(wait_rules.cancel_children(run, builder.entries))
    set_back(builder, run, input_)
    builder.forget_all("signal")
    said = run.memory.thread if run.memory is not None else 0
    for number in range(len(input_.messages), said):  # of a run that is over only the log has them
        builder.entries.pop(f"m:{number}", None)
        builder.records.append(Forget(slot=f"m:{number}"))
    epoch = run.epoch + 1
    memory = input_.memory
    if input_.messages or memory is not None:
        memory = replace(memory or NO_MEMORY, thread=len(input_.messages))
    back = builder.update(
        run,
        status="running",
        seq=input_.seq,
        step=input_.step,
        attempt=0,
        payload=input_.payload,
        carry=input_.carry,
        memory=memory,
        wait=input_.wait,
        due_ms=input_.due_ms,
        parent=None if run.terminal else run.parent,
        result=None,
        failure=None,
        ending=None,
        reason=None,
        epoch=epoch,
        emit=epoch if input_.emit else run.emit,
        created_ms=input_.created_ms or run.created_ms,
        input_digest=input_.input_digest or run.input_digest,
    )
    append_messages(builder, run.run_id, 0, input_.messages)
    if back.wait is not None:
        back = replace(back, status="waiting", wait=_asked_anew(back, back.wait))
    again = ", ".join(input_.repeat) or None
    builder.emit(back, "run.rewound", version=True, id=input_.id, by=input_.by, name=again)
    return go_on(builder, back) if back.wait is None else end_wait_if_ready(builder, back)


def _asked_anew(run: Run, wait: WaitState) -> WaitState:
    """The same question in a later epoch is another one: an answer that is still on its way does
    not count."""
    if wait.question is None:
        return wait
    return replace(wait, question=wait_rules.question(run, wait.question.encode()))
