"""Finds or starts a Kafka broker: the given one, else one in Docker, else one on Java."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from surefoot.infra.broker.config import (
    STORAGE,
    CannotStart,
    Node,
    Storage,
    say,
    tail,
    version_in_log,
)
from surefoot.infra.broker.docker import start_docker
from surefoot.infra.broker.java import port_was_taken, start_java
from surefoot.infra.broker.probe import ask, why_not
from surefoot.state.errors import ConfigError

BrokerKind = Literal["given", "docker", "java"]

_READY_TIMEOUT_S = 120
_GIVEN_TIMEOUT_S = 15
_ASK_TIMEOUT_S = 5
_LOG_TIMEOUT_S = 5
_POLL_S = 0.1
_PORT_ATTEMPTS = 3
#: length, api key 18, version 0, correlation id, no client id
_API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@dataclass(kw_only=True)
class Broker:
    """A broker that answers. `stop` leaves a given one running."""

    #: host:port, comma-separated, as Kafka clients accept it
    bootstrap: str
    #: as reported by the broker: "4.4.0" in its log, if started here; "4.4" over the wire
    version: str
    kind: BrokerKind
    _node: Node | None = None

    @property
    def pid(self) -> int | None:
        """The broker's process (kind "java")."""
        return self._node.pid if self._node else None

    @property
    def log_path(self) -> Path | None:
        """The broker's own log (kind "java")."""
        return self._node.log_path if self._node else None

    def pause(self) -> None:
        """Freeze the broker while it keeps its connections, like a stalled disk or SIGSTOP."""
        self._started().pause()

    def resume(self) -> None:
        self._started().resume()

    def stop(self) -> None:
        """Stop a broker started here, within about 20 s; leaves a given one. Safe to call twice."""
        node, self._node = self._node, None
        if node is not None:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _started(self) -> Node:
        if self._node is None:
            raise RuntimeError("this broker was not started here, or has been stopped")
        return self._node


def start_broker(
    bootstrap: str | None = None,
    *,
    client: Mapping[str, Any] | None = None,
    ways: Sequence[Literal["docker", "java"]] = ("docker", "java"),
    image: str | None = None,
    folder: Path | None = None,
    port: int | None = None,
    properties: Mapping[str, str] | None = None,
    storage: Storage = STORAGE,
) -> Broker:
    """Return a broker that serves; blocks, some seconds for one on Java. Use it with `with`.

    Args:    bootstrap: a broker to use as it is; client: aiokafka's arguments to reach it (TLS,
    SASL); ways: how to start one otherwise, in this order; image: the Docker image; folder: where a
    broker on Java keeps its data and port for the next start (default: a temporary one; a container
    keeps nothing); port: of the client listener; properties: further server properties, for one
    started here; storage: of one on Java
    Raises:  ConfigError — the given one does not answer, or none can be started; says what to do
    Under cancellation (KeyboardInterrupt): whatever was started is stopped
    """
    if bootstrap is not None:
        return _given(bootstrap, client or {})
    start: dict[str, Callable[[], Node]] = {
        "docker": lambda: start_docker(image=image, port=port, properties=properties or {}),
        "java": lambda: start_java(
            folder=folder, port=port, properties=properties or {}, storage=storage
        ),
    }
    reasons: list[str] = []
    for way in ways:
        if reasons:
            say(f"{reasons[-1]}; trying {way.capitalize()}")
        try:
            # Only a port chosen here can be another one at the next attempt.
            attempts = _PORT_ATTEMPTS if port is None and folder is None else 1
            node, version = _start_until_ready(start[way], attempts)
            return Broker(bootstrap=node.bootstrap, version=version, kind=way, _node=node)
        except CannotStart as reason:
            reasons.append(f"{way.capitalize()} cannot start a broker: {reason}")
    raise ConfigError(
        "SF3003",
        "no Kafka broker can be started here. Install Docker, or Java 17 or newer with Maven, or "
        "set SUREFOOT_BOOTSTRAP_SERVERS to a running broker.\n- " + "\n- ".join(reasons),
    )


def _given(bootstrap: str, client: Mapping[str, Any]) -> Broker:
    release = ask({**client, "bootstrap_servers": bootstrap}, timeout_s=_GIVEN_TIMEOUT_S)
    if release is None:
        found = why_not({**client, "bootstrap_servers": bootstrap})
        raise ConfigError(found.number, found.sentence)
    return Broker(bootstrap=bootstrap, version=release, kind="given")


def _start_until_ready(start: Callable[[], Node], attempts: int) -> tuple[Node, str]:
    node = start()
    try:
        return node, _wait_until_ready(node)
    except BaseException as error:
        node.stop()
        if attempts == 1 or not isinstance(error, CannotStart) or not port_was_taken(str(error)):
            raise
    return _start_until_ready(start, attempts - 1)


def _wait_until_ready(node: Node) -> str:
    """Block until the broker serves; return the version it reported."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    release: str | None = None
    while time.monotonic() < deadline:
        if failure := node.failure():
            raise CannotStart(failure)
        if release is None and _answers(node.bootstrap):
            release = ask({"bootstrap_servers": node.bootstrap}, timeout_s=_ASK_TIMEOUT_S)
            # It serves a moment before it logs its version; an image may also log nothing.
            deadline = time.monotonic() + _LOG_TIMEOUT_S if release else deadline
        if release is not None and (version := version_in_log(node.log_text())):
            return version
        time.sleep(_POLL_S)
    if release is not None:
        return version_in_log(node.log_text()) or release
    raise CannotStart(
        f"the broker did not serve within {_READY_TIMEOUT_S} s:\n{tail(node.log_text())}"
    )


def _answers(bootstrap: str) -> bool:
    """Whether something at the address speaks Kafka; by hand, since a client logs each refusal.

    A connection alone proves nothing: Docker accepts it before the broker inside listens.
    """
    host, _, port = bootstrap.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(_API_VERSIONS_V0)
            return bool(connection.recv(1))
    except OSError:
        return False
