"""Branches, calls to other agents, handoffs and pools, on a real broker."""

from __future__ import annotations

from collections import Counter

import pytest

from surefoot import (
    Agent,
    BranchResult,
    Call,
    Context,
    Done,
    Handoff,
    Next,
    Parallel,
    Retry,
    TerminalError,
)
from tests.support.cluster import Cluster, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT, PATIENT_WITHOUT_A_TOPIC


async def result(kafka: Cluster, agent: Agent, run_id: str = "r") -> bytes:
    checkpoint = await kafka.checkpoint(agent, run_id)
    assert checkpoint is not None
    found: bytes = checkpoint["result"]
    return found


def forking(name: str, branches: int) -> Agent:
    """Forks once; a branch takes as many steps as its number says, three at most."""
    agent = Agent(name)

    @agent.step
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(branch, number) for number in range(branches)], join=join, carry="c")

    @agent.step
    async def branch(ctx: Context, number: int) -> Next | Done:
        return Next(leaf, [number, number % 3])

    @agent.step
    async def leaf(ctx: Context, where: list[int]) -> Next | Done:
        number, left = where
        return Next(leaf, [number, left - 1]) if left else Done(number * 10)

    @agent.step
    async def join(ctx: Context, results: list[int], carried: str) -> Done:
        return Done([results, carried])

    return agent


async def test_a_join_runs_once_with_all_results_in_the_order_of_the_branches(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = forking(agent_name, 50)
    async with cluster(bootstrap, app, agent, partitions=4, **PATIENT) as kafka:
        for slot in range(4):
            await kafka.work(agent, slot=slot, ready=False)
        runs = [f"r{number}" for number in range(4)]
        for run_id in runs:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, runs, "completed")
        expected = ("[[" + ",".join(str(n * 10) for n in range(50)) + '],"c"]').encode()
        for run_id in runs:
            assert await result(kafka, agent, run_id) == expected
            told = names(await kafka.events(agent, run_id))
            assert told.count("wait.over") == 1
            assert told.count("child.finished") == 50
        await kafka.check_history(agent)


async def test_a_thousand_branches_on_four_workers_are_joined_once_with_each_result(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = forking(agent_name, 1_000)
    async with cluster(bootstrap, app, agent, partitions=4, **PATIENT) as kafka:
        for slot in range(4):
            await kafka.work(agent, slot=slot, ready=False)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "completed")
        expected = ",".join(str(number * 10) for number in range(1_000))
        assert await result(kafka, agent, "r") == f'[[{expected}],"c"]'.encode()
        events = await kafka.events(agent)
        finished = [event["name"] for event in events if event["type"] == "child.finished"]
        assert sorted(finished) == sorted(f"r~1~{number}" for number in range(1_000))
        assert names(await kafka.events(agent, "r")).count("wait.over") == 1
        await kafka.check_history(agent)


async def test_a_limit_keeps_the_rest_back_until_a_branch_is_over(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    now, most = set[str](), 0

    @agent.step
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(branch, n) for n in range(9)], join=join, limit=2)

    @agent.step
    async def branch(ctx: Context, number: int) -> Next | Done:
        nonlocal most
        now.add(ctx.run_id)
        most = max(most, len(now))
        await until(lambda: most > 1, what="another branch to be under way")
        return Next(end, number)

    @agent.step
    async def end(ctx: Context, number: int) -> Done:
        now.discard(ctx.run_id)
        return Done(number)

    @agent.step
    async def join(ctx: Context, results: list[int]) -> Done:
        return Done(results)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent) == b"[0,1,2,3,4,5,6,7,8]"
        assert most == 2


async def test_the_first_branch_that_fails_fails_the_run_and_cancels_the_others(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    broken = True
    ran: Counter[int] = Counter()

    @agent.step
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(branch, n) for n in range(3)], join=join)

    @agent.step(retry=Retry(attempts=1))
    async def branch(ctx: Context, number: int) -> Done | Next:
        ran[number] += 1
        if number == 1 and broken:
            raise TerminalError("branch 1 is broken")
        return Done(number) if number != 2 or not broken else Next(forever, number)

    @agent.step
    async def forever(ctx: Context, number: int) -> Next:
        return Next(forever, number, after="1h")

    @agent.step
    async def join(ctx: Context, results: list[int]) -> Done:
        return Done(results)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "failed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "branch_failed"
        assert "branch 1 is broken" in checkpoint["failure"]["message"]
        await kafka.until_status(agent, "r~1~2", "cancelled")
        broken = False
        await kafka.tell(agent, "r", "retry")
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent) == b"[0,1,2]"
        assert ran[1] == 2


