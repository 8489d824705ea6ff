"""Ways in which pipelines on Kafka have been seen to lose, double or stall their work."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from surefoot import Agent, Approval, Approve, Context, Done, Next, Parallel, Retry, TerminalError
from surefoot.consumers.deadlines import ConsumerDeadlines
from surefoot.infra.kafka.log import KafkaOwnership
from surefoot.state.names.partitioner import partition_of
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import start_out
from tests.support.cluster import cluster, headers_of, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT


async def test_nothing_of_an_attempt_that_fails_at_its_end_is_ever_seen(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """Effects, messages and plans go with the step's commit, and around it goes nothing."""
    agent = Agent(agent_name)
    second = threading.Event()

    @agent.step(start=True, retry=Retry(attempts=2, initial_s=0.1, jitter=0))
    async def ask(ctx: Context, payload: int) -> Parallel:
        ctx.outbox.http("POST", "http://127.0.0.1:9/", json={"attempt": ctx.attempt})
        ctx.thread.append({"attempt": ctx.attempt})
        ctx.plan.add("go on")
        if ctx.attempt == 0:
            raise ConnectionError("at the very end")
        await until(second.is_set, what="the test to have looked")
        return Parallel([(child, 1), (child, 2)], join=joined)

    @agent.step
    async def child(ctx: Context, payload: int) -> Done:
        return Done(payload)

    @agent.step
    async def joined(ctx: Context, results: list[int]) -> Done:
        return Done([results, ctx.thread.messages])

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")

        async def failed_once() -> bool:
            return "step.retrying" in names(await kafka.events(agent, "r1"))

        await until(failed_once, what="the first attempt to fail")
        assert await kafka.effects() == {}
        state = await kafka.read(kafka.topics(agent).state)
        assert not [record for record in state if b"|m:" in (record.key or b"")]
        assert len(await kafka.read(kafka.topics(agent).commands)) == 1
        second.set()
        await kafka.until_status(agent, "r1", "completed")
        (effect,) = (await kafka.effects()).values()
        assert json.loads(effect.body) == {"attempt": 1}
        starts = [
            r for r in await kafka.read(kafka.topics(agent).commands) if b"~" in (r.key or b"")
        ]
        assert len(starts) == 2
        checkpoint = await kafka.checkpoint(agent, "r1")
        assert checkpoint is not None
        assert json.loads(checkpoint["result"]) == [[1, 2], [{"attempt": 1}]]
        await kafka.check_history(agent)


