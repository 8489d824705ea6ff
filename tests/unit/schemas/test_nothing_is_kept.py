"""What a step had is free when its run is over: nothing global remembers what a step has made."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, create_model

from surefoot import Agent, Context, Done
from surefoot.agents.tool_loop import Ask, Reply, ToolCall, tool_loop
from surefoot.schemas.payload import dump
from surefoot.schemas.weak_cache import weakly_cached
from surefoot.testing import Simulation


class Large:
    """Stands for all that a step has."""

    def __bool__(self) -> bool:
        return True


def one() -> int:
    return 1


def as_coroutine(large: Large) -> Callable[[], Any]:
    async def ask() -> str:
        return "yes" if large else "no"

    return ask


def as_function(large: Large) -> Callable[[], Any]:
    def ask() -> int:
        return 1 if large else 0

    return ask


def as_partial(large: Large) -> Callable[[], Any]:
    return functools.partial(as_function(large))


def as_wrapper(large: Large) -> Callable[[], Any]:
    @functools.wraps(one)
    def ask() -> int:
        return 1 if large else 0

    return ask


def as_callable(large: Large) -> Callable[[], Any]:
    class Asking:
        async def __call__(self) -> bool:
            return bool(large)

    return Asking()


def as_method(large: Large) -> Callable[[], Any]:
    class Asking:
        def ask(self) -> bool:
            return bool(large)

    return Asking().ask


def as_maker(large: Large) -> Callable[[], Any]:
    """What it returns is of a class made in the step, and stored."""

    @dataclass
    class Row:
        n: int

        def same(self) -> Large:
            return large

    def ask() -> Row:
        return Row(1)

    # a postponed annotation cannot name a class that is made in a function
    ask.__annotations__["return"] = Row
    return ask


def as_model(large: Large) -> Callable[[], Any]:
    made: type[BaseModel] = create_model("Row", n=(int, ...))
    made.same = lambda _self: large  # type: ignore[attr-defined]

    async def ask() -> BaseModel:
        return made(n=1)

    ask.__annotations__["return"] = made
    return ask


@pytest.mark.parametrize(
    "make",
    [
        as_coroutine,
        as_function,
        as_partial,
        as_wrapper,
        as_callable,
        as_method,
        as_maker,
        as_model,
    ],
)
@pytest.mark.parametrize("way", ["call", "once"])
def test_a_function_made_in_a_step_is_free_with_it(
    make: Callable[[Large], Callable[[], Any]], way: str
) -> None:
    agent = Agent("keeper")
    kept: list[weakref.ref[Large]] = []

    @agent.step
    async def go(ctx: Context, n: int) -> Done:
        large = Large()
        kept.append(weakref.ref(large))
        await getattr(ctx, way)("ask", make(large))
        return Done(n)

    with Simulation(agent) as sim:
        for n in range(3):
            assert sim.run(n).status == "completed"
    gc.collect()
    assert [each() for each in kept] == [None] * 3


def test_a_question_to_a_model_is_free_when_it_is_answered() -> None:
    agent = Agent("keeper")
    kept: list[weakref.ref[Any]] = []

    class Messages(list[Any]):
        """Can be referred to weakly."""

    async def model(ask: Ask) -> Reply | str:
        messages = Messages(ask.messages)
        kept.append(weakref.ref(messages))
        if len(messages) > 1:
            return "done"
        return Reply(tool_calls=(ToolCall(id="1", name="look", arguments={}),))

    async def look() -> str:
        """Look."""
        return "seen"

    tool_loop(agent, model=model, tools=[look])
    with Simulation(agent) as sim:
        assert sim.run("go").result == "done"
    gc.collect()
    assert [each() for each in kept] == [None] * 2


def test_a_class_that_was_stored_is_free_when_nobody_has_it() -> None:
    def made_and_stored() -> list[weakref.ref[Any]]:
        @dataclass(slots=True)
        class Point:
            x: int
            y: int

        made = create_model("Row", at=(Any, ...))
        dump(TypeAdapter(Point), Point(1, 2))
        dump(TypeAdapter(made), made(at=[1]))
        return [weakref.ref(Point), weakref.ref(made)]

    kept = made_and_stored()
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_what_cannot_be_referred_to_is_asked_each_time_and_all_else_once() -> None:
    asked: list[Any] = []

    @weakly_cached
    def name(key: Any) -> str:
        asked.append(key)
        return str(key)

    slot = object.__init__
    for _ in range(2):
        name(slot)
        name(Large)
    assert asked == [slot, Large, slot]
