"""Whatever an author's function raises, wherever it is called: one run is told so, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from surefoot import Agent, Context, Cost, Done, Ended, Next, Resuming, Retry, TerminalError, Wait
from surefoot.state.errors import OwnershipLost
from surefoot.testing import Simulation

BREAKS: list[BaseException] = [
    ValueError("broken"),
    SystemExit(3),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(1),
    RecursionError("deep"),
]


def step_itself(error: BaseException) -> Agent:
    agent = Agent("hooked")

    @agent.step(start=True, retry=Retry(attempts=2, initial_s=1))
    async def work(ctx: Context, breaks: bool) -> Done:
        if breaks:
            raise error
        return Done()

    return agent


def plain_step(error: BaseException) -> Agent:
    agent = Agent("hooked")

    @agent.step(start=True, retry=Retry(attempts=2, initial_s=1))
    def work(ctx: Context, breaks: bool) -> Done:
        if breaks:
            raise error
        return Done()

    return agent


def called(error: BaseException) -> Agent:
    agent = Agent("hooked")

    @agent.step(start=True, retry=Retry(attempts=2, initial_s=1))
    async def work(ctx: Context, breaks: bool) -> Done:
        def fn() -> int:
            if breaks:
                raise error
            return 1

        return Done(await ctx.call("fn", fn))

    return agent


def costing(error: BaseException) -> Agent:
    agent = Agent("hooked")

    @agent.step(start=True, retry=Retry(attempts=2, initial_s=1))
    async def work(ctx: Context, breaks: bool) -> Done:
        def cost(value: int) -> Cost:
            if breaks:
                raise error
            return Cost(tokens=value)

        def fn() -> int:
            return 1

        return Done(await ctx.call("fn", fn, cost=cost))

    return agent


def compensating(error: BaseException) -> Agent:
    agent = Agent("hooked")

    @agent.step(start=True)
    async def work(ctx: Context, breaks: bool) -> Done:
        if breaks:
            raise TerminalError("to be undone")
        return Done()

    @agent.on_failure
    async def undo(ctx: Context, ended: Ended) -> Done:
        raise error

    return agent


PLACES: list[Callable[[BaseException], Agent]] = [
    step_itself,
    plain_step,
    called,
    costing,
    compensating,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
def test_what_breaks_is_told_of_its_run_and_the_others_go_on(
    place: Callable[[BaseException], Agent], error: BaseException
) -> None:
    with Simulation(place(error)) as sim:
        sim.start(True, run_id="broken")
        for number in range(10):
            sim.start(False, run_id=f"good-{number}")
        sim.settle()
        broken = sim.look("broken")
        assert broken.status in ("failed", "attention")
        assert broken.failure is not None
        assert broken.failure["code"]
        assert {sim.look(f"good-{n}").status for n in range(10)} == {"completed"}


@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
def test_a_check_that_breaks_on_resuming_parks_its_run_and_no_other(error: BaseException) -> None:
    breaking: list[str] = []

    def made() -> Agent:
        agent = Agent("hooked")

        @agent.step(start=True)
        async def work(ctx: Context, payload: Any) -> Wait:
            return Wait("go", then=on)

        @agent.step
        async def on(ctx: Context, payload: Any) -> Next:
            return Next(last, payload)

        @agent.step
        async def last(ctx: Context, payload: Any) -> Done:
            return Done()

        @agent.verify
        async def check(run: Resuming) -> None:
            if run.run_id in breaking:
                raise error

        return agent

    with Simulation(made) as sim:
        for run_id in ("broken", "good"):
            sim.start(None, run_id=run_id)
        breaking.append("broken")
        sim.crash()
        for run_id in ("broken", "good"):
            sim.signal("go", 1, run_id=run_id)
        assert sim.look("good").status == "completed"
        broken = sim.look("broken")
        assert broken.status == "attention"
        assert broken.failure is not None
        assert broken.failure["code"] == "verify_failed"


def test_an_attempt_that_was_given_up_is_checked_again() -> None:
    checked: list[str] = []
    attempts: list[int] = []

    def made() -> Agent:
        agent = Agent("hooked")

        @agent.step(start=True)
        async def work(ctx: Context, payload: Any) -> Wait:
            return Wait("go", then=on)

        @agent.step
        async def on(ctx: Context, payload: Any) -> Done:
            attempts.append(ctx.attempt)
            if len(attempts) == 1:
                raise OwnershipLost
            return Done()

        @agent.verify
        async def check(run: Resuming) -> None:
            checked.append(run.step)

        return agent

    with Simulation(made) as sim:
        sim.start(None)
        sim.crash()
        sim.signal("go", 1)
        sim.settle()
        assert sim.look().status == "completed"
    assert attempts == [0, 0]
    assert checked == ["on", "on"]
