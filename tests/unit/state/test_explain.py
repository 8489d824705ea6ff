"""Why a run does not move, told from its checkpoint."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from surefoot.state.machine.model import Amount, Branch, Memory, WaitState
from surefoot.state.reading.explain import Explanation, clock_time, explain
from surefoot.state.reading.ports import Backlog, RunView

SINCE = 1_700_000_000_000
NOW = SINCE + 2 * 3_600_000 + 5 * 60_000 + 7_000
RUN = RunView(
    run_id="r1",
    agent="triage",
    version=1,
    status="running",
    seq=3,
    step="draft",
    attempt=0,
    created_ms=SINCE,
    updated_ms=SINCE,
    due_ms=None,
    payload=b"1",
    result=None,
    failure=None,
)
FAILURE = {"code": "step_raised", "message": "no route", "kind": "OSError"}
BUSY = Backlog(partition=4, commands=12, tasks=40, workers=2)
NOBODY = replace(BUSY, workers=0)


def why(backlog: Backlog | None = None, *, code: int | None = None, **fields: Any) -> Explanation:
    return explain(replace(RUN, **fields), NOW, backlog, code)


def waits(kind: Any, **fields: Any) -> WaitState:
    return WaitState(kind=kind, since_ms=SINCE, **fields)


def test_a_running_run_tells_its_step_since_when_and_what_stands_before_it() -> None:
    told = why(BUSY)
    assert told.because == (
        "Step 'draft' runs, or is about to run, since 2023-11-14 22:13:20Z (2 h 5 min)",
        "Queue of its partition 4: 12 commands, 40 tasks",
    )
    assert told.do == ()


def test_without_a_worker_that_is_the_reason() -> None:
    told = why(NOBODY)
    assert "No worker of agent triage runs: its consumer group is empty" in told.because
    assert told.do == ("surefoot worker AGENT.py",)
    one_process = replace(NOBODY, start_worker="surefoot serve AGENT.py")
    assert why(one_process).do == ("surefoot serve AGENT.py",)


def test_a_retried_step_tells_the_error_of_the_attempt_before() -> None:
    told = why(attempt=2, failure=FAILURE)
    assert told.because[1].startswith("Attempt 3; the previous one failed: SF1201")


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_step_that_runs_beside_an_abandoned_attempt_tells_so(attempt: int) -> None:
    abandoned = {
        "code": "attempt_abandoned",
        "kind": "",
        "message": "attempt 1 of step 'draft' was given up and has not ended",
    }
    told = why(attempt=attempt, failure=abandoned)
    assert told.because[1] == (
        "SF4061 attempt_abandoned: attempt 1 of step 'draft' was given up and has not ended, "
        "since 2023-11-14 22:13:20Z (2 h 5 min)"
    )
    assert told.do == ()


def test_a_step_that_backs_off_tells_its_error_and_the_time_of_the_next_attempt() -> None:
    [told] = why(status="waiting", attempt=1, failure=FAILURE, due_ms=NOW + 90_000).because
    assert "Step 'draft' failed (SF1201 step_raised: OSError: no route); attempt 2 is at" in told
    assert told.endswith("(in 1 min 30 s)")


def test_a_sleeping_run_tells_its_timer() -> None:
    [told] = why(status="waiting", due_ms=NOW + 3 * 86_400_000).because
    then = clock_time(NOW + 3 * 86_400_000)
    assert told == f"Sleeps until {then} (in 3 d 0 h), then runs step 'draft'"


def test_a_timer_that_is_overdue_is_told_with_what_stands_before_it() -> None:
    told = why(BUSY, status="waiting", due_ms=NOW - 5_000)
    assert "(5 s ago)" in told.because[0]
    assert "40 tasks" in told.because[1]


@pytest.mark.parametrize(
    ("fields", "which"),
    [
        ({"mode": "one", "need": 1, "names": ("go",)}, "signal 'go'"),
        ({"mode": "all", "need": 2, "names": ("a", "b")}, "one signal each of 'a', 'b'"),
        ({"mode": "any", "need": 1, "names": ("a", "b")}, "any signal of 'a', 'b'"),
        ({"mode": "count", "need": 3, "names": ("a",)}, "3 signals of 'a'"),
    ],
)
def test_a_wait_tells_which_signal_and_since_when(fields: dict[str, Any], which: str) -> None:
    told = why(BUSY, status="waiting", wait=waits("signal", **fields))
    assert told.because == (f"Waits for {which} since 2023-11-14 22:13:20Z (2 h 5 min)",)
    assert told.do[0] == f"surefoot runs signal triage r1 {fields['names'][0]} PAYLOAD"
    assert len(told.do) == len(fields["names"])


@pytest.mark.parametrize(
    ("on_timeout", "then"), [(None, "the run fails"), ("late", "step 'late' runs")]
)
def test_a_wait_tells_what_happens_when_its_time_is_over(on_timeout: str, then: str) -> None:
    wait = waits("signal", mode="one", names=("go",), on_timeout=on_timeout)
    told = why(status="waiting", wait=wait, due_ms=NOW + 60_000)
    assert told.because[1] == f"At {clock_time(NOW + 60_000)} (in 1 min 0 s) it times out: {then}"


def test_a_question_tells_who_may_answer_it_until_when_and_how() -> None:
    wait = waits("approval", question="q1", by=("ann", "bob"))
    told = why(status="waiting", wait=wait, due_ms=NOW + 60_000)
    assert "question q1; ann or bob may answer" in told.because[0]
    assert f"ann or bob may answer until {clock_time(NOW + 60_000)}" in told.because[0]
    assert told.do[0] == "surefoot runs approve triage r1 --yes --question q1 --by ann"
    assert (
        "anybody may answer"
        in why(status="waiting", wait=waits("approval", question="q1")).because[0]
    )


def test_a_spent_budget_tells_how_much_of_it_is_used() -> None:
    memory = Memory(
        spent=(Amount("money", 1_500_000), Amount("tokens", 10)),
        granted=(Amount("money", 1_000_000),),
    )
    wait = waits("budget", names=("money",), question="q2")
    told = why(status="waiting", wait=wait, memory=memory)
    assert told.because[0].startswith("Used 1.5 of 1.0 'money', and asks for as much again since")
    assert told.because[0].endswith("question q2")
    assert told.do[1] == "surefoot runs approve triage r1 --no --question q2"


def test_a_spent_budget_of_a_run_that_was_to_sleep_is_not_a_deadline() -> None:
    wait = waits("budget", names=("steps",), question="q2")
    told = why(status="waiting", wait=wait, due_ms=NOW + 90_000)
    assert told.because[1].startswith("Step 'draft' does not run before")
    assert not any("fails" in because for because in told.because)


def test_children_are_counted_and_named() -> None:
    branches = tuple(Branch(agent="writer", step=None, payload=b"1") for _ in range(1000))
    told = why(status="waiting", wait=waits("children", fork=2, limit=10, branches=branches))
    assert told.because[0].startswith(
        "Waits for its 1000 children, runs r1~2~0 to r1~2~999 of writer, 10 at a time, since"
    )
    assert told.do == ("surefoot runs list writer",)
    one = why(status="waiting", wait=waits("children", fork=1, branches=branches[:1]))
    assert "its child, run r1~1~0 of writer" in one.because[0]
    assert told != one
    assert one.do == ("surefoot runs show writer 'r1~1~0'",)


def test_a_step_in_a_pool_is_told_with_its_run_there() -> None:
    branch = Branch(agent="triage.gpu", step="draft", payload=b"1")
    told = why(status="waiting", wait=waits("pool", fork=1, branches=(branch,)))
    assert "runs in the pool triage.gpu, as its run r1~1~0" in told.because[0]
    assert told.do == ("surefoot runs show triage.gpu 'r1~1~0'",)


def test_a_paused_run_tells_what_it_will_wait_for() -> None:
    told = why(status="paused", wait=waits("signal", mode="one", names=("go",)))
    assert told.because[0].startswith("Paused since")
    assert "signal 'go'" in told.because[1]
    assert told.do == ("surefoot runs resume triage r1",)
    assert why(status="paused").because[1] == "Next: step 'draft'"


def test_a_pending_run_waits_for_its_lane() -> None:
    assert "flow control lets other runs go first" in why(status="pending").because[0]


def test_a_failed_run_tells_its_error_and_that_it_can_be_tried_again() -> None:
    told = why(NOBODY, status="failed", failure=FAILURE)
    assert "step_raised: OSError: no route" in told.because[0]
    assert told.do == (
        "surefoot runs retry triage r1",
        "surefoot runs versions triage r1",
    )


def test_a_failed_run_whose_compensation_has_run_can_only_be_rewound() -> None:
    told = why(status="failed", failure=FAILURE, ending="failed", payload=b"")
    assert len(told.because) == 2
    assert "only be rewound" in told.because[1]
    assert told.do == ("surefoot runs versions triage r1",)


def test_a_call_in_doubt_is_told_with_the_three_ways_out() -> None:
    failure = {"code": "once_in_doubt", "message": "charge#0 was begun"}
    told = why(status="attention", failure=failure)
    assert "charge#0 was begun" in told.because[0]
    assert [command.split()[-1] for command in told.do] == ["RESULT", "--did-not", "--give-up"]


def test_what_else_needs_attention_can_be_tried_again_rewound_or_cancelled() -> None:
    told = why(status="attention", failure={"code": "unknown_step", "message": "no step 'x'"})
    assert [command.split()[2] for command in told.do] == ["retry", "rewind", "cancel"]
    assert told.do[1].endswith("--to 3")  # the very version, without what was recorded since
    assert why(status="attention", failure={"code": "undecodable", "message": "x"}).do == ()


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_run_that_is_over_waits_for_nothing(status: Any) -> None:
    told = why(NOBODY, status=status, seq=0, payload=b"")
    assert told.because == (f"{status.capitalize()} 2 h 5 min ago (2023-11-14 22:13:20Z)",)
    assert told.do == ("surefoot runs versions triage r1",)


def test_a_compensation_says_that_it_is_one() -> None:
    assert "after it the run is cancelled" in why(ending="cancelled").because[-1]


def test_commands_can_be_pasted_whatever_a_name_holds() -> None:
    wait = waits("signal", mode="one", names=("it's $(done); ok",))
    [command] = why(status="waiting", wait=wait).do
    assert shlex.split(command)[5] == "it's $(done); ok"


@pytest.mark.parametrize(
    ("since_ms", "told"),
    [
        (0, "(0 s)"),
        (59_999, "(59 s)"),
        (60_000, "(1 min 0 s)"),
        (-5, "(0 s)"),
        (86_400_000 * 400, "(400 d 0 h)"),
    ],
)
def test_spans_have_two_units_and_are_never_negative(since_ms: int, told: str) -> None:
    assert explain(RUN, SINCE + since_ms).because[0].endswith(told)


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "paused"])
def test_a_run_that_newer_code_has_moved_on_says_that_it_waits_for_that(status: Any) -> None:
    told = why(BUSY, code=2, status=status, version=3).because[0]
    assert told.startswith(
        "Version 3 of the agent wrote the run's state, and older code cannot continue it"
    )
    assert "this is version 2" in told
    for code in (3, 4, None):
        assert "wrote the run's state" not in " ".join(why(BUSY, code=code, version=3).because)
    for over in ("completed", "failed", "cancelled", "attention"):
        assert "wrote the run's state" not in " ".join(
            why(BUSY, code=2, status=over, version=3).because
        )


def test_without_the_code_here_a_running_run_that_nothing_asks_for_says_what_that_may_be() -> None:
    idle = replace(BUSY, commands=0, tasks=0)
    told = why(idle, version=3).because[0]
    assert "may run code older than version 3" in told
    assert "`run_held`" in told
    quiet = [
        why(idle, code=3),
        why(idle, status="waiting", due_ms=NOW),
        why(replace(idle, workers=0)),
    ]
    assert not any("wrote the run's state" in " ".join(each.because) for each in quiet)
