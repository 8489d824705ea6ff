"""What a run does next: one pure function over one table.

    decide(run, input, now_ms) -> Decision(run', records, refused)

No I/O, no clock, no randomness. An input that is not legal in the run's status moves nothing: the
decision has the same run, no records and the reason. The checkpoint itself is not among the
records; the committer writes the decision's run. Decisions compose: the owner may apply several
inputs to one run (a start, then the result of its first step) and commit only the last run with
the records of all of them, so that a run of one step costs one transaction.

A step in backoff stays `waiting` with `due_ms`; the owner dispatches it when that time has come,
and the outcome of the attempt is applied to the waiting run directly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from surefoot.state.model import (
    DeadRecord,
    Decision,
    EventRecord,
    EventType,
    Forward,
    Input,
    Quarantine,
    Queue,
    Raised,
    Record,
    Returned,
    Run,
    Start,
    Status,
    TaskRecord,
)

#: status (None: no such run) x input -> the statuses that can follow. What is not here is refused.
TABLE: Final[dict[tuple[Status | None, type[Input]], frozenset[Status]]] = {
    (None, Start): frozenset({"running"}),
    ("running", Queue): frozenset({"pending"}),
    ("running", Forward): frozenset({"running"}),
    ("pending", Returned): frozenset({"running", "completed"}),
    ("running", Returned): frozenset({"running", "completed"}),
    ("waiting", Returned): frozenset({"running", "completed"}),
    ("pending", Raised): frozenset({"waiting", "failed"}),
    ("running", Raised): frozenset({"waiting", "failed"}),
    ("waiting", Raised): frozenset({"waiting", "failed"}),
    ("pending", Quarantine): frozenset({"attention"}),
    ("running", Quarantine): frozenset({"attention"}),
    ("waiting", Quarantine): frozenset({"attention"}),
}


def decide(run: Run | None, event: Input, now_ms: int) -> Decision:
    """Apply one input to one run (None: no such run). Pure."""
    status = run.status if run is not None else None
    if (status, type(event)) not in TABLE:
        name = type(event).__name__.lower()
        return Decision(run, refused=f"{name} is not possible: the run is {status or 'unknown'}")
    if isinstance(event, Start):
        return _start(event, now_ms)
    assert run is not None
    match event:
        case Queue():
            queued = replace(run, status="pending", updated_ms=now_ms)
            return Decision(queued, (_event(queued, "run.accepted", now_ms),))
        case Forward():
            return Decision(run, (_task(run),))
        case Returned():
            return _returned(run, event, now_ms)
        case Raised():
            return _raised(run, event, now_ms)
        case Quarantine():
            parked = replace(
                run, status="attention", due_ms=None, failure=event.failure, updated_ms=now_ms
            )
            return Decision(parked, (_event(parked, "run.attention", now_ms, step=run.step),))
    assert_never(event)


def ignored_start(start: Start, now_ms: int) -> EventRecord:
    """For the history: another start with a run_id in use was ignored, the first one holds."""
    refused = _start(start, now_ms).run
    assert refused is not None
    return _event(refused, "start.ignored", now_ms)


def _start(event: Start, now_ms: int) -> Decision:
    run = Run(
        run_id=event.run_id,
        agent=event.agent,
        version=event.version,
        status="running",
        seq=0,
        step=event.step,
        attempt=0,
        payload=event.payload,
        created_ms=now_ms,
        updated_ms=now_ms,
        input_digest=event.input_digest,
        traceparent=event.traceparent,
    )
    return Decision(run, (_event(run, "run.started", now_ms, next_step=run.step),))


def _returned(run: Run, event: Returned, now_ms: int) -> Decision:
    follow = replace(run, seq=run.seq + 1, attempt=0, due_ms=None, failure=None, updated_ms=now_ms)
    keys = tuple(effect.run_id for effect in event.effects)
    records: tuple[Record, ...]
    if event.step is None:
        follow = replace(follow, status="completed", payload=b"", result=event.payload)
        told = _event(
            follow, "run.completed", now_ms, of=run, step=run.step, effects=keys,
            started_ms=event.started_ms, result=event.payload,
        )  # fmt: skip
        records = (told, *event.effects)
    else:
        follow = replace(follow, status="running", step=event.step, payload=event.payload)
        told = _event(
            follow, "step.completed", now_ms, of=run, step=run.step, next_step=event.step,
            effects=keys, started_ms=event.started_ms,
        )  # fmt: skip
        records = (_task(follow), told, *event.effects)
    return Decision(follow, records)


def _raised(run: Run, event: Raised, now_ms: int) -> Decision:
    over = replace(run, attempt=run.attempt + 1, failure=event.failure, updated_ms=now_ms)
    if event.retry_in_ms is not None:
        waiting = replace(over, status="waiting", due_ms=now_ms + event.retry_in_ms)
        told = _event(
            waiting, "step.retrying", now_ms, of=run, step=run.step, started_ms=event.started_ms
        )
        return Decision(waiting, (told,))
    failed = replace(over, status="failed", due_ms=None, payload=b"")
    told = _event(failed, "run.failed", now_ms, of=run, step=run.step, started_ms=event.started_ms)
    dead = DeadRecord(
        run_id=run.run_id,
        step=run.step,
        payload=run.payload,
        failure=event.failure,
        attempts=over.attempt,
    )
    return Decision(failed, (told, dead))


def _task(run: Run) -> TaskRecord:
    return TaskRecord(run_id=run.run_id, seq=run.seq, step=run.step)


def _event(
    run: Run,
    kind: EventType,
    now_ms: int,
    *,
    of: Run | None = None,
    step: str | None = None,
    next_step: str | None = None,
    effects: tuple[str, ...] = (),
    started_ms: int | None = None,
    result: bytes | None = None,
) -> EventRecord:
    """`of` is the run before the step ended: its seq and attempt are what the event is about."""
    about = of or run
    return EventRecord(
        type=kind,
        run_id=run.run_id,
        agent=run.agent,
        version=run.version,
        status=run.status,
        seq=about.seq,
        at_ms=now_ms,
        step=step,
        next_step=next_step,
        attempt=about.attempt,
        started_ms=started_ms,
        due_ms=run.due_ms,
        effects=effects,
        result=result,
        failure=run.failure,
    )
