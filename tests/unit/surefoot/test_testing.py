"""The test kit for authors: agents in memory, under virtual time, killed at every commit."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
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
    Ended,
    Handoff,
    Next,
    Parallel,
    Partial,
    Retry,
    RetryableError,
    Signal,
    Sleep,
    TerminalError,
    Wait,
    all_of,
)
from surefoot.infra.embedded.log import EmbeddedOwnership
from surefoot.infra.simulation.time import NotSimulated, VirtualClock, VirtualLoop
from surefoot.testing import (
    CrashFound,
    HttpRequest,
    HttpResponse,
    Refused,
    SimulatedRun,
    Simulation,
    SimulationError,
    check_crashes,
)
from surefoot.testing.crash_points import _differences, _End, _RunEnd

ROOT = Path(__file__).parents[3]
DAY_S = 86_400.0


def one_step(fn: Callable[..., Any], **options: Any) -> Agent:
    """An agent of one step."""
    agent = Agent("agent")
    agent.step(**options)(fn)
    return agent


# The clock and the loop -------------------------------------------------------------------------


def virtual_loop() -> VirtualLoop:
    return VirtualLoop(VirtualClock(start_ms=1_000, seed=7))


def test_time_jumps_to_the_next_timer_and_timers_fire_in_their_order() -> None:
    loop = virtual_loop()
    fired: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, loop.time()))

    async def main() -> None:
        await asyncio.gather(sleep("c", 1e9), sleep("a", 0.001), sleep("b", 3 * DAY_S))

    loop.run_until_complete(main())
    loop.close()
    assert fired == [("a", 0.001), ("b", 3 * DAY_S), ("c", 1e9)]
    assert loop.clock.now_ms() == 1_000 + 10**12


def test_who_waits_for_a_time_between_two_ticks_sees_it_come() -> None:
    loop = virtual_loop()
    turns = 0

    async def main() -> None:
        nonlocal turns
        await asyncio.sleep(0.49495)
        due_s = loop.time() + 3.0
        assert due_s == 3.4949500000000002  # no whole number of ticks, by rounding
        while loop.time() < due_s and turns < 10:
            turns += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(due_s - loop.time()):
                    await asyncio.Event().wait()

    loop.run_until_complete(main())
    loop.close()
    assert turns == 2


def test_what_runs_in_a_thread_takes_no_virtual_time_and_nothing_gets_in_between() -> None:
    loop = virtual_loop()
    seen: list[str] = []

    def blocking() -> float:
        seen.append("thread")
        time.sleep(0.02)
        seen.append("thread over")
        return loop.time()

    async def other() -> None:
        seen.append("other")

    async def main() -> float:
        between = asyncio.create_task(other())
        async with asyncio.timeout(0.001):
            told = await asyncio.to_thread(blocking)
        await between
        return told

    assert loop.run_until_complete(main()) == 0.0
    assert seen == ["thread", "thread over", "other"]
    with pytest.raises(RuntimeError, match="StopIteration"):
        loop.run_until_complete(asyncio.wait_for(loop.run_in_executor(None, next, iter(())), 1))
    loop.close()


def test_the_loop_says_what_only_the_real_world_has() -> None:
    loop = virtual_loop()
    for host in ("127.0.0.1", "nowhere.invalid"):  # no name is looked up either
        with pytest.raises(NotSimulated, match="no network"):
            loop.run_until_complete(asyncio.wait_for(asyncio.open_connection(host, 1), 1))
    with pytest.raises(NotSimulated, match="no network, subprocesses"):
        loop.run_until_complete(asyncio.create_subprocess_exec("true"))
    with pytest.raises(NotSimulated, match="no timer"):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_run_of_the_loop_ends_settled_at_its_deadline_or_stuck() -> None:
    loop = virtual_loop()
    ticks: list[float] = []

    async def tick() -> None:
        while len(ticks) < 3:
            await asyncio.sleep(10)
            ticks.append(loop.time())
        await loop.create_future()

    task = loop.create_task(tick())
    assert loop.run_until(lambda: False, deadline_s=10.0) == "deadline"
    assert ticks == [10.0]  # what is due at the deadline is done
    assert loop.run_until(lambda: len(ticks) == 2, deadline_s=1e9) == "settled"
    assert loop.time() == 20.0
    assert loop.run_until(lambda: False, deadline_s=25.0) == "deadline"
    assert loop.time() == 20.0
    assert loop.run_until(lambda: False, deadline_s=1e9) == "stuck"
    loop.call_soon(loop.stop)
    assert loop.run_until(lambda: False, deadline_s=1e9) is None
    loop.bury()
    assert task.cancelled()


def test_what_is_left_of_a_loop_ends_unheard(caplog: pytest.LogCaptureFixture) -> None:
    loop = virtual_loop()
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await loop.create_future()
        finally:
            await asyncio.sleep(3600)
            ended.append("stubborn")
            raise ValueError("nobody is told")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("numbers")

    async def reading() -> None:
        assert await anext(held) == 1
        await loop.create_future()

    held = numbers()

    for work in (stubborn(), reading()):
        loop.create_task(work)
    assert loop.run_until(lambda: False, deadline_s=1.0) == "stuck"
    loop.bury()
    gc.collect()
    assert sorted(ended) == ["numbers", "stubborn"]
    assert caplog.records == []


def test_chance_and_ids_of_the_clock_follow_from_its_seed() -> None:
    def drawn(seed: int) -> list[Any]:
        clock = VirtualClock(start_ms=0, seed=seed)
        return [clock.random(), clock.random(), clock.unique(), clock.unique()]

    assert drawn(1) == drawn(1)
    assert drawn(1)[0] != drawn(2)[0]
    assert drawn(1)[2] < drawn(1)[3]


# Time --------------------------------------------------------------------------------------------


def test_sleeping_for_three_days_takes_no_time() -> None:
    agent = Agent("sleeper")

    @agent.step
    async def first(ctx: Context, n: int) -> Sleep:
        return Sleep("3d", second, n + 1)

    @agent.step
    async def second(ctx: Context, n: int) -> Next:
        return Next(third, n + 1, after="12h")

    @agent.step
    async def third(ctx: Context, n: int) -> Done:
        return Done(n + 1)

    sim = Simulation(agent)
    run = sim.run(1)
    assert (run.status, run.result, run.steps) == ("completed", 4, ["first", "second", "third"])
    assert run.elapsed == timedelta(days=3.5)
    assert sim.now == datetime(2026, 1, 4, 12, tzinfo=UTC)


def test_a_retry_after_four_hundred_days_takes_no_time() -> None:
    async def flaky(ctx: Context, payload: None) -> Done:
        if ctx.attempt < 2:
            raise RetryableError("not yet")
        return Done(ctx.attempt)

    year_s = 400 * DAY_S
    retry = Retry(attempts=3, initial_s=year_s, max_s=year_s, multiplier=1.0, jitter=0.0)
    run = Simulation(one_step(flaky, retry=retry)).run(within="1000d")
    assert (run.status, run.result) == ("completed", 2)
    assert run.elapsed == timedelta(days=800)


def test_time_that_passes_inside_a_step_is_virtual_too() -> None:
    async def slow(ctx: Context, payload: None) -> Done:
        await asyncio.sleep(3600)
        return Done()

    run = Simulation(one_step(slow)).run()
    assert (run.status, run.elapsed) == ("completed", timedelta(hours=1))
    run = Simulation(one_step(slow, timeout="1m", retry=Retry(attempts=1))).run()
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure["code"] == "timeout"
    assert run.elapsed == timedelta(minutes=1)


def test_a_wait_with_a_time_limit_is_left_waiting_until_time_is_let_pass() -> None:
    agent = Agent("waiter")

    @agent.step
    async def ask(ctx: Context, payload: None) -> Wait:
        return Wait("answer", then=answered, timeout="2d", on_timeout=gave_up, carry="nobody")

    @agent.step
    async def answered(ctx: Context, payload: str, carry: str) -> Done:
        return Done(payload)

    @agent.step
    async def gave_up(ctx: Context, payload: str) -> Done:
        return Done(payload)

    sim = Simulation(agent)
    run = sim.run()
    assert (run.status, run.waits_for) == ("waiting", ("answer",))
    assert sim.advance("47h").status == "waiting"
    run = sim.advance("1h")
    assert (run.status, run.result) == ("completed", "nobody")
    assert run.elapsed == timedelta(days=2)


def test_advance_lets_pass_what_it_says_and_no_more() -> None:
    agent = Agent("steps")

    @agent.step
    async def step(ctx: Context, n: int) -> Sleep | Done:
        return Sleep("1d", step, n - 1) if n else Done()

    sim = Simulation(agent)
    assert sim.start(3).status == "waiting"
    began = sim.now
    assert began == datetime(2026, 1, 1, tzinfo=UTC)
    assert sim.advance("1d").steps == ["step"] * 2
    assert sim.now - began == timedelta(days=1)
    assert sim.advance("12h").steps == ["step"] * 2
    assert sim.advance("36h").status == "completed"


def test_a_run_that_takes_longer_than_said_is_an_error_that_says_what_it_does() -> None:
    agent = Agent("clock")

    @agent.step
    async def tick(ctx: Context, n: int) -> Next:
        return Next(tick, n + 1, after="1h")

    sim = Simulation(agent)
    with pytest.raises(SimulationError, match="`within`"):
        sim.run(0, within="2d")
    assert sim.look().steps == ["tick"] * 49

    async def stuck(ctx: Context, payload: None) -> Done:
        await asyncio.Event().wait()
        return Done()

    with pytest.raises(SimulationError, match=r"agent\.stuck of run run-1 has not returned"):
        Simulation(one_step(stuck)).run()


# Inputs ------------------------------------------------------------------------------------------


def order_agent() -> Agent:
    agent = Agent("order")

    @agent.step
    async def place(ctx: Context, amount: int) -> Approve:
        return Approve({"amount": amount}, then=decide, by=["ann", "bob"])

    @agent.step
    async def decide(ctx: Context, approval: Approval, what: dict[str, int]) -> Wait | Done:
        if not approval.approved:
            return Done(f"refused by {approval.by}: {approval.note}")
        return Wait(all_of("paid", "packed"), then=ship, carry=what)

    @agent.step
    async def ship(ctx: Context, signals: list[Signal], what: dict[str, int]) -> Done:
        return Done([what, *(signal.payload for signal in signals)])

    @agent.on_cancel
    async def undo(ctx: Context, ended: Ended) -> Done:
        ctx.outbox.http("POST", "https://bank.test/undo", json={"step": ended.step})
        return Done()

    return agent


def test_a_question_is_answered_and_signals_are_sent() -> None:
    sim = Simulation(order_agent())
    run = sim.run(10)
    assert (run.status, run.asks) == ("waiting", {"amount": 10})
    with pytest.raises(Refused, match="only ann, bob may approve") as refused:
        sim.approve(by="eve")
    assert refused.value.code == "not_allowed"
    run = sim.approve(by="ann")
    assert run.waits_for == ("paid", "packed")
    assert sim.signal("packed", "box").status == "waiting"
    run = sim.signal("paid", 10)
    assert (run.status, run.result) == ("completed", [{"amount": 10}, "box", 10])
    with pytest.raises(Refused, match="too_late"):
        sim.signal("paid", 10)
    assert sim.look().failure is None


def test_signals_given_to_run_are_sent_one_by_one_while_it_waits() -> None:
    agent = Agent("two")

    @agent.step
    async def first(ctx: Context, payload: None) -> Wait:
        return Wait("a", then=second)

    @agent.step
    async def second(ctx: Context, got: int) -> Wait:
        return Wait("b", then=last, carry=got)

    @agent.step
    async def last(ctx: Context, got: int, carry: int) -> Done:
        return Done([carry, got])

    run = Simulation(agent).run(signals=[("a", 1), ("b", 2), ("a", 3)])
    assert run.result == [1, 2]
    run = Simulation(agent).run(signals=[("a", 1)])
    assert (run.status, run.waits_for) == ("waiting", ("b",))
    sent = [event["name"] for event in run.history if event["type"] == "signal.received"]
    assert sent == ["a"]


def test_operators_commands_reach_the_run() -> None:
    sim = Simulation(order_agent())
    sim.run(10, run_id="first")
    sim.run(20, run_id="second")
    assert sim.pause("first").status == "paused"
    assert sim.look("second").status == "waiting"
    assert sim.resume("first").status == "waiting"
    run = sim.approve(False, note="too much", by="bob", run_id="first")
    assert run.result == "refused by bob: too much"
    run = sim.cancel("second", by="ann")
    assert (run.status, run.steps) == ("cancelled", ["place", "undo"])
    assert [effect.json for effect in run.effects] == [{"step": "decide"}]


def test_a_failed_run_can_be_tried_again() -> None:
    broken = [True]

    async def fails(ctx: Context, payload: None) -> Done:
        if broken[0]:
            raise TerminalError("the tank is empty")
        return Done("driven")

    sim = Simulation(one_step(fails))
    run = sim.run()
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure["message"] == "the tank is empty"
    assert run.result is None
    broken[0] = False
    run = sim.retry()
    assert (run.status, run.result, run.failure) == ("completed", "driven", None)


def test_another_version_can_take_over() -> None:
    def version(number: int) -> Agent:
        agent = Agent("deployed", version=number)

        @agent.step
        async def wait(ctx: Context, payload: None) -> Sleep:
            return Sleep("1d", tell, None)

        @agent.step
        async def tell(ctx: Context, payload: None) -> Done:
            return Done(number)

        return agent

    sim = Simulation(version(1))
    sim.start()
    sim.crash(version(2))
    assert sim.settle().result == 2


def test_a_run_of_a_newer_version_is_held() -> None:
    def version(number: int) -> Agent:
        agent = Agent("deployed", version=number)

        @agent.step
        async def wait(ctx: Context, payload: None) -> Sleep:
            return Sleep("1d", tell, None)

        @agent.step
        async def tell(ctx: Context, payload: None) -> Done:
            return Done(number)

        return agent

    sim = Simulation(version(2))
    sim.start()
    sim.crash(version(1))
    assert sim.settle().status == "waiting"
    sim.advance("10d")
    assert sim.look().status == "waiting"
    sim.crash(version(2))
    assert sim.settle().result == 2


# The outside world -------------------------------------------------------------------------------


async def notify(ctx: Context, names: list[str]) -> Done:
    for name in names:
        ctx.outbox.http(
            "PUT", f"https://mail.test/{name}", json={"to": name}, headers={"X-From": "us"}
        )
    return Done()


def test_effects_are_recorded_for_their_run_in_order() -> None:
    sim = Simulation(one_step(notify))
    run = sim.run(["ann", "bob"])
    assert [(e.key, e.method, e.url, e.json) for e in run.effects] == [
        ("agent:run-1:0:0", "PUT", "https://mail.test/ann", {"to": "ann"}),
        ("agent:run-1:0:1", "PUT", "https://mail.test/bob", {"to": "bob"}),
    ]
    assert run.effects[0].headers["X-From"] == "us"
    sim.run(["eve"])
    assert [effect.url for effect in sim.look("run-2").effects] == ["https://mail.test/eve"]
    assert len(sim.delivered) == 3


def test_the_outside_world_answers_as_it_is_told() -> None:
    answers: Iterator[int | HttpResponse] = iter(
        [503, HttpResponse(status=429, headers={"Retry-After": "3600"}, body=b""), 200]
    )

    async def deliver(request: HttpRequest) -> int | HttpResponse:
        return next(answers)

    sim = Simulation(one_step(notify), deliver=deliver)
    sim.run(["ann"])
    assert len(sim.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in sim.requests}) == 1
    assert len(sim.delivered) == 1
    assert sim.now - datetime(2026, 1, 1, tzinfo=UTC) >= timedelta(hours=1)
    sim = Simulation(one_step(notify), deliver=lambda _request: 404)
    assert sim.run(["ann"]).effects == []


def test_a_key_is_acted_upon_once_however_often_it_is_sent() -> None:
    sim = Simulation(one_step(notify))
    sim.kill_at(2)  # the relay has sent, and not committed
    sim.run(["ann"])
    assert [len(sim.requests), len(sim.delivered)] == [2, 1]


# Agents that work together -----------------------------------------------------------------------


def test_branches_children_and_other_agents_take_part() -> None:
    other = Agent("other")

    @other.step
    async def double(ctx: Context, n: int) -> Done | Handoff:
        return Handoff(last, n) if n > 100 else Done(2 * n)

    last = Agent("last")

    @last.step
    async def negate(ctx: Context, n: int) -> Done:
        return Done(-n)

    agent = Agent("parent")

    @agent.step
    async def fork(ctx: Context, n: int) -> Parallel:
        branches: list[Any] = [(branch, n), (other, n), ("other", 1000), (branch, -1)]
        return Parallel(branches, join=join, on_error="collect")

    @agent.step
    async def branch(ctx: Context, n: int) -> Done:
        if n < 0:
            raise TerminalError("below zero")
        return Done(n + 1)

    @agent.step
    async def join(ctx: Context, results: list[BranchResult]) -> Call:
        return Call(other, sum(r.result for r in results if r.ok), then=end, carry=len(results))

    @agent.step
    async def end(ctx: Context, n: int, carry: int) -> Done:
        return Done([n, carry])

    sim = Simulation(agent, other, last)
    run = sim.run(5)
    assert (run.status, run.result) == ("completed", [2 * (6 + 10 - 1000), 4])
    assert Counter(child.agent for child in sim.runs()) == {"parent": 3, "other": 3, "last": 1}


def test_an_agent_that_was_not_given_is_named() -> None:
    agent = Agent("parent")

    @agent.step
    async def call(ctx: Context, payload: None) -> Call:
        return Call("nobody", 1, then=end)

    @agent.step
    async def end(ctx: Context, payload: Any) -> Done:
        return Done(payload)

    sim = Simulation(agent)
    run = sim.run()
    assert run.status == "attention"
    assert run.failure is not None
    assert "surefoot.nobody.commands" in run.failure["message"]
    with pytest.raises(ConfigError, match="'nobody' is not part of the simulation"):
        sim.run(agent="nobody")


def test_steps_of_a_pool_are_run() -> None:
    agent = Agent("picture")

    @agent.step(pool="gpu")
    async def paint(ctx: Context, what: str) -> Next:
        ctx.outbox.http("POST", "https://art.test", json=what)
        return Next(sign, what + "!")

    @agent.step
    async def sign(ctx: Context, what: str) -> Done:
        return Done(what)

    for sim in (Simulation(agent), Simulation(agent, agent.pool("gpu"))):
        run = sim.run("cat")
        assert (run.status, run.result) == ("completed", "cat!")
        assert [effect.json for effect in run.effects] == ["cat"]


def test_plain_functions_are_run_where_no_loop_runs() -> None:
    def plain(ctx: Context, n: int) -> Done:
        async def inner() -> int:
            return n + 1

        return Done(asyncio.run(inner()))

    assert Simulation(one_step(plain)).run(1).result == 2

    async def calling(ctx: Context, n: int) -> Done:
        return Done(await ctx.call("plain", lambda n: n + 1, n))

    assert Simulation(one_step(calling)).run(1).result == 2


# Crashing ----------------------------------------------------------------------------------------


def test_a_killed_process_runs_no_further_line() -> None:
    seen: list[str] = []

    async def tidy(ctx: Context, payload: None) -> Done:
        seen.append("begin")
        try:
            await ctx.call("fetch", lambda: 1)
            await asyncio.sleep(60)
        finally:
            seen.append("finally")
        return Done()

    sim = Simulation(one_step(tidy))
    sim.start()
    assert seen == ["begin"]
    sim.crash()
    assert seen == ["begin", "begin"]
    assert sim.settle().status == "completed"
    assert seen == ["begin", "begin", "finally"]
    sim.close()  # nobody looks any more: now what was left is ended
    assert seen == ["begin", "begin", "finally", "finally"]


def test_what_a_killed_process_was_doing_stays_as_it_was() -> None:
    seen: list[str] = []
    begun: list[int] = []

    async def orphan() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("finally")

    async def step(ctx: Context, payload: None) -> Done:
        if not begun:
            asyncio.create_task(orphan())  # noqa: RUF006  (nobody holds it)
        begun.append(ctx.attempt)
        await asyncio.sleep(60)
        return Done()

    gc.disable()
    try:
        sim = Simulation(one_step(step))
        sim.start()
        listeners = len(sim._world.broker.listeners)
        sim.crash()
        gc.collect()
        assert (begun, seen) == ([0, 0], [])
        assert len(sim._world.broker.listeners) == listeners
    finally:
        gc.enable()


def test_a_step_that_ends_the_interpreter_ends_nothing_but_itself() -> None:
    async def leaves() -> None:
        sys.exit(3)

    async def step(ctx: Context, payload: None) -> Done:
        await asyncio.create_task(leaves())
        return Done()

    run = Simulation(one_step(step, retry=Retry(attempts=1))).run()
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure["kind"] == "SystemExit"


def test_partial_output_is_handed_to_the_next_attempt() -> None:
    async def write(ctx: Context, payload: None) -> Done:
        async with ctx.stream("draft") as draft:
            before: Partial | None = draft.partial
            await draft.go_on()
            for n in range(len(draft.text), 4):
                await asyncio.sleep(2)
                await draft.write(str(n))
        return Done([before.text if before else None, draft.text])

    sim = Simulation(one_step(write))
    sim.start()
    sim.advance(5)
    sim.crash()
    assert sim.settle().result == ["01", "0123"]


def test_a_lock_of_the_killed_process_is_told_and_a_function_makes_it_anew() -> None:
    def make() -> Agent:
        lock = asyncio.Lock()

        async def locked(ctx: Context, payload: None) -> Done:
            async with lock:
                await ctx.call("fetch", lambda: 1)
            return Done("unlocked")

        return one_step(locked)

    shared = make()
    with pytest.raises(CrashFound, match=r"killed before commit 1 of 2.*a lock"):
        check_crashes(shared)
    assert check_crashes(make).kills == 4


def test_whatever_is_used_comes_to_the_same_end_after_a_crash_at_any_commit() -> None:
    bank = Bank()
    report = check_crashes(
        lambda: every_feature(bank),
        0,
        signals=[("go", {"x": 1})],
        setup=bank.clear,
        observe=bank.charged,
    )
    told = " | ".join(report.commits)
    for what in (
        "c:fetch#0",
        "c:pay#0",
        "step.retrying 'third'",
        "child.finished",
        "wait.over",
        "run.completed 'deliver_effect'",
        "run.completed 'last'",
        "signal.received",
    ):
        assert what in told
    assert report.kills == 2 * len(report.commits)


class Bank:
    """A fake of the world that has no keys: what is done twice is done twice."""

    def __init__(self) -> None:
        self.charges: list[int] = []

    def clear(self) -> None:
        self.charges.clear()

    def charge(self, amount: int) -> str:
        self.charges.append(amount)
        return f"receipt {len(self.charges)}"

    def find(self, amount: int) -> str | None:
        return f"receipt {self.charges.index(amount) + 1}" if amount in self.charges else None

    def charged(self) -> list[int]:
        return list(self.charges)


def every_feature(bank: Bank) -> Agent:
    agent = Agent("everything")
    year = Retry(attempts=3, initial_s=400 * DAY_S, max_s=400 * DAY_S)

    @agent.step
    async def first(ctx: Context, n: int) -> Sleep:
        some, more = await asyncio.gather(
            ctx.call("fetch", lambda n: n + 1, n), ctx.call("more", lambda n: n + 2, n)
        )
        ctx.outbox.http("POST", "https://mail.test/a", json=[some, more])
        ctx.thread.append({"role": "user", "content": "hello"})
        return Sleep("3d", second, some + more)

    @agent.step
    def second(ctx: Context, n: int) -> Wait:
        item = ctx.plan.add("wait")
        ctx.plan.tick(item)
        return Wait("go", then=third, timeout="2d", carry=n)

    @agent.step(retry=year)
    async def third(ctx: Context, go: dict[str, int], n: int) -> Parallel:
        if ctx.attempt == 0:
            raise RetryableError("next year")
        return Parallel([(branch, k) for k in range(n)], join=last, limit=2)

    @agent.step
    async def branch(ctx: Context, k: int) -> Done:
        ctx.outbox.http("POST", f"https://mail.test/b/{k}")
        return Done(k * await ctx.call("factor", lambda: 10))

    @agent.step
    async def last(ctx: Context, results: list[int]) -> Done:
        receipt = await ctx.once("pay", bank.charge, sum(results), probe=bank.find)
        return Done([receipt, results, ctx.thread.messages, [i.state for i in ctx.plan.items]])

    return agent


def test_an_effect_outside_of_ctx_is_found() -> None:
    bank = Bank()

    async def charge(ctx: Context, amount: int) -> Done:
        return Done(bank.charge(amount))

    with pytest.raises(CrashFound, match=r"before commit 1 of 1 .*\[5, 5\] instead of \[5\]"):
        check_crashes(one_step(charge), 5, setup=bank.clear, observe=bank.charged)
    # It shows in the result as well.
    with pytest.raises(CrashFound, match="'receipt 2' instead of 'receipt 1'"):
        check_crashes(one_step(charge), 5, setup=bank.clear)


def test_a_call_is_at_least_once_and_a_once_at_most_once() -> None:
    bank = Bank()

    async def called(ctx: Context, amount: int) -> Done:
        return Done(await ctx.call("charge", bank.charge, amount))

    async def once(ctx: Context, amount: int) -> Done:
        return Done(await ctx.once("charge", bank.charge, amount, probe=bank.find))

    with pytest.raises(CrashFound, match=r"\[5, 5\] instead of \[5\]"):
        check_crashes(one_step(called), 5, setup=bank.clear, observe=bank.charged)
    check_crashes(one_step(once), 5, setup=bank.clear, observe=bank.charged)


def test_a_once_without_a_probe_needs_a_person() -> None:
    bank = Bank()

    async def once(ctx: Context, amount: int) -> Done:
        return Done(await ctx.once("charge", bank.charge, amount))

    def person(sim: Simulation, run: SimulatedRun) -> None:
        receipt = bank.find(5)
        assert run.status == "attention"
        if receipt is None:
            sim.resolve("did_not", run_id=run.run_id)
        else:
            sim.resolve("happened", receipt, run_id=run.run_id)

    agent = one_step(once)
    with pytest.raises(CrashFound, match=r"once_in_doubt.*give that call a probe"):
        check_crashes(agent, 5, setup=bank.clear, observe=bank.charged)
    check_crashes(agent, 5, setup=bank.clear, observe=bank.charged, on_attention=person)


def test_a_person_is_called_once_for_each_time_that_a_run_needs_one() -> None:
    bank = Bank()
    called: list[str] = []

    async def once(ctx: Context, amount: int) -> Done:
        await ctx.once("charge", bank.charge, amount)
        await ctx.once("again", bank.charge, amount)
        return Done()

    def person(sim: Simulation, run: SimulatedRun) -> None:
        called.append(run.failure["message"].split()[0] if run.failure else "")
        if len(called) == 1:
            sim.kill_at(len(sim.commits) + 3)
            sim.resolve("happened", "receipt", run_id=run.run_id)

    sim = Simulation(one_step(once), on_attention=person)
    sim.kill_at(2)
    run = sim.run(5)
    assert run.status == "attention"
    assert called == ["charge#0", "again#0"]


def test_chance_in_a_step_is_told_in_plain_words() -> None:
    numbers = count()

    async def chance(ctx: Context, payload: None) -> Done:
        return Done(next(numbers))

    with pytest.raises(CrashFound, match=r"two executions of the agent differ.*is 1 instead of 0"):
        check_crashes(one_step(chance))

    async def other_arguments(ctx: Context, payload: None) -> Done:
        number = next(numbers)
        await ctx.call("fetch", abs, number)
        return Done()

    def anew() -> None:
        nonlocal numbers
        numbers = count()

    with pytest.raises(CrashFound, match=r"after commit 1 of 2.*journal_mismatch.*other arguments"):
        check_crashes(one_step(other_arguments), setup=anew)


def test_a_different_number_of_commits_is_no_chance_to_compare() -> None:
    numbers = count()

    async def sometimes(ctx: Context, payload: None) -> Done:
        if next(numbers):
            await ctx.call("fetch", lambda: 0)
        return Done()

    with pytest.raises(CrashFound, match=r"differ: the second time it committed .*c:fetch#0"):
        check_crashes(one_step(sometimes))


def test_effects_that_differ_are_named() -> None:
    attempts: list[int] = []

    async def counting(ctx: Context, payload: None) -> Done:
        attempts.append(1)
        ctx.outbox.http("POST", f"https://mail.test/{len(attempts)}")
        return Done()

    with pytest.raises(CrashFound, match=r"effect agent:run-1:0:0 .*/2.* instead of .*/1"):
        check_crashes(one_step(counting), setup=attempts.clear)

    async def fewer(ctx: Context, payload: None) -> Done:
        attempts.append(1)
        for _ in range(2 // len(attempts)):
            ctx.outbox.http("POST", "https://mail.test")
        return Done()

    with pytest.raises(CrashFound, match=r"effect agent:run-1:0:1 of run 'run-1'.*never happened"):
        check_crashes(one_step(fewer), setup=attempts.clear)


def test_every_difference_between_two_ends_is_told() -> None:
    def end(*runs: tuple[str, _RunEnd]) -> _End:
        return _End({("a", name): run for name, run in runs}, None, [], [])

    one: tuple[Any, ...] = ("k1", "POST", "u", [], "")
    two: tuple[Any, ...] = ("k2", "POST", "u", [], "")
    done = _RunEnd("completed", 1, None, "", [one, two])
    failed = _RunEnd("failed", None, ("timeout", "StepTimeout"), "late", [])
    for plain, ended, told in [
        (end(("r", done)), end(("r", done)), []),
        (end(("r", done)), end(), ["there is no run 'r' of a"]),
        (end(), end(("r", done)), ["there is a run 'r' of a"]),
        (
            end(("r", done)),
            end(("r", done._replace(effects=[two, one]))),
            ["the effects of run 'r' of a come in the order ['k2', 'k1'], not ['k1', 'k2']"],
        ),
        (
            end(("r", done)),
            end(("r", done._replace(effects=[one, two, ("k3", "GET", "u", [], "")]))),
            ["run 'r' of a has another effect k3: ('GET', 'u', [], '')"],
        ),
        (
            end(("r", failed)),
            end(("r", failed._replace(failure=("step_raised", "ValueError")))),
            [f"run 'r' of a fails with ('step_raised', 'ValueError') instead of {failed.failure}"],
        ),
    ]:
        assert _differences(plain, ended) == told


def test_a_committed_step_that_runs_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgotten(self: EmbeddedOwnership) -> dict[Any, int | None]:
        return {"commands": None, "tasks": None}

    async def nothing(self: EmbeddedOwnership, start: int | None, apply: Any) -> int:
        return 0

    monkeypatch.setattr(EmbeddedOwnership, "committed", forgotten)
    monkeypatch.setattr(EmbeddedOwnership, "restore", nothing)
    agent = Agent("twice")

    @agent.step
    async def first(ctx: Context, payload: None) -> Next:
        return Next(second, None)

    @agent.step
    async def second(ctx: Context, payload: None) -> Done:
        return Done()

    with pytest.raises(CrashFound, match=r"after commit 1 of 2 .*step 'first'.* ran again"):
        check_crashes(agent)


def test_a_scenario_does_what_it_likes() -> None:
    def scenario(sim: Simulation) -> None:
        sim.run(10)
        sim.approve(by="ann")
        sim.signal("paid", 1)
        sim.advance("2d")
        sim.cancel()

    report = check_crashes(order_agent, scenario=scenario)
    assert "run.cancelling" in " ".join(report.commits)


# Determinism -------------------------------------------------------------------------------------


def trace() -> str:
    """Every record that a simulation leaves, byte for byte."""
    bank = Bank()
    with Simulation(every_feature(bank), seed=3) as sim:
        sim.kill_at(4, "after")
        sim.run(5, signals=[("go", {"x": 1})])
        world = sim._world
        return "\n".join(
            repr(record)
            for agent in ("everything", "outbox")
            for kind in ("commands", "tasks", "state", "events")
            for partition in range(world.partitions)
            for record in world.broker.partition(f"surefoot.{agent}.{kind}", partition).read(0)[0]
        )


def test_the_same_agent_leaves_the_same_trace() -> None:
    first = trace()
    assert len(first.splitlines()) > 40
    assert trace() == first


def test_the_trace_does_not_hang_on_the_hashes_of_the_process() -> None:
    code = (
        "import tests.unit.surefoot.test_testing as t, hashlib; "
        "print(hashlib.sha256(t.trace().encode())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code + ".hexdigest())"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


# Use ---------------------------------------------------------------------------------------------


async def test_it_is_not_used_from_a_running_loop() -> None:
    with pytest.raises(ConfigError, match="plain `def` test"):
        Simulation(order_agent())


def test_what_cannot_be_done_says_why() -> None:
    with pytest.raises(ConfigError, match="give at least one agent"):
        Simulation()
    sim = Simulation(one_step(notify))
    with pytest.raises(SimulationError, match="no run has been started"):
        sim.look()
    sim.run([])
    with pytest.raises(SimulationError, match="no open question"):
        sim.approve()
    sim.close()
    sim.close()
    with pytest.raises(SimulationError, match="closed"):
        sim.run([])


def test_pytest_is_told_of_the_fixtures() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    assert hasattr(importlib.import_module(module), "surefoot_sim")


def shown_with_fixtures() -> str:
    """What docs/how-to/testing.md shows of the fixtures."""
    (code,) = re.findall(
        r"^```py\n(.*?)^```",
        (ROOT / "docs/how-to/testing.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    return str(code)


WHETHER_CLOSED = """
from surefoot.testing.simulation import open_now

