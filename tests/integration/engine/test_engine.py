"""The engine on a real broker: one worker, then several, nothing killed yet."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from surefoot import Agent, Context, Done, Next, Resuming, Retry, TerminalError, Wait
from surefoot.state.errors import OwnershipLost
from surefoot.state.ports.log import ProducerRecord
from tests.support.cluster import cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT


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
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        tasks = await kafka.read(kafka.topics(agent).tasks)

        async def caught_up() -> bool:
            committed = await kafka.committed(agent)
            # behind the last task there is the marker of its transaction
            return committed == {("commands", 0): 1, ("tasks", 0): tasks[-1].offset + 2}

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

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
                "run.started",
                "step.retrying",
                "step.retrying",
                "run.completed",
            ]
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

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
        both.wait(timeout=90)
        return Done(threading.current_thread().name)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        worker = await kafka.work(agent)
        for n in range(5):
            await kafka.start(agent, f"r{n}")
        await kafka.until_status(agent, [f"r{n}" for n in range(5)], "completed")
        await worker.drain()
        for record in await kafka.read(kafka.topics(agent).tasks):
            for _ in range(3):
                await kafka.send(ProducerRecord(record.topic, 0, record.key, record.value))
        await kafka.start(agent, "last")
        await kafka.work(agent)
        await kafka.until_status(agent, "last", "completed")
        await kafka.check_history(agent)


async def test_a_command_on_the_wrong_partition_goes_to_its_run(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name)
    async with cluster(bootstrap, app, agent, partitions=2, **PATIENT) as kafka:
        await kafka.work(agent)
        run_id = kafka.run_on(0)
        await kafka.start(agent, run_id)
        await kafka.until_status(agent, run_id, "completed")
        (command,) = await kafka.read(kafka.topics(agent).commands)
        other = kafka.run_on(1)
        value = (command.value or b"").replace(run_id.encode(), other.encode())
        await kafka.send(ProducerRecord(command.topic, 0, other.encode(), value))
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

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
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
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
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


# Going on with what an earlier version or an earlier worker left ------------------------------


@dataclass
class Draft:
    text: str


async def test_a_run_of_an_older_version_goes_on_at_the_step_that_its_own_has_become(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """It waits for a signal at a step that is gone; the step it leads to has another name, another
    type, and is tried again as it says."""
    before = Agent(agent_name)

    @before.step
    async def write(ctx: Context, payload: int) -> Wait:
        return Wait("reviewed", then=publish)

    @before.step
    async def publish(ctx: Context, verdict: str) -> Done:
        return Done()

    after = Agent(agent_name, version=2)
    seen: list[tuple[Draft, int]] = []

    @after.step(retry=Retry(attempts=3, initial_s=0.05))
    async def release(ctx: Context, draft: Draft) -> Done:
        seen.append((draft, ctx.attempt))
        if ctx.attempt == 0:
            raise ConnectionError("not yet")
        return Done(draft.text)

    @after.upcast(from_version=1)
    def renamed(step: str, payload: str) -> tuple[str, dict[str, str]]:
        assert step == "publish"
        return "release", {"text": payload}

    async with cluster(bootstrap, app, before, **PATIENT) as kafka:
        worker = await kafka.work(before)
        await kafka.start(before, "r1")
        await kafka.until_status(before, "r1", "waiting")
        await worker.drain()
        await kafka.work(after)
        await kafka.tell(after, "r1", "signal", name="reviewed", payload=b'"good"')
        await kafka.until_status(after, "r1", "completed")
        assert seen == [(Draft("good"), 0), (Draft("good"), 1)]
        last = (await kafka.events(after, "r1"))[-1]
        assert (last["version"], last["result"]) == (2, b'"good"')
        await kafka.check_history(after)


async def test_a_run_whose_step_is_gone_waits_for_a_person_with_what_to_do(
    bootstrap: str, app: str, agent_name: str
) -> None:
    before, after = Agent(agent_name), Agent(agent_name, version=2)

    @before.step
    async def write(ctx: Context, payload: int) -> Next:
        return Next(publish, payload, after="1h")

    @before.step
    async def publish(ctx: Context, payload: int) -> Done:
        return Done()

    @after.step
    async def release(ctx: Context, payload: int) -> Done:
        return Done(payload)

    async with cluster(bootstrap, app, before, **PATIENT) as kafka:
        worker = await kafka.work(before)
        await kafka.start(before, "r1", b"7")
        await kafka.until_status(before, "r1", "waiting")
        await worker.drain()
        worker = await kafka.work(after)
        await kafka.until_status(before, "r1", "attention")
        await worker.drain()
        checkpoint = await kafka.checkpoint(after, "r1")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "unknown_step"
        assert "@agent.upcast(from_version=1)" in checkpoint["failure"]["message"]
        mapped = Agent(agent_name, version=2)
        mapped.step(release)
        mapped.upcast(from_version=1)(lambda _step, payload: ("release", payload))
        await kafka.work(mapped)
        await kafka.tell(mapped, "r1", "retry")
        await kafka.until_status(mapped, "r1", "waiting")  # for the rest of its hour
        due_ms = checkpoint["due_ms"]
        checkpoint = await kafka.checkpoint(mapped, "r1")
        assert checkpoint is not None
        assert (checkpoint["due_ms"], checkpoint["failure"]) == (due_ms, None)


async def test_the_authors_checks_come_before_a_run_goes_on_and_only_then(
    bootstrap: str, app: str, agent_name: str
) -> None:
    checked: list[tuple[str, str]] = []
    gone = True

    def made() -> Agent:
        agent = Agent(agent_name)

        @agent.step
        async def ask(ctx: Context, payload: int) -> Wait:
            return Wait("go", then=act)

        @agent.step
        async def act(ctx: Context, payload: int) -> Next:
            return Next(end, payload)

        @agent.step
        async def end(ctx: Context, payload: int) -> Done:
            return Done()

        @agent.verify
        async def branch_exists(run: Resuming) -> None:
            checked.append((run.run_id, run.step))
            if run.run_id == "r2" and gone:
                raise ValueError("the branch is gone")

        return agent

    agent = made()
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        worker = await kafka.work(agent)
        for run_id in ("r1", "r2"):
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, ("r1", "r2"), "waiting")
        assert checked == []
        await worker.drain()
        agent = made()
        await kafka.work(agent)
        for run_id in ("r1", "r2"):
            await kafka.tell(agent, run_id, "signal", name="go", payload=b"1")
        await kafka.until_status(agent, "r1", "completed")
        await kafka.until_status(agent, "r2", "attention")
        assert sorted(checked) == [("r1", "act"), ("r2", "act")]
        checkpoint = await kafka.checkpoint(agent, "r2")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "verify_failed"
        assert checkpoint["failure"]["message"] == "branch_exists: the branch is gone"
        gone = False
        await kafka.tell(agent, "r2", "retry")
        await kafka.until_status(agent, "r2", "completed")
        assert checked.count(("r2", "act")) == 2


async def test_a_run_that_is_cancelled_while_its_lost_attempt_waits_counts_as_running_no_more(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    lost = asyncio.Event()

    @agent.step
    async def loses(ctx: Context, payload: int) -> Done:
        lost.set()
        raise OwnershipLost

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent, in_flight=1, lost_retry_s=600.0)
        await kafka.start(agent, "r1")
        await until(lost.is_set, what="the attempt to be lost")
        await kafka.tell(agent, "r1", "cancel")
        await kafka.until_status(agent, "r1", "cancelled")
        owner = running.worker.owners[0]
        await until(lambda: owner.in_flight == 0, what="nothing to be in flight")
        assert not running.worker._slots.ending._running
        assert running.worker._slots.free == 1
