"""A step that is run by its pool: there and back, and what can happen meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surefoot.state.machine.model import (
    Amount,
    AwaitInput,
    Branch,
    BudgetExceeded,
    Complete,
    Effect,
    GoTo,
    HandOver,
    Memory,
    PlanItem,
    StartChildren,
    StepResult,
    StepReturned,
    TimedOut,
    Work,
)
from surefoot.state.machine.operations import AnswerQuestion, Cancel, Pause, Resume, RetryRun
from surefoot.state.machine.pooled_step import decode_input, decode_outcome, encode_outcome
from tests.support.run_driver import (
    FAILURE,
    POOLED,
    REWIND,
    Life,
    branches,
    child_done,
    fork,
    started,
    wait_for,
)

ELSEWHERE = Work(seq=0, attempt=3)
OUTLOOKS: list[StepResult] = [
    GoTo(step="b", payload='{"é":1}'.encode()),
    GoTo(step="b", payload=b"1", after_ms=5, at_ms=None),
    Complete(result=b"null"),
    wait_for("x", "y", mode="all", need=2, timeout_ms=5, on_timeout="c"),
    AwaitInput(then="b", about=b"1", by=("ann",)),
    StartChildren(branches=branches(2), join="b", mode="collect", limit=1),
    HandOver(to=Branch(agent="y", step="s", payload=b"1")),
]


def returned(then: StepResult) -> StepReturned:
    return StepReturned(
        work=ELSEWHERE,
        then=then,
        carry=b"2",
        effects=(Effect(agent="outbox", run_id="x:r:1:0", payload=b"{}"),),
        messages=(b'"m"',),
        plan=(PlanItem(id="1", text="t", state="done"),),
        cost=(Amount("tokens", 5),),
        started_ms=7,
        took_ms=9,
        version=4,
    )


@pytest.mark.parametrize("then", OUTLOOKS, ids=lambda then: type(then).__name__)
def test_an_outcome_comes_back_as_it_was_but_for_the_attempt(then: StepResult) -> None:
    work = Work(seq=4, attempt=1, epoch=2)
    sent = returned(then)
    assert decode_outcome(encode_outcome(sent), work) == replace(sent, work=work)


def test_a_spent_budget_comes_back_too() -> None:
    sent = BudgetExceeded(work=ELSEWHERE, what="tokens", message="none left")
    work = Work(seq=4, attempt=1)
    assert decode_outcome(encode_outcome(sent), work) == replace(sent, work=work)


@pytest.mark.parametrize("result", [b"", b"null", b"{}", b'{"work":1}', b"\xff", b"[1]"])
def test_what_is_no_outcome_is_a_value_error(result: bytes) -> None:
    with pytest.raises(ValueError, match="validation"):
        decode_outcome(result, ELSEWHERE)


def test_what_is_no_task_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="validation"):
        decode_input(b"{}")


# The machine ---------------------------------------------------------------------------------


def in_pool(rules: object = None) -> Life:
    life = started(POOLED if rules is None else rules)  # type: ignore[arg-type]
    life.goes("pooled", b'{"x":1}')
    assert life.run.wait is not None
    assert (life.run.status, life.run.wait.kind) == ("waiting", "pool")
    return life


def test_the_task_has_all_that_the_step_needs_and_the_identity_of_the_run() -> None:
    life = started(POOLED, memory=Memory(plan=(PlanItem(id="1", text="t"),)))
    life.goes("pooled", b'{"x":1}', messages=('"é"'.encode(), b"2"))
    (start,) = life.commands("start")
    assert (start.agent, start.step, start.run_id) == ("x.gpu", "pooled", "r~1~0")
    task = decode_input(start.payload)
    assert (task.run_id, task.version, task.seq, task.epoch, task.emit) == ("r", 3, 1, 0, 0)
    assert (task.payload, task.carry) == (b'{"x":1}', None)
    assert task.messages == ('"é"'.encode(), b"2")
    assert task.memory == life.run.memory
    assert life.tasks == []


def test_an_input_that_is_not_even_text_is_sent_all_the_same_and_stays_wrong() -> None:
    life = started(POOLED, step="pooled", payload=b'"\xff"', carry=b"\xff", messages=(b"\xff",))
    (start,) = life.commands("start")
    task = decode_input(start.payload)
    assert (task.payload, task.carry, task.messages) == (b'"\\xff"', b"\\xff", (b"\\xff",))


def test_what_it_returned_there_is_applied_here_once() -> None:
    life = in_pool()
    life.child(0, encode_outcome(returned(GoTo(step="b", payload=b"2"))))
    run = life.run
    assert (run.status, run.seq, run.step, run.version) == ("running", 2, "b", 4)
    assert (life.tasks, life.told) == (["b"], ["child.finished", "step.completed"])
    assert life.event("step.completed").effects == ("x:r:1:0",)
    assert list(life.entries) == ["m:0"]
    assert life.refused(child_done(1, 0)) == "not_possible"


@pytest.mark.parametrize("then", OUTLOOKS, ids=lambda then: type(then).__name__)
def test_whatever_it_returns_is_what_it_would_be_here(then: StepResult) -> None:
    life, here = in_pool(), in_pool()
    life.child(0, encode_outcome(returned(then)))
    here.maybe = here.run._replace(status="running", wait=None)
    here.now_ms = life.now_ms - 10
    here.returned(
        then,
        **{
            name: getattr(returned(then), name)
            for name in ("carry", "effects", "messages", "plan", "cost", "started_ms", "version")
        },
    )
    assert life.run == here.run
    assert life.entries == here.entries
    assert life.told == ["child.finished", *here.told]


def test_one_pooled_step_leads_to_another() -> None:
    life = in_pool()
    life.child(0, encode_outcome(returned(GoTo(step="pooled", payload=b"2"))))
    assert life.sent("start") == ["r~2~0"]
    assert life.refused(child_done(1, 0)) == "stale"
    life.child(0, encode_outcome(returned(Complete(result=b"5"))))
    assert (life.run.status, life.run.result) == ("completed", b"5")


def test_a_step_that_fails_there_fails_here_and_can_be_tried_again() -> None:
    life = in_pool()
    life.child(0, failure=FAILURE)
    run = life.run
    assert (run.status, run.failure, run.attempt) == ("failed", FAILURE, 1)
    assert (run.step, run.payload) == ("pooled", b'{"x":1}')
    run = life.legal(RetryRun(id="1"))
    assert (run.status, run.attempt, life.sent("start")) == ("waiting", 0, ["r~2~0"])


def test_a_step_that_fails_there_is_compensated_here() -> None:
    life = in_pool(replace(POOLED, on_failure="sorry"))
    life.child(0, failure=FAILURE)
    assert (life.run.step, life.tasks) == ("sorry", ["sorry"])
    assert b'"step":"pooled"' in life.run.payload


@pytest.mark.parametrize("result", [b"null", b"{}", b"\xff"])
def test_an_outcome_that_cannot_be_read_needs_a_person(result: bytes) -> None:
    life = in_pool()
    life.child(0, result)
    run = life.run
    assert run.status == "attention"
    assert run.failure is not None
    assert (run.failure.code, run.failure.step) == ("bad_outcome", "pooled")
    run = life.legal(RetryRun(id="1"))
    assert (run.status, life.sent("start"), life.entries) == ("waiting", ["r~2~0"], {})


def test_a_budget_spent_there_is_asked_about_here_and_the_step_is_sent_again() -> None:
    life = in_pool(replace(POOLED, budget=(Amount("tokens", 9),)))
    life.child(0, encode_outcome(BudgetExceeded(work=ELSEWHERE, what="tokens", message="no")))
    wait = life.run.wait
    assert wait is not None
    assert (wait.kind, life.told) == ("budget", ["child.finished", "budget.spent"])
    assert wait.question is not None
    life.legal(AnswerQuestion(id="1", question=wait.question, approved=True))
    assert life.sent("start") == ["r~2~0"]


def test_an_outcome_that_comes_while_the_run_is_paused_counts_when_it_is_resumed() -> None:
    life = in_pool()
    life.legal(Pause(id="p"))
    life.child(0, encode_outcome(returned(GoTo(step="b", payload=b"2"))))
    assert (life.run.status, life.run.seq) == ("paused", 1)
    life.legal(Resume(id="r"))
    assert (life.run.status, life.run.seq, life.tasks) == ("running", 2, ["b"])


def test_cancel_and_rewind_reach_the_pool() -> None:
    for command in (Cancel(id="1"), REWIND):
        life = in_pool()
        life.legal(command)
        (cancel,) = life.commands("cancel")
        assert (cancel.agent, cancel.run_id) == ("x.gpu", "r~1~0")
        assert life.do(child_done(1, 0)).refused is not None


def test_a_pooled_step_after_a_while_is_sent_when_its_time_has_come() -> None:
    life = started(POOLED)
    due_ms = life.returned(GoTo(step="pooled", payload=b"1", after_ms=10)).due_ms
    assert due_ms is not None
    assert (life.run.timed, life.sent("start")) == (True, [])
    life.legal(TimedOut(due_ms=due_ms))
    assert life.sent("start") == ["r~1~0"]


def test_a_fork_inside_of_a_pooled_step_belongs_to_the_run() -> None:
    life = in_pool()
    life.child(0, encode_outcome(returned(fork(2))))
    assert life.sent("start") == ["r~2~0", "r~2~1"]
