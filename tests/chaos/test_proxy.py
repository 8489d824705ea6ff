"""The proxy does to requests what its faults say, and to no others."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.chaos.faults.proxy import Api, Proxy, Request, proxy
from tests.support.eventually import until


def frame(api: int, number: int, client_id: str | None = "me", body: bytes = b"body") -> bytes:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    content = struct.pack(">hhih", api, 0, number, length) + name + body
    return struct.pack(">i", len(content)) + content


def answer(number: int) -> bytes:
    return struct.pack(">ii", 4, number)


@dataclass
class Echo:
    """A broker that answers each whole request with its correlation id, and nothing else."""

    #: correlation ids, with the connection's number
    got: list[tuple[int, int]] = field(default_factory=list)
    connections: int = 0
    #: bytes of requests that were cut short
    torn: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = self.connections
        self.connections += 1
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                content = await reader.readexactly(size)
                number = struct.unpack_from(">i", content, 4)[0]
                self.got.append((number, mine))
                writer.write(answer(number))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.torn.append(error.partial)
        except ConnectionError:
            pass
        finally:
            writer.close()

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.got]


@dataclass
class Line:
    """A client's connection to the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, api: int, number: int, client_id: str | None = "me") -> None:
        self.writer.write(frame(api, number, client_id))

    async def answer(self) -> int:
        number: int = struct.unpack(">ii", await self.reader.readexactly(8))[1]
        return number

    async def ended(self) -> None:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await self.answer()


@dataclass
class World:
    broker: Echo
    net: Proxy
    _lines: list[Line] = field(default_factory=list)

    async def line(self) -> Line:
        made = Line(*await asyncio.open_connection("127.0.0.1", self.net.port))
        self._lines.append(made)
        return made


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    broker = Echo()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with proxy(0, broker=("127.0.0.1", port)) as net:
        made = World(broker, net)
        yield made
        for line in made._lines:
            line.writer.close()
    server.close()


def test_a_request_is_known_by_its_head() -> None:
    request = Request.parse(frame(Api.END_TXN, 7, "app.agent.0"))
    assert (request.api, request.correlation_id, request.client_id) == (26, 7, "app.agent.0")
    assert Request.parse(frame(Api.PRODUCE, 1, None)).client_id is None


async def test_what_no_fault_is_for_goes_both_ways_in_order() -> None:
    async with world() as it:
        it.net.arm("drop", Api.END_TXN, "somebody else")
        it.net.arm("drop", Api.PRODUCE, "me")
        line = await it.line()
        for number in range(5):
            line.send(Api.END_TXN, number)
        assert [await line.answer() for _ in range(5)] == [0, 1, 2, 3, 4]
        assert not any(fault.fired_s for fault in it.net.faults)


async def test_a_held_request_holds_back_what_comes_behind_it_and_nobody_else() -> None:
    async with world() as it:
        held = it.net.arm("hold", Api.END_TXN)
        line, other = await it.line(), await it.line()
        line.send(Api.PRODUCE, 1)
        line.send(Api.END_TXN, 2)
        line.send(Api.PRODUCE, 3)
        assert await line.answer() == 1
        await held.fired()
        other.send(Api.END_TXN, 4)
        assert await other.answer() == 4
        assert it.broker.numbers == [1, 4]
        assert not held.bitten_s
        held.release()
        assert [await line.answer(), await line.answer()] == [2, 3]
        assert held.fired_s[0] < held.bitten_s[0]


async def test_a_held_request_reaches_the_broker_after_its_client_has_gone() -> None:
    async with world() as it:
        held = it.net.arm("hold", Api.END_TXN)
        line = await it.line()
        line.send(Api.END_TXN, 1)
        await held.fired()
        line.writer.close()
        again = await it.line()
        again.send(Api.END_TXN, 2)
        assert await again.answer() == 2
        held.release()
        await held.bitten()
        assert it.broker.numbers == [2, 1]


