"""What ends a wait: signals in any order, the first answer, children."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from surefoot.state.machine import wait_rules
from surefoot.state.machine.commands import COMMAND_ID_MAX
from surefoot.state.machine.model import (
    AwaitInput,
    Branch,
    Entry,
    HandOver,
    Parent,
    Park,
    StartChildren,
    TimedOut,
)
from surefoot.state.machine.operations import (
    SIGNALS_KEPT,
    AnswerQuestion,
    Cancel,
    DeliverSignal,
    Pause,
    Resume,
    RetryRun,
)
from tests.support.run_driver import (
    FAILURE,
    PLAIN,
    REWIND,
    START,
    Life,
    branches,
    child_done,
    fork,
    started,
    wait_for,
)


def waiting(*names: str, rules: Any = PLAIN, **fields: Any) -> Life:
    life = started(rules)
    life.returned(wait_for(*names, **fields))
    return life


# Signals -------------------------------------------------------------------------------------


def test_a_signal_ends_the_wait_for_it_and_is_the_input_of_the_next_step() -> None:
    life = waiting("go")
    assert (life.run.status, life.run.step, life.tasks) == ("waiting", "b", [])
    life.signal("other", b"1")
    assert life.run.status == "waiting"
    life.signal("go", b'{"x":1}')
    assert (life.run.status, life.run.payload, life.run.wait) == ("running", b'{"x":1}', None)
    assert life.told == ["signal.received", "wait.over"]
    assert (life.tasks, list(life.entries)) == (["b"], ["s:other"])


@pytest.mark.parametrize("before", ["the run", "the step", "the last step"])
def test_an_early_signal_is_kept_until_the_run_waits_for_it(before: str) -> None:
    life = Life()
    if before == "the run":
        decision = life.signal("go", b"5")
        assert (decision.run, decision.refused) == (None, None)
        assert life.event("signal.received").run_id == "r"
    life.legal(START)
    if before == "the step":
        life.signal("go", b"5")
    life.goes()
    if before == "the last step":
        life.signal("go", b"5")
    run = life.returned(wait_for("go", then="c"))
    assert (run.status, run.step, run.payload) == ("running", "c", b"5")
    assert life.told == ["step.completed", "wait.over"]
    assert life.entries == {}


def test_the_same_signal_counts_once_even_if_it_came_before_the_run_and_has_been_read() -> None:
    life = Life()
    for told in ("signal.received", "command.repeated"):
        life.signal("go", b"5")
        assert life.told == [told]
    life.legal(START)
    life.signal("go", b"5")
    assert life.told == ["command.repeated"]
    life.returned(wait_for("go"))
    life.signal("go", b"5")
    assert life.told == ["command.repeated"]
    assert life.entries == {}


def test_a_kept_signal_is_not_replaced_by_another_with_its_id_however_long_ago_it_came() -> None:
    life = started()
    life.signal("go", b"1", as_="x")
    for number in range(40):
        life.signal("more", as_=f"{number}")
    life.signal("go", b"2", as_="x")
    assert life.told == ["command.repeated"]
    assert life.entries["s:x"].value == b"1"


def test_signals_of_one_name_are_read_in_the_order_in_which_they_came() -> None:
    life = started()
    for number in range(3):
        life.signal("item", b"%d" % number, as_=f"{number}")
    for number in range(3):
        assert life.returned(wait_for("item")).payload == b"%d" % number


def test_signals_that_nothing_has_read_are_told_when_the_run_is_over() -> None:
    life = waiting("item")
    for number in range(5):
        life.signal("item", b"%d" % number, as_=f"{number}")
    life.ends()
    assert life.told == ["signal.unread"] * 4 + ["run.completed"]
    unread = [event for event in life.history if event.type == "signal.unread"]
    assert [(event.id, event.payload, event.by) for event in unread] == [
        (f"{number}", b"%d" % number, "ann") for number in range(1, 5)
    ]
    assert life.entries == {}
    assert life.refused(DeliverSignal(id="9", run_id="r", name="item", payload=b"9")) == "too_late"


def test_a_cancelled_run_tells_them_too_and_a_failed_one_keeps_them_for_its_retry() -> None:
    life = started()
    life.signal("go", b"1")
    life.raised(None)
    assert "s:go" in life.entries
    life.legal(RetryRun(id="1"))
    life.legal(Cancel(id="2"))
    assert life.told == ["signal.unread", "run.cancelled"]


def values(payload: bytes) -> list[tuple[str, Any]]:
    return [(signal["name"], signal["payload"]) for signal in json.loads(payload)]


def test_all_of_waits_for_one_of_each_and_leaves_the_second_of_a_name() -> None:
    life = waiting("x", "y", mode="all", need=2)
    life.signal("x", b"1", as_="1")
    life.signal("x", b"2", as_="2")
    assert life.run.status == "waiting"
    life.signal("y", b"3", as_="3")
    assert values(life.run.payload) == [("x", 1), ("y", 3)]
    assert list(life.entries) == ["s:2"]


def test_any_of_takes_the_first() -> None:
    life = waiting("x", "y", mode="any")
    life.signal("y", b"3")
    assert values(life.run.payload) == [("y", 3)]
    (signal,) = json.loads(life.run.payload)
    assert signal == {"id": "y", "name": "y", "payload": 3, "by": "ann", "at_ms": life.now_ms}


def test_n_of_takes_so_many_of_any_of_its_names() -> None:
    life = waiting("x", "y", mode="count", need=3)
    for number, name in enumerate(["x", "z", "x"]):
        life.signal(name, b"%d" % number, as_=f"{number}")
    assert life.run.status == "waiting"
    life.signal("y", b"9")
    assert values(life.run.payload) == [("x", 0), ("x", 2), ("y", 9)]


def refuse_text(step: str, payload: bytes) -> str | None:
    return f"{step} takes no text" if payload.startswith(b'"') else None


def test_a_signal_that_does_not_fit_the_step_is_refused_and_the_wait_goes_on() -> None:
    life = waiting("go", rules=replace(PLAIN, accepts=refuse_text))
    assert (
        life.refused(DeliverSignal(id="1", run_id="r", name="go", payload=b'"x"')) == "bad_payload"
    )
    life.signal("other", b'"x"')
    life.signal("go", b"1")
    assert life.run.status == "running"


def test_an_early_signal_that_does_not_fit_is_told_as_unread_and_the_next_one_counts() -> None:
    life = started(replace(PLAIN, accepts=refuse_text))
    life.signal("go", b'"x"', as_="1")
    life.signal("go", b"2", as_="2")
    run = life.returned(wait_for("go"))
    assert (run.status, run.payload, life.entries) == ("running", b"2", {})
    unread = life.event("signal.unread")
    assert (unread.id, unread.failure and unread.failure.code) == ("1", "bad_payload")


@pytest.mark.parametrize("payload", [b"{", b"\xff", b"[" * 200 + b"]" * 200], ids=["a", "b", "c"])
def test_a_signal_that_cannot_stand_in_a_list_is_refused(payload: bytes) -> None:
    life = waiting("x", "y", mode="any")
    assert (
        life.refused(DeliverSignal(id="1", run_id="r", name="x", payload=payload)) == "bad_payload"
    )
    life = started()
    life.signal("x", payload)
    run = life.returned(wait_for("x", "y", mode="any"))
    assert run.status == "waiting"
    assert "signal.unread" in life.told


def test_a_wait_whose_step_is_gone_does_not_ask_that_step() -> None:
    def never(step: str, payload: bytes) -> str | None:
        raise KeyError(step)

    life = waiting("go", then="gone", rules=replace(PLAIN, accepts=never))
    life.signal("go", b"1")
    assert (life.run.status, life.run.step) == ("running", "gone")


def test_a_run_keeps_only_so_many_signals() -> None:
    life = Life()
    life.entries = {
        f"s:{n}": Entry(run_id="r", slot=f"s:{n}", kind="signal") for n in range(SIGNALS_KEPT)
    }
    assert (
        life.refused(DeliverSignal(id="x", run_id="r", name="go", payload=b"1")) == "mailbox_full"
    )


def test_a_signal_for_a_run_that_is_paused_or_needs_a_person_counts_when_it_goes_on() -> None:
    life = waiting("go")
    life.legal(Pause(id="p"))
    life.signal("go", b"5")
    assert life.run.status == "paused"
    life.legal(Resume(id="r"))
    assert (life.run.status, life.run.payload) == ("running", b"5")
    life = waiting("go")
    life.legal(Park(failure=FAILURE))
    life.signal("go", b"5")
    assert life.run.status == "attention"
    life.legal(RetryRun(id="r"))
    assert (life.run.status, life.run.payload) == ("running", b"5")


def test_what_is_carried_over_the_wait_is_handed_to_the_step_after_it_and_no_further() -> None:
    life = started()
    life.returned(wait_for("go"), carry=b"7")
    life.signal("go")
    assert life.run.carry == b"7"
    assert life.goes().carry is None


# Time ----------------------------------------------------------------------------------------


def over_time(life: Life) -> Life:
    due_ms = life.run.due_ms
    assert due_ms is not None
    life.now_ms = due_ms
    life.legal(TimedOut(due_ms=due_ms))
    return life


def test_a_wait_whose_time_is_over_goes_on_with_what_was_carried() -> None:
    life = started()
    life.returned(wait_for("go", timeout_ms=500, on_timeout="c"), carry=b"7")
    assert life.run.due_ms == life.now_ms + 500
    run = over_time(life).run
    assert (run.status, run.step, run.payload, run.carry) == ("running", "c", b"7", None)
    assert (run.wait, run.due_ms, life.tasks) == (None, None, ["c"])
    assert life.told == ["wait.timed_out"]


def test_without_a_step_for_it_the_run_fails_and_a_retry_waits_the_whole_time_again() -> None:
    life = waiting("go", timeout_ms=500)
    run = over_time(life).run
    assert run.status == "failed"
    assert run.failure is not None
    assert (run.failure.code, life.told) == ("wait_timeout", ["run.failed"])
    run = life.legal(RetryRun(id="1"))
    assert (run.status, run.due_ms) == ("waiting", life.now_ms + 500)
    life.signal("go", b"1")
    assert life.run.status == "running"


def test_a_signal_that_came_in_time_has_ended_the_wait() -> None:
    life = waiting("go", timeout_ms=500)
    due_ms = life.run.due_ms
    assert due_ms is not None
    life.signal("go")
    life.now_ms = due_ms
    assert life.refused(TimedOut(due_ms=due_ms)) == "not_possible"


# Questions -----------------------------------------------------------------------------------


def asking(**fields: Any) -> Life:
    life = started()
    life.returned(AwaitInput(then="b", about=b'{"sum":5}', **fields), carry=b'{"sum":5}')
    return life


def asked(life: Life) -> str:
    assert life.run.wait is not None
    assert life.run.wait.question is not None
    return life.run.wait.question


def answer(
    question: str, *, approved: bool = True, by: str = "ann", as_: str = "1"
) -> AnswerQuestion:
    return AnswerQuestion(id=as_, question=question, approved=approved, note="fine", by=by)


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_is_the_input_of_the_next_step_with_what_was_asked_about(approved: bool) -> None:
    life = asking()
    question = asked(life)
    assert life.event("step.completed").wait == life.run.wait
    run = life.legal(answer(question, approved=approved))
    assert json.loads(run.payload) == {
        "approved": approved,
        "by": "ann",
        "note": "fine",
        "at_ms": life.now_ms,
        "question": question,
    }
    assert (run.status, run.step, run.carry, life.tasks) == ("running", "b", b'{"sum":5}', ["b"])
    told = life.event("approval.decided")
    assert (told.id, told.by, told.name) == ("1", "ann", question)


def test_the_first_decision_holds_whatever_the_run_does_by_now_and_the_second_is_told_so() -> None:
    life = asking()
    question = asked(life)
    life.legal(answer(question))
    late = answer(question, approved=False, by="bob", as_="2")
    for _ in range(2):
        assert life.refused(late) == "already_decided"
        failure = life.event("command.refused").failure
        assert failure is not None
        assert failure.message == "it was already approved by ann"
        life.ends() if life.run.status == "running" else None


def test_the_same_answer_again_asks_for_what_is_so_whoever_gives_it() -> None:
    for approved in (True, False):
        life = asking()
        question = asked(life)
        life.legal(answer(question, approved=approved))
        for number in range(2):
            again = answer(question, approved=approved, by="bob", as_=f"again {number}")
            before = life.run
            assert life.do(again).refused is None
            assert (life.event("command.repeated").id, life.run) == (f"again {number}", before)
            life.ends() if life.run.status == "running" else None


def test_an_answer_to_another_question_is_refused() -> None:
    life = asking()
    old = asked(life)
    over = life.legal(answer(old))
    assert over.seq == 1
    life.returned(AwaitInput(then="b", about=b'{"sum":6}'))
    assert asked(life) != old
    assert life.refused(answer("never asked", as_="2")) == "unknown_question"
    refused = life.event("command.refused").failure
    assert refused is not None
    assert asked(life) in refused.message
    assert life.refused(answer(old, approved=False, as_="3")) == "already_decided"
    assert life.legal(answer(asked(life), as_="4")).status == "running"


def test_the_same_thing_asked_by_a_later_step_or_in_a_later_epoch_is_another_question() -> None:
    life = asking()
    first = asked(life)
    wait, seq = life.run.wait, life.run.seq
    life.legal(answer(first))
    life.returned(AwaitInput(then="b", about=b'{"sum":5}'))
    assert asked(life) != first
    life.legal(replace(REWIND, seq=seq, step="b", wait=wait))
    again = asked(life)
    assert again != first
    assert life.event("run.rewound").wait == life.run.wait
    assert life.refused(answer(first, as_="2")) == "unknown_question"
    assert life.legal(answer(again, as_="3")).status == "running"


def test_a_step_that_is_run_again_in_a_later_epoch_asks_another_question() -> None:
    life = asking()
    first = asked(life)
    life.legal(REWIND)
    life.returned(AwaitInput(then="b", about=b'{"sum":5}'))
    assert life.run.seq == 1
    assert asked(life) != first
    assert life.refused(answer(first)) == "unknown_question"


def test_only_those_who_were_named_may_answer() -> None:
    life = asking(by=("ann", "bob"))
    assert life.refused(answer(asked(life), by="eve")) == "not_allowed"
    assert life.legal(answer(asked(life), by="bob", as_="2")).status == "running"


def test_an_answer_after_the_time_is_refused_also_before_the_timer_has_fired() -> None:
    life = asking(timeout_ms=500, on_timeout="c")
    question, due_ms = asked(life), life.run.due_ms
    assert due_ms is not None
    life.now_ms = due_ms
    assert life.refused(answer(question)) == "expired"
    run = over_time(life).run
    assert (run.step, run.payload) == ("c", b'{"sum":5}')
    assert life.refused(answer(question, as_="2")) == "not_possible"


# Children ------------------------------------------------------------------------------------


def test_every_branch_is_started_once_as_a_run_of_its_own() -> None:
    life = started(traceparent="00-1")
    life.returned(fork(2))
    assert life.event("step.completed").children == 2
    first, second = life.commands("start")
    assert (first.agent, first.run_id, first.payload) == ("y0", "r~1~0", b"0")
    assert second.run_id == "r~1~1"
    assert second.parent == Parent(agent="x", run_id="r", fork=1, branch=1)
    assert second.traceparent == "00-1"


def test_the_join_runs_once_when_all_are_over_with_results_in_the_order_of_the_branches() -> None:
    life = started()
    life.returned(fork(3), carry=b"9")
    for branch in (2, 0):
        life.child(branch, b"%d" % (10 + branch))
        assert (life.run.status, life.tasks) == ("waiting", [])
    life.child(1, b"11")
    run = life.run
    assert (run.status, run.step, run.payload, run.carry) == ("running", "b", b"[10,11,12]", b"9")
    assert (life.told, life.tasks) == (["child.finished", "wait.over"], ["b"])
    assert life.entries == {}
    assert life.child(1).refused is not None


@pytest.mark.parametrize(("number", "branch"), [(1, 0), (2, 1), (1, 2), (1, -1)])
def test_a_child_that_has_told_before_or_is_not_waited_for_changes_nothing(
    number: int, branch: int
) -> None:
    life = started()
    life.returned(fork(2))
    life.child(0)
    assert life.refused(child_done(number, branch)) == "stale"
    assert life.records == ()


def test_a_fork_of_nothing_is_joined_at_once() -> None:
    life = started()
    run = life.returned(fork(0))
    assert (run.status, run.payload, life.tasks) == ("running", b"[]", ["b"])


def test_no_more_branches_run_at_a_time_than_the_limit_and_each_is_started_once() -> None:
    life = started()
    life.returned(fork(5, limit=2))
    begun = life.sent("start")
    assert begun == ["r~1~0", "r~1~1"]
    for branch in (1, 0, 2, 4, 3):
        life.child(branch)
        begun += life.sent("start")
        assert len(begun) - 5 <= 0
    assert begun == [f"r~1~{n}" for n in range(5)]
    assert life.run.status == "running"


def test_collect_tells_what_became_of_each_branch() -> None:
    life = started()
    life.returned(fork(3, "collect", limit=1))
    life.child(0, b'{"x":1}')
    life.child(1, failure=FAILURE)
    assert life.sent("start") == ["r~1~2"]
    life.child(2, b"[" * 200 + b"]" * 200)
    assert life.run.status == "running"
    deep = life.run.payload.replace(b"[" * 200 + b"]" * 200, b"0")
    assert json.loads(deep) == [
        {"ok": True, "result": {"x": 1}, "failure": None},
        {"ok": False, "result": None, "failure": {"code": "step_raised", "message": "no"}},
        {"ok": True, "result": 0, "failure": None},
    ]


def test_the_first_failure_fails_the_run_and_cancels_those_under_way_and_no_others() -> None:
    life = started()
    life.returned(fork(6, limit=3))
    life.child(1)
    life.child(0, failure=FAILURE)
    run = life.run
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure.code == "branch_failed"
    assert "branch 0 (y0): step_raised: no" in run.failure.message
    assert life.sent("cancel") == ["r~1~2", "r~1~3"]
    assert life.sent("start") == []
    assert life.child(2).refused is not None


def test_a_failed_join_tried_again_starts_only_what_has_no_result() -> None:
    life = started()
    life.returned(fork(3))
    life.child(2, b"22")
    life.child(0, failure=FAILURE)
    run = life.legal(RetryRun(id="1"))
    assert (run.status, life.sent("start")) == ("waiting", ["r~2~0", "r~2~1"])
    assert life.event("run.retried").children == 2
    assert life.refused(child_done(1, 1)) == "stale"
    life.child(0, b"20")
    life.child(1, b"21")
    assert life.run.payload == b"[20,21,22]"


def test_a_run_that_needed_a_person_meanwhile_starts_no_child_twice() -> None:
    life = started()
    life.returned(fork(2))
    life.legal(Park(failure=FAILURE))
    life.child(1, b"11")
    assert life.run.status == "attention"
    life.legal(RetryRun(id="1"))
    assert (life.run.status, life.sent("start")) == ("waiting", [])
    life.child(0, b"10")
    assert life.run.payload == b"[10,11]"


def test_children_that_are_over_while_the_run_is_paused_count_when_it_is_resumed() -> None:
    for failure in (None, FAILURE):
        life = started()
        life.returned(fork(2))
        life.legal(Pause(id="p"))
        life.child(0, b"1")
        life.child(1, b"2", failure=failure)
        assert (life.run.status, life.tasks) == ("paused", [])
        life.legal(Resume(id="r"))
        assert life.run.status == ("failed" if failure else "running")


def test_cancel_reaches_the_children_that_are_under_way() -> None:
    life = started()
    life.returned(fork(3, limit=2))
    life.child(0)
    life.legal(Cancel(id="1"))
    assert life.sent("cancel") == ["r~1~1", "r~1~2"]
    life = started()
    life.legal(Pause(id="p"))
    life.returned(fork(3))
    life.legal(Cancel(id="1"))
    assert life.sent("cancel") == []


def test_a_child_with_a_long_name_can_be_told_to_stop() -> None:
    run_id = "r" * 250
    life = started(run_id=run_id)
    life.returned(fork(1))
    (start,) = life.commands("start")
    life.legal(Cancel(id="1"))
    (cancel,) = life.commands("cancel")
    assert cancel.run_id == start.run_id
    assert len(start.run_id) <= 256
    assert cancel.id is not None
    assert 0 < len(cancel.id) <= COMMAND_ID_MAX


def test_names_of_children_are_a_function_of_their_place_and_never_the_same() -> None:
    long = "r" * 255
    names = {
        wait_rules.child_id(run_id, fork, branch)
        for run_id in ("r", "s", long, long + "x")
        for fork in (1, 2, 11)
        for branch in (0, 1, 11)
    }
    assert len(names) == 36
    assert wait_rules.child_id("r", 2, 1) == "r~2~1"


def test_a_call_hands_the_result_on_as_it_is() -> None:
    life = started()
    (one,) = branches(1)
    life.returned(StartChildren(branches=(one,), join="c", mode="one"), carry=b"9")
    life.child(0, b'{"x":1}')
    run = life.run
    assert (run.status, run.step, run.payload, run.carry) == ("running", "c", b'{"x":1}', b"9")


PARENT = Parent(agent="p", run_id="up", fork=3, branch=1)


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_a_child_tells_its_parent_once_how_it_ended(end: str) -> None:
    life = started(parent=PARENT)
    match end:
        case "completed":
            life.ends(b"5")
        case "failed":
            life.raised(None)
        case "cancelled":
            life.legal(Cancel(id="1"))
    (told,) = life.commands("child")
    assert (told.agent, told.run_id, told.id, told.parent) == ("p", "up", "r", PARENT)
    assert told.payload == (b"5" if end == "completed" else b"null")
    codes = {"completed": None, "failed": "step_raised", "cancelled": "cancelled"}
    assert (told.failure.code if told.failure else None) == codes[end]


def test_whoever_a_run_hands_over_to_answers_to_its_parent() -> None:
    life = started(parent=PARENT)
    run = life.returned(HandOver(to=Branch(agent="y", step="s", payload=b"4")))
    assert run.status == "completed"
    assert json.loads(run.result or b"") == {"handed_to": {"agent": "y", "run_id": "r~1~0"}}
    (heir,) = life.commands("start")
    assert (heir.agent, heir.run_id, heir.step, heir.payload) == ("y", "r~1~0", "s", b"4")
    assert heir.parent == PARENT
    assert life.commands("child") == []
    child = Life(rules=replace(PLAIN, agent="y"))
    child.legal(replace(START, run_id=heir.run_id, agent="y", parent=heir.parent))
    child.ends(b"6")
    (told,) = child.commands("child")
    assert (told.run_id, told.payload, told.parent) == ("up", b"6", PARENT)
