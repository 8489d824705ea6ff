"""How a run moves on: to its next step, to its pool, to its children, or to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefoot.schemas.payload import BadPayload, Unserialisable, parse_json, strict_json
from surefoot.state.machine import wait_rules
from surefoot.state.machine.actions import keep
from surefoot.state.machine.decision import Turn
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
    Wait,
    over,
    total,
)
from surefoot.state.machine.pooled_step import encode_input
from surefoot.state.names.agents import pool_agent_name


def go_on(turn: Turn, run: Run, *, task: bool = True) -> Run:
    """The step that the run names is next: ask for it, here or in its pool, unless its time has
    not come or the budget has no step left for it."""
    if run.status == "paused":
        return run
    short = _used_up(run)
    if short is not None:
        return overspent(turn, run, short, f"the run has used up its {short}")
    if run.due_ms is not None:
        return run if run.status == "waiting" else turn.moved(run, status="waiting")
    pool = turn.rules.pools.get(run.step)
    if pool is None:
        if run.status != "running":
            run = turn.moved(run, status="running")
        if task:
            turn.task(run)
        return run
    branch = Branch(
        agent=pool_agent_name(run.agent, pool),
        step=run.step,
        payload=encode_input(run, turn.entries),
    )
    return _spawn(turn, run, Wait(kind="pool", since_ms=turn.now_ms, branches=(branch,)))


def _used_up(run: Run) -> str | None:
    """What the run's budget has too little of for one more step. Compensation is not limited."""
    if run.memory is None or not run.memory.granted or run.ending is not None:
        return None
    return over(total(run.memory.spent, (Amount("steps", 1),)), run.memory.granted)


def journaled_cost(turn: Turn, run: Run) -> Amounts:
    """Of the calls of the step in work."""
    mine = (run.seq, run.epoch)
    return total(*(e.cost for e in turn.entries.values() if (e.seq, e.epoch) == mine))


def park(turn: Turn, run: Run, failure: Failure) -> Run:
    """A person has to look."""
    run = turn.moved(run, status="attention", failure=failure)
    turn.tell(run, "run.attention", step=run.step)
    return run


def overspent(turn: Turn, run: Run, what: str, message: str, cost: Amounts = ()) -> Run:
    """Ask for more, each time with a question of its own. `due_ms` stays: it is the time of the
    step that is next."""
    if cost and run.memory is not None:
        run = replace(run, memory=replace(run.memory, spent=total(run.memory.spent, cost)))
    about = b"budget:%s:%d" % (what.encode(), turn.now_ms)
    wait = Wait(
        kind="budget", since_ms=turn.now_ms, names=(what,), question=wait_rules.question(run, about)
    )
    run = turn.moved(
        run,
        status="paused" if run.status == "paused" else "waiting",
        wait=wait,
        failure=Failure(code="budget_spent", message=message, step=run.step),
    )
    turn.tell(run, "budget.spent", name=what, wait=wait)
    return run


def end(
    turn: Turn,
    run: Run,
    status: Status,
    told: dict[str, Any],
    *,
    result: bytes | None = None,
    failure: Failure | None = None,
) -> Run:
    """The run is over. A failed one is kept whole, so that it can be tried again."""
    parked = status == "failed"
    ended = turn.moved(
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
        "completed": "run.completed", "failed": "run.failed", "cancelled": "run.cancelled"
    }  # fmt: skip
    if not parked:
        for signal in wait_rules.signals(turn.entries):
            turn.tell(
                run, "signal.unread", id=signal.id, name=signal.name, by=signal.by,
                payload=signal.value,
            )  # fmt: skip
        keep(turn, run)
        turn.forget_all()
    if run.memory is not None and run.memory.granted:  # what the last step has cost is told, too
        told = {"memory": run.memory, **told}
    turn.tell(ended, kind[status], **{"result": result, **told})
    if run.parent is not None:
        reason = failure
        if status == "cancelled":
            reason = Failure(code="cancelled", message=f"run {run.run_id} was cancelled")
        tell_parent(turn, run, run.parent, result, reason)
    return ended


def tell_parent(
    turn: Turn, run: Run, parent: Parent, result: bytes | None, failure: Failure | None
) -> None:
    if not parent.fork:
        turn.records.append(wait_rules.ended(run, parent, failure))
        return
    turn.records.append(
        CommandRecord(
            agent=parent.agent, run_id=parent.run_id, kind="child", id=run.run_id,
            payload=result or b"null", parent=parent, failure=failure,
        )
    )  # fmt: skip


def fail(turn: Turn, run: Run, failure: Failure, *, of: Run, started_ms: int | None = None) -> Run:
    """No way on: compensate if the agent can, else the run is failed."""
    told = {"of": of, "step": of.step, "started_ms": started_ms}
    if run.ending is None:
        turn.records.append(
            DeadRecord(
                run_id=run.run_id, step=run.step, payload=run.payload, failure=failure,
                attempts=run.attempt,
            )
        )  # fmt: skip
    turn.records.extend(wait_rules.cancel_children(run, turn.entries))
    if turn.rules.on_failure is not None and run.ending is None:
        return compensate(turn, run, turn.rules.on_failure, "failed", failure, told)
    return end(turn, run, "failed", told, failure=failure)


def compensate(
    turn: Turn, run: Run, step: str, ending: Status, why: Failure, told: dict[str, Any]
) -> Run:
    """The compensation is a step of its own, with a seq of its own: what still comes from the
    step that did not happen is not taken for its outcome."""
    doubt = [
        entry.slot.removeprefix("c:")
        for entry in turn.entries.values()
        if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch)
    ]
    payload = _ended(run.payload, step=run.step, code=why.code, message=why.message, in_doubt=doubt)
    memory = run.memory
    if memory is not None and memory.granted:
        memory = replace(memory, spent=total(memory.spent, journaled_cost(turn, run)))
    keep(turn, run)
    turn.forget_all("signal")
    follow = turn.moved(
        run,
        status="paused" if run.status == "paused" and ending == "failed" else "running",
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
    turn.tell(follow, kind, **{"next_step": step, "failure": why, **told})
    return go_on(turn, follow)


def _ended(payload: bytes, **ended: Any) -> bytes:
    """Input of a compensation step. The payload of the step that did not happen is in it as JSON;
    as text if it is none, or nested too deep to stand inside of anything."""
    try:
        return strict_json(ended | {"payload": parse_json(payload) if payload else None})
    except (BadPayload, Unserialisable):
        return strict_json(ended | {"payload": payload.decode("utf-8", "backslashreplace")})


def _spawn(turn: Turn, run: Run, wait: Wait) -> Run:
    """Start the branches that have no result yet; those of a paused run when it is resumed."""
    if run.status == "paused":
        return replace(run, wait=wait)
    wait = replace(wait, fork=run.forks + 1)
    run = turn.moved(run, status="waiting", forks=wait.fork, wait=wait)
    for index in wait_rules.started(wait, turn.entries):
        turn.records.append(wait_rules.start_child(run, wait, index))
    return run


def spawn_and_tell(turn: Turn, run: Run, wait: Wait, kind: EventType, told: dict[str, Any]) -> Run:
    at = len(turn.records)
    run = _spawn(turn, run, wait)
    turn.tell(run, kind, **told | {"children": len(turn.records) - at})
    return run
