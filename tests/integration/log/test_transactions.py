"""Commits that do not end cleanly: what aiokafka does by itself, and what is made of it.

These tests hold the private names of aiokafka that the transactional producer hooks into.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka.protocol.transaction import EndTxnRequest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Next
from surefoot.infra.kafka import txn as kafka_txn
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.appender import KafkaAppender
from surefoot.infra.writers.commands import LogCommands
from surefoot.state.errors import FencedError, OutcomeUnknown
from surefoot.state.ports.log import ProducerRecord
from tests.support.cluster import Cluster, Running, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 1_000,
    "session_timeout_ms": 6_000,
}


@dataclass
class EndTxnLoss:
    """Loses the answers to EndTxn requests of one transactional id, or the requests themselves."""

    transactional_id: str
    #: what the client is told instead of an answer
    error: Exception
    #: the request does reach the broker
    arrives: bool = True
    #: how many are lost; those of one client object only
    most: int = 1
    lost: int = 0
    #: all that were tried, lost or not
    tried: int = 0
    _client: AIOKafkaClient | None = field(default=None, repr=False)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = AIOKafkaClient.send
        loss = self

        async def send(client: AIOKafkaClient, node_id: int, request: Any, **kw: Any) -> Any:
            mine = client._client_id == loss.transactional_id
            if not mine or not isinstance(request, EndTxnRequest):
                return await original(client, node_id, request, **kw)
            loss._client = loss._client or client
            loss.tried += 1
            if client is not loss._client or loss.lost >= loss.most:
                return await original(client, node_id, request, **kw)
            loss.lost += 1
            if loss.arrives:
                await original(client, node_id, request, **kw)
            if isinstance(loss.error, KafkaConnectionError):
                for connection in list(client._conns.values()):
                    connection.close()
            raise loss.error

        monkeypatch.setattr(AIOKafkaClient, "send", send)


ERRORS = [RequestTimedOutError(), KafkaConnectionError("the socket is gone")]


def counting(name: str, executions: list[str], *, steps: int = 3) -> Agent:
    agent = Agent(name)

    async def count(ctx: Context, payload: int) -> Next | Done:
        executions.append(f"{ctx.run_id} {ctx.seq}")
        return Next(count, payload + 1) if payload + 1 < steps else Done(payload + 1)

    agent.step(count)
    return agent


@asynccontextmanager
async def producer(kafka: Cluster, agent: Agent) -> AsyncIterator[TransactionalProducer]:
    made = TransactionalProducer(
        kafka.topics(agent).transactional_id(0), kafka.settings, kafka.clock
    )
    await made.start()
    try:
        yield made
    finally:
        await made.retire()


def one_record(kafka: Cluster, agent: Agent, value: bytes) -> list[ProducerRecord]:
    return [ProducerRecord(kafka.topics(agent).state, 0, b"@test", value, (("sf-txn", value),))]


def at(kafka: Cluster, agent: Agent, offset: int = 0) -> dict[TopicPartition, int]:
    return {TopicPartition(kafka.topics(agent).commands, 0): offset}


def epoch(running: Running) -> int:
    (owner,) = running.worker.owners.values()
    ownership: Any = owner.committer.ownership
    return int(ownership._producer._producer._txn_manager.producer_epoch)


async def test_a_clean_commit_sends_end_txn_once_and_its_producer_goes_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, [])
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        async with producer(kafka, agent) as txn:
            state = TopicPartition(kafka.topics(agent).state, 0)
            for n, offset in enumerate((0, 2, 4)):
                records = one_record(kafka, agent, b"%d" % n)
                group = kafka.topics(agent).group
                assert await txn.transact(records, at(kafka, agent, n), group) == {state: [offset]}
                assert txn._ends_sent == 1
        assert (await kafka.committed(agent))["commands", 0] == 2


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_commit_that_the_client_sent_again_by_itself_is_of_unknown_outcome(
    bootstrap: str,
    app: str,
    agent_name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    arrives: bool,
) -> None:
    agent = counting(agent_name, [])
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        group = kafka.topics(agent).group
        loss = EndTxnLoss(kafka.topics(agent).transactional_id(0), error, arrives=arrives)
        loss.install(monkeypatch)
        async with producer(kafka, agent) as txn:
            with pytest.raises(OutcomeUnknown, match="EndTxn was sent 2 times"):
                await txn.transact(one_record(kafka, agent, b"1"), at(kafka, agent), group)
        assert (loss.lost, loss.tried) == (1, 2)
        # The client had reported success, and it was one.
        assert [r.value for r in await kafka.read(kafka.topics(agent).state)] == [b"1"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_after_a_commit_sent_again_the_owner_takes_a_new_epoch_and_commits_nothing_twice(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    executions: list[str] = []
    agent = counting(agent_name, executions)
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent, idle_commit_s=60.0)
        before = epoch(running)
        loss = EndTxnLoss(kafka.topics(agent).transactional_id(0), error)
        loss.install(monkeypatch)
        with capture_logs() as logs:
            await kafka.start(agent, "r1")
            await kafka.until_status(agent, "r1", "completed")
        assert loss.lost == 1
        settled = [line["landed"] for line in logs if line["event"] == "commit_settled"]
        assert settled == [True]
        assert epoch(running) > before
        assert executions == ["r1 0", "r1 1", "r1 2"]
        await kafka.check_history(agent)


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_without_an_answer_is_read_back_and_done_once(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    # A broker that aborts by itself would fence the owner, and its step would run again.
    monkeypatch.setattr(kafka_txn, "commit_deadline_s", lambda _settings: 3.0)
    executions: list[str] = []
    agent = counting(agent_name, executions)
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent, idle_commit_s=60.0)
        loss = EndTxnLoss(
            kafka.topics(agent).transactional_id(0), ERRORS[0], arrives=arrives, most=1_000
        )
        loss.install(monkeypatch)
        with capture_logs() as logs:
            await kafka.start(agent, "r1")
            await kafka.until_status(agent, "r1", "completed")
        settled = [line["landed"] for line in logs if line["event"] == "commit_settled"]
        assert arrives in settled  # and a machine that stalls may have others to settle
        assert executions == ["r1 0", "r1 1", "r1 2"]
        await kafka.check_history(agent)
        assert running.worker.ready


async def test_a_failed_send_fails_the_commit(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = counting(agent_name, [])
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        original = AIOKafkaProducer.send_batch

        async def send_batch(client: Any, builder: Any, topic: str, **kw: Any) -> Any:
            written = await original(client, builder, topic, **kw)
            if topic == kafka.topics(agent).events:
                await written
                written = asyncio.get_running_loop().create_future()
                written.set_exception(RequestTimedOutError())
            return written

        monkeypatch.setattr(AIOKafkaProducer, "send_batch", send_batch)
        async with producer(kafka, agent) as txn:
            event = ProducerRecord(kafka.topics(agent).events, 0, b"@test", b"1")
            with pytest.raises(OutcomeUnknown):
                await txn.transact([*one_record(kafka, agent, b"1"), event], at(kafka, agent), "g")
        async with producer(kafka, agent):  # settles the one before
            assert await kafka.read(kafka.topics(agent).state) == []


async def test_an_older_epoch_is_fenced(bootstrap: str, app: str, agent_name: str) -> None:
    agent = counting(agent_name, [])
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        group = kafka.topics(agent).group
        async with producer(kafka, agent) as old:
            await old.transact(one_record(kafka, agent, b"old 1"), at(kafka, agent), group)
            async with producer(kafka, agent) as new:
                await new.transact(one_record(kafka, agent, b"new"), at(kafka, agent), group)
                with pytest.raises(FencedError):
                    await old.transact(one_record(kafka, agent, b"old 2"), at(kafka, agent), group)
        values = [r.value for r in await kafka.read(kafka.topics(agent).state)]
        assert values == [b"old 1", b"new"]


async def test_a_transaction_that_the_broker_timed_out_is_done_again_by_a_new_producer(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_txn, "commit_deadline_s", lambda _settings: 60.0)
    executions: list[str] = []
    agent = counting(agent_name, executions)
    async with cluster(bootstrap, app, agent, partitions=1, **SHORT) as kafka:
        running = await kafka.work(agent, idle_commit_s=60.0)
        before = epoch(running)
        stalled = stall_once_until_aborted(kafka, agent, monkeypatch)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        assert stalled.is_set()
        later = [f"later-{n}" for n in range(10)]
        for run_id in later:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, later, "completed")
        assert epoch(running) > before
        assert executions.count("r1 1") == 1
        await kafka.check_history(agent)


def stall_once_until_aborted(
    kafka: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Event:
    """Hold the first transaction between its sends and its commit until its abort is logged."""
    original = AIOKafkaProducer.send_offsets_to_transaction
    mine = kafka.topics(agent).transactional_id(0)
    place = TopicPartition(kafka.topics(agent).state, 0)
    stalled = asyncio.Event()

    async def ends() -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.settings.bootstrap_servers)
        await consumer.start()
        try:
            return int((await consumer.end_offsets([place]))[place])
        finally:
            await consumer.stop()

    async def send_offsets(client: Any, *args: Any) -> None:
        if client._txn_manager.transactional_id == mine and not stalled.is_set():
            stalled.set()
            end = await ends()

            async def marked() -> bool:
                return await ends() > end

            await until(marked, what="the broker to abort the transaction")
        await original(client, *args)

    monkeypatch.setattr(AIOKafkaProducer, "send_offsets_to_transaction", send_offsets)
    return stalled


async def test_many_starts_of_one_run_at_the_same_moment_are_one_run(
    bootstrap: str, app: str, agent_name: str
) -> None:
    executions: list[str] = []
    agent = counting(agent_name, executions, steps=1)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        clients = [
            LogCommands(kafka.settings, KafkaAppender(kafka.settings), kafka.clock)
            for _ in range(4)
        ]

        async def start_20_times() -> None:
            await asyncio.gather(
                *(
                    client.start(agent.name, "r1", b"0", deadline_s=90.0)
                    for client in clients
                    for _ in range(5)
                )
            )

        try:
            worker = await kafka.work(agent)
            await start_20_times()
            await kafka.until_status(agent, "r1", "completed")
            await worker.drain()
            await start_20_times()
            await kafka.work(agent)
            await kafka.start(agent, kafka.run_on(0, "last"))
            await kafka.start(agent, kafka.run_on(1, "last"))
            last = [kafka.run_on(0, "last"), kafka.run_on(1, "last")]
            await kafka.until_status(agent, last, "completed")
        finally:
            for client in clients:
                await client.stop()
        assert executions.count("r1 0") == 1
        assert names(await kafka.events(agent, "r1")) == ["run.started", "run.completed"]
        await kafka.check_history(agent)
