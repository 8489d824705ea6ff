"""The views process: `surefoot views`, until SIGTERM."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from surefoot.infra.access.opened import access_for
from surefoot.infra.http.client import process_headers
from surefoot.infra.http.server import listen, server, url_of
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.worker import until_signalled
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.views.http import MergedViews, views_app
from surefoot.infra.views.shard import Shard
from surefoot.infra.views.sqlite import SqliteViews, ViewsFile
from surefoot.state.egress.hosts import Hosts
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.names.topics import views_spec

if TYPE_CHECKING:
    from surefoot.infra.views.faust import FaustViews

log = structlog.get_logger(__name__)


def run_views(agents: Sequence[str], settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises: ConfigError — it cannot start; Unavailable — Kafka is away, or Faust has given up.
    """

    async def run() -> None:
        stop, _ = until_signalled(settings.drain_timeout_s)
        try:
            async with open_backend(settings, SystemClock()) as backend:
                await serve_views(agents, settings, backend, stop)
        finally:
            stop.set()  # starts the deadline of the exit, however it came about

    asyncio.run(run())


async def serve_views(
    agents: Sequence[str],
    settings: Settings,
    backend: Backend,
    stop: asyncio.Event,
    on_listening: Callable[[str, dict[str, Shard]], None] = lambda _url, _shards: None,
) -> None:
    """Serve on the running loop until `stop` is set.

    Answers 503 until its partitions are read. `on_listening` is called with the base URL and the
    shards.

    Raises: as `run_views`.
    """
    async with backend.topics() as topics:
        await topics.verify(specs_for(agents, settings))
        if backend.views_file is None:
            await topics.apply(
                [views_spec(settings.app, name, settings.partitions) for name in agents]
            )
    clock = SystemClock()
    with listen(settings.views_host, settings.views_port, "SUREFOOT_VIEWS") as listener:
        url = url_of(settings.views_host, listener)
        address = (settings.views_address or url).rstrip("/")
        shards: dict[str, Shard] = {}
        signed = process_headers(os.environ)
        access = access_for(settings, backend, clock)
        views = MergedViews(shards, clock, settings.deadlines.views_s, signed)
        app = views_app(shards, views, clock, None if access is None else access.access)
        serving = server(app, _hosts(settings), drain_s=settings.deadlines.drain_s)
        ended: list[asyncio.Task[BaseException]] = []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(views.stop)
            if access is not None:
                stack.push_async_callback(access.stop)
                access.start()
            if backend.views_file is not None:
                file = ViewsFile(backend.views_file)
                stack.callback(file.close)
                for name in agents:
                    shards[name] = await stack.enter_async_context(
                        _followed(SqliteViews(name, settings, backend, clock, file))
                    )
            else:
                faust_views = _faust()
                folder = settings.views_dir / str(listener.getsockname()[1])
                for name in agents:
                    shard = faust_views(
                        name, settings, backend, clock, url=address, folder=folder / name
                    )
                    stack.push_async_callback(shard.stop)
                    shards[name] = shard
                    await shard.start()
                    ended.append(asyncio.create_task(shard.crashed()))
            answering = asyncio.create_task(serving.serve(sockets=[listener]))
            log.info("views_ready", url=url, agents=list(agents))
            on_listening(url, shards)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({answering, stopping, *ended}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            serving.should_exit = True
            await asyncio.wait([answering])
            for task in ended:
                task.cancel()
    answering.result()
    for task in ended:
        if task.done() and not task.cancelled():
            raise Unavailable("SF3017", f"Faust has given up: {task.result()!r}")
    log.info("views_stopped")


def _hosts(settings: Settings) -> Hosts:
    """Return the accepted hosts, including those of the gateway's and other instances' URLs."""
    told = (urlsplit(url).hostname for url in (settings.views_address, settings.views_url) if url)
    return settings.hosts(settings.views_host, *told)


@asynccontextmanager
async def _followed(views: SqliteViews) -> AsyncIterator[SqliteViews]:
    following = asyncio.create_task(views.run())
    try:
        yield views
    finally:
        following.cancel()
        await asyncio.wait([following])
        await views.stop()


def _faust() -> type[FaustViews]:
    """Import Faust. Raises ConfigError — the extra is not installed."""
    try:
        from surefoot.infra.views.faust import FaustViews  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "SF1031", f"views need Faust ({error}); run `pip install 'surefoot[views]'`"
        ) from error
    return FaustViews
