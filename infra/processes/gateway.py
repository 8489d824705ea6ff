"""One gateway process: from settings and agents to an HTTP server, until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

import structlog
from uvicorn.loops.auto import auto_loop_factory

from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.access.opened import access_for
from surefoot.infra.archive.reader import ArchivedRunReader, open_run_reader
from surefoot.infra.blobs.stores import check_blobs
from surefoot.infra.http.client import process_headers
from surefoot.infra.http.server import listen, server, url_of
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.worker import follow_supervisor, spare_what_is_loaded, until_signalled
from surefoot.infra.readers.admin import LogOverview
from surefoot.infra.readers.delivery_log import DeliveryWriter
from surefoot.infra.readers.event_feed import LogEventFeed
from surefoot.infra.readers.runs import LogRunReader, failed_effects
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.crash import crasher
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.views.http import HttpViews
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.api.app import GatewayLimits, gateway_app
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.names.agents import schedules_agent_name

log = structlog.get_logger(__name__)

#: how often to check the topics of a held agent again, in seconds
_LOOK_AGAIN_S = 10.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def run_gateway(
    agents: Sequence[Agent],
    settings: Settings,
    on_listening: Callable[[str], None] = lambda _url: None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError — it cannot start."""

    async def run() -> None:
        stop, _ = until_signalled(settings.drain_timeout_s)
        following = asyncio.create_task(follow_supervisor(stop))
        try:
            async with open_backend(settings, SystemClock()) as backend:
                await serve_gateway(agents, settings, backend, stop, listening)
        finally:
            following.cancel()
            stop.set()  # starts the deadline of the exit, however it came about

    def listening(url: str) -> None:
        spare_what_is_loaded()
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

    Starts even while Kafka is away; /ready reports it. `on_listening` is called with the base URL
    once connections are accepted.

    Raises: ConfigError — no broker or webhook secret is configured, the topics that all agents
    share are wrong, or the port is taken.
    Under cancellation: shuts down in the same way.
    """
    clock = SystemClock()
    await check_blobs(settings, clock)
    commands = LogCommands(settings, backend.appender(), clock)
    # an appender of its own, so that its failures do not affect commands
    deliveries = DeliveryWriter(settings, backend.appender())
    readiness = backend.readiness()
    keepers = [schedules_agent_name(agent.name) for agent in agents if agent.schedules]
    reader = open_run_reader(settings, backend, [*(agent.name for agent in agents), *keepers])
    access = access_for(settings, backend, clock)
    held: dict[str, str] = {}
    overview = LogOverview(settings, backend, agents, held)
    views = None
    if settings.views_url:
        signed = process_headers(os.environ)
        views = HttpViews(settings.views_url, settings.deadlines.views_s, signed)
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
        limits=GatewayLimits(
            body_bytes=settings.gateway_body_max_bytes,
            gzip=settings.gateway_gzip,
            mapping_s=settings.gateway_mapping_s,
            mapping_threads=settings.gateway_mapping_threads,
            start_s=settings.deadlines.start_s,
            answer_s=settings.deadlines.answer_s,
        ),
        views=views,
        crash=crasher(os.environ),
        held=held,
        effects=partial(failed_effects, settings, backend),
        archive=reader.archive_fault if isinstance(reader, ArchivedRunReader) else None,
        access=None if access is None else access.access,
    )
    await _verify(agents, settings, backend, held)
    with _listen(settings) as listener:
        serving_app = server(
            app, settings.hosts(settings.gateway_host), drain_s=settings.deadlines.drain_s
        )
        await reader.start(_with_keepers(held))
        if access is not None:
            access.start()
        looking = asyncio.create_task(_look_again(agents, settings, backend, held, reader))
        serving = asyncio.create_task(serving_app.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        url = url_of(settings.gateway_host, listener)
        log.info("gateway_ready", url=url)
        on_listening(url)
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # refuse new connections; end the streams; finish requests under way; then stop the
            # clients
            stopping.cancel()
            looking.cancel()
            serving_app.should_exit = True
            reader.end_streams()
            await asyncio.wait([serving, looking])
            await stop_all(commands, deliveries, readiness, overview, reader)
            if access is not None:
                await access.stop()
            if views is not None:
                await views.stop()
    serving.result()
    log.info("gateway_stopped")


async def _verify(
    agents: Sequence[Agent], settings: Settings, backend: Backend, held: dict[str, str]
) -> None:
    """Verify the topics of each agent.

    An agent's topics must be right before a request to Kafka could create one: until they are, the
    agent is held while the others are served. While Kafka is away the gateway starts all the same,
    to report it.

    Raises: ConfigError — topics shared by all agents are wrong.
    """
    verify_s = settings.deadlines.verify_s
    try:
        async with asyncio.timeout(verify_s), backend.topics() as topics:
            await topics.verify(specs_for([], settings))
            shared = {spec.name for spec in specs_for([], settings)}
            for agent in agents:
                specs = specs_for(names_of([agent]), settings)
                try:
                    await topics.verify([spec for spec in specs if spec.name not in shared])
                except ConfigError as error:
                    if agent.name not in held:
                        log.warning("agent_held", agent=agent.name, reason=str(error))
                    held[agent.name] = error.message
                else:
                    if held.pop(agent.name, None) is not None:
                        log.info("agent_served", agent=agent.name)
    except (Unavailable, TimeoutError) as error:
        log.warning("topics_not_verified", reason=str(error) or f"no answer in {verify_s:g} s")


async def _look_again(
    agents: Sequence[Agent],
    settings: Settings,
    backend: Backend,
    held: dict[str, str],
    reader: LogRunReader,
) -> None:
    """Check held agents again, until all are served or cancelled."""
    while held:
        await asyncio.sleep(_LOOK_AGAIN_S)
        waiting = [agent for agent in agents if agent.name in held]
        with suppress(ConfigError):  # shared topics were right at start; somebody is changing them
            await _verify(waiting, settings, backend, held)
        await reader.start(_with_keepers(held))


def _with_keepers(held: Collection[str]) -> set[str]:
    """Return the held agents with those that keep their schedules."""
    return {name for agent in held for name in (agent, schedules_agent_name(agent))}


def _listen(settings: Settings) -> socket.socket:
    host = settings.gateway_host
    if host not in _LOOPBACK and settings.auth == "off":
        if not settings.insecure:
            raise ConfigError(
                "SF1081",
                f"the gateway would listen on {host}, and anybody who reaches it could start and "
                "steer every run; set SUREFOOT_AUTH=tokens, or SUREFOOT_INSECURE=1 where something "
                "in front of it authenticates",
            )
        log.warning(
            "gateway_open",
            host=host,
            advice="nobody has to sign in; keep the gateway behind a proxy that authenticates",
        )
    return listen(host, settings.gateway_port, "SUREFOOT_GATEWAY")
