"""Commands to a run: the input of each, whether it asks for the present state, and its decision.

state/machine/commands.py has the table that names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from surefoot.schemas.payload import strict_json
from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import set_back_actions
from surefoot.state.machine.advance import compensate, end, fail, go_on, spawn_and_tell
from surefoot.state.machine.decision import DecisionBuilder, EventDetails, InputRefused
from surefoot.state.machine.model import (
    DECIDED_KEPT,
    NO_MEMORY,
    Decided,
    Entries,
    Entry,
    Failure,
    Forget,
    Memory,
    Operation,
    Run,
    WaitState,
    total,
)
from surefoot.state.machine.step_ends import append_messages, end_wait_if_ready, mismatch

#: number of signals that one run keeps for later
SIGNALS_KEPT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverSignal(Operation):
    """Send a signal, for which the run may wait now or later."""

    #: needed because a signal may come before its run
    run_id: str
    name: str
    payload: bytes


def is_delivered(_: Run | None, entries: Entries, input_: DeliverSignal) -> bool:
    """Whether the signal is already in the run's inbox."""
    return f"s:{input_.id}" in entries


def signal(builder: DecisionBuilder, run: Run | None, input_: DeliverSignal) -> Run | None:
    """Keep the signal, and continue if the run waits for it."""
    if run is not None and run.wait is not None and run.status == "waiting":
        reason = mismatch(builder, run.wait, input_.name, input_.payload)
        if reason is not None:
            raise InputRefused("bad_payload", f"signal {input_.name!r} does not fit: {reason}")
    if len(wait_rules.signals(builder.entries)) >= SIGNALS_KEPT:
        raise InputRefused("mailbox_full", f"the run already keeps {SIGNALS_KEPT} signals")
    run_id = run.run_id if run is not None else input_.run_id
    builder.write_entry(
        Entry(
            run_id=run_id,
            slot=f"s:{input_.id}",
            kind="signal",
            value=input_.payload,
            id=input_.id,
            name=input_.name,
            by=input_.by,
            at_ms=builder.now_ms,
        )
    )
    builder.emit(
        run,
        "signal.received",
        run_id=run_id,
        id=input_.id,
        name=input_.name,
        by=input_.by,
        payload=input_.payload,
    )
    return None if run is None else end_wait_if_ready(builder, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerQuestion(Operation):
    """Answer the question of an approval or of an exceeded budget."""

    question: str
    approved: bool
    note: str | None = None


def is_decided(run: Run, _: Entries, input_: AnswerQuestion) -> bool:
    """Whether the question already has this answer.

    The first decision holds, whatever the run does by now.

    Raises: InputRefused — the question already has a different answer.
    """
    for earlier in (run.memory or NO_MEMORY).decided:
        if earlier.question != input_.question:
            continue
        if earlier.approved == input_.approved:
            return True
        verdict = "approved" if earlier.approved else "refused"
        raise InputRefused(
            "already_decided", f"it was already {verdict} by {earlier.by or 'somebody'}"
        )
    return False


def answerers(run: Run, input_: AnswerQuestion) -> Sequence[str]:
    """Return who may answer the question; empty: anybody."""
    wait = run.wait
    return wait.by if wait is not None and wait.question == input_.question else ()


def answer(builder: DecisionBuilder, run: Run, input_: AnswerQuestion) -> Run:
    """Take the answer to the question that the run asks."""
    wait, memory = run.wait, run.memory or NO_MEMORY
    if wait is None or wait.question is None or wait.question != input_.question:
        asked = f"; it asks {wait.question}" if wait is not None and wait.question else ""
        raise InputRefused("unknown_question", f"the run does not ask {input_.question!r}{asked}")
    if wait.kind == "approval" and run.due_ms is not None and builder.now_ms >= run.due_ms:
        raise InputRefused("expired", "the approval has expired")
    decided = Decided(
        question=input_.question, approved=int(input_.approved), by=input_.by, at_ms=builder.now_ms
    )
    kept = (*memory.decided, decided)[-DECIDED_KEPT:]
    run = builder.update(run, memory=replace(memory, decided=kept))
    told: EventDetails = {"id": input_.id, "by": input_.by, "name": input_.question}
    if wait.kind == "budget":
        return _budget_answer(builder, run, input_, told)
    payload = strict_json(
        {
            "approved": input_.approved,
            "by": input_.by,
            "note": input_.note,
            "at_ms": builder.now_ms,
            "question": input_.question,
        }
    )
    run = run._replace(status="running", payload=payload, wait=None, due_ms=None)
    told |= {"next_step": run.step, "payload": payload}
    builder.emit(run, "approval.decided", **told)
    return go_on(builder, run)


def _budget_answer(
    builder: DecisionBuilder, run: Run, input_: AnswerQuestion, told: EventDetails
) -> Run:
    assert run.memory is not None
    follow = run._replace(status="running", wait=None, failure=None)
    if not input_.approved:
        builder.emit(follow, "approval.decided", **told)
        failure = Failure(code="budget_denied", message="no further budget was granted")
        return fail(builder, follow, failure, of=follow)
    limited = {each.what for each in builder.rules.budget}
    granted = total(run.memory.granted, builder.rules.budget)
    kept = tuple(each for each in granted if each.what in limited)
    follow = follow._replace(memory=replace(run.memory, granted=kept))
    told["next_step"] = follow.step
    builder.emit(follow, "approval.decided", **told)
    return go_on(builder, follow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Operation):
    """Start no further step until the run is resumed."""


def pause(builder: DecisionBuilder, run: Run, input_: Pause) -> Run:
    """Let the running step end, and start none after it."""
    run = builder.update(run, status="paused")
    builder.emit(run, "run.paused", id=input_.id, by=input_.by)
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Operation):
    """Continue from where the run was paused."""