async def test_a_worker_that_breaks_in_a_commit_moves_no_offset(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(agent_name)
    executions: list[str] = []
    tried = asyncio.Event()

    @agent.step
    async def one(ctx: Context, payload: int) -> Done:
        executions.append(ctx.run_id)
        return Done(payload)

    async def broken(self: KafkaOwnership, *_: Any) -> int:
        tried.set()
        raise RuntimeError("a bug")

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.start(agent, "r1")
        with monkeypatch.context() as patch:
            patch.setattr(KafkaOwnership, "commit", broken)
            worker = await kafka.work(agent)
            await tried.wait()
            await worker.drain()
        assert set((await kafka.committed(agent)).values()) == {0}
        assert await kafka.status(agent, "r1") is None
        await kafka.work(agent)
        await kafka.until_status(agent, "r1", "completed")
        assert names(await kafka.events(agent, "r1")) == ["run.started", "run.completed"]
        await kafka.check_history(agent)


async def test_commands_without_a_key_are_told_apart_by_what_they_say(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def one(ctx: Context, payload: int) -> Done:
        return Done(payload)

    async with cluster(bootstrap, app, agent, partitions=2, **PATIENT) as kafka:
        await kafka.work(agent)
        run_ids = ["keyless", "empty"]
        for run_id, key in zip(run_ids, (None, b""), strict=True):
            out = start_out(app, 2, agent.name, run_id, b"7", sent_ms=0)
            await kafka.send(ProducerRecord(out.topic, partition_of(run_id, 2), key, out.value))
        await kafka.until_status(agent, run_ids, "completed")
        state = await kafka.read(kafka.topics(agent).state)
        assert all(record.key for record in state)
        await kafka.check_history(agent)


async def test_the_letters_of_every_partition_go_to_the_one_of_the_dead(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def one(ctx: Context, payload: int) -> Done:
        return Done(payload)

    async with cluster(bootstrap, app, agent, partitions=6, **PATIENT) as kafka:
        commands = kafka.topics(agent).commands
        for partition in range(6):
            await kafka.send(ProducerRecord(commands, partition, b"k", b"junk"))
        await kafka.work(agent)
        for partition in range(6):
            await kafka.start(agent, kafka.run_on(partition))
        await kafka.until_status(agent, [kafka.run_on(p) for p in range(6)], "completed")

        async def buried() -> bool:
            return len(await kafka.dead()) == 6

        await until(buried, what="six dead letters")
        letters = await kafka.dead()
        assert {letter.partition for letter in letters} == {0}
        told = {headers_of(letter)["sf-dead-partition"] for letter in letters}
        assert told == {b"%d" % partition for partition in range(6)}


async def test_an_error_of_any_length_is_told_in_a_letter_of_bounded_size(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    class Deep(Exception):
        pass

    @agent.step(start=True, retry=Retry(attempts=5, initial_s=0.05, max_s=0.05, jitter=0))
    async def wordy(ctx: Context, payload: int) -> Done:
        error: Exception = TerminalError("x" * 200_000) if payload else Deep("x" * 200_000)
        for number in range(20):
            cause, error = error, Deep(f"{number}" * 1_000)
            error.__cause__ = cause
        raise error

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1")
        for time in range(3):

            async def buried(time: int = time) -> bool:
                return len(await kafka.dead()) == time + 1

            await until(buried, what=f"{time + 1} letters")
            await kafka.tell(agent, "r1", "retry")
        for letter in await kafka.dead():
            size = sum(len(name) + len(value or b"") for name, value in letter.headers)
            assert size < 16_384
        failing = [e for e in await kafka.events(agent, "r1") if e["type"] == "step.retrying"]
        assert len(failing) >= 4
        assert all(len(event["failure"]["message"]) < 16_384 for event in failing)


async def test_a_run_that_waits_for_a_person_holds_up_nobody_behind_it(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """One slot, one partition: many others come after it and are done, and offsets move past."""
    agent = Agent(agent_name)

    @agent.step(start=True)
    async def ask(ctx: Context, payload: int) -> Approve | Next:
        if ctx.run_id == "first":
            return Approve({"pay": 7}, then=decided)
        return Next(done, payload)

    @agent.step
    async def decided(ctx: Context, approval: Approval, what: dict[str, int]) -> Done:
        return Done(approval.approved)

    @agent.step
    async def done(ctx: Context, payload: int) -> Done:
        return Done(payload)

    others = [f"r{number}" for number in range(300)]
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        worker = await kafka.work(agent, in_flight=1)
        await kafka.start(agent, "first")
        await kafka.until_status(agent, "first", "waiting")
        for run_id in others:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, others, "completed")

        async def moved() -> bool:
            return (await kafka.committed(agent)).get(("commands", 0), 0) >= 1 + len(others)

        await until(moved, what="the offsets to move past the run that waits")
        (owner,) = worker.worker.owners.values()
        assert owner.in_flight == 0
        assert await kafka.status(agent, "first") == "waiting"


async def test_a_step_that_hangs_in_its_thread_is_sent_back_and_done_beside_it(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """Elsewhere the run stays `running` until the process is started again."""
    agent = Agent(agent_name)
    begun: list[int] = []
    gates = [threading.Event(), threading.Event()]

    @agent.step
    def fetch(ctx: Context, payload: int) -> Done:
        begun.append(ctx.epoch)
        gates[ctx.epoch].wait()
        return Done(ctx.epoch)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        running = await kafka.work(agent, deadlines=ConsumerDeadlines(twin_wait_s=0.01))
        await kafka.start(agent, "r")
        await until(lambda: begun == [0], what="the step to hang")
        await kafka.tell(agent, "r", "rewind", epoch=0, seq=0, step="fetch", payload=b"0")
        await until(lambda: begun == [0, 1], what="the step to begin beside it")

        async def told() -> bool:
            checkpoint = await kafka.checkpoint(agent, "r")
            assert checkpoint is not None
            return (checkpoint["failure"] or {}).get("code") == "attempt_abandoned"

        await until(told, what="the run to say so")
        gates[1].set()
        await kafka.until_status(agent, "r", "completed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert (checkpoint["result"], checkpoint["failure"]) == (b"1", None)
        gates[0].set()
        await until(lambda: not running.executor.busy(), what="the abandoned attempt to end")
        await kafka.check_history(agent)
