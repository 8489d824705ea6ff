"""A run's history as server-sent events.

Only events of the log have ids, and the id is the offset, so that a watcher that comes back with
the last id it has seen misses nothing and sees nothing twice. Heartbeats are comments.
Source: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import structlog
from fastapi import Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from surefoot.producers.edge import RETRY_AFTER_S, Refused
from surefoot.schemas.payload import strict_json
from surefoot.state.errors import Unavailable
from surefoot.state.views import event_json

log = structlog.get_logger(__name__)

_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)
_OFFSET_MAX = 2**63 - 1

#: offset and event
Item = tuple[int, dict[str, Any]]


def cursor(request: Request) -> int | None:
    """Offset of the last event that the watcher has seen. The header wins over the query: it is
    what a browser that reconnects by itself has seen since.

    Raises: Refused — 400, when it is no id of ours.
    """
    text = request.headers.get("last-event-id") or request.query_params.get("last_event_id", "")
    if not text:
        return None
    if not _OFFSET.fullmatch(text) or int(text) > _OFFSET_MAX:
        raise Refused(400, "Last-Event-ID is not the id of an event; leave it out to begin anew")
    return int(text)


class EventStreams:
    """The event streams that are open, at most `limit` of them.

    Args:    heartbeat_s: a comment on an idle stream, so that both sides notice a dead connection;
             send_s: how long a watcher may take no data before it is cut off
    """

    def __init__(self, *, limit: int, heartbeat_s: float, send_s: float) -> None:
        self._limit = limit
        self._heartbeat_s = heartbeat_s
        self._send_s = send_s
        self._open = 0

    def check_room(self) -> None:
        """Raises Refused (429) when too many are open."""
        if self._open >= self._limit:
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            raise Refused(429, "too many event streams are open; try again later", retry)

    def respond(self, first: Sequence[Item], rest: AsyncIterator[Item]) -> Response:
        """Stream `first`, then `rest`, which is closed however the stream ends."""
        return _Stream(self, first, rest)

    @contextlib.asynccontextmanager
    async def counted(self, events: AsyncIterator[Item]) -> AsyncIterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
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
        self, streams: EventStreams, first: Sequence[Item], rest: AsyncIterator[Item]
    ) -> None:
        self._streams = streams
        self._rest = rest
        super().__init__(_frames(first, rest), **streams.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._streams.counted(self._rest):
            with contextlib.suppress(TimeoutError):  # a watcher that takes no data is cut off
                await super().__call__(scope, receive, send)


async def _frames(
    first: Sequence[Item], rest: AsyncIterator[Item]
) -> AsyncIterator[ServerSentEvent]:
    try:
        for item in first:
            yield _frame(item)
        async for item in rest:
            yield _frame(item)
    except Unavailable as error:
        log.info("event_stream_interrupted", reason=str(error))


def _frame(item: Item) -> ServerSentEvent:
    offset, event = item
    data = strict_json(event_json(event)).decode()
    return ServerSentEvent(data=data, event=event["type"], id=str(offset), sep="\n")
