"""Streams of events: as server-sent events, and over a WebSocket.

Both carry the same messages. A watcher can resume from any id: with the last id it has seen, it
misses nothing and sees nothing twice. Heartbeats are comments (protocol pings on a WebSocket) and
have no id.
Source: WHATWG HTML, "Server-sent events"; RFC 6455.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import structlog
from fastapi import Response, WebSocket
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from surefoot.producers.guards import RETRY_AFTER_S, RequestRefused
from surefoot.schemas.payload import strict_json
from surefoot.state.errors import Unavailable
from surefoot.state.feeds.feed import FeedMessage
from surefoot.state.telemetry import metrics

log = structlog.get_logger(__name__)

#: RFC 6455: the endpoint is going away; IANA: try again later
_GOING_AWAY, _TRY_AGAIN_LATER, _NORMAL = 1001, 1013, 1000


class EventStreams:
    """The open event streams, at most `limit` of them.

    Args:    heartbeat_s: interval of comments on an idle stream, so that both sides notice a dead
    connection; send_s: how long a watcher may accept no data before it is cut off
    """

    def __init__(self, *, limit: int, heartbeat_s: float, send_s: float) -> None:
        self._limit = limit
        self._heartbeat_s = heartbeat_s
        self._send_s = send_s
        self._open = 0

    def check_room(self) -> None:
        """Raises: RequestRefused — 429, too many are open."""
        if self._open >= self._limit:
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            raise RequestRefused(
                "SF5005", 429, "too many event streams are open; try again later", retry
            )

    def respond(self, first: Sequence[FeedMessage], rest: AsyncIterator[FeedMessage]) -> Response:
        """Stream `first`, then `rest`, which is closed however the stream ends."""
        return _Stream(self, first, rest)

    async def serve(
        self,
        socket: WebSocket,
        first: Sequence[FeedMessage],
        rest: AsyncIterator[FeedMessage],
        *,
        ends: bool,
    ) -> None:
        """The same over a WebSocket that has not been accepted yet, one text message each.

        What the watcher sends is read and ignored.

        Args:    ends: whether the end of `rest` means that nothing more will come: close with 1000,
        else 1001
        Under cancellation: `rest` is closed.
        """
        async with self.counted(rest):
            await socket.accept()
            leaving = asyncio.create_task(_until_it_leaves(socket))
            sending = asyncio.create_task(self._send_all(socket, first, rest, ends=ends))
            try:
                await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (leaving, sending):
                    task.cancel()
                await asyncio.wait({leaving, sending})
        if not sending.cancelled():
            sending.result()

    async def _send_all(
        self,
        socket: WebSocket,
        first: Sequence[FeedMessage],
        rest: AsyncIterator[FeedMessage],
        *,
        ends: bool,
    ) -> None:
        code = _NORMAL if ends else _GOING_AWAY
        try:
            async for told in _all(first, rest):
                async with asyncio.timeout(self._send_s):
                    await socket.send_text(_message(told))
                if told.event == "slow":
                    code = _TRY_AGAIN_LATER
            async with asyncio.timeout(self._send_s):
                await socket.close(code)
        except (TimeoutError, WebSocketDisconnect, RuntimeError) as error:
            # it accepts no data, or has gone: the server closes the rest of the connection
            log.info("watcher_gone", reason=repr(error))

    @contextlib.asynccontextmanager
    async def counted(self, events: AsyncIterator[FeedMessage]) -> AsyncIterator[None]:
        self._open += 1
        metrics.SSE_CONNECTIONS.set(self._open)
        try:
            yield
        finally:
            self._open -= 1
            metrics.SSE_CONNECTIONS.set(self._open)
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "sep": "\n",
            "ping": self._heartbeat_s,
            "ping_message_factory": lambda: ServerSentEvent(comment="heartbeat", sep="\n"),
            "send_timeout": self._send_s,
        }


class _Stream(EventSourceResponse):
    def __init__(
        self, streams: EventStreams, first: Sequence[FeedMessage], rest: AsyncIterator[FeedMessage]
    ) -> None:
        self._streams = streams
        self._rest = rest
        super().__init__(_frames(first, rest), **streams.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._streams.counted(self._rest):
            with contextlib.suppress(TimeoutError):  # a watcher that accepts no data is cut off
                await super().__call__(scope, receive, send)


async def _frames(
    first: Sequence[FeedMessage], rest: AsyncIterator[FeedMessage]
) -> AsyncIterator[ServerSentEvent]:
    async for told in _all(first, rest):
        yield ServerSentEvent(data=told.data, event=told.event, id=told.id, sep="\n")


async def _all(
    first: Sequence[FeedMessage], rest: AsyncIterator[FeedMessage]
) -> AsyncIterator[FeedMessage]:
    try:
        for told in first:
            yield told
        async for told in rest:
            yield told
    except Unavailable as error:
        log.info("event_stream_interrupted", reason=str(error))


def _message(told: FeedMessage) -> str:
    """Encode {"id", "event", "data"}; the data is JSON already."""
    head = strict_json({"id": told.id, "event": told.event}).decode()
    return f'{head[:-1]},"data":{told.data}}}'


async def _until_it_leaves(socket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.receive_text()
