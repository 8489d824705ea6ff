"""How a run advances: to its next step, its pool, its children, or its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefoot.schemas.payload import BadPayload, Unserialisable, parse_json, strict_json
from surefoot.state.machine import again, wait_rules
from surefoot.state.machine.actions import keep
from surefoot.state.machine.decision import DecisionBuilder, EventDetails, unless_paused
from surefoot.state.machine.model import (
    Amount,
    Amounts,
    Branch,
    CommandRecord,
    DeadRecord,
    EventType,
    Failure,
    Parent,
    Run,
    Status,
    WaitState,
    over,
    total,
)
from surefoot.state.machine.pooled_step import encode_input
from surefoot.state.names.agents import pool_agent_name


def go_on(builder: DecisionBuilder, run: Run, *, task: bool = True) -> Run:
    """Request the run's next step, here or in its pool.

    Does not if its time has not come, if the run is paused, or if the budget has no step left.
    """
    if run.status == "paused":
        return run
    short = _used_up(run)
    if short is not None:
        return overspent(builder, run, short, f"the run has used up its {short}")
    if run.due_ms is not None:
        return run if run.status == "waiting" else builder.update(run, status="waiting")
    pool = builder.rules.pools.get(run.step)
    if pool is None:
        if run.status != "running":
            run = builder.update(run, status="running")
        if task:
            builder.task(run)
        return run
    branch = Branch(
        agent=pool_agent_name(run.agent, pool),
        step=run.step,
        payload=encode_input(run, builder.entries),
    )
    return _spawn(builder, run, WaitState(kind="pool", since_ms=builder.now_ms, branches=(branch,)))


def _used_up(run: Run) -> str | None:
    """Return what the budget lacks for one more step, or None. Compensation is not limited."""
    if run.memory is None or not run.memory.granted or run.ending is not None:
        return None
    return over(total(run.memory.spent, (Amount("steps", 1),)), run.memory.granted)


def journaled_cost(builder: DecisionBuilder, run: Run) -> Amounts:
    """Return the cost of the calls of the step in progress."""
    mine = (run.seq, run.epoch)
    return total(*(e.cost for e in builder.entries.values() if (e.seq, e.epoch) == mine))


def park(builder: DecisionBuilder, run: Run, failure: Failure) -> Run:
    """Set the run aside until a person acts."""
    run = builder.update(run, status="attention", failure=failure)
    builder.emit(run, "run.attention", step=run.step)
    return run


def overspent(
    builder: DecisionBuilder, run: Run, what: str, message: str, cost: Amounts = ()
) -> Run:
    """Ask for more budget, with a new question each time.

    `due_ms` stays: it is the time of the next step.
    """
    if cost and run.memory is not None:
        run = run._replace(memory=replace(run.memory, spent=total(run.memory.spent, cost)))
    about = b"budget:%s:%d" % (what.encode(), builder.now_ms)
    wait = WaitState(
        kind="budget",
        since_ms=builder.now_ms,
        names=(what,),
        question=wait_rules.question(run, about),
    )
    run = builder.update(
        run,
        status=unless_paused(run, "waiting"),
        wait=wait,
        failure=Failure(code="budget_spent", message=message, step=run.step),
    )
    builder.emit(run, "budget.spent", name=what, wait=wait)
    return run


def end(
    builder: DecisionBuilder,
    run: Run,
    status: Status,
    told: EventDetails,
    *,
    result: bytes | None = None,
    failure: Failure | None = None,
) -> Run:
    """End the run. A failed run is kept whole, so that it can be retried."""
    parked = status == "failed"
    ended = builder.update(
        run,
        status=status,
        due_ms=run.due_ms if parked else None,
        wait=run.wait if parked else None,
        carry=run.carry if parked else None,
        payload=run.payload if parked else b"",
        result=result,
        failure=failure,
        ending=run.ending if parked else None,
        reason=run.reason if parked else None,
    )
    kind: Mapping[Status, EventType] = {
        "completed": "run.completed",
        "failed": "run.failed",
        "cancelled": "run.cancelled",
    }
    if not parked:
        for signal in wait_rules.signals(builder.entries):
            builder.emit(
                run,
                "signal.unread",
                id=signal.id,
                name=signal.name,
                by=signal.by,
                payload=signal.value,
            )
        keep(builder, run)
        builder.forget_all()
    if run.memory is not None and run.memory.granted:  # includes the cost of the last step
        told = {"memory": run.memory, **told}
    told = {"result": result, **told}
    builder.emit(ended, kind[status], **told)
    if run.parent is not None:
        reason = failure
        if status == "cancelled":
            reason = Failure(code="cancelled", message=f"run {run.run_id} was cancelled")
        tell_parent(builder, run, run.parent, result, reason)
    return ended


def tell_parent(
    builder: DecisionBuilder,
    run: Run,
    parent: Parent,
    result: bytes | None,
    failure: Failure | None,
) -> None:
    if not parent.fork:
        builder.records.append(wait_rules.end_signal(run, parent, failure))
        return
    builder.records.append(
        CommandRecord(
            agent=parent.agent,
            run_id=parent.run_id,
            kind="child",
            id=run.run_id,
            payload=result or b"null",
            parent=parent,
            failure=failure,
        )
    )


def fail(
    builder: DecisionBuilder, run: Run, failure: Failure, *, of: Run, started_ms: int | None = None
) -> Run:
    """Compensate if the agent can; otherwise the run has failed."""
    told: EventDetails = {"of": of, "step": of.step, "started_ms": started_ms}
    if run.ending is None:
        builder.records.append(
            DeadRecord(
                run_id=run.run_id,
                step=run.step,
                payload=run.payload,
                failure=failure,
                attempts=run.attempt,
            )
        )
    builder.records.extend(wait_rules.cancel_children(run, builder.entries))
    if builder.rules.on_failure is not None and run.ending is None:
        return compensate(builder, run, builder.rules.on_failure, "failed", failure, told)
    return end(builder, run, "failed", told, failure=failure)


def compensate(
    builder: DecisionBuilder,
    run: Run,
    step: str,
    ending: Status,
    why: Failure,
    told: EventDetails,
) -> Run:
    """Run the compensation: a step of its own, with a seq of its own.

    A late outcome of the step that did not complete is therefore not taken for its outcome.
    """
    doubt = [
        entry.slot.removeprefix("c:")
        for entry in builder.entries.values()
        if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch)
    ]
    payload = _ended(run.payload, step=run.step, code=why.code, message=why.message, in_doubt=doubt)
    memory = run.memory
    if memory is not None and memory.granted:
        memory = replace(memory, spent=total(memory.spent, journaled_cost(builder, run)))
    keep(builder, run)
    builder.forget_all("signal")
    follow = builder.update(
        run,
        status=unless_paused(run, "running") if ending == "failed" else "running",
        seq=run.seq + 1,
        step=step,
        payload=payload,
        carry=None,
        attempt=0,
        due_ms=None,
        wait=None,
        memory=memory,
        ending=ending,
        reason=why,
        failure=None,
    )
    kind: EventType = "run.cancelling" if ending == "cancelled" else "run.failing"
    told = {"next_step": step, "failure": why, **told}
    builder.emit(follow, kind, **told)
    return go_on(builder, follow)


def _ended(payload: bytes, **ended: Any) -> bytes:
    """Return the input of a compensation step.

    It holds the payload of the step that did not complete, as JSON, or as text if that is not JSON
    or is nested too deep to be embedded.
    """
    try:
        return strict_json(ended | {"payload": parse_json(payload) if payload else None})
    except (BadPayload, Unserialisable):
        return strict_json(ended | {"payload": payload.decode("utf-8", "backslashreplace")})


def _spawn(builder: DecisionBuilder, run: Run, wait: WaitState) -> Run:
    """Start the branches without a result. Those of a paused run start when it is resumed."""
    if run.status == "paused":
        return run._replace(wait=wait)
    wait = replace(wait, fork=run.forks + 1)
    run = builder.update(run, status="waiting", forks=wait.fork, wait=wait)
    again.note_fork(builder, run, wait.fork)
    for index in wait_rules.branches_in_progress(wait, builder.entries):
        start_child(builder, run, wait, index)
    return run


def start_child(builder: DecisionBuilder, run: Run, wait: WaitState, index: int) -> None:
    start = wait_rules.child_start(run, wait, index)
    builder.records.append(again.annotate_start(builder.entries, wait.fork, start))


def spawn_and_tell(
    builder: DecisionBuilder, run: Run, wait: WaitState, kind: EventType, told: EventDetails
) -> Run:
    at = len(builder.records)
    run = _spawn(builder, run, wait)
    started = sum(isinstance(each, CommandRecord) for each in builder.records[at:])
    builder.emit(run, kind, **told | {"children": started})
    return run