async def test_collected_branches_tell_what_became_of_each(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(branch, n) for n in range(3)], join=join, on_error="collect")

    @agent.step
    async def branch(ctx: Context, number: int) -> Done:
        if number == 1:
            raise TerminalError("no")
        return Done(number)

    @agent.step
    async def join(ctx: Context, results: list[BranchResult]) -> Done:
        return Done([[r.ok, r.result, r.failure and r.failure["message"]] for r in results])

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent) == b'[[true,0,null],[false,null,"no"],[true,2,null]]'


async def test_a_fork_survives_the_workers_of_its_branches(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = forking(agent_name, 120)
    async with cluster(bootstrap, app, agent, partitions=4, **PATIENT) as kafka:
        worker = await kafka.work(agent)
        await kafka.start(agent, "r")
        for finished in (10, 60):

            async def so_many(least: int = finished) -> bool:
                events = names(await kafka.events(agent, "r"))
                return events.count("child.finished") >= least

            await until(so_many, what=f"{finished} branches to be over")
            await worker.vanish()
            worker = await kafka.work(agent)
        await kafka.until_status(agent, "r", "completed")
        expected = ",".join(str(number * 10) for number in range(120))
        assert await result(kafka, agent) == f'[[{expected}],"c"]'.encode()
        await kafka.check_history(agent)


async def test_cancelling_a_run_cancels_its_children(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(sleep, n) for n in range(5)], join=join)

    @agent.step
    async def sleep(ctx: Context, number: int) -> Next:
        return Next(sleep, number, after="1h")

    @agent.step
    async def join(ctx: Context, results: list[int]) -> Done:
        return Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        children = [f"r~1~{number}" for number in range(5)]
        await kafka.until_status(agent, children, "waiting")
        await kafka.tell(agent, "r", "cancel")
        await kafka.until_status(agent, ["r", *children], "cancelled")


async def test_another_agent_is_called_and_hands_over_to_a_third(
    bootstrap: str, app: str, agent_name: str
) -> None:
    caller, middle, last = (Agent(f"{agent_name}-{n}") for n in ("a", "b", "c"))

    @caller.step
    async def call(ctx: Context, payload: int) -> Call:
        return Call(middle, payload + 1, then=end, carry=payload)

    @caller.step
    async def end(ctx: Context, answer: int, payload: int) -> Done:
        return Done([answer, payload])

    @middle.step
    async def pass_on(ctx: Context, payload: int) -> Handoff:
        return Handoff(last, payload + 1)

    @last.step
    async def answer(ctx: Context, payload: int) -> Done:
        return Done(payload * 100)

    async with cluster(bootstrap, app, caller, middle, last, **PATIENT) as kafka:
        for agent in (caller, middle, last):
            await kafka.work(agent)
        await kafka.start(caller, "r", b"1")
        await kafka.until_status(caller, "r", "completed")
        assert await result(kafka, caller) == b"[300,1]"
        handed = await kafka.checkpoint(middle, "r~1~0")
        assert handed is not None
        assert b'"handed_to"' in handed["result"]
        await kafka.check_history(caller, middle)
        await kafka.check_history(middle, last, caller)


async def test_a_call_to_an_agent_that_there_is_not_parks_one_run_and_not_the_partition(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def call(ctx: Context, payload: int) -> Call | Done:
        return Call("no-such-agent", None, then=end) if payload else Done()

    @agent.step
    async def end(ctx: Context, answer: int) -> Done:
        return Done()

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT_WITHOUT_A_TOPIC) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r", b"1")
        await kafka.start(agent, "r2", b"0")
        await kafka.until_status(agent, "r2", "completed")
        await kafka.until_status(agent, "r", "attention")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "no_topic"
        assert "no-such-agent" in checkpoint["failure"]["message"]


