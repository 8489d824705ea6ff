"""An issue tracker that represents external systems, and honours Idempotency-Key.

It writes every request into its book, a file of JSON lines, if it has one, durably before it acts
and answers. With a seed it is unreliable: it answers 500 without acting, answers slowly, or acts
and closes the connection without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Literal, Self

from surefoot.infra.demo.auditor import Request

#: share of requests with each fault; the rest is answered normally
FAULTS = {"error": 0.06, "silence": 0.05, "slow": 0.04}
#: delay of a slow answer, in seconds
SLOW_S = 1.0
HEAD_BYTES_MAX = 32_768
BODY_BYTES_MAX = 1_048_576

TargetFault = Literal["error", "silence", "slow"]


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    key: str
    body: bytes
    keep_alive: bool


class Tracker:
    """`async with Tracker(book, seed=1) as tracker`; listens on a free port of 127.0.0.1.

    book None: without an audit. seed None: without faults. `on_request` is called for each request,
    once it is in the book. Remembers every key as long as it lives.
    """

    def __init__(
        self,
        book: Path | None,
        *,
        seed: int | None,
        on_request: Callable[[Request], None] = lambda _: None,
    ) -> None:
        self.url = ""
        self._book = None if book is None else book.open("a", encoding="utf-8")
        self._random = Random(seed) if seed is not None else None  # noqa: S311  (reproducible)
        self._on_request = on_request
        #: SHA-256 of the request that was acted upon, by key
        self._acted: dict[str, str] = {}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connection, "127.0.0.1", 0, limit=HEAD_BYTES_MAX
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.close()
        if self._connections:
            await asyncio.wait(self._connections.keys())
        if self._book is not None:
            self._book.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                while await self._serve(reader, writer):
                    pass
        finally:
            del self._connections[task]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Returns whether the connection stays open."""
        call = await _read(reader)
        if call is None:
            return False
        fault = self._fault()
        status = self._take(call, fault)
        if fault == "silence":
            return False
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
        body = json.dumps({"status": status}).encode()
        writer.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (status, b"OK" if status < 300 else b"Refused", len(body), body)  # noqa: PLR2004
        )
        await writer.drain()
        return call.keep_alive

    def _take(self, call: _Call, fault: TargetFault | None) -> int:
        """Record it, and act on it unless that was done before. Returns the status."""
        digest = hashlib.sha256(call.body).hexdigest()
        same = f"{call.method} {call.path} {digest}"
        known = self._acted.get(call.key) if call.key else None
        acted = known is None and fault != "error"
        request = Request(
            key=call.key, method=call.method, path=call.path, body_sha256=digest, acted=acted
        )
        if self._book is not None:
            self._book.write(json.dumps(asdict(request)) + "\n")
            self._book.flush()
            os.fsync(self._book.fileno())
        self._on_request(request)
        if acted and call.key:
            self._acted[call.key] = same
        if fault == "error":
            return 500
        # status for a key reused with another request, as in the Idempotency-Key draft
        return 422 if known is not None and known != same else 200

    def _fault(self) -> TargetFault | None:
        if self._random is None:
            return None
        at = self._random.random()
        for fault, share in FAULTS.items():
            if at < share:
                return fault  # type: ignore[return-value]
            at -= share
        return None


async def _read(reader: asyncio.StreamReader) -> _Call | None:
    """Read one HTTP/1.1 request; None if it is not one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, _, rest = first.partition(" ")
    path, _, version = rest.partition(" ")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    length = headers.get("content-length", "0")
    chunked = "transfer-encoding" in headers
    if version != "HTTP/1.1" or chunked or not length.isdecimal() or int(length) > BODY_BYTES_MAX:
        return None
    return _Call(
        method=method,
        path=path,
        key=headers.get("idempotency-key", ""),
        body=await reader.readexactly(int(length)),
        keep_alive=headers.get("connection", "").lower() != "close",
    )


def read_book(book: Path) -> list[Request]:
    """Return every request in the tracker's book, in order."""
    with book.open(encoding="utf-8") as lines:
        return [Request(**json.loads(line)) for line in lines]
