"""The HTTP server of every process that has one.

It checks the Host of every request, and leaves signals to the process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from surefoot.producers.access.gate import PEER
from surefoot.producers.guards import HostGuard
from surefoot.state.egress.hosts import Hosts
from surefoot.state.errors import ConfigError

#: watchers have nothing to send over a WebSocket
_SOCKET_BYTES = 4_096
#: how often a WebSocket is pinged; one that does not answer for 20 s is closed
_PING_S = 15.0


def listen(host: str, port: int, variables: str) -> socket.socket:
    """Listen on the port. `variables` is the prefix of the variables that set host and port.

    Raises: ConfigError — the port is taken, or the address is not one of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            "SF1004",
            f"cannot listen on {host} port {port} ({error}); set {variables}_HOST to an "
            f"address of this machine, and {variables}_PORT to a free port, or to 0 for any",
        ) from error


def url_of(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(app: Any, hosts: Hosts, *, drain_s: float, sockets: bool = True) -> uvicorn.Server:
    """Return a server for requests to these hosts, which runs until its `should_exit` is set.

    Requests under way then have `drain_s` to finish. `sockets`: the app has WebSockets; without, a
    WebSocket request is answered like any other."""
    return _Server(
        _Config(
            HostGuard(app, hosts),
            http="httptools",  # refuses what a proxy before it could read as two requests
            lifespan="off",
            access_log=False,  # a query string may contain secrets
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=int(drain_s),
            ws=_Socket if sockets else "none",
            ws_max_size=_SOCKET_BYTES,
            ws_per_message_deflate=False,  # costs a window per connection, for small messages
            ws_ping_interval=_PING_S,
        )
    )


class _Config(uvicorn.Config):
    """A configuration whose app is told who has made a connection, before uvicorn puts an address
    of X-Forwarded-For in its place."""

    def load(self) -> None:
        super().load()
        app = self.loaded_app

        async def with_peer(scope: Any, receive: Any, send: Any) -> None:
            client = scope.get("client")
            scope[PEER] = client[0] if client else None
            await app(scope, receive, send)

        self.loaded_app = with_peer


class _Socket(WebSocketsSansIOProtocol):
    """A WebSocket that may be refused, or left by its client before the answer, without error."""

    async def send(self, message: Any) -> None:
        if self.transport.is_closing() and not self.handshake_complete:
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # its base class sets it later


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
