"""Nothing of a partition is processed before all of its state has been read back, however that
goes; and what cannot be read costs one run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from surefoot.infra.kafka.log import KafkaOwnership
from surefoot.state.errors import Unavailable
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from tests.support.cluster import Cluster, Watched, cluster, headers_of, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

Apply = Callable[[list[ConsumerRecord]], None]


async def finished_runs(kafka: Cluster, watched: Watched) -> list[str]:
    """Two runs in each partition that are over, with a start of each waiting to be told so."""
    agent = watched.on("before")
    runs = [
        kafka.run_on(partition, f"old{n}")
        for partition in range(kafka.settings.partitions)
        for n in range(2)
    ]
    worker = await kafka.work(agent)
    for run_id in runs:
        await kafka.start(agent, run_id)
    await kafka.until_status(agent, runs, "completed")
    await worker.drain()
    for run_id in runs:
        await kafka.start(agent, run_id)
    return runs


@pytest.mark.parametrize(
    "error", [Unavailable("SF3002", "no answer"), RuntimeError("a bug")], ids=repr
)
async def test_a_partition_whose_restore_fails_waits_and_the_others_go_on(
    bootstrap: str,
    app: str,
    agent_name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    restore = KafkaOwnership.restore
    failures = 0
    broken = True

    async def failing(self: KafkaOwnership, start: int | None, apply: Apply) -> int:
        nonlocal failures
        if broken and self._partition == 1:
            failures += 1
            raise error
        return await restore(self, start, apply)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        old = await finished_runs(kafka, watched)
        monkeypatch.setattr(KafkaOwnership, "restore", failing)
        worker = await kafka.work(agent, ready=False)
        new = [kafka.run_on(partition, "new") for partition in range(2)]
        for run_id in new:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, new[0], "completed")
        await until(lambda: failures >= 2, what="the restore to be tried again")
        assert not worker.worker.ready
        assert watched.times(new[1]) == 0
        broken = False
        await until(lambda: worker.worker.ready, what="the worker to serve everything")
        await kafka.until_status(agent, new[1], "completed")
        assert all(watched.times(run_id) == 1 for run_id in (*old, *new))
        await kafka.check_history(agent)


async def test_state_that_stands_behind_an_open_transaction_of_somebody_else_is_waited_for(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    restore = KafkaOwnership.restore
    reads = 0

    async def counting(self: KafkaOwnership, start: int | None, apply: Apply) -> int:
        def applying(records: list[ConsumerRecord]) -> None:
            nonlocal reads
            reads += 1
            apply(records)

        return await restore(self, start, applying)

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        stranger = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{app}-stranger")
        await stranger.start()
        try:
            first = await kafka.work(watched.on("A"))
            await stranger.begin_transaction()
            await stranger.send_and_wait(kafka.topics(agent).state, b"?", b"@?", 0)
            await kafka.start(agent, "r1")

            async def over() -> bool:
                return names(await kafka.events(agent, "r1"))[-1:] == ["run.completed"]

            await until(over, what="the run to be over")
            await first.drain()
            await kafka.start(agent, "r1")
            monkeypatch.setattr(KafkaOwnership, "restore", counting)
            second = await kafka.work(watched.on("B"), ready=False)
            await until(lambda: reads >= 5, what="the restore to stand still")
            assert not second.worker.ready
            await stranger.abort_transaction()
        finally:
            await stranger.stop()
        await until(lambda: second.worker.ready, what="B to be ready")
        await kafka.start(agent, "r2")
        await kafka.until_status(agent, "r2", "completed")
        assert [b for b in watched.begun if b[1] == "r1"] == [("A", "r1", n) for n in range(3)]
        await kafka.check_history(agent)


async def test_workers_that_come_and_die_during_a_restore_leave_nothing_out_and_repeat_nothing(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    restore = KafkaOwnership.restore
    restoring: set[str] = set()
    go_on = asyncio.Event()

    async def gated(self: KafkaOwnership, start: int | None, apply: Apply) -> int:
        restoring.add(self._log._instance)
        await go_on.wait()
        return await restore(self, start, apply)

    async with cluster(bootstrap, app, agent, partitions=4) as kafka:
        old = await finished_runs(kafka, watched)
        new = [kafka.run_on(partition, "new") for partition in range(4)]
        for run_id in new:
            await kafka.start(agent, run_id)
        monkeypatch.setattr(KafkaOwnership, "restore", gated)
        workers = []
        for slot in range(3):
            workers.append(await kafka.work(watched.on(str(slot)), slot=slot, ready=False))
            await until(
                lambda: len(restoring) == len(workers),
                what=f"worker {slot} to restore",
            )
        *living, dying = workers
        assert dying.worker.partitions
        assert not any(w.worker.ready for w in workers)
        await dying.vanish()
        assert set(watched.begun) == {b for b in watched.begun if b[0] == "before"}
        go_on.set()
        await until(
            lambda: (
                sorted(p for w in living for p in w.worker.partitions) == [0, 1, 2, 3]
                and all(w.worker.ready for w in living)
            ),
            what="the others to serve everything",
        )
        await kafka.until_status(agent, new, "completed")
        assert all(watched.times(run_id) == 1 for run_id in (*old, *new))
        await kafka.check_history(agent)


async def test_a_checkpoint_that_cannot_be_decoded_costs_that_run_and_nothing_is_guessed(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        topics = kafka.topics(agent)
        for run_id in ("bad", "good"):
            watched.hold(run_id, 1)
            await kafka.start(agent, run_id)
        first = await kafka.work(watched.on("A"))
        await until(
            lambda: watched.times("bad", 1) and watched.times("good", 1), what="both to go on"
        )
        await first.vanish()
        await kafka.send(ProducerRecord(topics.state, 0, b"bad", b"\xc3\x01 not a checkpoint"))
        for run_id in ("bad", "good"):
            watched.let_go(run_id, 1)
        await kafka.start(agent, "bad")
        await kafka.work(watched.on("B"))
        await kafka.until_status(agent, "good", "completed")

        async def told() -> list[Any]:
            dead = await kafka.dead()
            return dead if len(dead) == 2 else []

        for dead in await until(told, what="its task and its start to be told"):
            assert headers_of(dead)["sf-dead-code"] == b"state_unreadable"
        assert [b for b in watched.begun if b[1] == "bad"] == [("A", "bad", 0), ("A", "bad", 1)]
        states = [r for r in await kafka.read(topics.state) if r.key == b"bad"]
        assert states[-1].value == b"\xc3\x01 not a checkpoint"


async def test_a_run_of_a_newer_version_is_left_for_a_worker_that_knows_it(
    bootstrap: str, app: str, agent_name: str
) -> None:
    newer, older = Watched(agent_name, version=2), Watched(agent_name, version=1)
    agent = newer.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        newer.hold("r2", 1)
        await kafka.start(agent, "r2")
        first = await kafka.work(newer.on("A"))
        await until(lambda: newer.times("r2", 1), what="the run to go on")
        await first.vanish()
        rolled_back = await kafka.work(older.on("B"))
        await kafka.start(agent, "r2")
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        assert older.times("r2", 1) == 0
        assert await kafka.status(agent, "r2") == "running"
        await rolled_back.drain()
        newer.let_go("r2", 1)
        await kafka.work(newer.on("C"))
        await kafka.until_status(agent, "r2", "completed")
        assert not older.times("r2")
        assert newer.times("r2") == 1
        await kafka.check_history(agent)


async def test_a_worker_told_to_stop_while_a_takeover_closes_its_reader_ends(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka's `close` swallows the cancellation of who awaits it."""
    agent = Watched(agent_name).on("any")
    closing, go_on = asyncio.Event(), asyncio.Event()

    async def metadata_task() -> None:
        """The client's own, which ends some time after it was cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            closing.set()
            await go_on.wait()

    close_reader = KafkaOwnership._close_reader

    async def closed_slowly(self: KafkaOwnership) -> None:
        client = (await self._open_reader())._client
        client._sync_task.cancel()
        client._sync_task = asyncio.create_task(metadata_task())
        await asyncio.sleep(0)
        await close_reader(self)

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        monkeypatch.setattr(KafkaOwnership, "_close_reader", closed_slowly)
        running = await kafka.work(agent, ready=False)
        await closing.wait()
        monkeypatch.undo()
        serving = running.worker._serving[0]
        draining = asyncio.create_task(running.drain())
        await until(serving.cancelling, what="the owner to be told")
        go_on.set()
        assert await draining
        assert serving.cancelled()
