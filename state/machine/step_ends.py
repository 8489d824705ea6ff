"""What a step has come to, and what ends a wait: the two lead to one another.

A step may end in a wait that is over at once, since signals are kept; and what ends a wait may be
what a step has come to, in its pool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from surefoot.schemas.payload import strict_json
from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import keep
from surefoot.state.machine.advance import (
    end,
    fail,
    go_on,
    journaled_cost,
    overspent,
    park,
    spawn_and_tell,
)
from surefoot.state.machine.decision import Refused, Turn
from surefoot.state.machine.model import (
    DECIDED_KEPT,
    NO_MEMORY,
    Amount,
    Answer,
    Await,
    ChildDone,
    CommandRecord,
    Decided,
    End,
    Entry,
    Failure,
    Go,
    HandOver,
    Journaled,
    Memory,
    Overspent,
    Raised,
    Returned,
    Run,
    Signal,
    Spawn,
    Status,
    TimedOut,
    Wait,
    Work,
    total,
)
from surefoot.state.machine.pooled_step import decode_outcome

#: signals that one run keeps for later
SIGNALS_KEPT = 1_000


def returned(turn: Turn, run: Run, event: Returned) -> Run:
    """The step is committed: what becomes of the run is what its body returned."""
    before = run
    changes: dict[str, Any] = {
        "status": "paused" if run.status == "paused" else "running",
        "version": event.version or run.version,
        "seq": run.seq + 1,
        "attempt": 0,
        "due_ms": None,
        "wait": None,
        "failure": None,
        "carry": event.carry,
        "memory": _remembered(turn, run, event),
    }
    if isinstance(event.then, Go):
        changes |= _next_step(turn, run, event.then)
    keep(turn, run)
    follow = turn.moved(run, **changes)
    say(turn, run.run_id, run.memory.thread if run.memory else 0, event.messages)
    told: dict[str, Any] = {
        "of": before,
        "step": before.step,
        "effects": tuple(effect.run_id for effect in event.effects),
        "children": sum(command.kind == "start" for command in event.commands),
        "started_ms": event.started_ms,
    }
    turn.records.extend(event.effects)
    turn.records.extend(event.commands)
    for identity in event.read:
        if f"s:{identity}" in turn.entries:
            turn.forget(f"s:{identity}")
    match event.then:
        case End():
            return _complete(turn, follow, event.then.result, told)
        case HandOver():
            return _hand_over(turn, follow, event.then, told)
        case Go():
            turn.tell(follow, "step.completed", version=True, **told)
            return go_on(turn, follow)
        case Await():
            follow = _begin_wait(turn, follow, event.then)
            turn.tell(follow, "step.completed", version=True, **told)
            return look(turn, follow)
        case Spawn():
            wait = Wait(
                kind="children", since_ms=turn.now_ms, then=event.then.join, mode=event.then.mode,
                limit=event.then.limit, branches=event.then.branches,
            )  # fmt: skip
            follow = replace(follow, step=event.then.join, payload=b"null")
            told["version"] = True
            return look(turn, spawn_and_tell(turn, follow, wait, "step.completed", told))
    assert_never(event.then)


def _remembered(turn: Turn, run: Run, event: Returned) -> Memory | None:
    """The run's memory once this step is committed; None while there is nothing in it."""
    if run.memory is None and not event.messages and event.plan is None:
        return None
    was = run.memory or NO_MEMORY
    spent = was.spent
    if was.granted:
        mine = (Amount("ms", event.took_ms), Amount("steps", 1))
        spent = total(spent, journaled_cost(turn, run), event.cost, mine)
    return replace(
        was,
        plan=was.plan if event.plan is None else event.plan,
        thread=was.thread + len(event.messages),
        spent=spent,
    )


def say(turn: Turn, run_id: str, first: int, messages: tuple[bytes, ...]) -> None:
    """Append to the run's thread."""
    for number, message in enumerate(messages, first):
        turn.put(
            Entry(
                run_id=run_id, slot=f"m:{number}", kind="message", value=message,
                at_ms=turn.now_ms,
            )
        )  # fmt: skip


def _next_step(turn: Turn, run: Run, go: Go) -> dict[str, Any]:
    """What changes in a run that goes on with another step, now or later."""
    due_ms = go.at_ms
    if go.after_ms is not None:
        due_ms = turn.now_ms + go.after_ms
    changes: dict[str, Any] = {"step": go.step, "payload": go.payload, "due_ms": due_ms}
    if due_ms is not None and run.status != "paused":
        changes["status"] = "waiting"
    return changes


