"""The thread and the plan of a run: what an attempt adds is told, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from surefoot.schemas.payload import Unserialisable
from surefoot.state.machine.model import PlanItem
from surefoot.state.steps.thread import Plan, Thread


def test_a_thread_has_what_was_there_and_what_was_added() -> None:
    thread = Thread([b'{"role":"user"}', b'"text"'])
    assert thread.appended() == ()
    thread.append({"role": "tool", "n": 1}, None)
    thread.append([1])
    assert thread.messages == [{"role": "user"}, "text", {"role": "tool", "n": 1}, None, [1]]
    assert len(thread) == 5
    assert thread.appended() == (b'{"role":"tool","n":1}', b"null", b"[1]")


def test_the_messages_are_a_copy_of_the_list() -> None:
    thread = Thread([b"1"])
    thread.messages.append(2)
    thread.append(3)
    assert thread.messages == [1, 3]


def test_a_message_is_as_it_was_when_it_was_appended() -> None:
    thread = Thread([])
    message = {"text": "before"}
    thread.append(message)
    message["text"] = "after"
    assert thread.messages == [{"text": "before"}]


@pytest.mark.parametrize("wrong", [object(), {"a": [1, {2}]}, float("nan"), b"raw"])
def test_a_message_that_cannot_be_stored_is_refused_and_not_added(wrong: Any) -> None:
    thread = Thread([])
    with pytest.raises(Unserialisable):
        thread.append(wrong)
    with pytest.raises(Unserialisable):
        thread.append("good", wrong)
    assert thread.appended() == ()


def test_a_plan_is_changed_item_by_item() -> None:
    plan = Plan((PlanItem(id="0.0", text="look"),), seq=2)
    fix, tell = plan.add("fix"), plan.add("tell")
    plan.tick("0.0")
    plan.drop(tell)
    assert (fix, tell) == ("2.0", "2.1")
    assert [(item.text, item.state) for item in plan.items] == [
        ("look", "done"),
        ("fix", "open"),
        ("tell", "dropped"),
    ]
    assert [item.text for item in plan.open] == ["fix"]
    assert plan.changed() == tuple(plan.items)


def test_a_plan_that_was_only_read_has_not_changed() -> None:
    items = (PlanItem(id="0.0", text="look", state="done"),)
    plan = Plan(items, seq=1)
    assert plan.items == [*items]
    assert plan.changed() is None
    plan.tick("0.0")
    assert plan.changed() is None


@pytest.mark.parametrize("change", [Plan.tick, Plan.drop])
def test_an_item_that_there_is_not(change: Callable[[Plan, str], None]) -> None:
    plan = Plan((PlanItem(id="0.0", text="look"),), seq=1)
    with pytest.raises(ValueError, match=r"no item '1\.0'; it has \['0\.0'\]"):
        change(plan, "1.0")
    assert plan.changed() is None


def test_every_attempt_of_a_step_gives_the_same_ids() -> None:
    assert [Plan((), seq=7).add("a") for _ in range(2)] == ["7.0", "7.0"]


def test_an_item_that_cannot_be_stored_is_refused() -> None:
    plan = Plan((), seq=0)
    for wrong in (b"raw", 5):
        with pytest.raises(Unserialisable):
            plan.add(wrong)  # type: ignore[arg-type]
    assert plan.items == []
