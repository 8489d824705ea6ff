"""Client of a gateway: requests that are retried, streams that resume where they broke.

Every request is safe to resend: a start has its run_id, a command its id, and the others only read.
So a request is retried, with backoff, until it is answered or nothing was heard for `patience_s`. A
broken stream is reopened after the last complete event. Only a 204 means that the run is over: a
gateway that shuts down ends its streams just like one that has sent everything.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from surefoot.infra.http import logins
from surefoot.infra.runtime.clock import SystemClock
from surefoot.schemas.payload import BadPayload, parse_json, strict_json
from surefoot.state.declare.retry import Retry, delay_ms, retry_after_s
from surefoot.state.errors import ConfigError, NotFound, Refused, Unavailable

#: time limit of one request, in seconds; a gateway answers a command within 8 s
_ANSWER_S = 20.0
_CONNECT_S = 5.0
#: longest silence of a stream, in seconds; a gateway sends a heartbeat every 15 s
_SILENCE_S = 45.0
#: characters shown of a response that is not JSON
_SHOWN = 200
_BACKOFF = Retry(initial_s=0.1, max_s=5.0)
#: characters of a bearer token. Source: RFC 6750, 2.1
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class JsonResponse:
    status: int
    #: the parsed JSON; None: no body
    value: Any


class Frame(NamedTuple):
    """One server-sent event."""

    #: the position after this event, from which the stream resumes; None: unchanged
    id: str | None
    event: str
    data: bytes


class GatewayHttp:
    """Client with kept, shared connections. Lives on one event loop.

    Args:    headers: sent with every request, for example for a proxy in front of the gateway;
    patience_s: how long the gateway may be silent
    Raises:  ConfigError — `url` is not an http or https address, or contains a password
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        patience_s: float = 30.0,
        backoff: Retry = _BACKOFF,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = gateway_address(url)
        self._patience_s = patience_s
        self._backoff = backoff
        self._clock = SystemClock()
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            follow_redirects=False,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.aclose()

    def new_id(self) -> str:
        return self._clock.unique()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
    ) -> JsonResponse:
        """Send one request, retrying until it is answered.

        Raises: Refused, NotFound — the gateway refuses; Unavailable — no answer, and it may or may
        not have been acted upon.
        Under cancellation: may have been acted upon; ask again with the same id.
        """
        content = None if body is None else strict_json(body)
        sent = {} if body is None else {"Content-Type": "application/json"}
        patience = self._patience()
        while True:
            wait_s = None
            try:
                async with asyncio.timeout(_ANSWER_S):
                    response = await self._client.request(
                        method, path, content=content, params=params, headers=sent
                    )
                value = _value(response)
                cause = _why_again(response, value)
                if cause is None:
                    _raise_refusal(response, value)
                    return JsonResponse(response.status_code, value)
                wait_s = retry_after_s(response.headers, self._clock.now_ms())
            except (TimeoutError, httpx.TransportError) as error:
                cause = repr(error)
            await patience.pause(cause, wait_s)

    async def follow(
        self, path: str, after: str | None, params: Sequence[tuple[str, str]] = ()
    ) -> AsyncGenerator[Frame, None]:
        """Yield the events after `after`, live, each once and in order, until the run is over.

        Args:    after: id of the last event seen, if any; params: pairs of the query
        Raises:  Refused, NotFound — the gateway refuses; Unavailable — silent for too long: resume
        with the last id.
        """
        patience = self._patience()
        while True:
            wait_s, cause = None, "the stream ended"
            try:
                async with self._client.stream(
                    "GET",
                    path,
                    params=list(params) or None,
                    headers={} if after is None else {"Last-Event-ID": after},
                    timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
                ) as response:
                    if response.status_code == HTTPStatus.NO_CONTENT:
                        return
                    if response.status_code != HTTPStatus.OK:
                        await response.aread()
                        value = _value(response)
                        cause = _why_again(response, value) or ""
                        wait_s = retry_after_s(response.headers, self._clock.now_ms())
                        if not cause:
                            _raise_refusal(response, value)
                    else:
                        frames = Frames()
                        async for chunk in response.aiter_bytes():
                            patience.heard()
                            for frame in frames.feed(chunk):
                                if after is None or frame.event != "begin":
                                    after = frame.id or after  # a gap may follow a begin
                                yield frame
            except httpx.TransportError as error:
                cause = repr(error)
            await patience.pause(cause, wait_s)

    def _patience(self) -> _Patience:
        return _Patience(self.url, self._patience_s, self._backoff, self._clock)


