"""The HTTP edge: bounded bodies, one shape of error, no leaks.

Every refusal is `{"error": "SF5...: ..."}`, with its number. An unexpected error is a constant 500,
with the trace only in the log. Nothing of a request is copied into a Kafka header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.schemas import trace
from surefoot.schemas.trace import Carried
from surefoot.state.egress.hosts import Hosts
from surefoot.state.errors import Numbered, RecordTooLarge, Unavailable
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: seconds after which a sender should retry while the log is unavailable
RETRY_AFTER_S = 5
#: error number of that answer; the cause is only in the log
AWAY = "SF5015"
#: what is unavailable by the error's number, where it is not the log
_NOT_THE_LOG = {
    "SF2090": "the key of an encrypted payload is",
    "SF3015": "the views are",
    "SF3016": "the views are",
    "SF5084": "the identity provider is",
}

#: a longer body is parsed in a thread
IN_LOOP_BYTES = 65_536

T = TypeVar("T")

#: names in lower case, as in ASGI
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class RequestRefused(Numbered):
    """Ends a request with this status.

    Number and message go to the client and say what to change; `why` goes to the operator, where it
    is more than the client may know."""

    def __init__(
        self,
        number: str,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        why: str | None = None,
    ) -> None:
        super().__init__(number, message)
        self.status = status
        self.headers = headers
        self.why = why or message


def check_agent(agent: str, agents: Collection[str]) -> str:
    """The agent. Raises RequestRefused when this gateway has none of that name."""
    if agent not in agents:
        raise RequestRefused("SF5011", 404, f"unknown agent; use one of: {', '.join(agents)}")
    return agent


async def read_body(request: Request, *, bytes_max: int, timeout_s: float) -> bytes:
    """Read the raw body.

    Raises: RequestRefused — 413 as soon as it is known to be too long, with or without a
    Content-Length; 408 when it takes too long to arrive; 400 for a Content-Length that is not a
    number.
    """
    declared = request.headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()):
        raise RequestRefused("SF5001", 400, "Content-Length is not a number")
    too_long = RequestRefused(
        "SF5002", 413, f"the body is longer than {bytes_max} bytes", {"Connection": "close"}
    )
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
        message = f"the body did not arrive within {timeout_s:g} s"
        raise RequestRefused("SF5003", 408, message, {"Connection": "close"}) from None
    return bytes(body)


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers by lower-case name.

    The values of a repeated header form one list, each value once: a proxy may have added what was
    already there.

    One pass: anybody may send a hundred thousand headers, and `dict(request.headers)` scans all of
    them for each. Source: RFC 9110, 5.3
    """
    found: dict[str, dict[str, None]] = {}
    for name, value in request.headers.items():
        found.setdefault(name, {})[value] = None
    return {name: ", ".join(values) for name, values in found.items()}


def utf8(text: str) -> str:
    """Decode a header as UTF-8, if it is; HTTP reads it as Latin-1."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


async def parse_body(size: int, parse: Callable[..., T], *args: Any) -> T:
    """Parse a body of that size; a large one in a thread, so that other requests need not wait."""
    if size <= IN_LOOP_BYTES:
        return parse(*args)
    return await run_in_threadpool(parse, *args)


def check_json(request: Request) -> None:
    """Require JSON. A foreign page cannot make a browser send this content type.

    Raises: RequestRefused — 415, for any other.
    """
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise RequestRefused("SF5006", 415, "the content type must be application/json")


def check_origin(request: HTTPConnection) -> None:
    """Refuse changes from pages of other sites, by the headers that only browsers send.

    Raises: RequestRefused — 403, for another site.
    Source: Fetch Metadata Request Headers; WHATWG Fetch, "Origin header".
    """
    told = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if told is not None:
        foreign = told not in ("same-origin", "none")
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise RequestRefused("SF5033", 403, "the request comes from a page of another site")


class Allowance:
    """Lets a burst through, then one per interval, and counts what it does not let through."""

    def __init__(self, clock: Clock, burst: int, every_s: float) -> None:
        self._clock, self._burst, self._every_s = clock, burst, every_s
        self._room: float = burst
        self._since_s = clock.monotonic_s()
        self._left_out = 0

    def take(self) -> bool:
        now_s = self._clock.monotonic_s()
        self._room = min(self._burst, self._room + (now_s - self._since_s) / self._every_s)
        self._since_s = now_s
        if self._room < 1:
            self._left_out += 1
            return False
        self._room -= 1
        return True

    def left_out(self) -> int:
        """Return how many were not let through since the last call."""
        left_out, self._left_out = self._left_out, 0
        return left_out


def trace_context(request: Request) -> Carried:
    """Return the request's W3C trace context and baggage."""
    get = request.headers.getlist
    return trace.carried(get("traceparent"), get("tracestate"), get("baggage"))