@pytest.fixture
def pooled(agent_name: str) -> Agent:
    """One step in a pool, between two that are not."""
    agent = Agent(agent_name)

    @agent.step
    async def before(ctx: Context, payload: int) -> Next:
        ctx.thread.append("before")
        return Next(heavy, payload)

    @agent.step(pool="gpu", concurrency=2)
    async def heavy(ctx: Context, payload: int) -> Next:
        ctx.thread.append("heavy")
        ctx.outbox.http("POST", "http://127.0.0.1:9/never")
        return Next(after, payload + await ctx.call("add", add, 1))

    async def add(number: int) -> int:
        return number

    @agent.step
    async def after(ctx: Context, payload: int) -> Done:
        return Done([payload, ctx.thread.messages])

    return agent


async def test_a_pooled_step_is_run_by_its_pool_and_comes_back_exactly_once(
    bootstrap: str, app: str, agent_name: str, pooled: Agent
) -> None:
    pool = pooled.pool("gpu")
    async with cluster(bootstrap, app, pooled, pool, **PATIENT) as kafka:
        await kafka.work(pooled)
        runs = [f"r{number}" for number in range(20)]
        for run_id in runs:
            await kafka.start(pooled, run_id, b"1")
        await kafka.until_status(pooled, runs, "waiting")
        waiting = await kafka.read(kafka.topics(pool).commands)
        assert len(waiting) == 20  # the pool's own lag, while nobody is there
        await kafka.work(pool)
        await kafka.until_status(pooled, runs, "completed")
        for run_id in runs:
            assert await result(kafka, pooled, run_id) == b'[2,["before","heavy"]]'
        assert set(await kafka.effects()) == {f"{agent_name}:{run_id}:1:0" for run_id in runs}
        await kafka.check_history(pooled, pool)
        await kafka.check_history(pool, pooled)


async def test_a_pool_that_dies_and_a_run_that_is_cancelled_in_it(
    bootstrap: str, app: str, agent_name: str, pooled: Agent
) -> None:
    pool = pooled.pool("gpu")
    async with cluster(bootstrap, app, pooled, pool, **PATIENT) as kafka:
        await kafka.work(pooled)
        for run_id in ("r1", "r2"):
            await kafka.start(pooled, run_id, b"1")
        await kafka.until_status(pooled, ["r1", "r2"], "waiting")
        await kafka.tell(pooled, "r2", "cancel")
        await kafka.until_status(pooled, "r2", "cancelled")
        told = await kafka.read(kafka.topics(pool).commands)
        assert len(told) == 3  # two starts, and that one of them is not to be
        worker = await kafka.work(pool)
        await kafka.until_status(pooled, "r1", "completed")
        await worker.vanish()
        await kafka.work(pool)
        await kafka.start(pooled, "r3", b"1")
        await kafka.until_status(pooled, "r3", "completed")
        assert set(await kafka.effects()) == {f"{agent_name}:{r}:1:0" for r in ("r1", "r3")}


async def test_what_children_and_pooled_steps_have_done_is_in_doubt_when_their_run_is_sent_back(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    charged: list[str] = []
    probed: list[str] = []

    async def charge(what: str) -> str:
        charged.append(what)
        return what

    async def was_charged(what: str) -> str | None:
        probed.append(what)
        return what if what in charged else None

    @agent.step
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(branch, "one"), (branch, "two")], join=join, limit=1)

    @agent.step
    async def branch(ctx: Context, what: str) -> Done:
        return Done(await ctx.once("charge", charge, what, probe=was_charged))

    @agent.step(pool="gpu")
    async def join(ctx: Context, results: list[str]) -> Done:
        return Done(await ctx.once("charge", charge, "pooled"))

    pool = agent.pool("gpu")
    async with cluster(bootstrap, app, agent, pool, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.work(pool)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "completed")
        assert (charged, probed) == (["one", "two", "pooled"], [])
        await kafka.tell(agent, "r", "rewind", epoch=0, seq=0, step="fork", payload=b"0")
        await kafka.until_status(pool, "r~4~0", "attention")
        assert (charged, probed) == (["one", "two", "pooled"], ["one", "two"])
        await kafka.tell(pool, "r~4~0", "resolve", name="did_not", payload=b"null")
        await kafka.until_status(agent, "r", "completed")
        assert charged == ["one", "two", "pooled", "pooled"]
        await kafka.check_history(agent, pool)
