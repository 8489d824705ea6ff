"""What operators ask of a run: resume, cancel, retry, resolve, rewind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import set_back
from surefoot.state.machine.advance import compensate, end, fail, go_on, spawn_and_tell
from surefoot.state.machine.decision import Refused, Turn
from surefoot.state.machine.model import (
    NO_MEMORY,
    Cancel,
    Entries,
    Entry,
    Failure,
    Forget,
    Resolve,
    Resume,
    RetryRun,
    Rewind,
    Run,
    Wait,
)
from surefoot.state.machine.step_ends import look, say


def resume(turn: Turn, run: Run, event: Resume) -> Run:
    """Go on from where the run was paused."""
    wait = run.wait
    run = turn.moved(run, status="running" if wait is None and run.due_ms is None else "waiting")
    told: dict[str, Any] = {"id": event.id, "by": event.by}
    if wait is not None and wait.branches and not wait.fork:
        return look(turn, spawn_and_tell(turn, run, wait, "run.resumed", told))
    turn.tell(run, "run.resumed", **told)
    return go_on(turn, run) if wait is None else look(turn, run)


def cancel(turn: Turn, run: Run, event: Cancel) -> Run:
    """Give up the run and its children, through its compensation if it has one."""
    if run.ending is not None:
        raise Refused("not_possible", f"{run.step!r} is already doing what a failed run does")
    turn.records.extend(wait_rules.cancel_children(run, turn.entries))
    told = {"of": run, "step": run.step, "id": event.id, "by": event.by}
    if turn.rules.on_cancel is not None and run.status != "pending":
        why = Failure(code="cancelled", message=f"cancelled by {event.by or 'somebody'}")
        return compensate(turn, run, turn.rules.on_cancel, "cancelled", why, told)
    return end(turn, run, "cancelled", told)


def retry(turn: Turn, run: Run, event: RetryRun) -> Run:
    """Try again what failed or needed a person; attempts are counted anew, results are kept."""
    if run.status == "failed" and run.ending is not None and not run.payload:
        raise Refused(
            "compensated", "its compensation has run; rewind it to an earlier version instead"
        )
    wait = run.wait
    told: dict[str, Any] = {"next_step": run.step, "id": event.id, "by": event.by}
    gave_up = run.status == "failed"  # and has cancelled the children that were under way
    due_ms = None if run.attempt else run.due_ms  # a backoff is cut short, a sleep is not
    run = turn.moved(run, status="running", attempt=0, due_ms=due_ms, failure=None, result=None)
    if gave_up:
        _forget_failures(turn, run)
    if wait is None:
        turn.tell(run, "run.retried", **told)
        return go_on(turn, run)
    if wait.branches and (gave_up or not wait.fork):
        for slot, entry in list(turn.entries.items()):
            if entry.kind == "branch" and entry.failure is not None:
                turn.forget(slot)
        return look(turn, spawn_and_tell(turn, run, wait, "run.retried", told))
    if wait.kind in ("signal", "approval"):
        due_ms = None if due_ms is None else turn.now_ms + due_ms - wait.since_ms
        wait = replace(wait, since_ms=turn.now_ms)
    run = replace(run, status="waiting", wait=wait, due_ms=due_ms)
    turn.tell(run, "run.retried", **told)
    return look(turn, run)


def _forget_failures(turn: Turn, run: Run) -> None:
    """What was recorded as failed for good is tried again; what has a result keeps it."""
    for entry in list(turn.entries.values()):
        mine = (entry.seq, entry.epoch) == (run.seq, run.epoch)
        if entry.kind == "call" and entry.failure is not None and mine:
            turn.forget(entry.slot)


def _in_doubt(run: Run, entries: Entries) -> Entry | None:
    """The first call of the step in work of which nobody knows whether it happened."""
    for entry in entries.values():
        if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch):
            return entry
    return None


def is_resolved(run: Run, entries: Entries, event: Resolve) -> bool:
    """Whether what is told is on record already, and nothing else in doubt. That something did not
    happen leaves no record: it is done by then, or about to be."""
    if event.choice == "give_up":
        why = run.reason or run.failure
        return why is not None and why.code == "given_up"
    settled = event.choice == "happened" and _in_doubt(run, entries) is None
    return settled and any(
        entry.kind in ("call", "done") and entry.name is not None and entry.value == event.result
        for entry in entries.values()
    )


def resolve(turn: Turn, run: Run, event: Resolve) -> Run:
    """A person has found out what became of the call that was in doubt."""
    doubt = _in_doubt(run, turn.entries)
    if doubt is None:
        raise Refused("nothing_in_doubt", "no call of this run is in doubt; use retry")
    run = turn.moved(run, status="running")
    told: dict[str, Any] = {
        "id": event.id, "by": event.by, "name": event.choice, "payload": event.result
    }  # fmt: skip
    if event.choice == "give_up":
        turn.tell(run, "run.resolved", **told)
        failure = Failure(code="given_up", message=f"{doubt.slot.removeprefix('c:')} was given up")
        return fail(turn, run, failure, of=run)
    if event.choice == "happened":
        known = replace(doubt, kind="call", value=event.result, name=run.step)
        turn.put(replace(known, at_ms=turn.now_ms))
    elif event.choice == "did_not":
        turn.forget(doubt.slot)
    else:
        raise Refused(
            "bad_choice", f"choose happened, did_not or give_up; got {event.choice[:40]!r}"
        )
    run = replace(run, attempt=0, failure=None, due_ms=None, wait=None)
    turn.tell(run, "run.resolved", next_step=run.step, **told)
    return go_on(turn, run)


def rewind(turn: Turn, run: Run, event: Rewind) -> Run:
    """Become an earlier version again, in a new epoch."""
    if event.epoch != run.epoch:
        raise Refused("stale_epoch", f"the run is in epoch {run.epoch} by now; look again")
    if event.step not in turn.rules.steps:
        raise Refused("unknown_step", f"the agent has no step {event.step!r} any more")
    if not 0 <= event.seq <= run.seq:
        raise Refused("no_such_version", f"the run has versions 0 to {run.seq}")
    if event.wait is not None and event.wait.kind not in ("signal", "approval"):
        raise Refused(
            "no_such_version",
            f"version {event.seq} waits for {event.wait.kind}; go back to an earlier one, or to "
            "the one after it",
        )
    turn.records.extend(wait_rules.cancel_children(run, turn.entries))
    set_back(turn, run, event)
    turn.forget_all("signal")
    said = run.memory.thread if run.memory is not None else 0
    for number in range(len(event.messages), said):  # of a run that is over only the log has them
        turn.entries.pop(f"m:{number}", None)
        turn.records.append(Forget(slot=f"m:{number}"))
    epoch = run.epoch + 1
    memory = event.memory
    if event.messages or memory is not None:
        memory = replace(memory or NO_MEMORY, thread=len(event.messages))
    back = turn.moved(
        run,
        status="running",
        seq=event.seq,
        step=event.step,
        attempt=0,
        payload=event.payload,
        carry=event.carry,
        memory=memory,
        wait=event.wait,
        due_ms=event.due_ms,
        parent=None if run.terminal else run.parent,
        result=None,
        failure=None,
        ending=None,
        reason=None,
        epoch=epoch,
        emit=epoch if event.emit else run.emit,
        created_ms=event.created_ms or run.created_ms,
        input_digest=event.input_digest or run.input_digest,
    )
    say(turn, run.run_id, 0, event.messages)
    if back.wait is not None:
        back = replace(back, status="waiting", wait=_asked_anew(back, back.wait))
    again = ", ".join(event.repeat) or None
    turn.tell(back, "run.rewound", version=True, id=event.id, by=event.by, name=again)
    return go_on(turn, back) if back.wait is None else look(turn, back)


def _asked_anew(run: Run, wait: Wait) -> Wait:
    """The same question in a later epoch is another one: an answer that is still on its way does
    not count."""
    if wait.question is None:
        return wait
    return replace(wait, question=wait_rules.question(run, wait.question.encode()))
