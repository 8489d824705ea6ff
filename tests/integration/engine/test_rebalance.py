"""Workers come and go: what stays goes on where it was, and what moves is picked up where it
stood."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from io import BytesIO

import pytest
from aiokafka.protocol.types import (
    Array,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)
from aiokafka.structs import ConsumerRecord

from surefoot import Agent, Context, Done, Retry, RetryableError
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.names.topics import transactional_ids
from tests.support.cluster import Running, Watched, cluster
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT


async def serves(running: Running, *partitions: int) -> None:
    await until(
        lambda: running.worker.partitions == [*partitions] and running.worker.ready,
        what=f"the worker to serve {partitions}",
    )


async def serves_some(running: Running, count: int) -> None:
    await until(
        lambda: len(running.worker.partitions) == count and running.worker.ready,
        what=f"the worker to serve {count} partitions",
    )


async def leave(running: Running) -> None:
    """Go at once; what is running is given up."""
    running.abort.set()
    await running.drain()


@pytest.mark.parametrize("sync", [False, True], ids=["async", "thread"])
async def test_a_step_in_work_is_not_begun_again_however_often_the_group_rebalances(
    bootstrap: str, app: str, agent_name: str, sync: bool
) -> None:
    watched = Watched(agent_name, sync=sync)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        stays, moves = kafka.run_on(0), kafka.run_on(1)
        watched.hold(stays)
        watched.hold(moves)
        first = await kafka.work(watched.on("A"))
        await kafka.start(agent, stays)
        await kafka.start(agent, moves)
        await until(lambda: len(watched.begun) == 2, what="both steps to begin")
        for turn, name in enumerate(("B", "C"), start=1):
            other = await kafka.work(watched.on(name), slot=1)
            await serves(first, 0)
            assert other.worker.partitions == [1]
            await until(lambda: watched.times(moves, on=name), what=f"{name} to begin")  # noqa: B023
            await leave(other)
            await serves(first, 0, 1)
            # Runs begin in their order: what came back has begun, or waits for its twin to end.
            later = kafka.run_on(1, f"later{turn}")
            await kafka.start(agent, later)
            await kafka.until_status(agent, later, "completed")
            # A thread cannot be stopped: what comes back waits for its end.
            assert watched.times(moves, on="A") == (1 if sync else 1 + turn)
        watched.let_go(stays)
        watched.let_go(moves)
        await kafka.until_status(agent, [stays, moves], "completed")
        assert watched.times(stays) == 1
        assert max(watched.most.values()) == 1
        await kafka.check_history(agent)


async def test_a_step_that_ends_in_time_is_not_run_again_where_its_partition_goes(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        runs = [kafka.run_on(0), kafka.run_on(1)]
        for run_id in runs:
            watched.hold(run_id)
        first = await kafka.work(watched.on("A"), handover_s=30.0)
        for run_id in runs:
            await kafka.start(agent, run_id)
        await until(lambda: len(watched.begun) == 2, what="both steps to begin")
        await kafka.work(watched.on("B"), slot=1, ready=False)
        await until(lambda: first.worker.owners[0].holding, what="the rebalance")
        for run_id in runs:
            watched.let_go(run_id)
        await kafka.until_status(agent, runs, "completed")
        await serves(first, 0)
        assert [watched.times(run_id) for run_id in runs] == [1, 1]


async def test_a_partition_that_stays_reads_on_after_a_rebalance(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        before, after = kafka.run_on(0, "before"), kafka.run_on(0, "after")
        first = await kafka.work(watched.on("A"))
        owner = first.worker.owners[0]
        await kafka.start(agent, before)
        await kafka.until_status(agent, before, "completed")
        await kafka.work(watched.on("B"), slot=1)
        await serves(first, 0)
        await kafka.start(agent, after)
        await kafka.until_status(agent, after, "completed")
        assert first.worker.owners[0] is owner
        assert watched.times(before) == watched.times(after) == 1


async def test_a_partition_paused_for_its_backlog_stays_paused_over_a_rebalance_and_then_goes_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=1)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        runs = [kafka.run_on(0, f"run{n}") for n in range(8)]
        watched.hold(runs[0])
        first = await kafka.work(watched.on("A"), in_flight=1, backlog=2)
        for run_id in runs:
            await kafka.start(agent, run_id)
        consumer = first.log._live
        inputs = set(first.log._inputs(0))
        await until(lambda: inputs <= consumer.paused(), what="the partition to be paused")
        await kafka.work(watched.on("B"), slot=1)
        await serves(first, 0)
        assert inputs <= consumer.paused()
        watched.let_go(runs[0])
        await kafka.until_status(agent, runs, "completed")
        assert len(watched.begun) == len(runs)


async def never(partition: int) -> None:
    await asyncio.Event().wait()


def once_bitten(name: str, wait_s: float, tries: list[tuple[str, int, int]], on: str) -> Agent:
    """An agent whose first attempt asks to be tried again after `wait_s`; notes (worker, attempt,
    epoch ms)."""
    agent = Agent(name)

    @agent.step(retry=Retry(attempts=3, initial_s=0.1, jitter=0.0))
    async def again(ctx: Context, payload: int) -> Done:
        tries.append((on, ctx.attempt, SystemClock().now_ms()))
        if ctx.attempt == 0:
            raise RetryableError("later", retry_after_s=wait_s)
        return Done(None)

    return agent


@pytest.mark.parametrize("returns", ["before it is due", "after it was due"])
async def test_a_run_in_backoff_is_tried_again_in_time_by_whoever_has_its_partition(
    bootstrap: str, app: str, agent_name: str, returns: str
) -> None:
    tries: list[tuple[str, int, int]] = []
    wait_s = 4.0 if returns == "before it is due" else 1.0
    agent = once_bitten(agent_name, wait_s, tries, "A")
    async with cluster(bootstrap, app, agent, **PATIENT, drain_timeout_s=90.0) as kafka:
        run_id = kafka.run_on(1)
        first = await kafka.work(agent)
        await kafka.start(agent, run_id)
        due_ms = await kafka.due_ms(agent, run_id)
        second = await kafka.work(once_bitten(agent_name, wait_s, tries, "B"), slot=1, ready=False)
        if returns == "before it is due":
            await serves(second, 1)
        else:
            # B is given the partition, and does not get to serve it before the run is overdue.
            second.before_own(never)
            await until(lambda: second.worker.partitions == [1], what="B to be given it")
            await until(lambda: kafka.clock.now_ms() > due_ms, what="the run to be due")
        await serves(first, 0)
        if returns == "before it is due":
            await second.drain()  # should it have become due by now, that attempt is the one
        else:
            await leave(second)
        await serves(first, 0, 1)
        await kafka.until_status(agent, run_id, "completed")
        assert [attempt for _, attempt, _ in tries] == [0, 1]
        assert tries[1][2] >= due_ms
        if returns == "after it was due":
            assert tries[1][0] == "A"
        await kafka.check_history(agent)


_TXN_KEY = Schema(("version", Int16), ("id", String("utf-8")))
_TXN_HEAD = (("producer", Int64), ("epoch", Int16), ("timeout_ms", Int32), ("status", Int8))
_TXN_VALUE = {
    0: Schema(
        *_TXN_HEAD,
        ("places", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
    ),
    1: Schema(
        *_TXN_HEAD,
        (
            "places",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
    ),
}


def transactions(records: list[ConsumerRecord], app: str) -> dict[str, set[tuple[str, int]]]:
    """What the coordinator's log tells of an app: where each transactional id has written."""
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for record in records:
        _, transactional_id = _TXN_KEY.decode(BytesIO(record.key))
        if not transactional_id.startswith(app) or record.value is None:
            continue
        version = int.from_bytes(record.value[:2])
        *_, places = _TXN_VALUE[version].decode(BytesIO(record.value[2:]))
        for topic, partitions, *_ in places or ():
            found[transactional_id] |= {(topic, partition) for partition in partitions}
    return found


