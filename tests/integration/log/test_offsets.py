"""Whatever the committed offsets say, no input is lost and none counts twice."""

from __future__ import annotations

from collections import Counter

from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Next, Retry, RetryableError
from surefoot.infra.runtime.clock import SystemClock
from surefoot.schemas.codec.codec import decode, encode
from surefoot.state.ports.log import ProducerRecord
from tests.support.cluster import Watched, cluster, headers_of
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT


async def test_the_committed_offset_does_not_pass_a_step_in_work_and_a_restart_loses_nothing(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=1)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        runs = [f"r{n}" for n in range(10)]
        watched.hold("r0")
        for run_id in runs:
            await kafka.start(agent, run_id)
        first = await kafka.work(watched.on("A"))
        await kafka.until_status(agent, runs[1:], "completed")
        assert (await kafka.committed(agent)).get(("commands", 0), 0) == 0
        await first.vanish()
        watched.let_go("r0")
        await kafka.work(watched.on("B"))
        await kafka.until_status(agent, runs, "completed")
        assert Counter(watched.begun) == Counter(
            [("A", run_id, 0) for run_id in runs] + [("B", "r0", 0)]
        )
        await kafka.check_history(agent)


async def test_a_long_step_is_carried_forward_so_that_offsets_move_on_and_is_not_lost(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=1)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        watched.hold("r0")
        await kafka.start(agent, "r0")
        first = await kafka.work(watched.on("A"), forward_after_s=0.1)

        async def moved_on() -> bool:
            committed = await kafka.committed(agent)
            return committed.get(("commands", 0)) == 1 and committed.get(("tasks", 0), 0) > 0

        await until(moved_on, what="the committed offsets to pass the step's inputs")
        assert watched.times("r0") == 1
        await first.vanish()
        watched.let_go("r0")
        await kafka.work(watched.on("B"))
        await kafka.until_status(agent, "r0", "completed")
        assert watched.times("r0") == 2
        await kafka.check_history(agent)


async def test_one_record_at_offset_zero_is_processed_once_over_many_restarts(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=1)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        assert await kafka.start(agent, "r1") == 0
        worker = await kafka.work(watched.on("A"))
        await kafka.until_status(agent, "r1", "completed")
        for _ in range(3):
            await worker.vanish()
            worker = await kafka.work(watched.on("A"))
            assert (await kafka.committed(agent))["commands", 0] == 1
            assert worker.worker.owners[0].store.receipts.keys() == {"r1"}
        await worker.drain()
        assert watched.times("r1") == 1


async def test_offsets_set_back_to_the_beginning_run_nothing_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        runs = [f"r{n}" for n in range(5)]
        first = await kafka.work(watched.on("A"))
        for run_id in runs:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, runs, "completed")
        await first.drain()
        before = await kafka.committed(agent)
        await kafka.set_offsets(agent, {("commands", 0): 0, ("tasks", 0): 0})
        await kafka.work(watched.on("B"))

        async def gone_through() -> bool:
            after = await kafka.committed(agent)
            return all(after[place] >= before[place] for place in before)

        await until(gone_through, what="the inputs to have been gone through again")
        assert {worker for worker, _, _ in watched.begun} == {"A"}
        assert max(Counter(watched.begun).values()) == 1
        await kafka.check_history(agent)