def test_it_is_open_while_the_test_runs(surefoot_sim):
    surefoot_sim(hello).run("ann")
    assert len(open_now()) == 1

def test_and_closed_when_it_is_over():
    assert open_now() == []
"""


def test_the_fixtures_are_there(tmp_path: Path) -> None:
    (tmp_path / "test_author.py").write_text(shown_with_fixtures() + WHETHER_CLOSED)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio"),
            *("-p", "no:surefoot", "-p", "surefoot.pytest_plugin", str(tmp_path)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def test_effects_that_wait_for_their_turn_go_on_at_once_after_a_crash() -> None:
    """Killed when one effect of a run is delivered and committed: the next one, which was kept for
    later, is not left to the sweep of an idle partition."""
    sim = Simulation(one_step(notify))
    sim.kill_at(_commit_of("run.completed 'deliver_effect'", ["ann", "bob", "eve"]), "after")
    run = sim.run(["ann", "bob", "eve"])
    assert [effect.json["to"] for effect in run.effects] == ["ann", "bob", "eve"]
    assert sim.now - datetime(2026, 1, 1, tzinfo=UTC) < timedelta(seconds=1)


def _commit_of(what: str, payload: list[str]) -> int:
    """Number of the first commit that is about that."""
    with Simulation(one_step(notify)) as sim:
        sim.run(payload)
        return next(n for n, words in enumerate(sim.commits, 1) if what in words)


def test_what_looks_like_a_pointer_to_a_large_payload_is_data() -> None:
    made_up = {"$surefoot.blob": f"20260101/{'0' * 64}/7"}
    agent = Agent("echo")

    @agent.step
    async def first(ctx: Context, given: Any) -> Wait:
        ctx.thread.append(given)
        assert await ctx.call("ask", lambda: given) == given
        return Wait("go", then=second, carry=given)

    @agent.step
    async def second(ctx: Context, said: Any, carry: Any) -> Parallel:
        return Parallel([(branch, said), (branch, carry)], join=last)

    @agent.step
    async def branch(ctx: Context, given: Any) -> Done:
        return Done(given)

    @agent.step
    async def last(ctx: Context, both: list[Any]) -> Done:
        return Done([*both, *ctx.thread.messages])

    sim = Simulation(agent)
    sim.start(made_up)
    sim.signal("go", made_up)
    assert sim.settle().result == [made_up] * 3
