"""The HTTP edge: bounded bodies, one shape of error, and nothing that leaks.

Every refusal is `{"error": "..."}`. What nobody foresaw is a constant 500 with the trace in the log
only. Nothing of a request is copied into a Kafka header.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.state.errors import RecordTooLarge, Unavailable

log = structlog.get_logger(__name__)

#: seconds after which a sender should try again when the log is away
RETRY_AFTER_S = 5

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """Ends a request with this status; `message` goes to the client and tells what to change."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


async def read_body(request: Request, *, bytes_max: int, timeout_s: float) -> bytes:
    """The raw body, as it came in.

    Raises: Refused — 413 as soon as it is known to be too long, with or without a Content-Length;
    408 when it takes too long to come in; 400 for a Content-Length that is no number.
    """
    declared = request.headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()):
        raise Refused(400, "Content-Length is not a number")
    too_long = Refused(413, f"the body is longer than {bytes_max} bytes", {"Connection": "close"})
    if len(declared) > len(str(bytes_max)) or int(declared) > bytes_max:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise too_long
    except TimeoutError:
        message = f"the body did not come in within {timeout_s:g} s"
        raise Refused(408, message, {"Connection": "close"}) from None
    return bytes(body)


def traceparent(request: Request) -> str | None:
    """The W3C trace context of the request; None unless there is exactly one valid one.
    Source: W3C Trace Context, version 00."""
    values = request.headers.getlist("traceparent")
    return values[0] if len(values) == 1 and _TRACEPARENT.fullmatch(values[0]) else None


def guard(app: FastAPI) -> None:
    """Give the app its error answers and security headers."""
    app.add_middleware(_Guard)
    app.exception_handler(Refused)(_refused)
    app.exception_handler(Unavailable)(_unavailable)
    app.exception_handler(RecordTooLarge)(_too_large)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(RequestValidationError)(_invalid)


async def _refused(_: Request, error: Refused) -> JSONResponse:
    return JSONResponse({"error": error.message}, error.status, error.headers)


async def _unavailable(request: Request, error: Unavailable) -> JSONResponse:
    log.warning("log_unavailable", path=request.scope["path"], reason=str(error))
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return JSONResponse({"error": "the log is not available; try again"}, 503, headers)


async def _too_large(_: Request, error: RecordTooLarge) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 413)


async def _http(_: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    told = [f"{'.'.join(str(p) for p in item['loc'])}: {item['msg']}" for item in error.errors()]
    return JSONResponse({"error": "; ".join(told)}, 422)


class _Guard:
    """ASGI middleware; outermost but for Starlette's own, and it does not buffer streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except ClientDisconnect:
            log.info("client_gone", method=scope["method"])
        except Exception:
            log.exception("request_failed", method=scope["method"])
            if begun:
                raise  # the server has to cut the connection
            await JSONResponse({"error": "internal error"}, 500)(scope, receive, guarded)
