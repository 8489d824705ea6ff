"""The Deliver port over httpx: everything that the relay sends goes through the guarded dialer."""

from __future__ import annotations

import asyncio
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from surefoot.infra.dial import GuardedBackend, GuardedTransport
from surefoot.state import metrics
from surefoot.state.errors import RetryableError
from surefoot.state.ports import HttpRequest, HttpResponse
from surefoot.state.targets import Allowed, target_of

#: of an answer's body, what is kept to tell a person why
BODY_KEPT = 1024


class HttpDeliver:
    """Sends effects; connections are kept and shared. Lives on one event loop."""

    def __init__(self, allowed: Allowed, *, timeout_s: float = 30.0) -> None:
        self._allowed = allowed
        #: for all of it; httpx's own timeout begins anew with every byte that comes
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Raises Forbidden — it may not go there, and nothing was sent; RetryableError."""
        target_of(request.url)  # as it stands; httpx would make something of it
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=GuardedTransport(GuardedBackend(self._allowed)),
                timeout=self._timeout_s,
                follow_redirects=False,
                headers={"Accept-Encoding": "identity"},
                # what one run's target sets is no other run's to send
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                trust_env=False,
            )
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream(
                    request.method, request.url, headers=dict(request.headers), content=request.body
                ) as response,
            ):
                body = b""
                # as it comes: a few bytes of it could be unpacked to any number
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) >= BODY_KEPT:
                        break
        except (TimeoutError, httpx.TransportError, httpx.InvalidURL) as error:
            metrics.OUTBOX_DELIVERIES.add("none")
            raise RetryableError(
                f"no answer, so it may or may not have been acted upon: {error!r}"
            ) from error
        metrics.OUTBOX_DELIVERIES.add(f"{min(response.status_code // 100, 5)}xx")
        return HttpResponse(
            status=response.status_code, headers=dict(response.headers), body=body[:BODY_KEPT]
        )

    async def close(self) -> None:
        """Give up what is kept open."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
