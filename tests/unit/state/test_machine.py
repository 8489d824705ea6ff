"""The table of states and inputs: what is legal does the right thing, the rest moves nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest

from surefoot.state.machine import commands
from surefoot.state.machine.decide import TABLE, WORDS, decide, ignored_start
from surefoot.state.machine.model import (
    COMMANDS_KEPT,
    Amount,
    AwaitInput,
    Branch,
    BudgetExceeded,
    CarryForward,
    ChildDone,
    CommandRecord,
    Complete,
    DeadRecord,
    Defer,
    Effect,
    Entry,
    EntryRecorded,
    EventRecord,
    Failure,
    GoTo,
    HandOver,
    Input,
    Memory,
    Operation,
    Parent,
    Park,
    PlanItem,
    Run,
    State,
    Status,
    StepFailed,
    StepReturned,
    TaskRecord,
    TimedOut,
    Work,
)
from surefoot.state.machine.operations import (
    AnswerQuestion,
    Cancel,
    DeliverSignal,
    Pause,
    ResolveCall,
    Resume,
    RetryRun,
)
from tests.support.run_driver import (
    FAILURE,
    NOW,
    PLAIN,
    POOLED,
    REWIND,
    START,
    Life,
    fork,
    started,
    wait_for,
    work_of,
)

WORK = Work(seq=4, attempt=1)
COMMANDS: list[Operation] = [
    DeliverSignal(id="1", run_id="r", name="s", payload=b"1"),
    AnswerQuestion(id="1", question="q", approved=True),
    Pause(id="1"),
    Resume(id="1"),
    Cancel(id="1"),
    RetryRun(id="1"),
    ResolveCall(id="1", choice="did_not", result=b"null"),
    replace(REWIND, id="1"),
]
INPUTS: list[Input] = [
    START,
    Defer(),
    CarryForward(),
    StepReturned(work=WORK, then=GoTo(step="b", payload=b"2")),
    StepReturned(work=WORK, then=Complete(result=b"3")),
    StepReturned(work=WORK, then=wait_for("s")),
    StepReturned(work=WORK, then=fork(2)),
    StepReturned(work=WORK, then=HandOver(to=Branch(agent="y", step=None, payload=b"1"))),
    StepFailed(work=WORK, failure=FAILURE, retry_in_ms=10),
    StepFailed(work=WORK, failure=FAILURE, retry_in_ms=None),
    BudgetExceeded(work=WORK, what="tokens", message="none left"),
    EntryRecorded(work=WORK, slot="c:x#0", kind="call", value=b"1"),
    Park(failure=FAILURE),
    Park(failure=FAILURE, work=WORK),
    TimedOut(due_ms=NOW),
    ChildDone(fork=1, branch=0, child="r~1~0", result=b"1"),
    *COMMANDS,
]
STATUSES: list[Status | None] = [None, *get_args(Status)]


def state_in(status: Status | None) -> State:
    if status is None:
        return State(None)
    run = started().run._replace(
        status=status,
        seq=4,
        attempt=1,
        payload=b"in",
        due_ms=NOW if status == "waiting" else None,
    )
    doubt = Entry(run_id="r", slot="c:charge#0", kind="intent", seq=4)
    return State(run, {doubt.slot: doubt} if status == "attention" else {})


@pytest.mark.parametrize(
    ("status", "event"), list(itertools.product(STATUSES, INPUTS)), ids=lambda v: str(v)[:60]
)
def test_every_input_in_every_status_is_taken_or_refused_as_the_table_says(
    status: Status | None, event: Input
) -> None:
    state = state_in(status)
    decision = decide(PLAIN, state, event, NOW + 5)
    allowed = TABLE.get((status, type(event)))
    if allowed is None or decision.refused is not None:
        assert decision.run is state.run
        told = [record.type for record in decision.records if isinstance(record, EventRecord)]
        assert len(told) == len(decision.records)
        if isinstance(event, Operation):
            assert told in (["command.refused"], ["command.repeated"])
        else:
            assert told == []
            assert decision.refused is not None
    else:
        assert (decision.run.status if decision.run else None) in allowed


# In the order of STATUSES: none, pending, running, waiting, paused, attention, completed, failed,
# cancelled. What is no event's name is the code of a refusal.
NOT = "not_possible"
LATE = "too_late"
SAME = "command.repeated"
ANSWERED = {
    DeliverSignal: ["signal.received"] * 6 + [LATE] * 3,
    AnswerQuestion: ["unknown_run", NOT, NOT, "unknown_question", NOT, NOT, LATE, LATE, LATE],
    Pause: ["unknown_run", NOT, "run.paused", "run.paused", SAME, NOT, LATE, LATE, LATE],
    Resume: ["unknown_run", NOT, SAME, SAME, "run.resumed", NOT, LATE, LATE, LATE],
    Cancel: ["unknown_run"] + ["run.cancelled"] * 5 + [LATE, LATE, SAME],
    RetryRun: ["unknown_run", NOT, SAME, NOT, NOT, "run.retried", LATE, "run.retried", LATE],
    ResolveCall: ["unknown_run", NOT, NOT, NOT, NOT, "run.resolved", LATE, LATE, LATE],
    type(REWIND): ["unknown_run"] + ["run.rewound"] * 8,
}


@pytest.mark.parametrize("event", COMMANDS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("status", STATUSES)
def test_every_command_in_every_status_is_answered_once_by_its_id(
    status: Status | None, event: Operation
) -> None:
    decision = decide(PLAIN, state_in(status), event, NOW + 5)
    answers = [r for r in decision.records if isinstance(r, EventRecord) and r.id == event.id]
    (answer,) = answers
    expected = ANSWERED[type(event)][STATUSES.index(status)]
    if "." in expected:
        assert (answer.type, decision.refused) == (expected, None)
        return
    assert decision.refused is not None
    assert (answer.type, answer.name, decision.refused.code) == (
        "command.refused",
        expected,
        expected,
    )
    assert answer.failure is not None
    assert answer.failure.message == decision.refused.message
    assert (answer.version, answer.status) == ((0, "pending") if status is None else (3, status))


@pytest.mark.parametrize("event", COMMANDS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("status", STATUSES)
def test_a_command_that_was_taken_is_repeated_whatever_has_become_of_the_run(
    status: Status | None, event: Operation
) -> None:
    state = state_in(status)
    once = decide(PLAIN, state, event, NOW + 5)
    if once.refused is not None or once.run is state.run:
        return
    for later in get_args(Status):
        run = once.run._replace(status=later) if once.run is not None else None
        twice = decide(PLAIN, State(run, {}), event, NOW + 9)
        assert twice.run is run
        assert [r.type for r in twice.records if isinstance(r, EventRecord)] == [SAME]
        assert len(twice.records) == 1


def test_only_the_latest_commands_are_remembered() -> None:
    life = started()
    for number in range(COMMANDS_KEPT + 1):
        life.signal("s", as_=f"s{number}")
    assert len(life.run.commands) == COMMANDS_KEPT
    assert life.run.commands[-1] == f"s{COMMANDS_KEPT}"


def test_a_refused_command_may_be_sent_again_when_it_is_possible() -> None:
    life = started()
    assert life.refused(ResolveCall(id="1", choice="did_not", result=b"null")) == "not_possible"
    life.journaled("c:charge#0", "intent", value=b"null")
    life.legal(Park(failure=FAILURE))
    life.legal(ResolveCall(id="1", choice="did_not", result=b"null"))
    assert "run.resolved" in life.told


# Starting and stepping -----------------------------------------------------------------------


def test_a_start_is_a_running_run_at_step_zero_and_one_event() -> None:
    decision = decide(PLAIN, State(None), START, NOW)
    run = decision.run
    assert run is not None
    assert (run.status, run.seq, run.step, run.attempt, run.version) == ("running", 0, "a", 0, 3)
    assert run.created_ms == run.updated_ms == NOW
    (event,) = decision.records
    assert isinstance(event, EventRecord)
    assert (event.type, event.seq, event.next_step, event.payload) == ("run.started", 0, "a", b"1")


def test_what_asks_for_a_run_stands_in_its_history() -> None:
    (event,) = decide(PLAIN, State(None), replace(START, by="sendgrid-sg/abc=="), NOW).records
    assert isinstance(event, EventRecord)
    assert (event.type, event.by) == ("run.started", "sendgrid-sg/abc==")


def test_a_start_at_a_version_of_another_run_has_its_memory_thread_and_carry() -> None:
    memory = Memory(plan=(PlanItem(id="1", text="go"),), thread=9)
    run = started(memory=memory, messages=(b"1", b"2"), carry=b"5").run
    assert run.memory == replace(memory, thread=2)
    assert run.carry == b"5"
    life = started(memory=memory)
    assert life.run.memory == replace(memory, thread=0)


def test_a_returned_step_counts_once_and_asks_for_the_next() -> None:
    effect = Effect(agent="outbox", run_id="x:r:4:0", payload=b"{}")
    state = state_in("running")
    event = StepReturned(work=WORK, then=GoTo(step="b", payload=b"2"), effects=(effect,), version=4)
    decision = decide(PLAIN, state, event, NOW + 5)
    assert state.run is not None
    assert decision.run == state.run._replace(
        seq=5, step="b", payload=b"2", attempt=0, updated_ms=NOW + 5, version=4
    )
    sent, told, task = decision.records
    assert task == TaskRecord(run_id="r", seq=5, step="b")
    assert isinstance(told, EventRecord)
    assert (told.type, told.seq, told.step, told.next_step) == ("step.completed", 4, "a", "b")
    assert (told.effects, told.payload, told.attempt) == (("x:r:4:0",), b"2", 1)
    assert sent is effect


def test_the_last_step_leaves_a_receipt_with_the_result_and_no_task() -> None:
    life = started()
    run = life.ends(b"3")
    assert (run.status, run.seq, run.payload, run.result) == ("completed", 1, b"", b"3")
    assert life.told == ["run.completed"]
    assert life.event("run.completed").result == b"3"
    assert len(life.records) == 1


@pytest.mark.parametrize(
    "work", [Work(seq=1, attempt=0), Work(seq=0, attempt=1), Work(seq=0, attempt=0, epoch=1)]
)
def test_what_comes_from_an_attempt_that_is_over_does_not_count(work: Work) -> None:
    events: list[Input] = [
        StepReturned(work=work, then=Complete(result=b"1")),
        StepFailed(work=work, failure=FAILURE, retry_in_ms=None),
        BudgetExceeded(work=work, what="tokens", message=""),
        EntryRecorded(work=work, slot="c:x#0", kind="call", value=b"1"),
        Park(work=work, failure=FAILURE),
    ]
    life = started()
    for event in events:
        assert life.refused(event) == "stale"
        assert life.records == ()


def test_a_failed_attempt_waits_with_its_count_kept() -> None:
    life = started()
    run = life.raised(250)
    assert (run.status, run.seq, run.attempt) == ("waiting", 0, 1)
    assert run.due_ms == life.now_ms + 250
    assert (run.payload, run.failure) == (b"1", FAILURE)
    assert run.timed
    assert life.told == ["step.retrying"]
    assert life.event("step.retrying").attempt == 0


def test_the_outcome_of_an_attempt_after_its_backoff_is_applied_to_the_waiting_run() -> None:
    life = started()
    life.raised(250)
    run = life.goes()
    assert (run.status, run.attempt, run.due_ms, run.failure) == ("running", 0, None, None)


def test_out_of_attempts_is_failed_whole_with_a_dead_letter() -> None:
    life = started()
    life.journaled("c:x#0", value=b"1")
    life.raised(10)
    run = life.raised(None)
    assert (run.status, run.attempt, run.payload, run.failure) == ("failed", 2, b"1", FAILURE)
    dead = DeadRecord(run_id="r", step="a", payload=b"1", failure=FAILURE, attempts=2)
    assert dead in life.records
    assert life.event("run.failed").failure == FAILURE
    assert "c:x#0" in life.entries


def test_a_failed_run_is_tried_again_with_its_journal_and_its_attempts_counted_anew() -> None:
    life = started()
    life.goes("a", b"5")
    life.journaled("c:x#0", value=b"1")
    life.raised(None)
    run = life.legal(RetryRun(id="1"))
    assert (run.status, run.attempt, run.payload, run.failure) == ("running", 0, b"5", None)
    assert life.tasks == ["a"]
    entry = life.entries["c:x#0"]
    assert (entry.seq, entry.epoch) == (run.seq, run.epoch)
    assert life.ends().status == "completed"


def test_quarantine_keeps_the_step_and_its_input() -> None:
    life = started()
    run = life.legal(Park(failure=FAILURE))
    assert (run.status, run.seq, run.step, run.payload) == ("attention", 0, "a", b"1")
    assert life.told == ["run.attention"]


def test_carrying_forward_changes_nothing_but_asks_again() -> None:
    life = started()
    before = life.run
    decision = life.do(CarryForward())
    assert decision.run is before
    assert decision.records == (TaskRecord(run_id="r", seq=0, step="a"),)


def test_carrying_forward_keeps_what_is_to_be_known_of_the_step_in_work() -> None:
    life = started()
    before = life.run
    decision = life.do(CarryForward(failure=FAILURE))
    assert decision.run is not None
    assert decision.run == before._replace(failure=FAILURE, updated_ms=decision.run.updated_ms)
    assert TaskRecord(run_id="r", seq=0, step="a") in decision.records


def test_another_start_with_the_same_id_is_told_and_nothing_else() -> None:
    why = Failure(code="run_exists", message="there is another")
    (told,) = ignored_start(START, why, NOW)
    assert isinstance(told, EventRecord)
    assert (told.type, told.run_id, told.failure) == ("start.ignored", "r", why)


def test_a_parent_whose_child_meets_another_run_of_its_name_is_told() -> None:
    parent = Parent(agent="p", run_id="mother", fork=2, branch=3)
    why = Failure(code="run_exists", message="there is another")
    _, told = ignored_start(replace(START, parent=parent), why, NOW)
    assert isinstance(told, CommandRecord)
    assert (told.kind, told.agent, told.run_id, told.parent) == ("child", "p", "mother", parent)
    assert told.failure == why


def test_failure_messages_are_bounded_and_encodable() -> None:
    failure = Failure(code="c", message="x" * 10_000 + "\ud800")
    assert len(failure.message) <= 4096
    Failure(code="c", message="\ud800").message.encode()


def test_a_message_costs_one_entry_and_the_plan_stays_until_it_is_changed() -> None:
    life = started()
    plan = (PlanItem(id="1", text="do"),)
    life.goes(messages=(b'"x"', b'"y"'), plan=plan)
    assert [r.slot for r in life.records if isinstance(r, Entry)] == ["m:0", "m:1"]
    life.goes(messages=(b'"z"',))
    assert [r.slot for r in life.records if isinstance(r, Entry)] == ["m:2"]
    assert life.run.memory == Memory(plan=plan, thread=3)
    life.goes(plan=())
    assert life.run.memory == Memory(thread=3)


# Timers --------------------------------------------------------------------------------------


def test_a_step_after_a_while_waits_for_its_time_and_is_asked_for_then() -> None:
    life = started()
    run = life.returned(GoTo(step="b", payload=b"2", after_ms=1000))
    assert (run.status, run.due_ms, life.tasks) == ("waiting", life.now_ms + 1000, [])
    due_ms = run.due_ms
    assert due_ms is not None
    assert life.refused(TimedOut(due_ms=due_ms - 1)) == "stale"
    run = life.legal(TimedOut(due_ms=due_ms))
    assert (run.status, run.step, run.due_ms, life.tasks) == ("running", "b", None, ["b"])


def test_a_time_on_the_clock_is_kept_as_it_was_said() -> None:
    run = started().returned(GoTo(step="b", payload=b"2", at_ms=NOW + 86_400_000))
    assert (run.status, run.due_ms) == ("waiting", NOW + 86_400_000)


def test_a_sleeping_run_that_needed_a_person_sleeps_on_and_a_backoff_is_cut_short() -> None:
    life = started()
    due_ms = life.returned(GoTo(step="b", payload=b"2", after_ms=1000)).due_ms
    life.legal(Park(failure=FAILURE))
    run = life.legal(RetryRun(id="1"))
    assert (run.status, run.due_ms, life.tasks) == ("waiting", due_ms, [])
    life = started()
    life.raised(1000)
    life.legal(Park(failure=FAILURE))
    run = life.legal(RetryRun(id="1"))
    assert (run.status, run.due_ms, life.tasks) == ("running", None, ["a"])


# Pausing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "status", "asked", "children"),
    [
        (GoTo(step="b", payload=b"2"), "running", ["b"], 0),
        (GoTo(step="b", payload=b"2", after_ms=50), "waiting", [], 0),
        (wait_for("s"), "waiting", [], 0),
        (fork(3, limit=2), "waiting", [], 2),
        (fork(0), "running", ["b"], 0),
        (GoTo(step="pooled", payload=b"2"), "waiting", [], 1),
    ],
    ids=["next", "sleep", "wait", "fork", "empty-fork", "pool"],
)
def test_a_paused_run_takes_the_result_of_the_step_in_work_and_goes_on_when_it_is_resumed(
    then: AwaitInput | GoTo, status: Status, asked: list[str], children: int
) -> None:
    life = started(POOLED)
    life.legal(Pause(id="p"))
    run = life.returned(then)
    assert (run.status, run.seq) == ("paused", 1)
    assert life.tasks == life.sent("start") == []
    run = life.legal(Resume(id="r"))
    assert (run.status, life.tasks, len(life.sent("start"))) == (status, asked, children)
    if run.wait is not None and run.wait.kind == "children":
        assert life.event("run.resumed").children == children


def test_a_paused_run_that_ends_is_over() -> None:
    life = started()
    life.legal(Pause(id="p"))
    assert life.ends().status == "completed"


def test_a_paused_run_whose_step_fails_stays_paused_until_its_next_attempt_or_compensation() -> (
    None
):
    life = started()
    life.legal(Pause(id="p"))
    assert life.raised(10).status == "paused"
    assert life.legal(Resume(id="r")).timed
    life = started(replace(PLAIN, on_failure="sorry"))
    life.legal(Pause(id="p"))
    run = life.raised(None)
    assert (run.status, run.step, life.tasks) == ("paused", "sorry", [])
    run = life.legal(Resume(id="r"))
    assert (run.status, life.tasks) == ("running", ["sorry"])


def test_the_time_of_a_paused_run_does_not_move_it() -> None:
    life = started()
    due_ms = life.returned(GoTo(step="b", payload=b"2", after_ms=5)).due_ms
    assert due_ms is not None
    life.legal(Pause(id="p"))
    assert life.refused(TimedOut(due_ms=due_ms)) == "not_possible"
    life.legal(Resume(id="r"))
    assert life.legal(TimedOut(due_ms=due_ms)).status == "running"


def test_what_is_journaled_while_the_run_is_paused_is_kept() -> None:
    life = started()
    life.legal(Pause(id="p"))
    life.journaled("c:x#0", value=b"1")
    assert life.run.status == "paused"
    assert "c:x#0" in life.entries


# Cancelling and compensating -----------------------------------------------------------------


def test_cancel_and_completion_have_one_winner() -> None:
    life = started()
    work = work_of(life.run)
    life.legal(Cancel(id="1", by="ann"))
    assert (life.event("run.cancelled").id, life.event("run.cancelled").by) == ("1", "ann")
    assert life.refused(StepReturned(work=work, then=Complete(result=b"1"))) == "too_late"
    life = started()
    life.ends()
    assert life.refused(Cancel(id="1")) == "too_late"


@pytest.mark.parametrize(
    "late",
    [
        StepReturned(work=Work(seq=0, attempt=0), then=Complete(result=b"1")),
        StepFailed(work=Work(seq=0, attempt=0), failure=FAILURE, retry_in_ms=None),
        EntryRecorded(work=Work(seq=0, attempt=0), slot="c:x#0", kind="call", value=b"1"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_the_cancelled_step_still_says_is_not_taken_for_its_compensation(late: Input) -> None:
    life = started(replace(PLAIN, on_cancel="undo"))
    life.legal(Cancel(id="1"))
    assert life.run.step == "undo"
    assert life.refused(late) == "stale"


def test_a_cancelled_run_compensates_and_is_cancelled_then() -> None:
    life = started(
        replace(PLAIN, on_cancel="undo"), parent=Parent(agent="p", run_id="up", fork=1, branch=2)
    )
    life.journaled("c:charge#0", "intent", value=b"null")
    life.journaled("c:x#0", value=b"1")
    run = life.legal(Cancel(id="1", by="ann"))
    assert (run.status, run.step, run.ending) == ("running", "undo", "cancelled")
    assert life.tasks == ["undo"]
    assert life.event("run.cancelling").step == "a"
    assert list(life.entries) == ["o:0:0:charge#0"]  # what it may have done is kept
    assert run.payload == (
        b'{"step":"a","code":"cancelled","message":"cancelled by ann","in_doubt":["charge#0"],'
        b'"payload":1}'
    )
    assert life.sent("child") == []
    life.do(Cancel(id="2"))
    assert life.told == ["command.repeated"]
    life.goes("b")
    run = life.ends()
    assert (run.status, run.result, life.told) == ("cancelled", None, ["run.cancelled"])
    (told,) = life.commands("child")
    assert (told.run_id, told.id, told.failure and told.failure.code) == ("up", "r", "cancelled")


def test_a_failed_run_compensates_and_tells_why_it_failed() -> None:
    life = started(replace(PLAIN, on_failure="sorry"))
    run = life.raised(None)
    assert (run.status, run.step, run.ending, run.attempt) == ("running", "sorry", "failed", 0)
    assert life.told == ["run.failing"]
    assert [type(r) for r in life.records if isinstance(r, DeadRecord)] == [DeadRecord]
    assert life.refused(Cancel(id="1")) == "not_possible"
    run = life.ends()
    assert (run.status, run.failure, life.told) == ("failed", FAILURE, ["run.failed"])
    assert life.refused(RetryRun(id="2")) == "compensated"


def test_a_compensation_that_fails_can_be_tried_again() -> None:
    life = started(replace(PLAIN, on_failure="sorry"))
    life.raised(None)
    run = life.raised(None)
    assert (run.status, run.ending) == ("failed", "failed")
    assert life.told == ["run.failed"]
    assert [r for r in life.records if isinstance(r, DeadRecord)] == []
    run = life.legal(RetryRun(id="1"))
    assert (run.status, life.tasks) == ("running", ["sorry"])
    assert life.ends().status == "failed"


def test_a_cancelled_run_whose_compensation_fails_is_failed_and_no_longer_being_cancelled() -> None:
    life = started(replace(PLAIN, on_cancel="undo"))
    life.legal(Cancel(id="1"))
    assert life.raised(None).status == "failed"
    assert life.refused(Cancel(id="2")) == "too_late"
    life.legal(RetryRun(id="3"))
    assert life.ends().status == "cancelled"


def test_a_compensation_that_hands_over_ends_as_it_had_to() -> None:
    parent = Parent(agent="p", run_id="up", fork=1, branch=0)
    life = started(replace(PLAIN, on_cancel="undo"), parent=parent)
    life.legal(Cancel(id="1"))
    run = life.returned(HandOver(to=Branch(agent="y", step=None, payload=b"1")))
    assert run.status == "cancelled"
    assert [each.parent for each in life.commands("start")] == [None]
    assert life.sent("child") == ["up"]


@pytest.mark.parametrize("payload", [b"\xff", b"{", b"[" * 200 + b"]" * 200], ids=["a", "b", "c"])
def test_a_payload_that_cannot_stand_in_another_is_told_as_text(payload: bytes) -> None:
    life = started(replace(PLAIN, on_failure="sorry"), payload=payload)
    life.raised(None)
    assert b'"payload":"' in life.run.payload


# Budgets -------------------------------------------------------------------------------------


def budget(**amounts: int) -> Life:
    granted = tuple(Amount(what, amounts[what]) for what in sorted(amounts))
    return started(replace(PLAIN, budget=granted))


def question_of(run: Run) -> str:
    assert run.wait is not None
    assert run.wait.question is not None
    return run.wait.question


def test_costs_of_calls_time_and_steps_are_settled_with_the_step() -> None:
    life = budget(tokens=100)
    life.journaled("c:x#0", value=b"1", cost=(Amount("tokens", 30),))
    life.raised(10, took_ms=7)
    life.goes(took_ms=5, cost=(Amount("tokens", 9),))
    life.goes(took_ms=1)
    assert life.run.memory is not None
    assert life.run.memory.spent == (
        Amount("ms", 13),
        Amount("steps", 2),
        Amount("tokens", 39),
    )


def test_what_a_failed_step_paid_for_is_spent_although_it_is_compensated() -> None:
    life = started(replace(PLAIN, on_failure="sorry", budget=(Amount("tokens", 100),)))
    life.journaled("c:x#0", value=b"1", cost=(Amount("tokens", 30),))
    life.raised(None)
    assert life.run.memory is not None
    assert Amount("tokens", 30) in life.run.memory.spent


def test_what_was_reserved_by_an_attempt_that_failed_is_free_again() -> None:
    life = budget(tokens=100)
    life.journaled("c:x#0", "reserved", cost=(Amount("tokens", 30),))
    life.journaled("c:y#0", value=b"1", cost=(Amount("tokens", 1),))
    life.raised(10)
    assert list(life.entries) == ["c:y#0"]


@pytest.mark.parametrize("waiting", [False, True])
def test_no_more_steps_are_taken_than_were_granted(waiting: bool) -> None:
    life = budget(steps=2)
    for number in range(2):
        if waiting:
            life.returned(wait_for("s"))
            life.signal("s", as_=f"{number}")
        else:
            life.goes()
    run = life.run
    assert (run.status, life.tasks) == ("waiting", [])
    assert run.wait is not None
    assert (run.wait.kind, run.wait.names) == ("budget", ("steps",))
    assert life.event("budget.spent").wait == run.wait
    run = life.legal(AnswerQuestion(id="yes", question=question_of(run), approved=True, by="ann"))
    assert (run.status, run.failure, life.tasks) == ("running", None, ["b"])
    assert run.memory is not None
    assert run.memory.granted == (Amount("steps", 4),)


def test_a_call_that_asks_for_too_much_waits_and_its_attempt_goes_on_after_the_grant() -> None:
    life = budget(tokens=10)
    life.raised(5)
    life.legal(BudgetExceeded(work=work_of(life.run), what="tokens", message="no"))
    run = life.run
    assert (run.status, run.attempt, run.due_ms) == ("waiting", 1, None)
    life.now_ms += 1000
    run = life.legal(AnswerQuestion(id="1", question=question_of(run), approved=True))
    assert (run.status, run.attempt, life.tasks) == ("running", 1, ["a"])


def test_a_budget_that_is_still_too_small_is_asked_about_again_and_can_be_answered() -> None:
    life = budget(steps=1)
    life.goes(cost=(Amount("steps", 4),))
    for number in range(3):
        asked = question_of(life.run)
        life.legal(AnswerQuestion(id=f"{number}", question=asked, approved=True))
        assert life.run.wait is not None
        assert question_of(life.run) != asked
    life.legal(AnswerQuestion(id="x", question=question_of(life.run), approved=True))
    life.legal(AnswerQuestion(id="y", question=question_of(life.run), approved=True))
    assert life.run.status == "running"


def test_a_denied_budget_fails_the_run_and_a_retry_asks_again() -> None:
    life = budget(steps=1)
    life.goes()
    asked = question_of(life.run)
    run = life.legal(AnswerQuestion(id="1", question=asked, approved=False))
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure.code == "budget_denied"
    run = life.legal(RetryRun(id="2"))
    assert (run.status, life.tasks) == ("waiting", [])
    assert life.refused(AnswerQuestion(id="3", question=asked, approved=True)) == "already_decided"
    assert (
        life.legal(AnswerQuestion(id="4", question=question_of(run), approved=True)).status
        == "running"
    )


def test_a_sleeping_run_may_be_granted_more_at_any_time_and_still_sleeps() -> None:
    for asleep in (True, False):
        life = budget(steps=1)
        run = life.returned(GoTo(step="b", payload=b"2", after_ms=1000))
        due_ms = run.due_ms
        assert due_ms is not None
        if not asleep:
            life.now_ms = due_ms
            assert life.legal(TimedOut(due_ms=due_ms)).status == "waiting"
        run = life.legal(AnswerQuestion(id="1", question=question_of(life.run), approved=True))
        assert (run.status, run.due_ms) == (("waiting", due_ms) if asleep else ("running", None))


def test_a_grant_does_not_expire_with_the_sleep() -> None:
    life = budget(steps=1)
    due_ms = life.returned(GoTo(step="b", payload=b"2", after_ms=5)).due_ms
    assert due_ms is not None
    life.now_ms = due_ms
    life.legal(AnswerQuestion(id="1", question=question_of(life.run), approved=True))
    assert life.run.timed


def test_what_the_agent_no_longer_limits_is_not_limited_after_the_next_grant() -> None:
    life = budget(steps=1)
    life.goes()
    life.rules = replace(life.rules, budget=(Amount("tokens", 5),))
    run = life.legal(AnswerQuestion(id="1", question=question_of(life.run), approved=True))
    assert run.status == "running"
    assert run.memory is not None
    assert run.memory.granted == (Amount("tokens", 5),)


def test_compensation_is_not_limited() -> None:
    life = started(replace(PLAIN, on_cancel="undo", budget=(Amount("steps", 1),)))
    life.goes()
    run = life.legal(Cancel(id="1"))
    assert (run.status, life.tasks) == ("running", ["undo"])
    assert life.goes("b").status == "running"


# A call in doubt -----------------------------------------------------------------------------


def in_doubt(rules: object = None) -> Life:
    life = started(replace(PLAIN, on_failure="sorry") if rules else PLAIN)
    life.goes("a", b"5")
    life.journaled("c:charge#0", "intent", value=b"null", digest=b"args")
    life.raised(10)
    life.legal(Park(failure=FAILURE, work=work_of(life.run)))
    return life


def test_it_happened_records_the_result_for_the_same_arguments() -> None:
    life = in_doubt()
    run = life.legal(ResolveCall(id="1", choice="happened", result=b'"ch_1"', by="ann"))
    entry = life.entries["c:charge#0"]
    assert (entry.kind, entry.value, entry.digest) == ("call", b'"ch_1"', b"args")
    assert (entry.seq, run.seq, run.attempt, life.tasks) == (1, 1, 0, ["a"])
    assert life.event("run.resolved").name == "happened"


def test_it_did_not_happen_forgets_the_intent() -> None:
    life = in_doubt()
    run = life.legal(ResolveCall(id="1", choice="did_not", result=b"null"))
    assert (run.status, life.entries, life.tasks) == ("running", {}, ["a"])


def test_what_is_resolved_goes_on_although_its_attempt_had_asked_for_more() -> None:
    life = budget(tokens=5)
    life.journaled("c:charge#0", "intent", value=b"null")
    life.legal(BudgetExceeded(work=work_of(life.run), what="tokens", message="no"))
    life.legal(Park(failure=FAILURE))
    run = life.legal(ResolveCall(id="1", choice="happened", result=b"1"))
    assert (run.status, run.wait, life.tasks) == ("running", None, ["a"])


@pytest.mark.parametrize("compensated", [False, True])
def test_giving_up_fails_the_run(compensated: bool) -> None:
    life = in_doubt(compensated)
    run = life.legal(ResolveCall(id="1", choice="give_up", result=b"null"))
    if compensated:
        assert (run.step, run.ending) == ("sorry", "failed")
        assert b'"in_doubt":["charge#0"]' in run.payload
    else:
        assert run.status == "failed"
        assert run.failure is not None
        assert run.failure.code == "given_up"


def test_another_choice_and_a_run_without_doubt_are_refused() -> None:
    life = in_doubt()
    assert life.refused(ResolveCall(id="1", choice="perhaps", result=b"null")) == "bad_choice"
    life = started()
    life.legal(Park(failure=FAILURE))
    assert life.refused(ResolveCall(id="1", choice="did_not", result=b"1")) == "nothing_in_doubt"


@pytest.mark.parametrize("compensated", [False, True])
def test_what_was_resolved_so_before_is_so_already_and_anything_else_is_refused(
    compensated: bool,
) -> None:
    life = in_doubt(compensated)
    life.legal(ResolveCall(id="1", choice="happened", result=b"7"))
    for number in range(2):  # as long as the step is in work, and after it
        same = ResolveCall(id=f"same {number}", choice="happened", result=b"7")
        assert life.do(same).refused is None
        assert life.event("command.repeated").id == same.id
        assert (
            life.refused(ResolveCall(id="other", choice="happened", result=b"8")) == "not_possible"
        )
        life.goes("b") if not number else None
    life.journaled("c:refund#0", "intent", value=b"null", digest=b"args", action=True)
    life.legal(Park(failure=FAILURE, work=work_of(life.run)))
    life.legal(ResolveCall(id="2", choice="happened", result=b"7"))  # of another call
    assert life.entries["c:refund#0"].kind == "call"
    life = in_doubt(compensated)
    life.legal(ResolveCall(id="1", choice="give_up", result=b"null"))
    before = life.run
    assert life.do(ResolveCall(id="2", choice="give_up", result=b"null")).refused is None
    assert life.run is before


def test_a_refusal_calls_an_input_by_its_own_word_never_by_that_of_a_class() -> None:
    others = set(get_args(Input)) - {Operation}
    assert WORDS.keys() == others | {row.input for row in commands.COMMANDS.values()}
    life = started()
    life.ends()
    assert life.refused(RetryRun(id="1")) == "too_late"
    told = life.event("command.refused").failure
    assert told is not None
    assert told.message == "retry comes too late: the run is completed"


# Rewinding -----------------------------------------------------------------------------------


def test_a_rewound_run_is_that_version_in_a_new_epoch() -> None:
    life = started()
    life.goes("b", b"2", messages=(b"1",))
    life.goes("c", b"3", messages=(b"2", b"3"))
    life.journaled("c:x#0", value=b"1")
    old = work_of(life.run)
    event = replace(REWIND, seq=1, step="b", payload=b"2", messages=(b"1",), memory=Memory())
    run = life.legal(event)
    assert (run.status, run.seq, run.step, run.payload) == ("running", 1, "b", b"2")
    assert (run.epoch, run.emit, run.attempt) == (1, 0, 0)
    assert run.memory == Memory(thread=1)
    assert list(life.entries) == ["m:0"]
    assert life.event("run.rewound").payload == b"2"
    assert life.refused(StepReturned(work=old, then=Complete(result=b"1"))) == "stale"
    assert life.refused(replace(event, id="2")) == "stale_epoch"
    run = life.legal(replace(event, id="3", epoch=1, emit=True, messages=()))
    assert (run.epoch, run.emit) == (2, 2)
    assert life.entries == {}
    run = life.legal(replace(event, id="4", epoch=2))
    assert (run.epoch, run.emit) == (3, 2)


def test_an_attempt_of_an_earlier_epoch_is_stale_although_its_step_and_number_are_the_same() -> (
    None
):
    life = started()
    old = work_of(life.run)
    life.legal(REWIND)
    assert (life.run.seq, life.run.attempt) == (old.seq, old.attempt)
    assert life.refused(StepReturned(work=old, then=Complete(result=b"1"))) == "stale"
    late = EntryRecorded(work=old, slot="c:x#0", kind="call", value=b"1")
    assert life.refused(late) == "stale"


def test_a_rewound_run_keeps_the_signals_that_nothing_has_read() -> None:
    life = started()
    life.signal("go", b"5")
    life.goes()
    life.legal(REWIND)
    assert life.returned(wait_for("go")).payload == b"5"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"epoch": 1}, "stale_epoch"),
        ({"step": "gone"}, "unknown_step"),
        ({"seq": 2}, "no_such_version"),
        ({"seq": -1}, "no_such_version"),
    ],
)
def test_a_version_that_cannot_be_gone_back_to_is_refused(changes: object, code: str) -> None:
    life = started()
    life.goes()
    assert life.refused(replace(REWIND, **changes)) == code  # type: ignore[arg-type]


def test_a_version_that_waits_for_others_cannot_be_gone_back_to() -> None:
    life = started()
    wait = life.returned(fork(1)).wait
    assert life.refused(replace(REWIND, seq=1, step="b", wait=wait)) == "no_such_version"


def test_a_rewind_cancels_the_children_and_those_of_the_next_fork_have_other_names() -> None:
    life = started()
    life.returned(fork(2))
    run = life.legal(REWIND)
    assert life.sent("cancel") == ["r~1~0", "r~1~1"]
    assert run.wait is None
    life.returned(fork(2))
    assert life.sent("start") == ["r~2~0", "r~2~1"]


def test_a_version_that_sleeps_sleeps_again() -> None:
    run = started().legal(replace(REWIND, due_ms=NOW + 99_000))
    assert (run.status, run.due_ms) == ("waiting", NOW + 99_000)


def test_a_run_that_is_over_can_be_rewound_and_tells_its_parent_no_second_time() -> None:
    life = started(parent=Parent(agent="p", run_id="up", fork=1, branch=0))
    life.goes(messages=(b"1", b"2"))
    life.ends()
    assert life.sent("child") == ["up"]
    run = life.legal(replace(REWIND, created_ms=5, input_digest=b"e", messages=(b"1",)))
    assert (run.status, run.created_ms, run.input_digest) == ("running", 5, b"e")
    assert (run.result, run.failure, run.ending) == (None, None, None)
    assert [e for e in life.entries if e.startswith("m:")] == ["m:0"]
    life.ends()
    assert life.sent("child") == []