async def test_offsets_set_forward_by_an_admin_lose_neither_a_start_nor_a_task(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        watched.hold("r1", 1)
        await kafka.start(agent, "r1")
        first = await kafka.work(watched.on("A"))
        await until(lambda: watched.times("r1", 1), what="the task to be in work")
        first.abort.set()
        await first.drain()
        watched.let_go("r1", 1)
        after = await kafka.start(agent, "r2") + 1
        await kafka.set_offsets(agent, {("commands", 0): after, ("tasks", 0): 100})
        await kafka.work(watched.on("B"))
        await kafka.until_status(agent, ["r1", "r2"], "completed")
        await kafka.check_history(agent)


async def test_a_run_whose_task_is_gone_is_adopted(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        watched.hold("r1", 1)
        await kafka.start(agent, "r1")
        first = await kafka.work(watched.on("A"))
        await until(lambda: watched.times("r1", 1), what="the task to be in work")
        await first.vanish()
        watched.let_go("r1", 1)
        await kafka.delete_before(kafka.topics(agent).tasks, 0, -1)
        await kafka.work(watched.on("B"))
        await kafka.until_status(agent, "r1", "completed")
        assert [watched.times("r1", seq) for seq in range(3)] == [1, 2, 1]
        done = [e["seq"] for e in await kafka.events(agent, "r1") if e["step"]]
        assert done == [0, 1, 2]


async def test_a_committed_offset_below_the_start_of_the_log_is_told_and_the_rest_goes_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        first = await kafka.work(watched.on("A"))
        await kafka.start(agent, "r0")
        await kafka.until_status(agent, "r0", "completed")
        await first.drain()
        for run_id in ("lost1", "lost2", "kept"):
            kept = await kafka.start(agent, run_id)
        await kafka.delete_before(kafka.topics(agent).commands, 0, kept)
        with capture_logs() as logs:
            await kafka.work(watched.on("B"))
        (told,) = [entry for entry in logs if entry["event"] == "committed_offset_gone"]
        assert (told["log_level"], told["committed"], told["log_start"]) == ("error", 1, kept)
        await kafka.until_status(agent, "kept", "completed")
        assert not watched.times("lost1")
        (dead,) = await kafka.dead()
        said = headers_of(dead)
        assert (said["sf-dead-code"], said["sf-dead-topic"]) == (
            b"commands_lost",
            kafka.topics(agent).commands.encode(),
        )
        assert (said["sf-dead-offset"], said["sf-dead-until"]) == (b"1", b"%d" % kept)
        await kafka.check_history(agent)


async def test_inputs_that_race_for_one_step_ask_for_the_next_one_once(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=4)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        topics = kafka.topics(agent)

        def task(seq: int) -> ProducerRecord:
            value = encode("Task", {"run_id": "r1", "seq": seq, "step": "count"})
            return ProducerRecord(topics.tasks, 0, b"r1", value)

        await kafka.work(watched.on("A"))
        for seq in range(3):
            watched.hold("r1", seq)
        await kafka.start(agent, "r1")
        for seq in range(3):
            await until(lambda: watched.times("r1", seq), what=f"step {seq}")  # noqa: B023
            for raced in (seq, seq, seq + 1, max(0, seq - 1)):
                await kafka.send(task(raced))
            await kafka.start(agent, "r1")
            watched.let_go("r1", seq)
            await kafka.send(task(seq))
            await kafka.send(task(seq + 1))
        await kafka.until_status(agent, "r1", "completed")
        assert [watched.times("r1", seq) for seq in range(4)] == [1, 1, 1, 1]
        asked = [
            decode(record.value, "Task")[1]["seq"]
            for record in await kafka.read(topics.tasks)
            if "sf-txn" in headers_of(record)
        ]
        assert asked == [1, 2, 3]
        await kafka.check_history(agent)


async def test_a_copy_of_its_task_does_not_cut_a_backoff_short(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    tries: list[tuple[int, int]] = []

    @agent.step(retry=Retry(jitter=0.0))
    async def later(ctx: Context, payload: int) -> Done:
        tries.append((ctx.attempt, SystemClock().now_ms()))
        if ctx.attempt == 0:
            raise RetryableError("later", retry_after_s=1.5)
        return Done(None)

    @agent.step(start=True)
    async def first(ctx: Context, payload: int) -> Next | Done:
        return Next(later, 0) if ctx.run_id == "r1" else Done(None)

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        due_ms = await kafka.due_ms(agent, "r1")
        (task,) = await kafka.read(kafka.topics(agent).tasks)
        for _ in range(3):
            await kafka.send(ProducerRecord(task.topic, 0, task.key, task.value))
        await kafka.start(agent, "r2")
        await kafka.until_status(agent, ["r1", "r2"], "completed")
        assert [attempt for attempt, _ in tries] == [0, 1]
        assert tries[1][1] >= due_ms
        await kafka.check_history(agent)
