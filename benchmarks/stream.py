"""From a commit to a client of the gateway's event stream, and what clients that sit there cost.

One gateway process. An event is committed in a transaction of its own; what is measured is the
time from asking for the commit until its frame has come in over the socket, the commit included.
Writer and clients are this process, and share the machine with gateway and broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import psutil
from aiokafka import AIOKafkaProducer
from websockets.asyncio.client import connect

from benchmarks.records import AGENT, run_name
from benchmarks.site import create_topics, process, quantile, until_ready
from surefoot.infra.broker.config import free_ports
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.machine.model import EventRecord
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.records.encoding import Wire

_SEEN_S = 30.0
#: no event of the measurement is of this type
_IDLE = "/events?type=run.attention"

Transport = Literal["sse", "websocket"]
Write = Callable[[str], Awaitable[float]]
#: returns once this text has come in
Until = Callable[[str], Awaitable[None]]


async def measure(
    transport: Transport, settings: Settings, *, idle: int, warm_up: int, count: int
) -> dict[str, Any]:
    """`count` events, one at a time, with so many idle connections beside the client."""
    await create_topics(settings)
    (port,) = free_ports(1)
    args = ["surefoot", "gateway", "benchmarks/agents.py"]
    with process(args, settings, {"SUREFOOT_GATEWAY_PORT": str(port)}) as gateway:
        await until_ready(port, gateway)
        async with AsyncExitStack() as open_, _writer(settings) as write:
            client = CLIENTS[transport]
            until = await open_.enter_async_context(client(port, "/events"))
            await until("begin")
            for number in range(warm_up):
                await _one(until, write, number)
            before = psutil.Process(gateway.pid).memory_info().rss
            for _ in range(idle):
                each = await open_.enter_async_context(client(port, _IDLE))
                await each("begin")
            after = psutil.Process(gateway.pid).memory_info().rss
            took_ms = [await _one(until, write, warm_up + n) for n in range(count)]
            gateway.check()
    return {
        "transport": transport,
        "idle": idle,
        "kb_each": (after - before) / idle / 1000 if idle else 0.0,
        "gateway_mb": after / 1e6,
        "events": count,
        "ms_p50": quantile(took_ms, 0.5),
        "ms_p99": quantile(took_ms, 0.99),
        "ms_max": max(took_ms),
    }


async def _one(until: Until, write: Write, number: int) -> float:
    run_id = run_name(number)
    asked_s = await write(run_id)
    await until(run_id)
    return (time.perf_counter() - asked_s) * 1000


@asynccontextmanager
async def _writer(settings: Settings) -> AsyncIterator[Write]:
    """Commits an event of a run; returns when the commit was asked for."""
    wire = Wire(settings.app, AgentTopics(settings.app, AGENT), settings.partitions)
    async with AIOKafkaProducer(
        **settings.kafka(), transactional_id=f"{settings.app}.stream"
    ) as client:

        async def write(run_id: str) -> float:
            event = EventRecord(
                type="run.completed",
                run_id=run_id,
                agent=AGENT,
                version=1,
                status="completed",
                seq=1,
                at_ms=SystemClock().now_ms(),
                result=b"null",
            )
            out = wire.out(event, run_id, partition_of(run_id, settings.partitions), (), 0)
            await client.begin_transaction()
            await client.send_and_wait(out.topic, out.value, out.key, out.partition)
            asked_s = time.perf_counter()
            await client.commit_transaction()
            return asked_s

        yield write


@asynccontextmanager
async def _sse(port: int, path: str) -> AsyncIterator[Until]:
    """A socket as it is: two thousand clients of a library would be what is measured."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_048_576)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    async def until(text: str) -> None:
        async with asyncio.timeout(_SEEN_S):
            await reader.readuntil(text.encode())

    try:
        yield until
    finally:
        writer.close()


@asynccontextmanager
async def _websocket(port: int, path: str) -> AsyncIterator[Until]:
    """Answers pings; without it the gateway would let it go."""
    url = f"ws://127.0.0.1:{port}/ws{path}"
    async with connect(url, compression=None, ping_interval=None, open_timeout=_SEEN_S) as socket:

        async def until(text: str) -> None:
            async with asyncio.timeout(_SEEN_S):
                while text not in str(await socket.recv()):
                    pass

        yield until


CLIENTS: dict[Transport, Callable[[int, str], AbstractAsyncContextManager[Until]]] = {
    "sse": _sse,
    "websocket": _websocket,
}
