"""Dials only what state.egress.policy allows: the only way in which requests leave.

1. resolve the name, once per connection
2. check every address; one that is not allowed forbids them all
3. dial exactly the checked addresses, each beside the earlier ones that have not answered yet (RFC
   8305, "happy eyeballs"); TLS and the Host header keep the name

So a name that resolves differently the next time is checked again, and a connection stays with the
address that it was opened to. Proxies of the environment are not used: behind one, the proxy would
choose the addresses.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import anyio
import httpcore
import httpx

from surefoot.state.egress.policy import Allowed, Target, check_host

#: returns the addresses of a host and a port
ResolveHost = Callable[[str, int], Awaitable[list[str]]]
#: most connections kept open, and most in total
_KEPT_MAX, _OPEN_MAX = 20, 100
#: how long to wait for an address before dialing the next beside it (RFC 8305, section 8)
_STAGGER_S = 0.25
#: time limit per address: a SYN is sent four times within it
_ADDRESS_S = 10.0


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a name to all its addresses, as the system knows them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections for httpcore."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        resolve: ResolveHost = resolve_host,
        connect: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._connect = connect or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface's)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect. Raises Forbidden, and whatever httpcore's own backend raises."""
        target = Target(host.lower(), port)
        check_host(target)
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from error
        self._allowed.check(target, addresses)
        limit_s = _ADDRESS_S if timeout is None else min(timeout, _ADDRESS_S)

        def connect(address: str) -> Awaitable[httpcore.AsyncNetworkStream]:
            return self._connect.connect_tcp(address, port, limit_s, local_address, socket_options)

        return await _first(connect, in_turns(addresses))

    async def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> Any:
        raise httpcore.ConnectError(f"{path} is not an allowed target")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def in_turns(addresses: Sequence[str]) -> list[str]:
    """Interleave the address families, starting with that of the first (RFC 8305, section 4)."""
    first = ":" in addresses[0]
    families = ([a for a in addresses if (":" in a) is same] for same in (first, not first))
    return [a for pair in zip_longest(*families) for a in pair if a is not None]


async def _first(
    connect: Callable[[str], Awaitable[httpcore.AsyncNetworkStream]], addresses: Iterable[str]
) -> httpcore.AsyncNetworkStream:
    """Return the first connection that succeeds, and give up the others.

    Raises: the error of the last one to fail.
    """
    won: httpcore.AsyncNetworkStream | None = None
    failure: Exception | None = None

    async def attempt(address: str, over: anyio.Event) -> None:
        nonlocal won, failure
        try:
            stream = await connect(address)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            failure = error
        else:
            if won is None:
                won = stream
                group.cancel_scope.cancel()
            else:
                await stream.aclose()
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as group:
            for address in addresses:
                over = anyio.Event()
                group.start_soon(attempt, address, over)
                with anyio.move_on_after(_STAGGER_S):
                    await over.wait()
    except BaseException:
        if won is not None:
            await won.aclose()
        raise
    if won is None:
        assert failure is not None, "check() refuses a target without addresses"
        raise failure
    return won


class GuardedTransport(httpx.AsyncBaseTransport):
    """Transport for an httpx client: all its requests, and each redirect that it follows."""

    def __init__(self, backend: GuardedBackend, *, verify: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify or httpx.create_ssl_context(trust_env=False),
            max_connections=_OPEN_MAX,
            max_keepalive_connections=_KEPT_MAX,
            keepalive_expiry=5.0,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request.

        Raises: Forbidden; LocalProtocolError — HTTP cannot express it, and nothing was sent;
        TransportError — for httpcore's other errors."""
        url = request.url
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(asked)
        except httpcore.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        except _FAILURES as error:
            raise httpx.TransportError(repr(error)) from error
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._answer.aiter_stream():
                yield part
        except _FAILURES as error:
            raise httpx.TransportError(repr(error)) from error

    async def aclose(self) -> None:
        await self._answer.aclose()
