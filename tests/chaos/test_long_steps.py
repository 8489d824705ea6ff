"""Steps that take longer than any timeout of Kafka, and steps that block what runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Next
from surefoot.infra.kafka import log as kafka_log
from surefoot.infra.processes.worker import _watch_steps
from surefoot.state.ports.log import Committed, ProducerRecord
from tests.support.cluster import Running, cluster
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

#: how long a member may stop polling, and how many heartbeats are a life, however slow the machine
POLL_INTERVAL_MS, HEARTBEATS = 1_000, 10


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Lets the long step end; also when the test has failed, for its thread to end."""
    event = threading.Event()
    yield event
    event.set()


async def stays_a_member(running: Running) -> None:
    """Wait until the coordinator has confirmed the member again and again, and at last later than
    it may stop polling from now."""
    until_s = asyncio.get_running_loop().time() + 1.3 * POLL_INTERVAL_MS / 1000
    confirmed = {running.log._proved_s}

    def enough() -> bool:
        confirmed.add(running.log._proved_s)
        return len(confirmed) > HEARTBEATS and max(confirmed) > until_s

    await until(enough, what="heartbeats through the long step")


async def blocked_steps(running: Running) -> list[str]:
    """What the worker says of the steps that block the loop of all steps."""
    with capture_logs() as logs:
        watching = asyncio.create_task(_watch_steps(running.executor, every_s=0.2))
        warned = await until(
            lambda: [line for line in logs if line["event"] == "step_blocks_loop"],
            what="the blocked loop to be told of",
        )
        watching.cancel()
    return list(warned[0]["steps"])


async def test_a_step_longer_than_the_poll_interval_runs_once_and_others_flow(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "MAX_POLL_INTERVAL_MS", POLL_INTERVAL_MS)
    agent = Agent(agent_name)
    executions: list[str] = []
    end = asyncio.Event()
    loop = asyncio.get_running_loop()

    @agent.step
    async def work(ctx: Context, payload: int) -> Done:
        executions.append(ctx.run_id)
        if ctx.run_id.startswith("long"):
            # `end` belongs to the test's loop; the step runs on another one
            waiting = asyncio.run_coroutine_threadsafe(end.wait(), loop)
            await asyncio.wrap_future(waiting)
        return Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        running = await kafka.work(agent)
        generation = running.log._member.generation
        long = kafka.run_on(0, "long")
        await kafka.start(agent, long)
        await until(lambda: long in executions, what="the long step to begin")
        await stays_a_member(running)
        others = [kafka.run_on(p, f"short{p}-{n}") for n in range(3) for p in range(2)]
        for run_id in others:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, others, "completed")
        end.set()
        await kafka.until_status(agent, long, "completed")
        assert running.log._member.generation == generation
        assert executions.count(long) == 1
        await kafka.check_history(agent)


def sleeping(event: threading.Event) -> None:
    event.wait(600.0)


def computing(event: threading.Event) -> None:
    while not event.is_set():
        sum(range(1_000))