def raised(turn: Turn, run: Run, event: Raised) -> Run:
    """The attempt failed: another one later, or no way on."""
    memory = run.memory
    if memory is not None and memory.granted:
        memory = replace(memory, spent=total(memory.spent, (Amount("ms", event.took_ms),)))
    failed = turn.moved(run, attempt=run.attempt + 1, failure=event.failure, memory=memory)
    if event.retry_in_ms is None:
        return fail(turn, failed, event.failure, of=run, started_ms=event.started_ms)
    status: Status = "paused" if run.status == "paused" else "waiting"
    failed = replace(failed, status=status, due_ms=turn.now_ms + event.retry_in_ms)
    for slot, entry in list(turn.entries.items()):  # what was journaled holds for the next attempt
        if entry.kind == "reserved":
            turn.forget(slot)
    turn.tell(failed, "step.retrying", of=run, step=run.step, started_ms=event.started_ms)
    return failed


def journaled(turn: Turn, run: Run, event: Journaled) -> None:
    """Keep what the step in work wants kept, or forget it."""
    if event.value is None and event.failure is None and not event.cost:
        if event.slot in turn.entries:
            turn.forget(event.slot)
        return
    taken = turn.entries.get(event.takes) if event.takes is not None else None
    if taken is not None:
        turn.forget(taken.slot)
    turn.put(
        Entry(
            run_id=run.run_id, slot=event.slot, kind=event.kind, seq=run.seq, epoch=run.epoch,
            digest=event.digest, value=event.value, failure=event.failure, cost=event.cost,
            name=run.step if event.action else None, by=taken.by if taken is not None else None,
            at_ms=turn.now_ms,
        )
    )  # fmt: skip


def _complete(turn: Turn, run: Run, result: bytes, told: dict[str, Any]) -> Run:
    if run.ending == "failed":
        return end(turn, replace(run, payload=b""), "failed", told, failure=run.reason)
    if run.ending == "cancelled":
        return end(turn, run, "cancelled", told)
    return end(turn, run, "completed", told, result=result)


def _hand_over(turn: Turn, run: Run, then: HandOver, told: dict[str, Any]) -> Run:
    """The heir answers to this run's parent, unless this run itself has to tell how it ended."""
    heir = wait_rules.child_id(run.run_id, run.forks + 1, 0)
    theirs, ours = (run.parent, None) if run.ending is None else (None, run.parent)
    turn.records.append(
        CommandRecord(
            agent=then.to.agent, run_id=heir, kind="start", step=then.to.step,
            payload=then.to.payload, parent=theirs, traceparent=run.traceparent,
            tracestate=run.tracestate, baggage=run.baggage,
        )
    )  # fmt: skip
    result = strict_json({"handed_to": {"agent": then.to.agent, "run_id": heir}})
    run = replace(run, forks=run.forks + 1, parent=ours)
    return _complete(turn, run, result, told | {"children": 1})


def _begin_wait(turn: Turn, run: Run, then: Await) -> Run:
    asked = None if then.about is None else wait_rules.question(run, then.about)
    wait = Wait(
        kind="signal" if asked is None else "approval",
        since_ms=turn.now_ms,
        then=then.then,
        on_timeout=then.on_timeout,
        names=then.names,
        mode=then.mode,
        need=then.need,
        question=asked,
        by=then.by,
    )
    due_ms = then.until_ms if then.timeout_ms is None else turn.now_ms + then.timeout_ms
    status: Status = "paused" if run.status == "paused" else "waiting"
    return replace(run, status=status, step=then.then, payload=b"null", wait=wait, due_ms=due_ms)


def look(turn: Turn, run: Run) -> Run:
    """Go on if what the run waits for is there."""
    wait = run.wait
    if run.status != "waiting" or wait is None:
        return run
    match wait.kind:
        case "signal":
            return _look_for_signals(turn, run, wait)
        case "children" | "pool":
            return _look_for_children(turn, run, wait)
    return run


