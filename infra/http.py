"""The Deliver port over httpx."""

from __future__ import annotations

import asyncio

import httpx

from surefoot.state.errors import RetryableError
from surefoot.state.ports import HttpRequest, HttpResponse

#: of an answer's body, what is kept to tell a person why
BODY_KEPT = 1024


class HttpDeliver:
    """Sends effects; connections are kept and shared. Lives on one event loop."""

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        #: for all of it; httpx's own timeout begins anew with every byte that comes
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=self._timeout_s, follow_redirects=False, trust_env=False
            )
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream(
                    request.method, request.url, headers=dict(request.headers), content=request.body
                ) as response,
            ):
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) >= BODY_KEPT:
                        break
        except (TimeoutError, httpx.TransportError, httpx.InvalidURL) as error:
            raise RetryableError(
                f"no answer, so it may or may not have been acted upon: {error!r}"
            ) from error
        return HttpResponse(
            status=response.status_code, headers=dict(response.headers), body=body[:BODY_KEPT]
        )
