"""A client goes on while a broker that it knows answers nothing. The brokers are fakes, which speak
as much of Kafka's protocol as they are told to; no deadline but the test's own would end a wait."""

from __future__ import annotations

import ast
import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError, RequestTimedOutError
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.coordination import FindCoordinatorResponse_v0
from aiokafka.protocol.group import JoinGroupRequest
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v1

from surefoot.infra.kafka_client import failover
from surefoot.infra.kafka_client.failover import FailoverClient, with_failover

_HEAD = struct.Struct(">hhi")
JOIN, METADATA, FIND_COORDINATOR, VERSIONS = 11, 3, 10, 18
CLIENTS = {"AIOKafkaConsumer", "AIOKafkaProducer", "AIOKafkaAdminClient"}
INFRA = Path(failover.__file__).parents[1]
stem = attrgetter("stem")
#: a wait that only a failure ends
ENDLESS_S = 600.0


@dataclass(slots=True)
class Brokers:
    """Fakes, by node id: 1 is the one that may be silent."""

    ports: dict[int, int] = field(default_factory=dict)
    #: what the others say of who there is
    listed: set[int] = field(default_factory=lambda: {1, 2})
    #: api keys that broker 1 answers
    answers: set[int] = field(default_factory=set)
    #: requests that broker 1 has got
    asked: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    coordinator_error: int = 0

    async def serve(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                api, _, correlation_id = _HEAD.unpack_from(await reader.readexactly(size))
                if node == 1:
                    self.asked.put_nowait(api)
                if node == 1 and api not in self.answers:
                    continue
                body = struct.pack(">i", correlation_id) + self._answer(api).encode()
                writer.write(struct.pack(">i", len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.close()

    def _answer(self, api: int) -> Any:
        if api == VERSIONS:
            known = (METADATA, 1, 1), (FIND_COORDINATOR, 0, 0), (JOIN, 0, 0), (VERSIONS, 0, 0)
            return ApiVersionResponse_v0(0, list(known))
        if api == FIND_COORDINATOR:
            return FindCoordinatorResponse_v0(self.coordinator_error, 2, "127.0.0.1", 1)
        brokers = [(node, "127.0.0.1", self.ports[node], None) for node in self.listed]
        return MetadataResponse_v1(brokers, 2, [])


@asynccontextmanager
async def client_of(
    brokers: Brokers,
    *,
    contacts: Sequence[int] = (2,),
    request_timeout_s: float = ENDLESS_S,
    join_s: float = ENDLESS_S,
) -> AsyncIterator[FailoverClient]:
    """A client that knows both brokers, by the word of the second."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    sockets.sort(key=lambda each: each.getsockname()[1])  # as addresses are tried
    brokers.ports = {node: each.getsockname()[1] for node, each in enumerate(sockets, 1)}
    servers = [
        await asyncio.start_server(partial(brokers.serve, node), sock=each)
        for node, each in enumerate(sockets, 1)
    ]
    made = AIOKafkaConsumer(
        bootstrap_servers=[f"127.0.0.1:{brokers.ports[node]}" for node in contacts],
        request_timeout_ms=int(request_timeout_s * 1000),
    )
    client: FailoverClient = with_failover(made, join_s=join_s)._client
    try:
        async with asyncio.timeout(60):
            await client.bootstrap()
            yield client
    finally:
        await made.stop()
        for server in servers:
            server.close()


@pytest.fixture(autouse=True)
def the_silent_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "shuffle", lambda nodes: nodes.sort())
    monkeypatch.setattr(failover, "OPEN_S", ENDLESS_S)


async def test_a_second_address_is_tried_when_nobody_answers_at_the_first() -> None:
    async with client_of(Brokers(), contacts=(1, 2)) as client:
        assert {broker.nodeId for broker in client.cluster.brokers()} == {1, 2}


async def test_a_second_broker_is_asked_who_leads_when_the_first_does_not_answer() -> None:
    async with client_of(Brokers()) as client:
        assert await client.force_metadata_update()


async def test_a_second_broker_is_asked_who_the_coordinator_is() -> None:
    brokers = Brokers(answers={VERSIONS})
    async with client_of(brokers) as client:
        assert await client.coordinator_lookup(CoordinationType.GROUP, "g") == 2
        brokers.coordinator_error = GroupCoordinatorNotAvailableError.errno
        with pytest.raises(GroupCoordinatorNotAvailableError):
            await client.coordinator_lookup(CoordinationType.GROUP, "g")


async def test_a_connection_that_is_being_opened_delays_no_other() -> None:
    brokers = Brokers()
    async with client_of(brokers) as client:
        opening = asyncio.create_task(client.ready(1))
        assert await brokers.asked.get() == VERSIONS
        assert await client.ready(2)
        assert not opening.done()
        opening.cancel()


async def test_a_connection_to_a_broker_that_the_cluster_has_given_up_is_not_waited_for() -> None:
    brokers = Brokers()
    async with client_of(brokers) as client:
        opening = asyncio.create_task(client.ready(1))
        assert await brokers.asked.get() == VERSIONS
        brokers.listed = {2}
        assert await client.force_metadata_update()
        assert not await opening


async def test_the_cluster_may_say_again_that_it_has_given_up_a_broker() -> None:
    brokers = Brokers()
    async with client_of(brokers) as client:
        opening = asyncio.create_task(client.ready(1))
        assert await brokers.asked.get() == VERSIONS
        brokers.listed = {2}
        client._forget({2})
        await asyncio.sleep(0)  # its end has begun
        client._forget({2})
        assert not await opening


async def test_an_answer_of_a_broker_that_the_cluster_has_given_up_is_not_waited_for() -> None:
    """Nobody else makes the client look: it suspects a broker that owes it an answer."""
    brokers = Brokers(answers={VERSIONS})
    async with client_of(brokers) as client:
        asking = asyncio.create_task(client.send(1, MetadataRequest([])))
        while await brokers.asked.get() != METADATA:
            pass
        brokers.listed = {2}
        with pytest.raises(KafkaError):
            await asking


async def test_the_answer_to_a_join_may_take_longer_than_others() -> None:
    brokers = Brokers(answers={VERSIONS})
    async with client_of(brokers, request_timeout_s=0.3) as client:
        join = JoinGroupRequest("g", 1_000, 1_000, "", "", "consumer", [])
        joining = asyncio.create_task(client.send(1, join, group=ConnectionGroup.COORDINATION))
        while await brokers.asked.get() != JOIN:
            pass
        with pytest.raises(RequestTimedOutError):
            await client.send(1, MetadataRequest([]))
        assert not joining.done()
        joining.cancel()


@pytest.mark.parametrize("module", sorted(INFRA.glob("kafka*/*.py")), ids=stem)
def test_every_client_goes_on_without_one_broker(module: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    made = {call for call in calls if ast.unparse(call.func) in CLIENTS}
    wrapped = {
        each for call in calls if ast.unparse(call.func) == "with_failover" for each in call.args
    }
    assert made <= wrapped
