"""A partition goes from one worker to another: what the former owner began counts once or not at
all, whatever it still does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import IllegalGenerationError, InvalidTxnState, RequestTimedOutError
from aiokafka.protocol.group import LeaveGroupRequest

from surefoot.infra.kafka import log as kafka_log
from surefoot.infra.kafka import shared
from surefoot.infra.kafka.log import KafkaLog
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.protocol import UnstableOffsetCommit
from surefoot.infra.kafka_client.transactions import TransactionClient
from tests.support.cluster import Cluster, Running, Watched, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT


def on_end_txn(running: Running, send: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
    """Have the worker's next EndTxn go through `send` (given a function that really sends it), and
    those after it untouched."""
    clients: list[Any] = [producer._client for producer in running.log._shared._producers]
    reals = [client.end for client in clients]

    def through(real: Callable[..., Any]) -> Callable[..., Any]:
        async def ending(*args: Any, **kw: Any) -> Any:
            for client, end in zip(clients, reals, strict=True):
                client.end = end
            return await send(lambda: real(*args, **kw))

        return ending

    for client, real in zip(clients, reals, strict=True):
        client.end = through(real)


def hold_end_txn(running: Running) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold the worker's next EndTxn. Returns an event that says so, and one that lets it go."""
    ending, end = asyncio.Event(), asyncio.Event()

    async def late(send: Callable[[], Awaitable[Any]]) -> Any:
        ending.set()
        await end.wait()
        return await send()

    on_end_txn(running, late)
    return ending, end


async def put_out(running: Running, *, by: Running) -> asyncio.Event:
    """Have the group put the worker out, which does not hear of it until the event is set."""
    healed = cut_off(running.log)
    coordinator = running.log._live._coordinator
    request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
    await by.log._live._coordinator._send_req(request)
    return healed


def unstable(running: Running) -> asyncio.Event:
    """Set once the worker has been told that offsets are not stable."""
    told = asyncio.Event()
    producer: Any = running.log._shared._producers[0]
    real = producer.committed

    async def asking(*args: Any, **kw: Any) -> Any:
        try:
            return await real(*args, **kw)
        except UnstableOffsetCommit:
            told.set()
            raise

    producer.committed = asking
    return told


def cut_off(log: KafkaLog) -> asyncio.Event:
    """No request to the group's coordinator is answered until the event is set."""
    healed = asyncio.Event()
    coordinator = log._live._coordinator
    real = coordinator._send_req

    async def sending(request: Any) -> Any:
        await healed.wait()
        return await real(request)

    coordinator._send_req = sending
    return healed


async def begin(kafka: Cluster, watched: Watched, partition: int, *, seq: int = 0) -> str:
    """A run of that partition, whose step `seq` has begun and is held."""
    run_id = kafka.run_on(partition)
    watched.hold(run_id, seq)
    await kafka.start(watched.on("any"), run_id)
    await until(lambda: watched.times(run_id, seq), what=f"step {seq} of {run_id} to begin")
    return run_id


@pytest.mark.parametrize("sync", [False, True], ids=["async", "thread"])
async def test_a_step_in_work_when_its_partition_moves_counts_once(
    bootstrap: str, app: str, agent_name: str, sync: bool
) -> None:
    watched = Watched(agent_name, sync=sync)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        runs = [kafka.run_on(n % 2, f"run{n}") for n in range(20)]
        for run_id in runs:
            watched.hold(run_id, 1)
        first = await kafka.work(watched.on("A"))
        await asyncio.gather(*(kafka.start(agent, run_id) for run_id in runs))
        await until(
            lambda: all(watched.times(run_id, 1) for run_id in runs), what="all second steps"
        )
        before = await kafka.committed(agent)
        second = await kafka.work(watched.on("B"), slot=1)
        (moved,) = second.worker.partitions
        await until(lambda: first.worker.partitions == [1 - moved], what="A to hear of it")
        mine = [run_id for n, run_id in enumerate(runs) if n % 2 == moved]
        await until(
            lambda: all(watched.times(run_id, 1, on="B") for run_id in mine), what="B to begin"
        )
        # Steps of A that cannot be stopped return while those of B are still in work.
        for run_id in runs:
            watched.hold(run_id, 1, on="B")
            watched.let_go(run_id, 1)
        others = [run_id for run_id in runs if run_id not in mine]
        await kafka.until_status(agent, others, "completed")
        after = await kafka.committed(agent)
        assert after["tasks", moved] == before["tasks", moved]
        for run_id in mine:
            assert (await kafka.checkpoint(agent, run_id) or {})["seq"] == 1
            watched.let_go(run_id, 1, on="B")
        await kafka.until_status(agent, runs, "completed")
        assert max(watched.most.values()) == 1
        assert all(watched.times(run_id, 1) == 1 for run_id in others)
        await kafka.check_history(agent)


