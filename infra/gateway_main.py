"""One gateway process: settings and agents to an HTTP server, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import structlog
import uvicorn
from aiokafka.errors import KafkaError

from surefoot.infra.backend import Backend
from surefoot.infra.backends import open_backend
from surefoot.infra.clock import SystemClock
from surefoot.infra.commands import LogCommands
from surefoot.infra.run_reader import LogRunReader
from surefoot.infra.settings import Settings
from surefoot.infra.topics import specs_for
from surefoot.producers.gateway import Limits, gateway_app
from surefoot.state.agent import Agent
from surefoot.state.errors import ConfigError, Unavailable

log = structlog.get_logger(__name__)

#: on the way down, how long requests under way may take to finish
_DRAIN_S = 10
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
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with open_backend(settings, SystemClock()) as backend:
            await serve_gateway(agents, settings, backend, stop, on_listening)

    asyncio.run(run())


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
    commands = LogCommands(settings, backend.appender(), clock.now_ms)
    readiness = backend.readiness()
    reader = LogRunReader(settings, backend, [agent.name for agent in agents])
    app = gateway_app(
        agents=agents,
        commands=commands,
        reader=reader,
        readiness=readiness,
        secrets=settings.webhook_secrets(),
        clock=clock,
        limits=Limits(body_bytes=settings.gateway_body_max_bytes),
    )
    await _verify(agents, settings, backend)
    with _listen(settings) as listener:
        server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                access_log=False,  # a query string may hold what nobody should read
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )
        await reader.start()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        url = _url(settings.gateway_host, listener)
        log.info("gateway_ready", url=url)
        on_listening(url)
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # no new connections; watchers leave; what is under way finishes; then the clients
            stopping.cancel()
            server.should_exit = True
            reader.end_streams()
            await asyncio.wait([serving])
            await commands.stop()
            await readiness.stop()
            await reader.stop()
    serving.result()
    log.info("gateway_stopped")


async def _verify(agents: Sequence[Agent], settings: Settings, backend: Backend) -> None:
    """The topics must be right before a client could create one by asking for it. While Kafka is
    away the gateway comes up all the same, to say so."""
    try:
        async with asyncio.timeout(_VERIFY_S), backend.topics() as topics:
            await topics.verify(specs_for([agent.name for agent in agents], settings))
    except (Unavailable, KafkaError, TimeoutError) as error:
        log.warning("topics_not_verified", reason=str(error) or f"no answer in {_VERIFY_S:g} s")


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.gateway_host, settings.gateway_port
    if host not in _LOOPBACK:
        log.warning(
            "gateway_open",
            host=host,
            advice="/runs has no authentication; put the gateway behind a proxy that has",
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error}); set SUREFOOT_GATEWAY_HOST to an "
            "address of this machine, and SUREFOOT_GATEWAY_PORT to a free port, or to 0 for any"
        ) from error


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
