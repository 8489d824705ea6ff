"""The engine on a real broker: one worker, then several, nothing killed yet."""

from __future__ import annotations

import asyncio
import threading

from surefoot import Agent, Context, Done, Next, Retry, TerminalError
from surefoot.state.ports import Out
from tests.harness import cluster, names
from tests.waiting import until


def chain(name: str, steps: int = 3) -> Agent:
    """An agent that counts up, a step at a time."""
    agent = Agent(name)

    async def count(ctx: Context, payload: int) -> Next | Done:
        return Next(count, payload + 1) if payload + 1 < steps else Done(payload + 1)

    agent.step(count)
    return agent


async def test_a_run_goes_through_its_steps_one_transaction_each(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        events = await kafka.events(agent, "r1")
        assert names(events) == ["run.started", "step.completed", "step.completed", "run.completed"]
        assert events[-1]["result"] == b"3"
        checkpoint = await kafka.checkpoint(agent, "r1")
        assert checkpoint is not None
        assert (checkpoint["seq"], checkpoint["payload"]) == (3, b"")
        await kafka.check_history(agent)
        states = await kafka.read(kafka.topics(agent).state)
        transactions = [dict(r.headers)["sf-txn"] for r in states if r.key == b"r1"]
        assert len(set(transactions)) == 3


async def test_a_repeated_start_is_one_run_also_after_it_is_over(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent) as kafka:
        for _ in range(5):
            await kafka.start(agent, "r1")
        await kafka.work(agent)
        await kafka.until_status(agent, "r1", "completed")
        await kafka.start(agent, "r1")
        await kafka.start(agent, "r2")
        await kafka.until_status(agent, "r2", "completed")
        assert names(await kafka.events(agent, "r1")).count("run.started") == 1
        await kafka.check_history(agent)


async def test_a_start_with_other_input_under_the_same_id_is_told_and_ignored(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1", b"0")
        await kafka.until_status(agent, "r1", "completed")
        await kafka.start(agent, "r1", b"1")

        async def told() -> bool:
            return "start.ignored" in names(await kafka.events(agent, "r1"))

        await until(told, what="the ignored start in the history")
        checkpoint = await kafka.checkpoint(agent, "r1")
        assert checkpoint is not None
        assert checkpoint["result"] == b"3"


async def test_an_idle_group_has_no_lag_although_transactions_end_in_markers(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent, partitions=1) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        await kafka.read(kafka.topics(agent).tasks)

        async def caught_up() -> bool:
            committed = await kafka.committed(agent)
            # two tasks, each followed by the marker of its transaction
            return committed.get(("tasks", 0)) == 4 and committed.get(("commands", 0)) == 1

        await until(caught_up, what="the committed offsets to step over the markers")


async def test_a_failing_step_is_tried_again_and_the_count_survives_a_restart(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    attempts: list[int] = []

    @agent.step(retry=Retry(attempts=5, initial_s=0.05, max_s=0.2))
    async def flaky(ctx: Context, payload: int) -> Done:
        attempts.append(ctx.attempt)
        if ctx.attempt < 2:
            raise ValueError("not yet")
        return Done(ctx.attempt)

    async with cluster(bootstrap, app, agent) as kafka:
        first = await kafka.work(agent)
        runs = [f"r{n}" for n in range(9)]
        for run_id in runs:
            await kafka.start(agent, run_id)
        await until(lambda: 1 in attempts, what="a second attempt")
        await first.drain()
        await kafka.work(agent)
        await kafka.until_status(agent, runs, "completed")
        for run_id in runs:
            events = await kafka.events(agent, run_id)
            assert names(events) == [
                "run.started", "step.retrying", "step.retrying", "run.completed",
            ]  # fmt: skip
            assert events[-1]["attempt"] == 2


async def test_a_permanent_error_fails_at_once_with_one_dead_letter(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    calls: list[str] = []

    @agent.step(retry=Retry(attempts=5))
    async def refuse(ctx: Context, payload: int) -> Done:
        calls.append(ctx.run_id)
        raise TerminalError("never")

    async with cluster(bootstrap, app, agent) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "failed")
        assert calls == ["r1"]
        (dead,) = await kafka.dead()
        headers = dict(dead.headers)
        assert dead.key == b"r1"
        assert headers["sf-dead-code"] == b"step_raised"
        assert headers["sf-dead-message"] == b"never"
        assert headers["sf-dead-attempts"] == b"1"


async def test_sync_steps_run_in_threads_and_do_not_wait_for_each_other(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    both = threading.Barrier(2)

    @agent.step
    def meet(ctx: Context, payload: int) -> Done:
        both.wait(timeout=20)
        return Done(threading.current_thread().name)

    async with cluster(bootstrap, app, agent) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.start(agent, "r2")
        await kafka.until_status(agent, ["r1", "r2"], "completed")
        checkpoint = await kafka.checkpoint(agent, "r1")
        assert checkpoint is not None
        assert checkpoint["result"] == b'"surefoot-step"'


async def test_the_same_task_delivered_many_times_is_one_step(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name, steps=4)
    async with cluster(bootstrap, app, agent, partitions=1) as kafka:
        worker = await kafka.work(agent)
        for n in range(5):
            await kafka.start(agent, f"r{n}")
        await kafka.until_status(agent, [f"r{n}" for n in range(5)], "completed")
        await worker.drain()
        for record in await kafka.read(kafka.topics(agent).tasks):
            for _ in range(3):
                await kafka.send(Out(record.topic, 0, record.key, record.value))
        await kafka.start(agent, "last")
        await kafka.work(agent)
        await kafka.until_status(agent, "last", "completed")
        await kafka.check_history(agent)


async def test_a_command_on_the_wrong_partition_goes_to_its_run(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent, partitions=2) as kafka:
        await kafka.work(agent)
        run_id = kafka.run_on(0)
        await kafka.start(agent, run_id)
        await kafka.until_status(agent, run_id, "completed")
        (command,) = await kafka.read(kafka.topics(agent).commands)
        other = kafka.run_on(1)
        value = (command.value or b"").replace(run_id.encode(), other.encode())
        await kafka.send(Out(command.topic, 0, other.encode(), value))
        await kafka.until_status(agent, other, "completed")
        await kafka.check_history(agent)


async def test_many_runs_share_the_slots_of_one_worker(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    now, most = 0, 0

    @agent.step
    async def busy(ctx: Context, payload: int) -> Done:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0)
        now -= 1
        return Done(None)

    async with cluster(bootstrap, app, agent) as kafka:
        runs = [f"r{n}" for n in range(300)]
        await asyncio.gather(*(kafka.start(agent, run_id) for run_id in runs))
        await kafka.work(agent, in_flight=3, backlog=20)
        await kafka.until_status(agent, runs, "completed")
        assert 1 <= most <= 3
        await kafka.check_history(agent)


async def test_a_receipt_is_forgotten_when_its_window_is_over_and_not_before(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent, partitions=1) as kafka:
        worker = await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        await worker.drain()
        assert await kafka.status(agent, "r1") == "completed"
        await kafka.work(agent, dedup_window_ms=0)

        async def forgotten() -> bool:
            states = await kafka.read(kafka.topics(agent).state)
            return [r.value for r in states if r.key == b"r1"][-1] is None

        await until(forgotten, what="the tombstone of the receipt")
        await kafka.start(agent, "r1")

        async def again() -> bool:
            return names(await kafka.events(agent, "r1")).count("run.completed") == 2

        await until(again, what="the run of a start after the window")
