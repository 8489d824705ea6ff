"""Every client is closed within a deadline, in whatever state it is, and whoever is cancelled
meanwhile learns of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection

from surefoot.consumers.partition.ending import stop_all, to_its_end
from surefoot.infra.kafka_client.clients import Shared, close_client
from surefoot.infra.runtime.settings import load_settings

KAFKA = load_settings(bootstrap_servers="127.0.0.1:1").kafka()

#: each with the client inside of it that has the connections
CLIENTS: dict[str, tuple[Callable[[], Any], Callable[[Any], AIOKafkaClient]]] = {
    "consumer": (lambda: AIOKafkaConsumer(**KAFKA), lambda made: made._client),
    "producer": (lambda: AIOKafkaProducer(**KAFKA), lambda made: made.client),
    "admin": (lambda: AIOKafkaAdminClient(**KAFKA), lambda made: made._client),
    "client": (lambda: AIOKafkaClient(**KAFKA), lambda made: made),
}


class Held:
    """In place of a client's own task: it ends only some time after it was cancelled."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()
        client._sync_task = self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.asked.set()
            while not self.let_go.is_set():
                with suppress(asyncio.CancelledError):
                    await self.let_go.wait()


@pytest.mark.parametrize("kind", CLIENTS)
async def test_who_is_cancelled_while_a_client_closes_learns_of_it_when_it_is_closed(
    kind: str,
) -> None:
    make, inside = CLIENTS[kind]
    client = make()
    held = Held(inside(client))
    await asyncio.sleep(0)  # its task has begun
    went_on = []

    async def serve() -> None:
        await close_client(client)
        went_on.append(1)

    serving = asyncio.create_task(serve())
    await held.asked.wait()
    for _ in range(2):
        serving.cancel()
        await asyncio.sleep(0)
    assert not serving.done()
    held.let_go.set()
    await asyncio.wait({serving})
    assert serving.cancelled()
    assert went_on == []
    assert held.task.done()


async def test_a_client_that_ends_by_a_cancellation_of_its_own_cancels_nobody_else() -> None:
    own = asyncio.create_task(asyncio.Event().wait())
    own.cancel()
    await close_client(SimpleNamespace(stop=lambda: _wait(own), _conns={}, close=_nothing))


async def test_a_client_that_never_stops_is_cut_off_and_given_up() -> None:
    hanging = asyncio.Event()
    let_go = asyncio.Event()

    async def hang() -> None:
        hanging.set()
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    await close_client(SimpleNamespace(stop=hang, close=hang, _conns={}), within_s=0.01)
    assert hanging.is_set()
    let_go.set()


async def test_a_connection_that_nobody_reads_from_is_closed_all_the_same() -> None:
    reading: list[asyncio.StreamWriter] = []

    async def not_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        reading.append(writer)

    async with await asyncio.start_server(not_read, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = AIOKafkaConnection("127.0.0.1", port)
        connection._do_version_lookup = _nothing
        await connection.connect()
        client = AIOKafkaClient(**KAFKA)
        client._conns[0] = connection
        transport = connection._writer.transport
        connection._writer.write(bytes(50_000_000))
        assert transport.get_write_buffer_size() > 0
        await close_client(client, within_s=0.1)
        assert transport.get_write_buffer_size() == 0
        for writer in reading:
            writer.close()


async def test_all_are_stopped_also_when_the_first_one_takes_a_cancellation() -> None:
    held, stopped = asyncio.Event(), []

    class Part:
        def __init__(self, waits: bool) -> None:
            self._waits = waits

        async def stop(self) -> None:
            if self._waits:
                await held.wait()
            stopped.append(self._waits)

    stopping = asyncio.create_task(stop_all(Part(True), Part(False)))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.sleep(0)
    held.set()
    await asyncio.wait({stopping})
    assert (stopping.cancelled(), stopped) == (True, [True, False])


async def test_a_shared_client_is_closed_also_when_its_stop_is_cancelled() -> None:
    closed = []

    class Client:
        async def start(self) -> None: ...

        async def stop(self) -> None:
            closed.append(1)

    shared = Shared(Client, 60.0)
    await shared.get()
    stopping = asyncio.create_task(shared.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert (stopping.cancelled(), closed) == (True, [1])


async def test_what_runs_to_its_end_tells_what_came_of_it() -> None:
    async def three() -> int:
        return 3

    async def fail() -> int:
        raise ValueError("no")

    assert await to_its_end(three()) == 3
    with pytest.raises(ValueError, match="no"):
        await to_its_end(fail())


async def _wait(task: asyncio.Task[Any]) -> None:
    await task


async def _nothing() -> None: ...