async def test_a_worker_cut_off_from_its_group_commits_nothing_and_fences_nobody(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1) as kafka:
        first = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=1)
        former = first.worker.owners[0]
        healed = cut_off(first.log)
        # B waits in the group until A's session is over.
        second = await kafka.work(watched.on("B"), slot=1, ready=False)
        await until(lambda: watched.times(run_id, 1, on="B"), what="B to take over")
        assert first.log.lease_left_s() == 0
        owner = second.worker.owners[0]
        watched.hold(run_id, 1, on="B")
        watched.let_go(run_id, 1)
        await until(lambda: first.worker.owners.get(0) not in (None, former), what="A to be fenced")
        asked = asyncio.Event()
        lease_left_s = first.log.lease_left_s

        def asking() -> float:
            asked.set()
            return lease_left_s()

        first.log.lease_left_s = asking  # type: ignore[method-assign]
        await asked.wait()  # A would like to take the partition back
        watched.let_go(run_id, 1, on="B")
        await kafka.until_status(agent, run_id, "completed")
        assert second.worker.owners[0] is owner
        assert watched.times(run_id, 2, on="A") == 0
        healed.set()
        await kafka.check_history(agent)


async def test_what_a_worker_commits_that_its_group_has_put_out_is_refused(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        first = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=2)
        former = first.worker.owners[0]
        second = await kafka.work(watched.on("B"), slot=1, ready=False)
        await until(lambda: second.log.lease_left_s() > 0, what="B to be in the group")

        async def finish(partition: int) -> None:
            # The group has given the partition to B; A does not know it, and B has read nothing.
            watched.let_go(run_id, 2)
            await until(lambda: first.worker.owners.get(0) is not former, what="A to be refused")

        second.before_own(finish)
        healed = await put_out(first, by=second)
        await kafka.until_status(agent, run_id, "completed")
        assert watched.times(run_id, 2, on="B") == 1
        healed.set()
        await kafka.check_history(agent)


async def test_a_taker_waits_for_the_transaction_that_the_former_owner_has_open(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "UNSTABLE_S", 600.0)
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        first = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=2)
        second = await kafka.work(watched.on("B"), slot=1, ready=False)
        await until(lambda: second.log.lease_left_s() > 0, what="B to be in the group")
        (ending, end), told = hold_end_txn(first), unstable(second)
        watched.let_go(run_id, 2)
        await ending.wait()
        healed = await put_out(first, by=second)
        await told.wait()
        assert not second.worker.owners[0].ready
        end.set()
        await kafka.until_status(agent, run_id, "completed")
        await until(lambda: second.worker.ready, what="B to own")
        assert [b for b in watched.begun if b[1] == run_id] == [("A", run_id, n) for n in range(3)]
        healed.set()
        await kafka.check_history(agent)


async def test_a_taker_ends_the_transaction_of_a_former_owner_that_does_not(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        first = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=2)
        former = first.worker.owners[0]
        second = await kafka.work(watched.on("B"), slot=1, ready=False)
        await until(lambda: second.log.lease_left_s() > 0, what="B to be in the group")
        (ending, end), told = hold_end_txn(first), unstable(second)
        watched.let_go(run_id, 2)
        await ending.wait()
        healed = await put_out(first, by=second)
        await kafka.until_status(agent, run_id, "completed")
        assert told.is_set()
        end.set()
        await until(lambda: first.worker.owners.get(0) is not former, what="A to be refused")
        assert watched.times(run_id, 2, on="B") == 1
        healed.set()
        await kafka.check_history(agent)