class _Patience:
    """Backs off, and gives up after too long a silence."""

    def __init__(self, url: str, patience_s: float, backoff: Retry, clock: SystemClock) -> None:
        self._url, self._patience_s = url, patience_s
        self._backoff, self._clock = backoff, clock
        self.heard()

    def heard(self) -> None:
        self._attempt = 0
        self._since_s = self._clock.monotonic_s()

    async def pause(self, cause: str, asked_s: float | None = None) -> None:
        wait_s = delay_ms(self._backoff, self._attempt, self._clock.random(), asked_s) / 1000
        self._attempt += 1
        if self._clock.monotonic_s() + wait_s - self._since_s > self._patience_s:
            away = Unavailable(
                "SF5016",
                f"the gateway {self._url} did not answer within {self._patience_s:g} s: {cause}",
            )
            away.retry_after_s = asked_s
            raise away
        await asyncio.sleep(wait_s)


class Frames:
    """Parses server-sent events from a stream of bytes. An event that is cut off does not count.

    Lines end with LF or CR LF, as a gateway writes them. Splits bytes, not text: `str.splitlines`
    would also split at a U+2028 inside a JSON string.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._begin()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield each event that is now complete and has data; a heartbeat has none."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line:
                self._take(*line.split(b":", 1))
                continue
            frame, said = Frame(self._id, self._event, b"\n".join(self._data)), bool(self._data)
            self._begin()
            if said:
                yield frame

    def _begin(self) -> None:
        self._id: str | None = None
        self._event = "message"
        self._data: list[bytes] = []

    def _take(self, field: bytes, value: bytes = b"") -> None:
        value = value.removeprefix(b" ")
        if field == b"id":
            self._id = value.decode("ascii", "replace")
        elif field == b"event":
            self._event = value.decode("ascii", "replace")
        elif field == b"data":
            self._data.append(value)


def with_token(
    url: str, headers: Mapping[str, str], token: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the headers with the token that signs in to the gateway at `url`.

    Without `token`, it is that of SUREFOOT_TOKEN or SUREFOOT_TOKEN_FILE, or else the one that
    `surefoot login` keeps for this address, unless the headers have an Authorization. A file is
    read once, here.

    Raises: ConfigError — `url` is not the address of a gateway, the file cannot be read, or the
    token is not one word of ASCII.
    """
    address = gateway_address(url)
    if token is None:
        if any(name.lower() == "authorization" for name in headers):
            return dict(headers)
        token = _token_of(environ) or logins.read_login(address, environ)
    return {**headers, **_bearer(token)}


def process_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with which a process signs in to another: with the token of SUREFOOT_TOKEN
    or SUREFOOT_TOKEN_FILE, if there is one.

    Raises: ConfigError — the file cannot be read, or the token is not one word of ASCII.
    """
    return _bearer(_token_of(environ))


def _token_of(environ: Mapping[str, str]) -> str | None:
    token = environ.get("SUREFOOT_TOKEN")
    if not token and (path := environ.get("SUREFOOT_TOKEN_FILE")):
        try:
            token = Path(path).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError("SF1085", f"cannot read SUREFOOT_TOKEN_FILE: {error}") from error
    return token or None


def _bearer(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not _TOKEN.fullmatch(token.strip()):
        raise ConfigError("SF1085", "the gateway's token is not one word of ASCII")
    return {"Authorization": f"Bearer {token.strip()}"}


def gateway_address(url: str) -> str:
    """Return the address, spelt in the one way that names its login.

    Raises: ConfigError — it is not an http or https address, or contains a password.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.userinfo:
        raise ConfigError(
            "SF1026", "the gateway's address contains a password; give it in `headers` instead"
        )
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(
            "SF1026", f"a gateway's address must look like http://127.0.0.1:8787; got {url!r}"
        )
    return str(parsed).rstrip("/")


def _value(response: httpx.Response) -> Any:
    """Return the response's JSON, or its text where it is not JSON: a proxy may have answered."""
    if not response.content:
        return None
    try:
        return parse_json(response.content)
    except BadPayload:
        return response.text[:_SHOWN]


def _why_again(response: httpx.Response, value: Any) -> str | None:
    """Return why the request has to be sent again; None: it is answered."""
    told = value if isinstance(value, dict) else {}
    if response.status_code in _TRY_AGAIN and "code" not in told:
        return f"HTTP {response.status_code} {told.get('error', '')}".rstrip()
    if response.status_code == HTTPStatus.ACCEPTED and told.get("accepted", True) is None:
        return "the command was sent, and no owner has answered it yet"
    return None


def _raise_refusal(response: httpx.Response, value: Any) -> None:
    status = response.status_code
    if response.is_success and (value is None or isinstance(value, dict)):
        return
    if not isinstance(value, dict) or not {"code", "error"} & value.keys():
        raise Refused(
            "not_a_gateway", f"HTTP {status}, which is not an answer of a gateway: {value!r}"
        )
    code = value.get("code") or _CODES.get(status, f"http_{status}")
    kind: Callable[[str, str], Refused] = NotFound if status == HTTPStatus.NOT_FOUND else Refused
    raise kind(code, value.get("message") or value.get("error") or "")


_CODES = {
    401: "not_signed_in",
    403: "forbidden",
    404: "not_found",
    413: "too_large",
    422: "bad_request",
}