def _look_for_signals(turn: Turn, run: Run, wait: Wait) -> Run:
    for entry in wait_rules.signals(turn.entries):
        reason = _unfit(turn, wait, entry.name, entry.value or b"null")
        if reason is not None:
            failure = Failure(code="bad_payload", message=reason)
            turn.tell(
                run, "signal.unread", id=entry.id, name=entry.name, by=entry.by,
                payload=entry.value, failure=failure,
            )  # fmt: skip
            turn.forget(entry.slot)
    found = wait_rules.matched(wait, turn.entries)
    if found is None:
        return run
    payload = wait_rules.signals_payload(wait, found)
    for entry in found:
        turn.forget(entry.slot)
    return _wait_over(turn, run, payload)


def _unfit(turn: Turn, wait: Wait, name: str | None, payload: bytes) -> str | None:
    """Why that signal cannot end the wait although it has the right name."""
    known = wait.then in turn.rules.steps  # of another, whoever is to run it will see
    return wait_rules.refused_by(
        wait, name, payload, turn.rules.accepts if known else wait_rules.anything
    )


def _look_for_children(turn: Turn, run: Run, wait: Wait) -> Run:
    if wait.kind == "pool":
        return _look_for_outcome(turn, run)
    failure = wait_rules.failed_branch(wait, turn.entries)
    if failure is not None:
        return fail(turn, run, failure, of=run)
    if wait_rules.unfinished(wait, turn.entries):
        return run
    payload = wait_rules.results_payload(wait, turn.entries)
    turn.forget_all("signal", "call")
    return _wait_over(turn, run, payload)


def _look_for_outcome(turn: Turn, run: Run) -> Run:
    """What came of the step in its pool is what came of the step."""
    entry = turn.entries.get(wait_rules.slot_of(0))
    if entry is None:
        return run
    turn.forget(entry.slot)
    here = turn.moved(run, status="running", wait=None)
    if entry.failure is not None:
        failed = replace(here, attempt=run.attempt + 1, failure=entry.failure)
        return fail(turn, failed, entry.failure, of=run)
    work = Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)
    try:
        outcome = decode_outcome(entry.value or b"null", work)
    except ValueError as error:
        return park(turn, here, Failure(code="bad_outcome", message=str(error), step=run.step))
    if isinstance(outcome, Overspent):
        here = replace(here, due_ms=None)
        return overspent(turn, here, outcome.what, outcome.message, outcome.cost)
    return returned(turn, here, outcome)


def _wait_over(turn: Turn, run: Run, payload: bytes) -> Run:
    run = turn.moved(run, status="running", payload=payload, wait=None, due_ms=None)
    turn.tell(run, "wait.over", next_step=run.step, payload=payload)
    return go_on(turn, run)


def signal(turn: Turn, run: Run | None, event: Signal) -> Run | None:
    """Keep the signal, and go on if the run waits for it."""
    if run is not None and run.wait is not None and run.status == "waiting":
        reason = _unfit(turn, run.wait, event.name, event.payload)
        if reason is not None:
            raise Refused("bad_payload", f"signal {event.name!r} does not fit: {reason}")
    if len(wait_rules.signals(turn.entries)) >= SIGNALS_KEPT:
        raise Refused("mailbox_full", f"{SIGNALS_KEPT} signals wait for this run already")
    run_id = run.run_id if run is not None else event.run_id
    turn.put(
        Entry(
            run_id=run_id, slot=f"s:{event.id}", kind="signal", value=event.payload, id=event.id,
            name=event.name, by=event.by, at_ms=turn.now_ms,
        )
    )  # fmt: skip
    turn.tell(
        run, "signal.received", run_id=run_id, id=event.id, name=event.name, by=event.by,
        payload=event.payload,
    )  # fmt: skip
    return None if run is None else look(turn, run)


def is_decided(run: Run, event: Answer) -> bool:
    """Whether the question has been answered like that. The first decision holds, whatever the
    run does by now: another one is refused."""
    for earlier in (run.memory or NO_MEMORY).decided:
        if earlier.question != event.question:
            continue
        if earlier.approved == event.approved:
            return True
        verdict = "approved" if earlier.approved else "refused"
        raise Refused("already_decided", f"it was {verdict} by {earlier.by or 'somebody'} before")
    return False


