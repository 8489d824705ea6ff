"""A whole installation on one machine: child processes around one broker."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from surefoot.infra.broker.config import say
from surefoot.infra.broker.find import Broker, start_broker
from surefoot.infra.log.ports import Backend
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.runtime.supervisor import Child
from surefoot.infra.telemetry.metrics import port_of_child
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import TopicSpec

#: how long the gateway may take until a transaction commits, in seconds
READY_S = 60.0
#: targets that `surefoot dev` and the demo let the relay reach, unless SUREFOOT_OUT_ALLOW says
#: otherwise: this machine and private networks, where an author runs test receivers
OUT_ALLOW_HERE = "localhost,127.0.0.0/8,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"
#: how long a gateway whose supervisor was killed may take to end, in seconds
_ORPHAN_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the log is."""

    #: settings with which other processes find it
    found_by: Mapping[str, str]
    #: description for people
    told: str
    #: version of the broker, or "embedded"
    version: str

    @property
    def env(self) -> dict[str, str]:
        """The same settings, as environment variables."""
        return {f"SUREFOOT_{name.upper()}": value for name, value in self.found_by.items()}


@contextmanager
def running_log(settings: Settings, otherwise: Path) -> Iterator[Site]:
    """Yield the log that the settings name, else a broker started here and stopped at the end.

    If no broker can be had, it is the embedded log in the file `otherwise`.

    Raises: ConfigError — the settings require Kafka, and it cannot be had.
    """
    if settings.embedded_path is not None:
        yield _embedded(settings.embedded_path)
        return
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(running_broker(settings))
        except ConfigError as error:
            if settings.log == "kafka" or settings.bootstrap_servers:
                raise
            say(str(error))
            site = _embedded(otherwise)
        else:
            site = Site(
                found_by={"bootstrap_servers": broker.bootstrap},
                told=f"Kafka {broker.version} ({broker.kind}) at {broker.bootstrap}",
                version=broker.version,
            )
        yield site


def _embedded(path: Path) -> Site:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return Site(
        found_by={"log": f"sqlite:///{path.resolve()}"},
        told=f"embedded log, one process; not Kafka ({path})",
        version="embedded",
    )


@contextmanager
def running_broker(settings: Settings) -> Iterator[Broker]:
    """Yield the broker that the settings name, or one started here and stopped at the end.

    SIGTERM is handled like Ctrl-C. Both are ignored while the broker is stopped, so that a second
    one leaves nothing behind.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = settings.bootstrap_servers
    broker = start_broker(given, client=settings.kafka() if given else None)
    try:
        yield broker
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        broker.stop()


def children(
    agent_file: Path,
    settings: Settings,
    *,
    processes: int,
    env: Mapping[str, str],
    logs: Path | None,
    pools: Iterable[str] = (),
    trigger: bool = False,
) -> list[Child]:
    """Return gateway, workers, a worker for each pool, a trigger if asked for, and relay.

    Args: logs: folder for a log file of each; None: they log to stderr.
    """
    commands = {"gateway": ["gateway", str(agent_file)]}
    for slot in range(processes):
        commands[f"worker-{slot}"] = ["worker", str(agent_file), "--slot", str(slot)]
    for pool in pools:
        commands[f"worker-{pool}-0"] = ["worker", str(agent_file), "--pool", pool, "--slot", "0"]
    if trigger:
        commands["trigger-0"] = ["trigger", str(agent_file), "--slot", "0"]
    commands["relay-0"] = ["relay", "--slot", "0"]
    return [
        Child(
            name=name,
            args=args,
            env={**env, **port_of_child(settings, number)},
            log_path=logs / f"{name}.log" if logs else None,
        )
        for number, (name, args) in enumerate(commands.items())
    ]


def one_child(agent_file: Path, *, env: Mapping[str, str], logs: Path) -> Child:
    """Return one process that runs all of them."""
    return Child(
        name="serve", args=["serve", str(agent_file)], env=env, log_path=logs / "serve.log"
    )


def require_free(host: str, port: int) -> None:
    """Check that nothing listens on the port.

    A gateway left by a killed `surefoot dev` ends by itself, and is given time to.

    Raises: ConfigError — something listens there; the message names the process.
    """
    deadline_s = time.monotonic() + _ORPHAN_S
    while True:
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            holder = _listener(port) if error.errno == errno.EADDRINUSE else None
            if holder and " surefoot gateway" in holder and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                continue
            by = f": process {holder}" if holder else ""
            raise ConfigError(
                "SF1004",
                f"cannot listen on {host} port {port} ({error.strerror}{by}); stop what listens "
                "there, or choose another port with --port",
            ) from error
        else:
            return


def _listener(port: int) -> str | None:
    """Return number and command line of the process that listens on the port.

    None if /proc does not tell: it is Linux's, and shows only one's own processes.
    """
    with suppress(OSError):
        rows = [
            row.split()
            for table in ("tcp", "tcp6")
            for row in Path("/proc/net", table).read_text("ascii").splitlines()[1:]
        ]
        # Source: proc_net_tcp, in Linux's own documentation. 0A is LISTEN, column 9 the inode.
        listening = {
            f"socket:[{row[9]}]"
            for row in rows
            if row[1].endswith(f":{port:04X}") and row[3] == "0A"
        }
        for handle in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):
                if str(handle.readlink()) in listening:
                    process = handle.parents[1]
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    return f"{process.name}, {command.decode('utf-8', 'replace').strip()}"
    return None


async def create_topics(backend: Backend, specs: Sequence[TopicSpec]) -> None:
    """Create the topics, and wait until the broker leads them and serves groups.

    A broker that has just started needs a while for that; without the wait, each process would
    report errors at its start.
    """
    async with backend.topics() as topics:
        await topics.apply(specs)
        await topics.served(specs)


async def until_ready(gateway_url: str) -> None:
    """Wait until a transaction commits for every agent of the gateway.

    Raises: ConfigError — not within 60 s; the processes' own messages say why.
    """
    try:
        async with (
            asyncio.timeout(READY_S),
            httpx.AsyncClient(base_url=gateway_url, timeout=10.0, trust_env=False) as client,
        ):
            while not await _ready(client):  # noqa: ASYNC110  (another process: nobody tells)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ConfigError(
            "SF1006",
            f"the gateway was not ready within {READY_S:g} s; its messages say what is missing",
        ) from None


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).is_success
    except httpx.TransportError:
        return False
