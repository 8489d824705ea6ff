"""A network between Kafka's clients and one broker that mistreats chosen requests.

Of the protocol it knows the frame's length, the api key, the correlation id and the client's id;
a transactional producer here has its transactional id for that. A fault names the requests that it
is for and what becomes of them, or of their answers:

  hold       kept back, with all that comes behind on that connection, until `release()`
  drop       taken away
  cut        the client's connection is reset when all but the last byte has gone to the broker
  reset      ... when the whole request has; its answer finds nobody
  duplicate  delivered, and a copy delivered on a connection of its own

A request that was handed over reaches the broker even when its client has gone, as it does when it
is in the buffers of a real network. So a held EndTxn decides a transaction after its client has
given up on it.

Every fault tells when it fired (it got hold of a request) and when it bit (somebody was made to
feel it): the held or copied request has been answered by the broker, or the client whose request
or answer was taken away has given that connection up. A test that waits for neither proves nothing.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from tests.support.eventually import until

#: a cluster's largest frame by far; a longer one is not Kafka's protocol
_FRAME_MAX = 64 * 1024 * 1024
_HEAD = struct.Struct(">hhih")

Action = Literal["hold", "drop", "cut", "reset", "duplicate"]


class Api(IntEnum):
    """Kafka's api keys that faults are for."""

    PRODUCE = 0
    OFFSET_FETCH = 9
    JOIN_GROUP = 11
    HEARTBEAT = 12
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


@dataclass(frozen=True, slots=True)
class Request:
    """One request's frame, length included, and what is known of it."""

    frame: bytes
    api: int
    correlation_id: int
    client_id: str | None
    at_s: float

    @classmethod
    def parse(cls, frame: bytes) -> Request:
        api, _version, correlation_id, length = _HEAD.unpack_from(frame, 4)
        start = 4 + _HEAD.size
        client_id = frame[start : start + length].decode() if length >= 0 else None
        return cls(frame, api, correlation_id, client_id, time.monotonic())


@dataclass(slots=True, eq=False)
class Fault:
    """What becomes of some requests. Times are in seconds of the monotonic clock."""

    action: Action
    api: Api
    #: whose requests; None: anybody's
    client_id: str | None = None
    #: the answers are mistreated, and the requests are not
    answers: bool = False
    #: requests that are shorter do not match
    min_bytes: int = 0
    #: matching requests that are let pass first
    skip: int = 0
    #: requests that are mistreated
    times: int = 1
    fired_s: list[float] = field(default_factory=list)
    bitten_s: list[float] = field(default_factory=list)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """What is held goes on its way."""
        self._released.set()

    async def fired(self, times: int = 1) -> None:
        await until(lambda: len(self.fired_s) >= times, what=f"{self} to fire")

    async def bitten(self, times: int = 1) -> None:
        await until(lambda: len(self.bitten_s) >= times, what=f"{self} to bite")

    def takes(self, request: Request) -> bool:
        """Whether it is for this request; counts those that it lets pass, and those it takes."""
        if request.api != self.api or self.client_id not in (None, request.client_id):
            return False
        if len(request.frame) < self.min_bytes:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if len(self.fired_s) >= self.times:
            return False
        self.fired_s.append(time.monotonic())
        return True

    def bite(self) -> None:
        self.bitten_s.append(time.monotonic())


