"""Requests of a transaction that arrive late, are cut off, or come twice, in both protocols.

A proxy does it to one producer's requests, without a worker around it. With one epoch for many
transactions (KIP-98), what protects is that EndTxn and TxnOffsetCommit are sent once (R2).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from aiokafka import TopicPartition

from surefoot import Agent, Context, Done
from surefoot.infra.broker.config import Storage
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.transactions import Membership
from surefoot.state.errors import OutcomeUnknown
from surefoot.state.ports.log import ProducerRecord
from tests.chaos.conftest import networked_broker
from tests.chaos.faults.networked import Networked
from tests.chaos.faults.proxy import Action, Api, Fault, Proxy
from tests.support.cluster import Cluster, cluster
from tests.support.long_deadlines import PATIENT

idle = Agent("idle")
#: so large that each batch is one request
BULK = b"x" * 15_000


@idle.step
async def step(ctx: Context, payload: int) -> Done:
    return Done(payload)


@pytest.fixture(scope="module")
def older() -> Iterator[Networked]:
    """A broker behind a proxy where one epoch serves many transactions (KIP-98)."""
    yield from networked_broker(Storage(features={"transaction.version": 0}))


@pytest.fixture(params=["an epoch each", "one epoch"])
def either(request: pytest.FixtureRequest) -> Networked:
    """A broker behind a proxy, of either protocol."""
    name = "networked" if request.param == "an epoch each" else "older"
    found: Networked = request.getfixturevalue(name)
    return found


@dataclass
class Line:
    """One producer behind the proxy."""

    kafka: Cluster
    net: Proxy
    txn: TransactionalProducer

    def arm(self, action: Action, api: Api, *, skip: int = 0) -> Fault:
        return self.net.arm(action, api, self.txn.transactional_id, skip=skip)

    async def write(self, number: int) -> None:
        """A transaction of two records of the state, each a request of its own, one event, and the
        offset."""
        topics, value = self.kafka.topics(idle), b"%d" % number
        records = [
            *(ProducerRecord(topics.state, 0, b"@test", value + BULK) for _ in range(2)),
            ProducerRecord(topics.events, 0, b"@test", value),
        ]
        offsets = {TopicPartition(topics.commands, 0): number}
        await self.txn.transact(records, offsets, Membership(topics.group))

    def hang_up(self) -> None:
        """The producer's connections break."""
        client = self.txn._client
        assert client is not None
        for connection in list(client._client._conns.values()):
            connection.close()

    async def robbed(self, writing: asyncio.Task[None]) -> bool:
        """The producer loses its connections. Returns whether it knows that it has committed; if it
        does not, what was open is decided."""
        self.hang_up()
        try:
            await writing
        except OutcomeUnknown:
            await self.txn.start()
            return False
        return True

    async def seen(self) -> tuple[list[int], int | None]:
        """The transactions that are visible, each as a whole, and the offset."""
        topics = self.kafka.topics(idle)
        state, events = await self.kafka.read(topics.state), await self.kafka.read(topics.events)
        numbers = [int(record.value or b"") for record in events]
        halves = [int((record.value or b"").removesuffix(BULK)) for record in state]
        assert halves == [number for number in numbers for _ in range(2)], "half a transaction"
        return numbers, (await self.kafka.committed(idle)).get(("commands", 0))


@asynccontextmanager
async def line(networked: Networked, app: str) -> AsyncIterator[Line]:
    options = PATIENT | {"record_max_bytes": 20_000}
    async with (
        cluster(networked.direct, app, idle, partitions=1, **options) as kafka,
        networked.network() as net,
    ):
        settings = networked.behind(kafka.settings)
        txn = TransactionalProducer(f"{kafka.topics(idle).group}.x", settings, kafka.clock)
        await txn.start()
        try:
            yield Line(kafka, net, txn)
        finally:
            await txn.retire()


# A request that arrives in a later transaction ---------------------------------------------------


async def late_end(it: Line) -> None:
    """An EndTxn whose connection breaks arrives between two batches of the next transaction."""
    late = it.arm("hold", Api.END_TXN)
    writing = asyncio.create_task(it.write(1))
    await late.fired()
    await it.robbed(writing)
    batch = it.arm("hold", Api.PRODUCE, skip=1)
    writing = asyncio.create_task(it.write(2))
    await batch.fired()
    late.release()
    await late.bitten()
    batch.release()
    await asyncio.gather(writing, return_exceptions=True)


async def late_offsets(it: Line) -> None:
    """A TxnOffsetCommit whose connection breaks arrives before the end of the next transaction."""
    late = it.arm("hold", Api.TXN_OFFSET_COMMIT)
    writing = asyncio.create_task(it.write(1))
    await late.fired()
    await it.robbed(writing)
    end = it.arm("hold", Api.END_TXN)
    writing = asyncio.create_task(it.write(2))
    await end.fired()
    late.release()
    await late.bitten()
    end.release()
    await writing


@pytest.fixture
def sends_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes R2 out."""

    async def insist(txn: TransactionalProducer, _client: object, attempt: object) -> object:
        return await txn._insist(attempt)  # type: ignore[arg-type]

    monkeypatch.setattr(TransactionalProducer, "_sent_again", insist)


async def test_a_late_end_decides_no_later_transaction(either: Networked, app: str) -> None:
    async with line(either, app) as it:
        await late_end(it)
        numbers, offset = await it.seen()
        assert numbers[-1:] == [2]
        assert offset == 2


async def test_late_offsets_set_nothing_back(either: Networked, app: str) -> None:
    async with line(either, app) as it:
        await late_offsets(it)
        numbers, offset = await it.seen()
        assert numbers[-1:] == [2]
        assert offset == 2


@pytest.mark.usefixtures("sends_again")
async def test_in_one_epoch_a_second_end_commits_half_of_a_later_transaction(
    older: Networked, app: str
) -> None:
    """KAFKA-17754."""
    async with line(older, app) as it:
        await late_end(it)
        with pytest.raises(AssertionError, match="half a transaction"):
            await it.seen()


@pytest.mark.usefixtures("sends_again")
async def test_in_one_epoch_a_second_commit_of_offsets_sets_them_back(
    older: Networked, app: str
) -> None:
    async with line(older, app) as it:
        await late_offsets(it)
        assert await it.seen() == ([1, 2], 1)


# Anything else -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "api", [Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.PRODUCE], ids=lambda api: api.name
)
async def test_what_is_known_of_a_commit_is_so_whatever_becomes_of_a_request(
    either: Networked, app: str, api: Api
) -> None:
    """It is held until the next transaction is over, lost, cut off, or its answer is; and it comes
    twice, except where R2 is the protection: no client can help a network that sends it again."""
    async with line(either, app) as it:
        known: list[int] = []
        fates: list[Action] = ["hold", "drop", "cut", "reset"]
        for number, action in enumerate(fates, 1):
            fault = it.arm(action, api)
            writing = asyncio.create_task(it.write(number))
            await fault.fired()
            known += [number] if await it.robbed(writing) else []
            if action == "hold":
                await it.write(10)
                known.append(10)
                fault.release()
                await fault.bitten()
        client = it.txn._client
        assert client is not None
        if client.bumps_epochs or api is Api.PRODUCE:
            copied = it.arm("duplicate", api)
            await it.write(20)
            await copied.bitten()
            known.append(20)
        numbers, offset = await it.seen()
        assert set(known) <= set(numbers)
        assert len(set(numbers)) == len(numbers)
        assert offset == numbers[-1]
        if client.bumps_epochs:  # the outcome of all is known
            assert known == numbers