def resume(builder: DecisionBuilder, run: Run, input_: Resume) -> Run:
    wait = run.wait
    run = builder.update(
        run, status="running" if wait is None and run.due_ms is None else "waiting"
    )
    told: EventDetails = {"id": input_.id, "by": input_.by}
    if wait is not None and wait.branches and not wait.fork:
        return end_wait_if_ready(builder, spawn_and_tell(builder, run, wait, "run.resumed", told))
    builder.emit(run, "run.resumed", **told)
    return go_on(builder, run) if wait is None else end_wait_if_ready(builder, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Operation):
    """Stop the run and its children for good, through its compensation if it has one."""


def is_cancelled(run: Run, _entries: Entries, _input: Cancel) -> bool:
    """Whether the run is cancelled, or will be once its compensation is over."""
    return "cancelled" in (run.status, None if run.terminal else run.ending)


def cancel(builder: DecisionBuilder, run: Run, input_: Cancel) -> Run:
    if run.ending is not None:
        raise InputRefused("not_possible", f"its compensation, step {run.step!r}, already runs")
    builder.records.extend(wait_rules.cancel_children(run, builder.entries))
    told: EventDetails = {"of": run, "step": run.step, "id": input_.id, "by": input_.by}
    if builder.rules.on_cancel is not None and run.status != "pending":
        why = Failure(code="cancelled", message=f"cancelled by {input_.by or 'somebody'}")
        return compensate(builder, run, builder.rules.on_cancel, "cancelled", why, told)
    return end(builder, run, "cancelled", told)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRun(Operation):
    """Try again what failed or needed attention, with a new count of attempts."""


def retry(builder: DecisionBuilder, run: Run, input_: RetryRun) -> Run:
    """Try again what failed or needed attention. Attempts count from 0; results are kept."""
    if run.status == "failed" and run.ending is not None and not run.payload:
        raise InputRefused(
            "compensated", "its compensation has run; rewind the run to an earlier version instead"
        )
    wait = run.wait
    told: EventDetails = {"next_step": run.step, "id": input_.id, "by": input_.by}
    gave_up = run.status == "failed"  # and cancelled the children in progress
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
    run = run._replace(status="waiting", wait=wait, due_ms=due_ms)
    builder.emit(run, "run.retried", **told)
    return end_wait_if_ready(builder, run)


