"""What clients cost that keep a stream open and do not read it.

One gateway process with one client that reads, and so many that read nothing after their first
event. Events of 1 kB of result are committed as quickly as one producer does it. Then one of the
silent ones reads on: it must get every event once and in order, by being told where to go on. The
others vanish, half of them with a reset; the gateway has to be rid of them.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

import httpx
import psutil
from aiokafka import AIOKafkaProducer

from benchmarks.records import AGENT, run_name
from benchmarks.site import create_topics, process, until_ready
from surefoot import Client
from surefoot.client import Event, Gap
from surefoot.infra.broker.config import free_ports
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.machine.model import EventRecord
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.records.encoding import Wire

_RUNS = 100
_RESULT = b'"%s"' % (b"x" * 1_000)
_SAMPLE_S = 0.05
_ALL_S = 300.0


async def measure(settings: Settings, *, silent: int, events: int) -> dict[str, Any]:
    """`rss_growth_mb`: the most that the gateway has had beyond what it had with all connected."""
    await create_topics(settings)
    port, metrics = free_ports(2)
    args = ["surefoot", "gateway", "benchmarks/agents.py"]
    extra = {"SUREFOOT_GATEWAY_PORT": str(port), "SUREFOOT_METRICS_PORT": str(metrics)}
    with process(args, settings, extra) as gateway:
        await until_ready(port, gateway)
        async with AsyncExitStack() as open_, asyncio.timeout(_ALL_S):
            client = await open_.enter_async_context(Client.connect(f"http://127.0.0.1:{port}"))
            reader = await open_.enter_async_context(aclosing(client.events(AGENT)))
            lazy = await open_.enter_async_context(aclosing(client.events(AGENT)))
            first = [asyncio.ensure_future(anext(each)) for each in (reader, lazy)]
            sockets = [await _connected(port) for _ in range(silent - 1)]
            await _until_open(metrics, silent + 1)
            writer = await open_.enter_async_context(_producer(settings))
            await _write(writer, settings, 0, 1)
            seen = await asyncio.gather(*first)
            sampling = asyncio.create_task(_most(psutil.Process(gateway.pid)))
            began = time.perf_counter()
            reading = asyncio.create_task(_read(reader, [seen[0]], events))
            await _write(writer, settings, 1, events)
            written_s = time.perf_counter() - began
            await reading
            read_s = time.perf_counter() - began
            sampling.cancel()
            growth, most = await sampling
            await _read(lazy, [seen[1]], events)
            _vanish(sockets)
            await lazy.aclose()
            await reader.aclose()
            await _until_open(metrics, 0)
        gateway.check()
    return {
        "silent": silent,
        "events": events,
        "written_per_s": (events - 1) / written_s,
        "read_per_s": (events - 1) / read_s,
        "rss_growth_mb": growth / 1e6,
        "rss_mb": most / 1e6,
    }


def _producer(settings: Settings) -> AIOKafkaProducer:
    return AIOKafkaProducer(**settings.kafka(), transactional_id=f"{settings.app}.silent")


async def _write(writer: AIOKafkaProducer, settings: Settings, begin: int, end: int) -> None:
    """The events of these numbers, a hundred in a transaction."""
    wire = Wire(settings.app, AgentTopics(settings.app, AGENT), settings.partitions)
    for start in range(begin, end, _RUNS):
        async with writer.transaction():
            for number in range(start, min(start + _RUNS, end)):
                run_id = run_name(number % _RUNS)
                event = EventRecord(
                    type="step.completed",
                    run_id=run_id,
                    agent=AGENT,
                    version=1,
                    status="running",
                    seq=number // _RUNS,
                    at_ms=SystemClock().now_ms(),
                    result=_RESULT,
                )
                out = wire.out(event, run_id, partition_of(run_id, settings.partitions), (), 0)
                await writer.send(out.topic, out.value, out.key, out.partition)


async def _read(stream: AsyncIterator[Event | Gap], seen: list[Event | Gap], events: int) -> None:
    """Until all are there. Raises RuntimeError when one is missing, doubled, or out of order."""
    async for told in stream:
        seen.append(told)
        if len(seen) == events:
            break
    next_seq: Counter[str] = Counter()
    for each in seen:
        if isinstance(each, Gap) or each.seq != next_seq[each.run_id]:
            raise RuntimeError(f"after event {next_seq} of each run: {each}")
        next_seq[each.run_id] += 1


async def _most(gateway: psutil.Process) -> tuple[int, int]:
    """Until it is cancelled: by how much the memory has grown at most, and to what."""
    before = most = gateway.memory_info().rss
    with suppress(asyncio.CancelledError):
        while True:
            most = max(most, gateway.memory_info().rss)
            await asyncio.sleep(_SAMPLE_S)
    return most - before, most


async def _connected(port: int) -> socket.socket:
    """Asks for the stream, and reads nothing."""
    made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    request = f"GET /events/{AGENT} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(made, request.encode())
    return made


def _vanish(sockets: list[socket.socket]) -> None:
    for number, each in enumerate(sockets):
        if number % 2:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()


async def _until_open(port: int, count: int) -> None:
    """Until the gateway says that it has so many streams."""
    async with httpx.AsyncClient() as client:
        while True:
            told = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            found = re.search(r"^surefoot_sse_connections(?:\{.*\})? (\d+)", told, re.MULTILINE)
            if found is not None and int(found[1]) == count:
                return
            await asyncio.sleep(_SAMPLE_S)
