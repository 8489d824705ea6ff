"""Commits on a real broker that do not end cleanly, in both of Kafka's protocols of transactions.

These tests, and those of the log's contract, hold the private names of aiokafka that the
transaction client calls: they break where a newer version calls them otherwise.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaConnectionError,
    KafkaError,
    ProducerFenced,
    RequestTimedOutError,
)
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Next
from surefoot.infra.broker.config import Storage
from surefoot.infra.broker.find import start_broker
from surefoot.infra.kafka import txn as kafka_txn
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.appender import KafkaAppender
from surefoot.infra.kafka_client.transactions import (
    Membership,
    ProducerEpoch,
    TransactionClient,
)
from surefoot.infra.writers.commands import LogCommands
from surefoot.state.errors import FencedError, OutcomeUnknown, RecordTooLarge
from surefoot.state.ports.log import ProducerRecord
from tests.support.cluster import Cluster, Running, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

#: The broker aborts what is left open, and nothing of a worker that was only slow.
SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 2_000,
    "transaction_timeout_ms": 4_000,
    "session_timeout_ms": 20_000,
    "rebalance_timeout_ms": 25_000,
}


@pytest.fixture(scope="module")
def older() -> Iterator[str]:
    """A broker where one epoch serves many transactions (KIP-98)."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed; a broker in Docker has its release's features")
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
    storage = Storage(features={"transaction.version": 0})
    with start_broker(ways=("java",), storage=storage, properties=properties) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["an epoch each", "one epoch"])
def either(request: pytest.FixtureRequest) -> str:
    """A broker of either protocol."""
    name = "bootstrap" if request.param == "an epoch each" else "older"
    return str(request.getfixturevalue(name))


@dataclass
class EndTxnLoss:
    """Loses answers to EndTxn requests of one epoch, or the requests themselves."""

    #: whose: the beginning of their transactional ids
    whose: str
    #: what the client is told instead of an answer
    error: Exception
    #: the request does reach the broker
    arrives: bool = True
    #: how many are lost; those of one transaction only
    most: int = 1
    lost: int = 0
    #: all that were tried, lost or not
    tried: int = 0
    _by: tuple[TransactionClient, ProducerEpoch] | None = field(default=None, repr=False)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = TransactionClient.end
        loss = self

        async def end(client: TransactionClient, by: ProducerEpoch, *, commit: bool) -> Any:
            if not client.transactional_id.startswith(loss.whose):
                return await original(client, by, commit=commit)
            loss._by = loss._by or (client, by)
            loss.tried += 1
            if loss._by != (client, by) or loss.lost >= loss.most:
                return await original(client, by, commit=commit)
            loss.lost += 1
            if loss.arrives:
                await original(client, by, commit=commit)
            if isinstance(loss.error, KafkaConnectionError):
                for connection in list(client._client._conns.values()):
                    connection.close()
            raise loss.error

        monkeypatch.setattr(TransactionClient, "end", end)


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
    identity = f"{kafka.topics(agent).group}.x"
    made = TransactionalProducer(identity, kafka.settings, kafka.clock)
    await made.start()
    try:
        yield made
    finally:
        await made.retire()


def one_record(kafka: Cluster, agent: Agent, value: bytes) -> list[ProducerRecord]:
    return [ProducerRecord(kafka.topics(agent).state, 0, b"@test", value, (("sf-txn", value),))]


def at(kafka: Cluster, agent: Agent, offset: int = 0) -> dict[TopicPartition, int]:
    return {TopicPartition(kafka.topics(agent).commands, 0): offset}


def nobody(kafka: Cluster, agent: Agent) -> Membership:
    """The group, by somebody who is no member of it."""
    return Membership(kafka.topics(agent).group)


async def values(kafka: Cluster, agent: Agent) -> list[bytes | None]:
    return [record.value for record in await kafka.read(kafka.topics(agent).state)]


def epoch_of(txn: TransactionalProducer) -> ProducerEpoch:
    assert txn._by is not None
    return txn._by


def epochs(running: Running) -> list[int]:
    return [epoch_of(txn).epoch for txn in running.log._shared._producers]


# One producer ----------------------------------------------------------------------------------