def _forget_failures(builder: DecisionBuilder, run: Run) -> None:
    """Delete calls recorded as permanently failed: they run again. Those with a result stay."""
    for entry in list(builder.entries.values()):
        mine = (entry.seq, entry.epoch) == (run.seq, run.epoch)
        if entry.kind == "call" and entry.failure is not None and mine:
            builder.forget(entry.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveCall(Operation):
    """Record the outcome of a call in doubt: happened (with `result`), did_not, or give_up."""

    choice: str
    result: bytes


def _in_doubt(run: Run, entries: Entries) -> Entry | None:
    """Return the first call of the step in progress whose outcome is unknown."""
    for entry in entries.values():
        if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch):
            return entry
    return None


def is_resolved(run: Run, entries: Entries, input_: ResolveCall) -> bool:
    """Whether this outcome is already on record and nothing else is in doubt.

    `did_not` leaves no record: by then the call has run, or is about to.
    """
    if input_.choice == "give_up":
        why = run.reason or run.failure
        return why is not None and why.code == "given_up"
    settled = input_.choice == "happened" and _in_doubt(run, entries) is None
    return settled and any(
        entry.kind in ("call", "done") and entry.name is not None and entry.value == input_.result
        for entry in entries.values()
    )


def resolve(builder: DecisionBuilder, run: Run, input_: ResolveCall) -> Run:
    """Record what a person found out about the call in doubt."""
    doubt = _in_doubt(run, builder.entries)
    if doubt is None:
        raise InputRefused("nothing_in_doubt", "no call of this run is in doubt; use retry")
    run = builder.update(run, status="running")
    told: EventDetails = {
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
    run = run._replace(attempt=0, failure=None, due_ms=None, wait=None)
    told["next_step"] = run.step
    builder.emit(run, "run.resolved", **told)
    return go_on(builder, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind(Operation):
    """Return to an earlier version, if the run is still in `epoch`."""

    epoch: int
    emit: bool
    seq: int
    step: str
    payload: bytes
    carry: bytes | None
    memory: Memory | None
    messages: tuple[bytes, ...]
    wait: WaitState | None
    due_ms: int | None
    #: of a run that is over, of which only a receipt is left
    created_ms: int | None = None
    input_digest: bytes | None = None
    #: names of actions that may run again
    repeat: tuple[str, ...] = ()
    #: number of forks at that version, at least
    forks: int = 0


def rewind(builder: DecisionBuilder, run: Run, input_: Rewind) -> Run:
    """Return to an earlier version, in a new epoch."""
    if input_.epoch != run.epoch:
        raise InputRefused("stale_epoch", f"the run is now in epoch {run.epoch}; look again")
    if input_.step not in builder.rules.steps:
        raise InputRefused("unknown_step", f"the agent no longer has step {input_.step!r}")
    if not 0 <= input_.seq <= run.seq:
        raise InputRefused("no_such_version", f"the run has versions 0 to {run.seq}")
    if input_.wait is not None and input_.wait.kind not in ("signal", "approval"):
        raise InputRefused(
            "no_such_version",
            f"version {input_.seq} waits for {input_.wait.kind}; rewind to an earlier one, or to "
            "the one after it",
        )
    builder.records.extend(wait_rules.cancel_children(run, builder.entries))
    set_back_actions(builder, run, input_.seq, input_.forks, input_.repeat)
    builder.forget_all("signal")
    said = run.memory.thread if run.memory is not None else 0
    for number in range(len(input_.messages), said):  # of a run that is over, only the log has them
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
        back = back._replace(status="waiting", wait=_asked_anew(back, back.wait))
    again = ", ".join(input_.repeat) or None
    builder.emit(back, "run.rewound", version=True, id=input_.id, by=input_.by, name=again)
    return go_on(builder, back) if back.wait is None else end_wait_if_ready(builder, back)


def _asked_anew(run: Run, wait: WaitState) -> WaitState:
    """Give the question a new id: an answer in transit from an earlier epoch does not count."""
    if wait.question is None:
        return wait
    return replace(wait, question=wait_rules.question(run, wait.question.encode()))
