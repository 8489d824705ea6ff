"""The Deliver port: everything that the relay sends goes through the guarded dialer.

Each request stands alone. No client keeps state between them (cookies, redirects, the environment's
proxies and passwords), so nothing that one run's target sets is sent with another run's request.
"""

from __future__ import annotations

import asyncio

import httpx

from surefoot.infra.http.guarded_dialer import GuardedBackend, GuardedTransport
from surefoot.state.egress.policy import Allowed, target_of
from surefoot.state.errors import RetryableError, TerminalError
from surefoot.state.ports.http import HttpRequest, HttpResponse
from surefoot.state.telemetry import metrics

#: bytes of a response's body that are kept to explain a failure
BODY_KEPT = 1024
#: defaults for headers that the request does not set
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "surefoot"}


class HttpDeliver:
    """Sends effects; connections are kept and shared. Lives on one event loop."""

    def __init__(self, allowed: Allowed, *, timeout_s: float = 30.0) -> None:
        self._allowed = allowed
        #: for the whole request; the transport's own timeouts restart with every byte
        self._timeout_s = timeout_s
        self._transport: GuardedTransport | None = None

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Send one request.

        Raises: Forbidden — its target is not allowed, nothing was sent; TerminalError — no client
        could send it, nothing was sent; RetryableError — no answer."""
        target_of(request.url)  # check it unchanged; httpx would normalise it
        if self._transport is None:
            self._transport = GuardedTransport(GuardedBackend(self._allowed))
        try:
            asked = httpx.Request(
                request.method,
                request.url,
                headers=_HEADERS,
                content=request.body,
                extensions={"timeout": httpx.Timeout(self._timeout_s).as_dict()},
            )
            asked.headers.update(request.headers)
            response, body = await self._answer(self._transport, asked)
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError) as error:
            metrics.OUTBOX_DELIVERIES.add("none")
            raise TerminalError(f"the request is invalid and can never be sent: {error}") from error
        except (TimeoutError, httpx.TransportError) as error:
            metrics.OUTBOX_DELIVERIES.add("none")
            raise RetryableError(
                f"no answer, so the target may or may not have executed it: {error!r}"
            ) from error
        metrics.OUTBOX_DELIVERIES.add(f"{min(response.status_code // 100, 5)}xx")
        return HttpResponse(
            status=response.status_code, headers=dict(response.headers), body=body[:BODY_KEPT]
        )

    async def _answer(
        self, transport: GuardedTransport, asked: httpx.Request
    ) -> tuple[httpx.Response, bytes]:
        async with asyncio.timeout(self._timeout_s):
            response = await transport.handle_async_request(asked)
            try:
                body = b""
                # still compressed: a few bytes could unpack to any number
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) >= BODY_KEPT:
                        break
            finally:
                await response.aclose()
        return response, body

    async def close(self) -> None:
        """Close the kept connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()