async def test_requests_are_chosen_by_their_size() -> None:
    async with world() as it:
        small = len(frame(Api.PRODUCE, 0))
        fault = it.net.arm("drop", Api.PRODUCE, min_bytes=small + 1)
        line = await it.line()
        line.send(Api.PRODUCE, 1)
        line.send(Api.PRODUCE, 2, "a longer name")
        line.send(Api.PRODUCE, 3)
        assert [await line.answer(), await line.answer()] == [1, 3]
        assert len(fault.fired_s) == 1


async def test_requests_are_chosen_by_their_ordinal() -> None:
    async with world() as it:
        fault = it.net.arm("drop", Api.PRODUCE, skip=1, times=2)
        line = await it.line()
        for number in range(5):
            line.send(Api.PRODUCE, number)
        assert [await line.answer() for _ in range(3)] == [0, 3, 4]
        assert len(fault.fired_s) == 2


async def test_a_dropped_request_bites_when_its_client_gives_the_connection_up() -> None:
    async with world() as it:
        fault = it.net.arm("drop", Api.INIT_PRODUCER_ID)
        line = await it.line()
        line.send(Api.INIT_PRODUCER_ID, 1)
        await fault.fired()
        assert not fault.bitten_s
        line.writer.close()
        await fault.bitten()
        assert it.broker.numbers == []


async def test_a_dropped_answer_belongs_to_a_request_that_was_delivered() -> None:
    async with world() as it:
        fault = it.net.arm("drop", Api.TXN_OFFSET_COMMIT, answers=True)
        line = await it.line()
        line.send(Api.TXN_OFFSET_COMMIT, 1)
        line.send(Api.TXN_OFFSET_COMMIT, 2)
        assert await line.answer() == 2
        assert it.broker.numbers == [1, 2]
        line.writer.close()
        await fault.bitten()


async def test_a_held_answer_comes_when_it_is_released() -> None:
    async with world() as it:
        fault = it.net.arm("hold", Api.OFFSET_FETCH, answers=True)
        line = await it.line()
        line.send(Api.OFFSET_FETCH, 1)
        await until(lambda: it.broker.numbers == [1], what="the request to arrive")
        fault.release()
        assert await line.answer() == 1


async def test_a_connection_reset_after_the_last_byte_has_delivered_the_request() -> None:
    async with world() as it:
        fault = it.net.arm("reset", Api.END_TXN)
        line = await it.line()
        line.send(Api.END_TXN, 1)
        await line.ended()
        await fault.bitten()
        await until(lambda: it.broker.numbers == [1], what="the request to arrive")


async def test_a_connection_cut_before_the_last_byte_has_not() -> None:
    async with world() as it:
        fault = it.net.arm("cut", Api.END_TXN)
        line = await it.line()
        line.send(Api.END_TXN, 1)
        await line.ended()
        await fault.bitten()
        await until(lambda: it.broker.torn, what="half a request")
        whole = frame(Api.END_TXN, 1)
        assert it.broker.torn == [whole[4:-1]]
        assert it.broker.numbers == []


async def test_a_duplicate_is_delivered_on_a_connection_of_its_own_and_answered_to_nobody() -> None:
    async with world() as it:
        fault = it.net.arm("duplicate", Api.PRODUCE)
        line = await it.line()
        line.send(Api.PRODUCE, 1)
        await fault.bitten()
        line.send(Api.PRODUCE, 2)
        assert [await line.answer(), await line.answer()] == [1, 2]
        assert sorted(it.broker.numbers) == [1, 1, 2]
        assert len({connection for number, connection in it.broker.got if number == 1}) == 2


async def test_a_broker_that_hangs_up_is_seen_by_its_clients() -> None:
    async with world() as it:
        line = await it.line()
        line.send(Api.PRODUCE, 1)
        assert await line.answer() == 1
        line.writer.write(struct.pack(">i", -1))  # no frame
        await line.ended()