class Proxy:
    """`async with proxy(port, broker=...) as net: ... net.arm("hold", Api.END_TXN)`."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self.faults: list[Fault] = []
        #: where clients find it, on 127.0.0.1
        self.port = 0
        #: every request that came, in order of arrival
        self.seen: list[Request] = []
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()

    def arm(
        self,
        action: Action,
        api: Api,
        client_id: str | None = None,
        *,
        answers: bool = False,
        min_bytes: int = 0,
        skip: int = 0,
        times: int = 1,
    ) -> Fault:
        """From now on: let `skip` matching requests pass, then mistreat the next `times`."""
        if answers and action not in ("hold", "drop"):
            raise ValueError(f"an answer cannot be mistreated by {action!r}")
        fault = Fault(
            action, api, client_id, answers=answers, min_bytes=min_bytes, skip=skip, times=times
        )
        self.faults.append(fault)
        return fault

    def count(self, api: Api, client_id: str | None = None) -> int:
        """Requests of that kind that have come so far."""
        return sum(r.api == api and client_id in (None, r.client_id) for r in self.seen)

    def fault_for(self, request: Request) -> Fault | None:
        self.seen.append(request)
        return next((fault for fault in self.faults if fault.takes(request)), None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._broker)

    async def copy(self, fault: Fault, request: Request) -> None:
        """Deliver a request on a connection of its own; bitten when the broker has answered."""
        reader, writer = await self.connect()
        try:
            writer.write(request.frame)
            await _read_frame(reader)
            fault.bite()
        finally:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await _Connection(self, reader, writer).run()
        except* (OSError, EOFError):
            pass  # the broker is away, or somebody does not speak Kafka's protocol
        except* asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Connection:
    """One client's connection and the broker's end of it."""

    def __init__(
        self, net: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._net = net
        self._reader = reader
        self._writer = writer
        #: requests on their way; None: the client has gone
        self._way: asyncio.Queue[tuple[Request, Fault | None] | None] = asyncio.Queue()
        #: requests that the broker has and has not answered, with the fault of each
        self._asked: dict[int, Fault | None] = {}
        self._answered = asyncio.Event()
        #: faults that took something away from this client, which has not noticed
        self._robbed: list[Fault] = []
        self._gone = False

    async def run(self) -> None:
        reader, self._up = await self._net.connect()
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen())
                answering = group.create_task(self._answer(reader))
                await self._deliver(group)
                listening.cancel()
                # What the broker has been given it may answer: only then is the line taken down.
                while self._asked and not answering.done():
                    self._answered.clear()
                    await self._answered.wait()
                answering.cancel()
        finally:
            self._up.close()

    async def _listen(self) -> None:
        """Take requests in, even behind one that is held, so that a client's going is noticed."""
        while (frame := await _read_frame(self._reader)) is not None:
            request = Request.parse(frame)
            self._way.put_nowait((request, self._net.fault_for(request)))
        self._hang_up()

    def _hang_up(self) -> None:
        """The client has gone, or is cut off."""
        if not self._gone:
            self._gone = True
            for fault in self._robbed:
                fault.bite()
            self._way.put_nowait(None)

    async def _deliver(self, group: asyncio.TaskGroup) -> None:
        """Hand requests to the broker, in order, until the client has gone and none is left."""
        while (item := await self._way.get()) is not None:
            request, fault = item
            if fault is None or fault.answers:
                self._hand_over(request, fault)
                continue
            match fault.action:
                case "hold":
                    await fault._released.wait()
                    self._hand_over(request, fault)
                case "drop":
                    self._robbed.append(fault)
                case "duplicate":
                    self._hand_over(request, None)
                    group.create_task(self._net.copy(fault, request))
                case "cut":
                    self._up.write(request.frame[:-1])
                    await self._up.drain()
                    self._reset(fault)
                    self._asked.clear()  # half a request is never answered
                case "reset":
                    self._hand_over(request, None)
                    await self._up.drain()
                    self._reset(fault)

    def _hand_over(self, request: Request, fault: Fault | None) -> None:
        self._asked[request.correlation_id] = fault
        self._up.write(request.frame)

    def _reset(self, fault: Fault) -> None:
        """To the client: connection reset by peer."""
        self._robbed.append(fault)
        self._writer.transport.abort()
        self._hang_up()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        """Hand answers to the client, in order."""
        while (frame := await _read_frame(reader)) is not None:
            fault = self._asked.pop(struct.unpack_from(">i", frame, 4)[0], None)
            self._answered.set()
            if fault is not None and fault.answers:
                self._robbed.append(fault)
                if self._gone:
                    fault.bite()
                if fault.action == "drop":
                    continue
                await fault._released.wait()
            elif fault is not None:  # it was held, and now the broker has decided
                fault.bite()
            if not self._gone:
                self._writer.write(frame)
        self._asked.clear()
        self._answered.set()
        self._writer.close()  # the broker has gone
        self._hang_up()


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """One frame, its length included; None at the end of the connection."""
    try:
        length = await reader.readexactly(4)
        size = struct.unpack(">i", length)[0]
        if not 0 <= size <= _FRAME_MAX:
            raise EOFError(f"{size} bytes are no frame of Kafka's protocol")
        return length + await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@asynccontextmanager
async def proxy(port: int, *, broker: tuple[str, int]) -> AsyncIterator[Proxy]:
    """A proxy that listens on that port of 127.0.0.1 (0: any; see `net.port`)."""
    net = Proxy(broker)
    server = await asyncio.start_server(net.serve, "127.0.0.1", port)
    net.port = server.sockets[0].getsockname()[1]
    try:
        yield net
    finally:
        server.close()
        await net.close()
        await server.wait_closed()
