"""The table of states and inputs: what is legal does the right thing, the rest moves nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest

from surefoot.state.machine import TABLE, decide, ignored_start
from surefoot.state.model import (
    DeadRecord,
    Effect,
    EventRecord,
    Failure,
    Forward,
    Input,
    Quarantine,
    Queue,
    Raised,
    Returned,
    Run,
    Start,
    Status,
    TaskRecord,
)

NOW = 1_700_000_000_000
FAILURE = Failure(code="step_raised", message="no", kind="ValueError", step="a")
START = Start(
    run_id="r", agent="x", version=3, step="a", payload=b"1", input_digest=b"d", traceparent=None
)
INPUTS: list[Input] = [
    START,
    Queue(),
    Forward(),
    Returned(step="b", payload=b"2"),
    Returned(step=None, payload=b"3"),
    Raised(failure=FAILURE, retry_in_ms=10),
    Raised(failure=FAILURE, retry_in_ms=None),
    Quarantine(failure=FAILURE),
]
STATUSES: list[Status | None] = [None, *get_args(Status)]


def run_in(status: Status) -> Run:
    run = decide(None, START, NOW).run
    assert run is not None
    return replace(run, status=status, seq=4, attempt=1, step="a", payload=b"in")


@pytest.mark.parametrize(
    ("status", "event"), list(itertools.product(STATUSES, INPUTS)), ids=lambda v: str(v)[:40]
)
def test_every_input_in_every_status_is_taken_or_refused_as_the_table_says(
    status: Status | None, event: Input
) -> None:
    run = run_in(status) if status is not None else None
    decision = decide(run, event, NOW + 5)
    allowed = TABLE.get((status, type(event)))
    if allowed is None:
        assert decision.run is run
        assert decision.records == ()
        assert decision.refused is not None
    else:
        assert decision.refused is None
        assert decision.run is not None
        assert decision.run.status in allowed


def test_a_start_is_a_running_run_at_step_zero_and_one_event() -> None:
    decision = decide(None, START, NOW)
    run = decision.run
    assert run is not None
    assert (run.status, run.seq, run.step, run.attempt, run.version) == ("running", 0, "a", 0, 3)
    assert run.created_ms == run.updated_ms == NOW
    (event,) = decision.records
    assert isinstance(event, EventRecord)
    assert (event.type, event.seq, event.next_step) == ("run.started", 0, "a")


def test_a_returned_step_counts_once_and_asks_for_the_next() -> None:
    effect = Effect(agent="outbox", run_id="x:r:4:0", payload=b"{}")
    event = Returned(step="b", payload=b"2", effects=(effect,))
    decision = decide(run_in("running"), event, NOW + 5)
    assert decision.run == replace(
        run_in("running"), seq=5, step="b", payload=b"2", attempt=0, updated_ms=NOW + 5
    )
    task, told, sent = decision.records
    assert task == TaskRecord(run_id="r", seq=5, step="b")
    assert isinstance(told, EventRecord)
    assert (told.type, told.seq, told.step, told.next_step) == ("step.completed", 4, "a", "b")
    assert told.effects == ("x:r:4:0",)
    assert sent is effect


def test_the_last_step_leaves_a_receipt_with_the_result_and_no_task() -> None:
    decision = decide(run_in("running"), Returned(step=None, payload=b"3"), NOW)
    run = decision.run
    assert run is not None
    assert (run.status, run.seq, run.payload, run.result) == ("completed", 5, b"", b"3")
    (told,) = decision.records
    assert isinstance(told, EventRecord)
    assert (told.type, told.seq, told.result) == ("run.completed", 4, b"3")


def test_a_failed_attempt_waits_with_its_count_kept() -> None:
    decision = decide(run_in("running"), Raised(failure=FAILURE, retry_in_ms=250), NOW)
    run = decision.run
    assert run is not None
    assert (run.status, run.seq, run.attempt, run.due_ms) == ("waiting", 4, 2, NOW + 250)
    assert run.payload == b"in"
    assert run.failure == FAILURE


def test_out_of_attempts_is_failed_with_a_dead_letter_that_can_start_the_step_again() -> None:
    decision = decide(run_in("waiting"), Raised(failure=FAILURE, retry_in_ms=None), NOW)
    run = decision.run
    assert run is not None
    assert (run.status, run.attempt, run.payload) == ("failed", 2, b"")
    told, dead = decision.records
    assert isinstance(told, EventRecord)
    assert told.type == "run.failed"
    assert dead == DeadRecord(run_id="r", step="a", payload=b"in", failure=FAILURE, attempts=2)


def test_quarantine_keeps_the_step_and_its_input() -> None:
    decision = decide(run_in("running"), Quarantine(failure=FAILURE), NOW)
    run = decision.run
    assert run is not None
    assert (run.status, run.seq, run.step, run.payload) == ("attention", 4, "a", b"in")


def test_carrying_forward_changes_nothing_but_asks_again() -> None:
    run = run_in("running")
    decision = decide(run, Forward(), NOW + 60_000)
    assert decision.run is run
    assert decision.records == (TaskRecord(run_id="r", seq=4, step="a"),)


def test_another_start_with_the_same_id_is_told_and_nothing_else() -> None:
    told = ignored_start(START, NOW)
    assert (told.type, told.run_id) == ("start.ignored", "r")


def test_failure_messages_are_bounded_and_encodable() -> None:
    failure = Failure(code="c", message="x" * 10_000 + "\ud800")
    assert len(failure.message) <= 4096
    Failure(code="c", message="\ud800").message.encode()
