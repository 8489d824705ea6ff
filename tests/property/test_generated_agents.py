"""Agents, commands and kills made by chance: what is promised holds. See generated_agents.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from surefoot import Agent, Context, Done, Next
from surefoot.testing import HttpRequest, Simulation
from tests.property.generated_agents import check, kills_of, live
from tests.property.generated_promises import broken_promises

SEEDS = range(32)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 8))
def test_whatever_is_killed_and_whoever_asks_for_what_the_promises_hold(first: int) -> None:
    for seed in SEEDS[first : first + 8]:
        wrong = check(seed, twice=seed % 8 < 2)
        again = f"python -m tests.property.generated_agents --seeds 1 --from {seed}"
        assert not wrong, "\n".join([f"seed {seed} (again: {again})", *wrong])


def test_the_lives_are_lived() -> None:
    """Processes are killed, commands are taken and refused, effects delivered, signals awaited."""
    seen: set[str] = set()
    killed = 0
    for seed in [*range(12), 30, 33]:
        with (plain := live(seed, wild=seed % 2 == 1, kills=[])).sim:
            seen |= {event["type"] for run in plain.runs() for event in run.history}
            kills = kills_of(seed, len(plain.sim.commits))
        with (crashed := live(seed, wild=seed % 2 == 1, kills=kills)).sim:
            killed += len(crashed.sim._graves)
            assert not broken_promises(crashed)
    assert killed > 12
    assert seen >= {
        "run.completed",
        "run.failed",
        "run.cancelled",
        "run.paused",
        "run.retried",
        "signal.received",
        "approval.decided",
        "child.finished",
        "command.refused",
        "command.repeated",
        "wait.over",
        "wait.timed_out",
        "step.retrying",
        "budget.spent",
    }


# Found like this ----------------------------------------------------------------------------


def test_a_signal_that_is_read_together_with_the_start_behind_it_costs_no_run() -> None:
    agent = Agent("agent")

    @agent.step
    async def slow(ctx: Context, payload: int) -> Done:
        await asyncio.sleep(1)
        return Done(payload)

    with Simulation(agent) as sim:
        sim._send("run-1", "signal", agent="agent", id="early", name="go", payload=b"null")
        run = sim.run(7, run_id="run-1")
    assert (run.status, run.result) == ("completed", 7)


@pytest.mark.parametrize("commit", range(1, 12))
def test_effects_keep_their_order_when_the_relay_is_killed(commit: int) -> None:
    """Also when the second one has been put behind the first, which is not committed yet."""

    async def deliver(request: HttpRequest) -> int:
        await asyncio.sleep(1)
        return 200

    agent = Agent("agent")

    @agent.step
    async def one(ctx: Context, payload: None) -> Next:
        ctx.outbox.http("POST", "http://world", json=1)
        return Next(two, None)

    @agent.step
    async def two(ctx: Context, payload: None) -> Done:
        ctx.outbox.http("POST", "http://world", json=2)
        return Done()

    with Simulation(agent, deliver=deliver) as sim:
        sim.kill_at(commit, "before")
        sim.run()
        delivered: list[Any] = [json.loads(request.body) for request in sim.requests]
    assert delivered == sorted(delivered)
    assert set(delivered) == {1, 2}