@pytest.mark.parametrize("block", [sleeping, computing])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_step_that_blocks_its_thread_costs_no_membership(
    bootstrap: str,
    app: str,
    agent_name: str,
    let_go: threading.Event,
    block: Callable[[threading.Event], None],
    kind: str,
) -> None:
    agent = Agent(agent_name)
    executions: list[str] = []

    def body(ctx: Context, payload: int) -> Done:
        executions.append(ctx.run_id)
        ctx.outbox.http("POST", "http://127.0.0.1:9/", json=payload)
        if ctx.run_id.startswith("long"):
            block(let_go)
        return Done()

    if kind == "def":
        agent.step(body)
    else:

        async def blocking(ctx: Context, payload: int) -> Done:
            return body(ctx, payload)

        agent.step(blocking)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        first = await kafka.work(agent)
        second = await kafka.work(agent, slot=1)
        await until(
            lambda: len(first.worker.partitions) == len(second.worker.partitions) == 1,
            what="both workers to have a partition each",
        )
        (mine,), (other,) = first.worker.partitions, second.worker.partitions
        generation = first.log._member.generation
        long, short = kafka.run_on(mine, "long"), kafka.run_on(other, "short")
        await kafka.start(agent, long)
        await until(lambda: long in executions, what="the long step to begin")
        if kind == "async def":
            (told,) = await blocked_steps(first)
            assert f"of run {long}" in told
            assert f"{agent_name}." in told
        else:  # a step in a thread of its own blocks nobody
            assert await first.executor.probe(90.0)
        await stays_a_member(first)
        await kafka.start(agent, short)
        await kafka.until_status(agent, short, "completed")
        let_go.set()
        await kafka.until_status(agent, long, "completed")
        assert first.log._member.generation == generation
        assert executions.count(long) == 1
        effects = [r.key for r in await kafka.read(kafka.topics("outbox").commands)]
        assert sorted(effects) == sorted(f"{agent_name}:{r}:0:0".encode() for r in (long, short))
        await kafka.check_history(agent)


async def test_a_task_carried_forward_lets_offsets_move_and_is_not_run_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    executions: list[tuple[str, int]] = []
    ends = [threading.Event() for _ in range(3)]

    @agent.step
    def work(ctx: Context, payload: int) -> Next | Done:
        executions.append((ctx.run_id, ctx.seq))
        ends[ctx.seq].wait(600.0)
        return Next(work, payload + 1) if payload < 2 else Done()

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent, forward_after_s=0.05, idle_commit_s=0.05)
        await kafka.start(agent, "r1")
        for seq, end in enumerate(ends):
            await until(partial(executions.__contains__, ("r1", seq)), what=f"step {seq} to begin")
            before = (await kafka.committed(agent)).get(("tasks", 0), 0)

            async def moved(before: int = before) -> bool:
                return (await kafka.committed(agent)).get(("tasks", 0), 0) >= before + 4

            await until(moved, what="the offset of the tasks to move while the step runs")
            end.set()
        await kafka.until_status(agent, "r1", "completed")
        assert executions == [("r1", 0), ("r1", 1), ("r1", 2)]
        await kafka.check_history(agent)


async def test_a_result_is_not_undone_by_carrying_its_task_forward(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step ends while a commit is held up, and then is due to be carried on; another copy of
    its task has just come."""
    agent = Agent(agent_name)
    executions: list[str] = []
    end, held = threading.Event(), asyncio.Event()

    @agent.step
    def work(ctx: Context, payload: int) -> Next | Done:
        executions.append(f"{ctx.run_id} {ctx.seq}")
        if ctx.run_id == "long" and ctx.seq == 1:
            end.wait(600.0)
        return Next(work, payload + 1) if payload < 2 else Done()

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent, forward_after_s=600.0)
        await kafka.start(agent, "long")
        await until(lambda: "long 1" in executions, what="the long step to begin")
        (owner,) = running.worker.owners.values()
        ownership = owner.committer.ownership
        assert ownership is not None
        commit = ownership.commit

        async def waiting(*args: Any) -> Committed:
            await held.wait()
            return await commit(*args)

        monkeypatch.setattr(ownership, "commit", waiting)
        await kafka.start(agent, "other")
        await until(lambda: owner.committer.busy, what="a commit to be held up")
        end.set()
        await until(lambda: len(owner.committer) == 1, what="the result of the long step")
        (task,) = await kafka.read(kafka.topics(agent).tasks)
        await kafka.send(ProducerRecord(task.topic, 0, task.key, task.value))
        await until(lambda: owner.inputs.uncommitted_tasks, what="the copy of its task")
        owner.runner.forward_after_s = 0.0
        held.set()
        await kafka.until_status(agent, ("long", "other"), "completed")
        assert sorted(executions) == [f"{r} {seq}" for r in ("long", "other") for seq in range(3)]
        await kafka.check_history(agent)