async def test_a_clean_commit_sends_end_txn_once_and_its_producer_goes_on(
    either: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = counting(agent_name, [])
    async with cluster(either, app, agent, partitions=1, **PATIENT) as kafka:
        ends = EndTxnLoss(kafka.topics(agent).group, ERRORS[0], most=0)
        ends.install(monkeypatch)
        async with producer(kafka, agent) as txn:
            client: Any = txn._client
            for n, offset in enumerate((0, 2, 4)):
                before = epoch_of(txn)
                records, offsets = one_record(kafka, agent, b"%d" % n), at(kafka, agent, n)
                assert await txn.transact(records, offsets, nobody(kafka, agent)) == [offset]
                assert (epoch_of(txn) != before) == client.bumps_epochs
        assert ends.tried == 3
        assert (await kafka.committed(agent))["commands", 0] == 2


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_with_an_epoch_for_each_transaction_a_lost_answer_is_asked_for_again(
    bootstrap: str,
    app: str,
    agent_name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    arrives: bool,
) -> None:
    agent = counting(agent_name, [])
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        loss = EndTxnLoss(kafka.topics(agent).group, error, arrives=arrives, most=2)
        loss.install(monkeypatch)
        async with producer(kafka, agent) as txn:
            for n in range(2):
                records = one_record(kafka, agent, b"%d" % n)
                await txn.transact(records, at(kafka, agent, n), nobody(kafka, agent))
        assert (loss.lost, loss.tried) == (2, 4)
        assert await values(kafka, agent) == [b"0", b"1"]
        assert (await kafka.committed(agent))["commands", 0] == 1


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_with_one_epoch_a_lost_answer_leaves_the_outcome_unknown_until_the_next_start(
    older: str,
    app: str,
    agent_name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    arrives: bool,
) -> None:
    agent = counting(agent_name, [])
    async with cluster(older, app, agent, partitions=1, **PATIENT) as kafka:
        loss = EndTxnLoss(kafka.topics(agent).group, error, arrives=arrives)
        loss.install(monkeypatch)
        async with producer(kafka, agent) as txn:
            records = one_record(kafka, agent, b"1")
            with pytest.raises(OutcomeUnknown):
                await txn.transact(records, at(kafka, agent), nobody(kafka, agent))
            assert (loss.lost, loss.tried) == (1, 1)
            await txn.start()  # decides it
            assert await values(kafka, agent) == ([b"1"] if arrives else [])
            await txn.transact(one_record(kafka, agent, b"2"), {}, nobody(kafka, agent))
        assert (await values(kafka, agent))[-1] == b"2"


async def test_an_end_txn_that_arrives_during_the_next_transaction_is_refused(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one epoch for both it would decide that one (KAFKA-17754)."""
    agent = counting(agent_name, [])
    refused: list[KafkaError] = []
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        async with producer(kafka, agent) as txn:
            client: Any = txn._client
            first = epoch_of(txn)
            records = one_record(kafka, agent, b"1")
            await txn.transact(records, at(kafka, agent), nobody(kafka, agent))
            write = TransactionalProducer._write

            async def written(producer: TransactionalProducer, *args: Any) -> Any:
                done = await write(producer, *args)
                with pytest.raises((InvalidProducerEpoch, ProducerFenced)) as told:
                    await client.end(first, commit=True)
                refused.append(told.value)
                return done

            monkeypatch.setattr(TransactionalProducer, "_write", written)
            records = one_record(kafka, agent, b"2")
            await txn.transact(records, at(kafka, agent, 1), nobody(kafka, agent))
        assert len(refused) == 1
        assert await values(kafka, agent) == [b"1", b"2"]
        assert (await kafka.committed(agent))["commands", 0] == 1


async def test_a_failed_send_fails_the_commit(
    either: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = counting(agent_name, [])
    async with cluster(either, app, agent, partitions=1, **PATIENT) as kafka:
        events = TopicPartition(kafka.topics(agent).events, 0)
        original = TransactionClient.produce

        async def produce(client: TransactionClient, *args: Any) -> Any:
            return await original(client, *args) | {events: InvalidTxnState()}

        monkeypatch.setattr(TransactionClient, "produce", produce)
        async with producer(kafka, agent) as txn:
            records = [
                *one_record(kafka, agent, b"1"),
                ProducerRecord(events.topic, 0, b"@test", b"1"),
            ]
            with pytest.raises(OutcomeUnknown):
                await txn.transact(records, at(kafka, agent), nobody(kafka, agent))
        async with producer(kafka, agent):  # settles the one before
            assert await values(kafka, agent) == []


async def test_a_record_too_large_leaves_nothing_behind(
    either: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, [])
    async with cluster(
        either, app, agent, partitions=1, record_max_bytes=20_000, **PATIENT
    ) as kafka:
        events = ProducerRecord(kafka.topics(agent).events, 0, b"@test", b"x" * 30_000)
        async with producer(kafka, agent) as txn:
            records = [*one_record(kafka, agent, b"1"), events]
            with pytest.raises(RecordTooLarge):
                await txn.transact(records, at(kafka, agent, 9), nobody(kafka, agent))
            records = one_record(kafka, agent, b"2")
            await txn.transact(records, at(kafka, agent, 1), nobody(kafka, agent))
        assert await values(kafka, agent) == [b"2"]
        assert (await kafka.committed(agent))["commands", 0] == 1


async def test_an_older_epoch_is_fenced(either: str, app: str, agent_name: str) -> None:
    agent = counting(agent_name, [])
    async with cluster(either, app, agent, partitions=1, **PATIENT) as kafka:
        group, offsets = nobody(kafka, agent), at(kafka, agent)
        async with producer(kafka, agent) as old:
            await old.transact(one_record(kafka, agent, b"old 1"), offsets, group)
            async with producer(kafka, agent) as new:
                await new.transact(one_record(kafka, agent, b"new"), offsets, group)
                with pytest.raises(FencedError):
                    await old.transact(one_record(kafka, agent, b"old 2"), offsets, group)
        assert await values(kafka, agent) == [b"old 1", b"new"]


# Its group -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"generation": 0}, {"member_id": "somebody"}, {"instance_id": "somebody"}],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_offsets_of_whom_the_group_does_not_have_are_refused(
    either: str, app: str, agent_name: str, wrong: dict[str, Any]
) -> None:
    agent = counting(agent_name, [])
    async with cluster(either, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent, idle_commit_s=60.0)
        member = running.log._shared._member
        assert member is not None
        async with producer(kafka, agent) as txn:
            with pytest.raises(FencedError):
                await txn.transact(
                    one_record(kafka, agent, b"stranger"),
                    at(kafka, agent, 7),
                    replace(member, **wrong),
                )
            await txn.start()  # one whose name another has leaves its transaction open
            assert await values(kafka, agent) == []
            # A broker takes offsets from whoever does not say which member it is.
            records = one_record(kafka, agent, b"nobody")
            await txn.transact(records, at(kafka, agent, 8), nobody(kafka, agent))
            await txn.transact(one_record(kafka, agent, b"member"), at(kafka, agent, 9), member)
        assert await values(kafka, agent) == [b"nobody", b"member"]
        assert (await kafka.committed(agent))["commands", 0] == 9


# An owner --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_after_a_commit_without_an_answer_the_owner_commits_nothing_twice(
    either: str,
    app: str,
    agent_name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    executions: list[str] = []
    agent = counting(agent_name, executions)
    async with cluster(either, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent, idle_commit_s=60.0)
        loss = EndTxnLoss(kafka.topics(agent).group, error)
        loss.install(monkeypatch)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        assert loss.lost == 1
        assert executions == ["r1 0", "r1 1", "r1 2"]
        await kafka.check_history(agent)


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_without_an_answer_is_read_back_and_done_once(
    either: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    # A broker that aborts by itself would fence the owner, and its step would run again.
    monkeypatch.setattr(kafka_txn, "commit_deadline_s", lambda _settings: 3.0)
    executions: list[str] = []
    agent = counting(agent_name, executions)
    async with cluster(either, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent, idle_commit_s=60.0)
        loss = EndTxnLoss(kafka.topics(agent).group, ERRORS[0], arrives=arrives, most=100_000)
        loss.install(monkeypatch)
        with capture_logs() as logs:
            await kafka.start(agent, "r1")
            await kafka.until_status(agent, "r1", "completed")
        settled = [line["landed"] for line in logs if line["event"] == "commit_settled"]
        assert arrives in settled  # and a machine that stalls may have others to settle
        assert executions == ["r1 0", "r1 1", "r1 2"]
        await kafka.check_history(agent)
        assert running.worker.ready


async def test_a_transaction_that_the_broker_timed_out_is_done_again_in_a_new_epoch(
    either: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_txn, "commit_deadline_s", lambda _settings: 60.0)
    executions: list[str] = []
    agent = counting(agent_name, executions)
    async with cluster(either, app, agent, partitions=1, **SHORT) as kafka:
        running = await kafka.work(agent, idle_commit_s=60.0)
        before = max(epochs(running))
        stalled = stall_once_until_aborted(kafka, agent, monkeypatch)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        assert stalled.is_set()
        later = [f"later-{n}" for n in range(10)]
        for run_id in later:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, later, "completed")
        assert max(epochs(running)) > before
        assert executions.count("r1 1") == 1
        await kafka.check_history(agent)


def stall_once_until_aborted(
    kafka: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Event:
    """Hold the first transaction before its commit until its abort is logged."""
    original = TransactionClient.end
    mine = f"{kafka.topics(agent).group}."
    place = TopicPartition(kafka.topics(agent).state, 0)
    stalled = asyncio.Event()

    async def stable_end() -> int:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.settings.bootstrap_servers, isolation_level="read_committed"
        )
        await consumer.start()
        try:
            return int((await consumer.end_offsets([place]))[place])
        finally:
            await consumer.stop()

    async def end(client: TransactionClient, by: ProducerEpoch, *, commit: bool) -> Any:
        if client.transactional_id.startswith(mine) and not stalled.is_set():
            stalled.set()
            before = await stable_end()

            async def marked() -> bool:
                return await stable_end() > before

            await until(marked, what="the broker to abort the transaction")
        return await original(client, by, commit=commit)

    monkeypatch.setattr(TransactionClient, "end", end)
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