async def test_offsets_that_name_the_owner_too_late_are_refused(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would set back what it has committed meanwhile."""
    late: list[Callable[[], Awaitable[None]]] = []
    name = TransactionClient.name

    async def naming(client: TransactionClient, *said: Any) -> None:
        if not late:
            late.append(lambda: name(client, *said))
            raise RequestTimedOutError
        await name(client, *said)

    monkeypatch.setattr(TransactionClient, "name", naming)
    watched = Watched(agent_name)
    agent = watched.on("A")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent)
        run_id = await begin(kafka, watched, 0, seq=1)
        before = await kafka.committed(agent)
        with pytest.raises(IllegalGenerationError):
            await late[0]()
        assert await kafka.committed(agent) == before
        watched.let_go(run_id, 1)
        await kafka.until_status(agent, run_id, "completed")


async def test_a_commit_whose_answer_is_lost_is_found_and_not_done_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=1)
        lost = asyncio.Event()

        async def lose(send: Callable[[], Awaitable[Any]]) -> Any:
            await send()
            lost.set()
            raise InvalidTxnState  # what a client is told that asks too late

        on_end_txn(running, lose)
        watched.let_go(run_id, 1)
        await kafka.until_status(agent, run_id, "completed")
        assert lost.is_set()
        assert [watched.times(run_id, seq) for seq in range(3)] == [1, 1, 1]
        await kafka.check_history(agent)


async def test_a_commit_that_never_happened_is_made_again_without_running_the_step_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=1)
        dropped = asyncio.Event()

        async def drop(send: Callable[[], Awaitable[Any]]) -> Any:
            dropped.set()
            raise InvalidTxnState

        on_end_txn(running, drop)
        watched.let_go(run_id, 1)
        await kafka.until_status(agent, run_id, "completed")
        assert dropped.is_set()
        assert [watched.times(run_id, seq) for seq in range(3)] == [1, 1, 1]
        states = await kafka.read(kafka.topics(agent).state, isolation="read_uncommitted")
        written = [r for r in states if dict(r.headers).get("sf-seq") == b"1"]
        assert len(written) == 2  # the one that was aborted, and the one that holds
        await kafka.check_history(agent)


async def test_a_commit_whose_answer_is_lost_is_asked_for_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """Where each transaction has an epoch of its own, the answer is that to the first request."""
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=1)
        ownership = running.worker.owners[0].committer.ownership
        lost = asyncio.Event()

        async def lose(send: Callable[[], Awaitable[Any]]) -> Any:
            await send()
            lost.set()
            raise RequestTimedOutError

        on_end_txn(running, lose)
        watched.let_go(run_id, 1)
        await kafka.until_status(agent, run_id, "completed")
        assert lost.is_set()
        assert running.worker.owners[0].committer.ownership is ownership
        assert [watched.times(run_id, seq) for seq in range(3)] == [1, 1, 1]
        await kafka.check_history(agent)


async def test_a_fenced_owner_is_followed_by_one_that_begins_from_the_log(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(watched.on("A"))
        run_id = await begin(kafka, watched, 0, seq=1)
        for each in running.log._shared._producers:
            stranger = TransactionalProducer(each.transactional_id, kafka.settings, kafka.clock)
            await stranger.start()
            await stranger.retire()
        watched.let_go(run_id, 1)
        await kafka.until_status(agent, run_id, "completed")
        assert [watched.times(run_id, seq) for seq in range(3)] == [1, 2, 1]
        assert names(await kafka.events(agent, run_id)).count("step.completed") == 2
        await kafka.check_history(agent)


async def test_a_spare_worker_without_partitions_takes_over_from_one_that_dies(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far shorter than the session, so that the spare has been without records for far longer.
    monkeypatch.setattr(kafka_log, "MAX_POLL_INTERVAL_MS", 1_000)
    watched = Watched(agent_name)
    agent = watched.on("any")
    async with cluster(bootstrap, app, agent, partitions=1) as kafka:
        workers = [await kafka.work(watched.on("A"))]
        workers.append(await kafka.work(watched.on("B"), slot=1, ready=False))
        await until(lambda: workers[1].log.lease_left_s() > 0, what="B to be in the group")

        def serving() -> list[Running]:
            return [worker for worker in workers if worker.worker.partitions]

        await until(lambda: len(serving()) == 1, what="one of the two to have the partition")
        (busy,) = serving()
        (spare,) = [worker for worker in workers if worker is not busy]
        run_id = await begin(kafka, watched, 0, seq=1)
        await busy.vanish()
        watched.let_go(run_id, 1)
        await until(
            lambda: spare.worker.partitions == [0] and spare.worker.ready,
            timeout_s=kafka.settings.session_timeout_ms / 1000 + 60,
            what="the spare to take over",
        )
        await kafka.until_status(agent, run_id, "completed")
        await kafka.check_history(agent)
