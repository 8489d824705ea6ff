"""What a step's return value comes to, and what is refused before it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from surefoot import (
    Agent,
    Approval,
    Approve,
    BranchResult,
    Call,
    ConfigError,
    Context,
    Done,
    Handoff,
    Next,
    Parallel,
    Signal,
    Sleep,
    Wait,
    all_of,
    any_of,
    n_of,
)
from surefoot.consumers.attempts.interpret import UnusableResult, interpret
from surefoot.schemas.payload import Unserialisable
from surefoot.state.machine.model import (
    AwaitInput,
    Branch,
    Complete,
    GoTo,
    HandOver,
    StartChildren,
    StepResult,
)

agent = Agent("a")
other = Agent("b")


@dataclass
class Offer:
    price: int


@agent.step
async def first(ctx: Context, payload: int) -> Done:
    return Done()


@agent.step
async def sell(ctx: Context, offer: Offer) -> Done:
    return Done()


@agent.step
async def sold(ctx: Context, approval: Approval, offer: Offer) -> Done:
    return Done()


@agent.step
async def heard(ctx: Context, signals: list[Signal], carried: int) -> Done:
    return Done()


@agent.step
async def joined(ctx: Context, results: list[int]) -> Done:
    return Done()


@agent.step
async def collected(ctx: Context, results: list[BranchResult], carried: Offer) -> Done:
    return Done()


@other.step
async def begin(ctx: Context, offer: Offer) -> Done:
    return Done()


def stranger(ctx: Context, payload: int) -> Done:
    return Done()


def means(value: Any) -> tuple[StepResult, bytes | None]:
    return interpret(agent, agent.steps["first"], value)


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_893_499_200_000


@pytest.mark.parametrize(
    ("value", "outlook"),
    [
        (Done(), Complete(result=b"null")),
        (Done({"a": [1]}), Complete(result=b'{"a":[1]}')),
        (Done([Offer(1), ("x",)]), Complete(result=b'[{"price":1},["x"]]')),
        (
            Call("far", Offer(1), then=first),
            StartChildren(
                branches=(Branch(agent="far", step=None, payload=b'{"price":1}'),),
                join="first",
                mode="one",
            ),
        ),
        (Next(first, 1), GoTo(step="first", payload=b"1")),
        (
            Next(sell, Offer(3), after="1.5s"),
            GoTo(step="sell", payload=b'{"price":3}', after_ms=1500),
        ),
        (Next(first, 1, after=0.0001), GoTo(step="first", payload=b"1", after_ms=1)),
        (Sleep("400d", first, 1), GoTo(step="first", payload=b"1", after_ms=400 * 86_400_000)),
        (Sleep(2, first, 1), GoTo(step="first", payload=b"1", after_ms=2000)),
        (Sleep(NOON, first, 1), GoTo(step="first", payload=b"1", at_ms=NOON_MS)),
        (
            Sleep(NOON.astimezone(timezone(timedelta(hours=-5))), first, 1),
            GoTo(step="first", payload=b"1", at_ms=NOON_MS),
        ),
        (
            Sleep(datetime(1999, 1, 1, tzinfo=UTC), first, 1),
            GoTo(step="first", payload=b"1", at_ms=915_148_800_000),
        ),
        (Wait("go", then=first), AwaitInput(then="first", names=("go",), mode="one", need=1)),
        (
            Wait("go", then=first, timeout="2d"),
            AwaitInput(then="first", names=("go",), mode="one", need=1, timeout_ms=172_800_000),
        ),
        (
            Wait("go", then=first, timeout=NOON),
            AwaitInput(then="first", names=("go",), mode="one", need=1, until_ms=NOON_MS),
        ),
        (
            Handoff(other, Offer(1)),
            HandOver(to=Branch(agent="b", step=None, payload=b'{"price":1}')),
        ),
        (Handoff("far", [1]), HandOver(to=Branch(agent="far", step=None, payload=b"[1]"))),
    ],
)
def test_what_carries_nothing(value: Any, outlook: StepResult) -> None:
    assert means(value) == (outlook, None)


@pytest.mark.parametrize(
    ("signal", "names", "mode", "need"),
    [
        (all_of("x", "y"), ("x", "y"), "all", 2),
        (any_of("x", "y"), ("x", "y"), "any", 1),
        (n_of(3, "x"), ("x",), "count", 3),
    ],
)
def test_a_wait_for_several_signals(signal: Any, names: Any, mode: str, need: int) -> None:
    outlook, carry = means(Wait(signal, then=heard, timeout=1, on_timeout=first, carry=7))
    assert outlook == AwaitInput(
        then="heard", names=names, mode=mode, need=need, timeout_ms=1000, on_timeout="first"
    )
    assert carry == b"7"


def test_what_is_carried_may_be_for_the_timeout_alone() -> None:
    outlook, carry = means(Wait("go", then=first, timeout=1, on_timeout=sell, carry=Offer(2)))
    assert isinstance(outlook, AwaitInput)
    assert (outlook.on_timeout, carry) == ("sell", b'{"price":2}')


def test_an_approval_is_about_what_its_step_is_given() -> None:
    value = Approve(Offer(9), then=sold, expires="1h", on_timeout=sell, by=["ana", "bo"])
    about = b'{"price":9}'
    assert means(value) == (
        AwaitInput(
            then="sold", about=about, by=("ana", "bo"), timeout_ms=3_600_000, on_timeout="sell"
        ),
        about,
    )


def test_one_person_who_may_answer_is_one_person() -> None:
    outlook, _ = means(Approve(Offer(9), then=sold, by="ana"))
    assert isinstance(outlook, AwaitInput)
    assert outlook.by == ("ana",)


def test_branches_are_steps_agents_and_names() -> None:
    value = Parallel([(first, 1), (other, Offer(2)), ("far", {"x": None})], join=joined, limit=2)
    outlook, carry = means(value)
    assert outlook == StartChildren(
        branches=(
            Branch(agent="a", step="first", payload=b"1"),
            Branch(agent="b", step=None, payload=b'{"price":2}'),
            Branch(agent="far", step=None, payload=b'{"x":null}'),
        ),
        join="joined",
        mode="join",
        limit=2,
    )
    assert carry is None


def test_a_fork_that_collects_carries_something() -> None:
    outlook, carry = means(Parallel([], join=collected, on_error="collect", carry=Offer(1)))
    assert outlook == StartChildren(branches=(), join="collected", mode="collect")
    assert carry == b'{"price":1}'


def test_a_call_is_a_branch_whose_result_is_the_input() -> None:
    outlook, carry = means(Call(other, Offer(1), then=sell))
    branch = Branch(agent="b", step=None, payload=b'{"price":1}')
    assert outlook == StartChildren(branches=(branch,), join="sell", mode="one")
    assert carry is None


FOREIGN: list[Any] = [
    Next(stranger, 1),
    Sleep(1, stranger, 1),
    Wait("go", then=stranger),
    Wait("go", then=first, timeout=1, on_timeout=stranger),
    Approve(1, then=stranger),
    Parallel([(stranger, 1)], join=joined),
    Parallel([(first, 1)], join=stranger),
    Call(other, Offer(1), then=stranger),
    Next(begin, Offer(1)),
    Next("first", 1),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", FOREIGN)
def test_a_target_that_is_no_step_of_the_agent(value: Any) -> None:
    with pytest.raises(UnusableResult, match="not a step of agent 'a'") as unusable:
        means(value)
    assert unusable.value.code == "unknown_step"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "a step must return Next, Sleep.*'first' returned NoneType"),
        (Done, "returned type"),
        ({"step": "first"}, "returned dict"),
        (Sleep(datetime(2030, 1, 1), first, 1), "needs a time zone"),  # noqa: DTZ001
        (Wait("go", then=first, timeout=datetime(2030, 1, 1)), "needs a time zone"),  # noqa: DTZ001
        (Sleep(-1, first, 1), "above 0 seconds"),
        (Next(first, 1, after="soon"), "a duration must look like"),
        (Next(first, 1, after=1e300), "at most 1000 years"),
        (Wait("go", then=first, timeout="9" * 30 + "d"), "at most 1000 years"),
        (Next(sold, 1), "only a wait has one"),
        (Sleep(1, heard, 1), "only a wait has one"),
        (Wait("", then=first), "the name of a signal; it is empty"),
        (Wait("go", then=first, carry=1), "step 'first' has no third argument"),
        (Wait("go", then=first, timeout=1, on_timeout=heard, carry=[]), "only a wait has one"),
        (
            Wait(any_of("x"), then=heard, timeout=1, on_timeout=sell, carry=7),
            "on_timeout=sell cannot take the carry as its payload",
        ),
        (Approve(Offer(1), then=first), r"must take \(ctx, approval, what\)"),
        (
            Approve(Offer(1), then=sold, expires=1, on_timeout=first),
            "on_timeout=first cannot take the carry",
        ),
        (Parallel([], join=joined, on_error="ignore"), '"fail" or "collect"'),
        (Parallel([], join=joined, limit=0), "limit must be 1 or more"),
        (Parallel([(sold, 1)], join=joined), "a branch names 'sold'"),
        (Parallel([], join=joined, carry=1), "step 'joined' has no third argument"),
        (Handoff(Agent("empty"), 1), "has no steps"),
    ],
)
def test_a_value_that_means_nothing(value: Any, told: str) -> None:
    with pytest.raises(UnusableResult, match=told) as unusable:
        means(value)
    assert unusable.value.code == "bad_return"


@pytest.mark.parametrize(
    "value",
    [
        Next(first, "text"),
        Done(object()),
        Sleep(1, sell, {"price": 1}),
        Wait(any_of("x"), then=heard, carry="text"),
        Approve("text", then=sold),
        Parallel([(first, "text")], join=joined),
        Parallel([("far", {1: 2})], join=joined),
        Call(other, 1, then=first),
        Handoff(other, 1),
    ],
)
def test_a_value_that_cannot_be_stored_has_a_path(value: Any) -> None:
    with pytest.raises(Unserialisable, match=r"\$"):
        means(value)


@pytest.mark.parametrize("names", [(), ("x", "x"), ("",)])
@pytest.mark.parametrize("several", [all_of, any_of, lambda *names: n_of(1, *names)])
def test_signals_have_names_each_once(several: Callable[..., Any], names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="at least one signal name, and each once"):
        several(*names)


def test_at_least_one_signal() -> None:
    with pytest.raises(ConfigError, match="the number must be 1 or more"):
        n_of(0, "x")