def direct(app: FastAPI, route: Route) -> None:
    """Route requests straight to a route's endpoint, past the framework's own layers.

    Those cost time without a use here. Call before `guard`, which wraps it."""
    app.add_middleware(_Direct, route=route)


def guard(app: FastAPI) -> None:
    """Add error answers and security headers to the app."""
    app.add_middleware(_Guard)
    app.exception_handler(RequestRefused)(_refused)
    app.exception_handler(Unavailable)(_unavailable)
    app.exception_handler(RecordTooLarge)(_too_large)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(RequestValidationError)(_invalid)


def refusal(error: RequestRefused) -> JSONResponse:
    """Return the answer to a request that is refused."""
    return JSONResponse({"error": str(error)}, error.status, error.headers)


async def _refused(_: Request, error: RequestRefused) -> JSONResponse:
    return refusal(error)


async def _unavailable(request: Request, error: Unavailable) -> JSONResponse:
    return unavailability(request.scope, error)


def unavailability(scope: Scope, error: Unavailable) -> JSONResponse:
    """Return the answer to a request that the log keeps from being answered, and log why."""
    log.warning("log_unavailable", path=scope["path"], reason=str(error))
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    other = _NOT_THE_LOG.get(error.number)
    number, what = (AWAY, "the log is") if other is None else (error.number, other)
    told = f"{number}: {what} not available; try again"
    return JSONResponse({"error": told}, 503, headers)


async def _too_large(_: Request, error: RecordTooLarge) -> JSONResponse:
    return JSONResponse({"error": f"{error.number}: {error}"}, 413)


async def _http(_: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": f"SF5012: {error.detail}"}, error.status_code, error.headers)


async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    told = [f"{'.'.join(str(p) for p in item['loc'])}: {item['msg']}" for item in error.errors()]
    return JSONResponse({"error": f"SF5013: {'; '.join(told)}"}, 422)


class HostGuard:
    """ASGI middleware around everything that a server serves: refuses foreign Host headers.

    The refusal comes before anything else of the request is read."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._allows(scope):
            await self._app(scope, receive, send)
            return
        log.warning("host_refused", hosts=[host[:_LOGGED] for host in _hosts(scope)[:2]])
        answer = JSONResponse({"error": _MISDIRECTED}, 421, {"Connection": "close"})
        answer.raw_headers += _HEADERS
        await answer(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        hosts = _hosts(scope)
        if not hosts and scope["http_version"] == "1.0":
            return True  # not a browser; some load balancers check health this way
        here = scope.get("server")
        return self._hosts.allow(hosts, here[0] if here else None)


#: characters logged of a header that anybody may have sent
_LOGGED = 100
_MISDIRECTED = (
    "SF5074: the Host of the request is not served here; name it in "
    "SUREFOOT_GATEWAY_HOSTS where this process runs"
)


def _hosts(scope: Scope) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]


class _Direct:
    """ASGI middleware, inside of the guard. The endpoint can refuse like any other."""

    def __init__(self, app: ASGIApp, route: Route) -> None:
        self._app, self._route = app, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match, found = self._route.matches(scope)
        if match is not Match.FULL:
            await self._app(scope, receive, send)
            return
        scope.update(found)
        request = Request(scope, receive, send)
        try:
            response = await self._route.endpoint(request)
        except RequestRefused as error:
            response = refusal(error)
        except Unavailable as error:
            response = unavailability(scope, error)
        except RecordTooLarge as error:
            response = await _too_large(request, error)
        await response(scope, receive, send)


class _Guard:
    """ASGI middleware; outermost except Starlette's own; does not buffer streams."""

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
                given = {name for name, _ in message["headers"]}
                message["headers"] += [each for each in _HEADERS if each[0] not in given]
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except ClientDisconnect:
            log.info("client_gone", method=scope["method"])
        except Exception:
            log.exception("request_failed", method=scope["method"])
            if begun:
                raise  # the server has to cut the connection
            await JSONResponse({"error": "SF5014: internal error"}, 500)(scope, receive, guarded)