async def test_a_member_writes_whatever_partitions_it_has_under_two_ids_of_its_own(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=1)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=4, **PATIENT) as kafka:
        topics = kafka.topics(agent)
        workers = [await kafka.work(agent, slot=slot) for slot in range(2)]
        had: dict[int, set[int]] = defaultdict(set)
        for turn in range(4):
            for slot, worker in enumerate(workers):
                await serves_some(worker, 2)
                for partition in worker.worker.partitions:
                    had[partition].add(slot)
            runs = [kafka.run_on(partition, f"turn{turn}") for partition in range(4)]
            for run_id in runs:
                await kafka.start(agent, run_id)
            await kafka.until_status(agent, runs, "completed")
            # One leaves, the other has all for a moment, and the one that is back takes its share.
            slot = turn % 2
            await workers[slot].drain()
            await serves(workers[1 - slot], 0, 1, 2, 3)
            workers[slot] = await kafka.work(agent, slot=slot)
        assert all(slots == {0, 1} for slots in had.values()), had
        written = transactions(await kafka.read("__transaction_state"), app)
        members = [transactional_ids(f"{topics.group}.{app}.{slot}") for slot in range(2)]
        assert set(written) == {identity for ids in members for identity in ids}
        for ids in members:
            places = set().union(*(written[identity] for identity in ids))
            assert {place for place in places if place[0] == topics.state} == {
                (topics.state, partition) for partition in range(4)
            }
