"""The outside world as the relay sees it: an HTTP server that keeps a book of what it was asked.

It answers 200 unless a script says otherwise. Like a good target it acts once on a key, whatever
becomes of its answer; unlike one it tells every request that it got.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from surefoot.state.steps.http_effect import HttpEffect
from tests import checker
from tests.support.eventually import until


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers.get("webhook-id") or self.headers["idempotency-key"]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str] = field(default_factory=dict)


#: "hang" reads the request and never answers; "close" reads it and hangs up; "drip" answers a byte
#: at a time and never ends; "part" hangs up in the middle of the answer's body
Answer = Reply | Literal["hang", "close", "drip", "part"]


_ENDLESS = b"HTTP/1.1 200 Told\r\nContent-Length: 1000\r\n\r\n"


@dataclass(slots=True)
class Sink:
    """`async with sink() as target: ... target.url`."""

    url: str = ""
    #: everything that was asked, in order
    book: list[Request] = field(default_factory=list)
    #: the first request of each key that was acted upon
    acted: dict[str, Request] = field(default_factory=dict)
    #: answers by path, the next one first; 200 when there is none (left)
    script: dict[str, list[Answer]] = field(default_factory=dict)
    #: told of every request before it is answered
    on_request: Callable[[Request], None] | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def keys(self) -> list[str]:
        return [request.key for request in self.book]

    def requests(self) -> list[checker.Request]:
        """The book, for the checker."""
        acted = {id(request) for request in self.acted.values()}
        return [
            checker.Request(
                at_ms=0,
                key=request.key,
                method=request.method,
                url=self.url + request.path,
                body=request.body,
                applied=id(request) in acted,
            )
            for request in self.book
        ]

    def check(self, committed: Mapping[str, HttpEffect]) -> None:
        """Every committed effect was acted upon, and nothing was ever asked for but these, each
        time byte for byte as it was committed."""
        assert set(self.acted) == set(committed)
        for request in self.book:
            effect = committed[request.key]
            asked = (request.method, f"{self.url}{request.path}", request.body)
            assert asked == (effect.method, effect.url, effect.body.encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            answer = self._note(await _request(reader))
            if answer == "hang":
                await reader.read()  # until the other side has given up
            elif answer == "drip":
                await _drip(reader, writer)
            elif answer == "part":
                writer.write(_ENDLESS + b"half a b")
                await writer.drain()
            elif isinstance(answer, Reply):
                writer.write(_response(answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side was killed
        finally:
            self._open.discard(writer)
            writer.close()

    def _note(self, request: Request) -> Answer:
        self.book.append(request)
        answers = self.script.get(request.path)
        answer = answers.pop(0) if answers else Reply(200)
        if not isinstance(answer, Reply) or answer.status < 400:
            self.acted.setdefault(request.key, request)
        if self.on_request is not None:
            self.on_request(request)
        return answer


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side has given up."""
    writer.write(_ENDLESS)
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(b".")
        await asyncio.wait({gone}, timeout=0.05)
    await gone  # a reset of the connection is told to whoever asks


def _response(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Told", "Content-Length: 0", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    fields = (line.split(":", 1) for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method=method, path=path, headers=headers, body=body)


@asynccontextmanager
async def sink() -> AsyncIterator[Sink]:
    target = Sink()
    server = await asyncio.start_server(target._serve, "127.0.0.1", 0)
    target.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield target
    finally:
        server.close()
        for writer in list(target._open):
            writer.transport.abort()
        await server.wait_closed()
        await until(lambda: not target._open, what="whoever has said nothing to be gone")
