"""One gateway process: settings and agents to an HTTP server, until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Sequence

import structlog
from aiokafka.errors import KafkaError
from uvicorn.loops.auto import auto_loop_factory

from surefoot.consumers.ending import stop_all
from surefoot.infra.archive_reader import open_run_reader
from surefoot.infra.backend import Backend
from surefoot.infra.backends import open_backend
from surefoot.infra.blobs import check_blobs
from surefoot.infra.clock import SystemClock
from surefoot.infra.commands import LogCommands
from surefoot.infra.delivery_log import DeliveryWriter
from surefoot.infra.demo.crash import crasher
from surefoot.infra.event_feed import LogEventFeed
from surefoot.infra.http_server import listen, server, url_of
from surefoot.infra.overview import LogOverview
from surefoot.infra.settings import Settings
from surefoot.infra.supervisor import is_supervised
from surefoot.infra.topics import names_of, specs_for
from surefoot.infra.views_http import HttpViews
from surefoot.infra.worker_main import follow_supervisor, until_signalled
from surefoot.producers.gateway import Limits, gateway_app
from surefoot.state.agent import Agent
from surefoot.state.errors import Unavailable
from surefoot.state.turn import schedules_agent_name

log = structlog.get_logger(__name__)

#: how long the topics are waited for at start-up
_VERIFY_S = 10.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def run_gateway(
    agents: Sequence[Agent],
    settings: Settings,
    on_listening: Callable[[str], None] = lambda _url: None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError when it cannot start."""

    async def run() -> None:
        stop, _ = until_signalled(settings.drain_timeout_s)
        following = asyncio.create_task(follow_supervisor(stop)) if is_supervised() else None
        try:
            async with open_backend(settings, SystemClock()) as backend:
                await serve_gateway(agents, settings, backend, stop, listening)
        finally:
            if following is not None:
                following.cancel()
            stop.set()  # however it ends, it does so in time

    def listening(url: str) -> None:
        # what has been imported and set up stays: no collection has to look through it again, with
        # every request waiting meanwhile
        gc.collect()
        gc.freeze()
        on_listening(url)

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(run())


async def serve_gateway(
    agents: Sequence[Agent],
    settings: Settings,
    backend: Backend,
    stop: asyncio.Event,
    on_listening: Callable[[str], None] = lambda _url: None,
) -> None:
    """Serve on the running loop until `stop` is set, finish the requests under way, and return.

    It comes up while Kafka is away; /ready tells. `on_listening` is given the base URL once
    connections are accepted.

    Raises: ConfigError — no broker or webhook secret is configured, the topics are not as they must
    be, or the port is taken.
    Under cancellation: the same way down.
    """
    clock = SystemClock()
    await check_blobs(settings, clock)
    commands = LogCommands(settings, backend.appender(), clock)
    # an appender of its own, so that its trouble is not that of the commands
    deliveries = DeliveryWriter(settings, backend.appender())
    readiness = backend.readiness()
    keepers = [schedules_agent_name(agent.name) for agent in agents if agent.schedules]
    reader = open_run_reader(settings, backend, [*(agent.name for agent in agents), *keepers])
    overview = LogOverview(settings, backend, agents)
    views = HttpViews(settings.views_url) if settings.views_url else None
    app = gateway_app(
        agents=agents,
        commands=commands,
        reader=reader,
        feed=LogEventFeed(reader),
        readiness=readiness,
        secrets=settings.webhook_secrets(),
        deliveries=deliveries,
        overview=overview,
        clock=clock,
        limits=Limits(body_bytes=settings.gateway_body_max_bytes, gzip=settings.gateway_gzip),
        views=views,
        crash=crasher(os.environ),
    )
    await _verify(agents, settings, backend)
    with _listen(settings) as listener:
        serving_app = server(app, settings.hosts(settings.gateway_host))
        await reader.start()
        serving = asyncio.create_task(serving_app.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        url = url_of(settings.gateway_host, listener)
        log.info("gateway_ready", url=url)
        on_listening(url)
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # no new connections; watchers leave; what is under way finishes; then the clients
            stopping.cancel()
            serving_app.should_exit = True
            reader.end_streams()
            await asyncio.wait([serving])
            await stop_all(commands, deliveries, readiness, overview, reader)
            if views is not None:
                await views.stop()
    serving.result()
    log.info("gateway_stopped")


async def _verify(agents: Sequence[Agent], settings: Settings, backend: Backend) -> None:
    """The topics must be right before a client could create one by asking for it. While Kafka is
    away the gateway comes up all the same, to say so."""
    try:
        async with asyncio.timeout(_VERIFY_S), backend.topics() as topics:
            await topics.verify(specs_for(names_of(agents), settings))
    except (Unavailable, KafkaError, TimeoutError) as error:
        log.warning("topics_not_verified", reason=str(error) or f"no answer in {_VERIFY_S:g} s")


def _listen(settings: Settings) -> socket.socket:
    host = settings.gateway_host
    if host not in _LOOPBACK:
        log.warning(
            "gateway_open",
            host=host,
            advice="/runs has no authentication; put the gateway behind a proxy that has, and name "
            "the hosts by which it is asked for in SUREFOOT_GATEWAY_HOSTS",
        )
    return listen(host, settings.gateway_port, "SUREFOOT_GATEWAY")