def answer(turn: Turn, run: Run, event: Answer) -> Run:
    """Take the answer to the question that the run asks, from whoever may give it."""
    wait, memory = run.wait, run.memory or NO_MEMORY
    if wait is None or wait.question is None or wait.question != event.question:
        asked = f"; it asks {wait.question}" if wait is not None and wait.question else ""
        raise Refused("unknown_question", f"the run does not ask {event.question!r}{asked}")
    if wait.by and event.by not in wait.by:
        raise Refused("not_allowed", f"only {', '.join(wait.by)} may answer; not {event.by!r}")
    if wait.kind == "approval" and run.due_ms is not None and turn.now_ms >= run.due_ms:
        raise Refused("expired", "the time to answer is over")
    decided = Decided(
        question=event.question, approved=int(event.approved), by=event.by, at_ms=turn.now_ms
    )
    kept = (*memory.decided, decided)[-DECIDED_KEPT:]
    run = turn.moved(run, memory=replace(memory, decided=kept))
    told: dict[str, Any] = {"id": event.id, "by": event.by, "name": event.question}
    if wait.kind == "budget":
        return _budget_answer(turn, run, event, told)
    payload = strict_json(
        {
            "approved": event.approved, "by": event.by, "note": event.note,
            "at_ms": turn.now_ms, "question": event.question,
        }
    )  # fmt: skip
    run = replace(run, status="running", payload=payload, wait=None, due_ms=None)
    turn.tell(run, "approval.decided", next_step=run.step, payload=payload, **told)
    return go_on(turn, run)


def _budget_answer(turn: Turn, run: Run, event: Answer, told: dict[str, Any]) -> Run:
    assert run.memory is not None
    follow = replace(run, status="running", wait=None, failure=None)
    if not event.approved:
        turn.tell(follow, "approval.decided", **told)
        failure = Failure(code="budget_denied", message="no further budget was granted")
        return fail(turn, follow, failure, of=follow)
    limited = {each.what for each in turn.rules.budget}
    granted = total(run.memory.granted, turn.rules.budget)
    kept = tuple(each for each in granted if each.what in limited)
    follow = replace(follow, memory=replace(run.memory, granted=kept))
    turn.tell(follow, "approval.decided", next_step=follow.step, **told)
    return go_on(turn, follow)


def timed_out(turn: Turn, run: Run, event: TimedOut) -> Run:
    """The time of a sleep, or of a wait, is over. It stays so if the clock is set back before this
    is decided: nobody would say so again."""
    if run.due_ms != event.due_ms:
        raise Refused("stale", "the run does not wait for that time")
    wait = run.wait
    if wait is None:
        return go_on(turn, turn.moved(run, due_ms=None))
    if wait.kind == "budget":  # it has slept as long as it had to; there is no time to answer
        return turn.moved(run, due_ms=None)
    if wait.on_timeout is None:
        what = wait.question or ", ".join(wait.names)
        failure = Failure(code="wait_timeout", message=f"nothing came in time: {wait.kind} {what}")
        return fail(turn, turn.moved(run), failure, of=run)
    follow = turn.moved(
        run, status="running", step=wait.on_timeout, payload=run.carry or b"null", carry=None,
        wait=None, due_ms=None,
    )  # fmt: skip
    turn.tell(follow, "wait.timed_out", next_step=follow.step, payload=follow.payload)
    return go_on(turn, follow)


def child_done(turn: Turn, run: Run, event: ChildDone) -> Run:
    """Keep what became of a branch, start the next one, and go on if it was the last."""
    wait = run.wait
    slot = wait_rules.slot_of(event.branch)
    if wait is None or wait.fork != event.fork or not 0 <= event.branch < len(wait.branches):
        raise Refused("stale", "the run does not wait for that child")
    if slot in turn.entries:
        raise Refused("stale", "that child has been told of before")
    was_started = wait_rules.started(wait, turn.entries) if wait.limit else []
    turn.put(
        Entry(
            run_id=run.run_id, slot=slot, kind="branch", seq=run.seq, epoch=run.epoch,
            value=event.result, failure=event.failure, at_ms=turn.now_ms,
        )
    )  # fmt: skip
    turn.tell(run, "child.finished", name=event.child, failure=event.failure)
    if wait.limit:
        for index in wait_rules.started(wait, turn.entries):
            if index not in was_started:
                turn.records.append(wait_rules.start_child(run, wait, index))
    if event.failure is None and len(turn.entries) < len(wait.branches):
        return run  # too few to be all: no need to go through them
    return look(turn, run)
