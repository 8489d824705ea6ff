"""The gateway of `surefoot gateway` and the views of `surefoot views`, each on a port of its own,
for as long as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from surefoot import Agent
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.log.ports import Backend
from surefoot.infra.processes.gateway import serve_gateway
from surefoot.infra.processes.views import serve_views
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.views.shard import Shard
from tests.support.eventually import until

_STOP_S = 90.0


@asynccontextmanager
async def served(agent: Agent, settings: Settings) -> AsyncIterator[str]:
    """Its URL. Raises what kept it from listening."""
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    backend = KafkaBackend(settings, SystemClock())
    serving = asyncio.create_task(serve_gateway([agent], settings, backend, stop, url.set_result))
    await until(lambda: serving.done() or url.done(), what="the gateway to listen")
    if not url.done():
        await serving
    try:
        yield url.result()
    finally:
        stop.set()
        await asyncio.wait_for(serving, _STOP_S)


@asynccontextmanager
async def served_views(
    agent: str, settings: Settings, backend: Backend
) -> AsyncIterator[tuple[str, Shard]]:
    """Its URL, and what is served. Raises what kept it from listening."""
    stop = asyncio.Event()
    listening: asyncio.Future[tuple[str, Any]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_views(
            [agent],
            settings,
            backend,
            stop,
            lambda url, shards: listening.set_result((url, shards[agent])),
        )
    )
    await until(lambda: serving.done() or listening.done(), what="the views to listen")
    if not listening.done():
        await serving
    try:
        yield listening.result()
    finally:
        stop.set()
        await asyncio.wait_for(serving, _STOP_S)


@asynccontextmanager
async def asked(agent: Agent, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of such a gateway; it waits for an answer as long as that takes."""
    async with served(agent, settings) as url, httpx.AsyncClient(base_url=url, timeout=90) as http:
        yield http
