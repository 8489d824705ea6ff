"""Live events of one run, of one agent, or of all agents: routes and parameters.

    GET /runs/{agent}/{run_id}/events      the history of one run, and its partial output, live
    GET /events/{agent}?type=&status=&step=&from=    of all runs of an agent
    GET /events?...                        of all agents of this gateway
    /ws/...                                each of them over a WebSocket

In the history of one run an event's id is its offset; elsewhere it is a position in all partitions
(state/feeds/event_id.py). Clients return either as Last-Event-ID, or as `?last_event_id=`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import get_args

from fastapi import FastAPI, Request, Response, WebSocket
from starlette.datastructures import Headers, QueryParams
from starlette.requests import HTTPConnection

from surefoot.producers.event_stream import EventStreams
from surefoot.producers.guards import RequestRefused, check_agent, refusal, unavailability
from surefoot.state.errors import BadArgument, Unavailable
from surefoot.state.feeds import event_id
from surefoot.state.feeds.feed import EventFeed, EventFilter, FeedMessage
from surefoot.state.machine.model import TERMINAL, EventType, Status
from surefoot.state.names.ids import check_run_id
from surefoot.state.reading.ports import RunReader

_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)
_OFFSET_MAX = 2**63 - 1
_TYPES = frozenset(get_args(EventType))
_STATUSES = frozenset(get_args(Status))
#: parameters of a stream of several runs, with their values; None: any value
_PARAMETERS: Mapping[str, frozenset[str] | None] = {
    "type": _TYPES,
    "status": _STATUSES,
    "step": None,
    "from": frozenset({"earliest"}),
    "last_event_id": None,
}
#: most values of one parameter
_VALUES_MAX = 64

_NOT_AN_ID = "Last-Event-ID is not an event id; leave it out to start over"


@dataclass(slots=True, kw_only=True)
class Feeds:
    """Serves live events. `agents`: those of this gateway."""

    agents: Collection[str]
    reader: RunReader
    feed: EventFeed
    streams: EventStreams

    def serve_on(self, app: FastAPI) -> None:
        app.get("/runs/{agent}/{run_id}/events")(self.watch_run)
        app.get("/events")(self.watch_all)
        app.get("/events/{agent}")(self.watch_agent)
        app.websocket("/ws/runs/{agent}/{run_id}/events")(self.socket_of_run)
        app.websocket("/ws/events")(self.socket_of_all)
        app.websocket("/ws/events/{agent}")(self.socket_of_agent)

    # Server-sent events -----------------------------------------------------------------------

    async def watch_run(self, agent: str, run_id: str, request: Request) -> Response:
        """Stream the run's history as server-sent events, live until the run is over.

        The id of an event is its offset; heartbeats and `output` have none. Last-Event-ID, or
        `?last_event_id=`, continues with the event after that one. A run that is not known yet is
        waited for, since its start may be in transit. 204 tells an EventSource to stop: the run is
        over, and nothing more will come.
        """
        first, rest = await self._run(agent, run_id, request)
        if first is None:
            return Response(status_code=204)
        return self.streams.respond(first, rest)

    async def watch_all(self, request: Request) -> Response:
        """Stream events of every run of every agent, from now on or from a position."""
        return self.streams.respond(*await self._events(list(self.agents), request))

    async def watch_agent(self, agent: str, request: Request) -> Response:
        """Stream events of every run of one agent, from now on or from a position."""
        return self.streams.respond(*await self._events([check_agent(agent, self.agents)], request))

    # WebSockets -------------------------------------------------------------------------------

    async def socket_of_run(self, agent: str, run_id: str, socket: WebSocket) -> None:
        try:
            _check_origin(socket.headers)
            first, rest = await self._run(agent, run_id, socket)
        except (RequestRefused, Unavailable) as error:
            await _deny(socket, error)
            return
        await self.streams.serve(socket, first or [], rest, ends=True)

    async def socket_of_all(self, socket: WebSocket) -> None:
        await self._socket(list(self.agents), socket)

    async def socket_of_agent(self, agent: str, socket: WebSocket) -> None:
        await self._socket([agent], socket)

    async def _socket(self, agents: list[str], socket: WebSocket) -> None:
        try:
            _check_origin(socket.headers)
            first, rest = await self._events(
                [check_agent(agent, self.agents) for agent in agents], socket
            )
        except (RequestRefused, Unavailable) as error:
            await _deny(socket, error)
            return
        await self.streams.serve(socket, first, rest, ends=False)

    # What is watched --------------------------------------------------------------------------

    async def _run(
        self, agent: str, run_id: str, asked: HTTPConnection
    ) -> tuple[list[FeedMessage] | None, AsyncGenerator[FeedMessage, None]]:
        """Return (the first messages, the rest). The first is None if the run is over and all
        was seen."""
        after = offset_of(asked)
        check_agent(agent, self.agents)
        try:
            check_run_id(run_id)
        except BadArgument as error:
            raise RequestRefused(error.number, 404, error.message) from None
        run = await self.reader.get(agent, run_id)
        self.streams.check_room()
        events = self.feed.watch(agent, run_id, after)
        if run is None or run.status not in TERMINAL:
            return [], events
        async for told in events:
            return [told], events
        return None, events

    async def _events(
        self, agents: list[str], asked: HTTPConnection
    ) -> tuple[list[FeedMessage], AsyncGenerator[FeedMessage, None]]:
        query = asked.query_params
        _check(query)
        start = self._position(_last_id(asked), agents)
        choice = EventFilter(
            types=frozenset(query.getlist("type")),
            statuses=frozenset(query.getlist("status")),
            steps=frozenset(query.getlist("step")),
        )
        self.streams.check_room()
        events = self.feed.follow(agents, start, choice, earliest="from" in query)
        # query the log before answering
        return [await anext(events)], events

    def _position(self, text: str, agents: Collection[str]) -> dict[str, list[int]] | None:
        if not text:
            return None
        try:
            at = event_id.parse_event_id(text)
        except BadArgument as error:
            raise RequestRefused(error.number, 400, error.message) from None
        if any(len(offsets) != self.feed.partitions for offsets in at.values()):
            raise RequestRefused("SF5004", 400, f"{_NOT_AN_ID}; it belongs to another app's topics")
        return {agent: offsets for agent, offsets in at.items() if agent in agents}


def _last_id(asked: HTTPConnection) -> str:
    """Return the last event id, or "". The header wins over the query.

    A browser that reconnects by itself sends in the header what it has seen since.
    """
    return asked.headers.get("last-event-id") or asked.query_params.get("last_event_id", "")


def offset_of(asked: HTTPConnection) -> int | None:
    """Return the offset of the last event that the watcher of a run has seen, or None.

    Raises: RequestRefused (400).
    """
    text = _last_id(asked)
    if not text:
        return None
    if not _OFFSET.fullmatch(text) or int(text) > _OFFSET_MAX:
        raise RequestRefused("SF5004", 400, _NOT_AN_ID)
    return int(text)


def _check(query: QueryParams) -> None:
    """Check the filters. A misspelt one would select everything, or nothing forever.

    Raises: RequestRefused (400).
    """
    for name in query:
        if name not in _PARAMETERS:
            known = ", ".join(_PARAMETERS)
            raise RequestRefused(
                "SF5022", 400, f"unknown filter {name[:40]!r}; use one of: {known}"
            )
        values, known_values = query.getlist(name), _PARAMETERS[name]
        if len(values) > _VALUES_MAX:
            raise RequestRefused("SF5022", 400, f"{name}: at most {_VALUES_MAX} values are allowed")
        for value in values:
            if known_values is not None and value not in known_values:
                told = ", ".join(sorted(known_values))
                raise RequestRefused(
                    "SF5022", 400, f"{name}: {value[:40]!r} must be one of: {told}"
                )


def _check_origin(headers: Headers) -> None:
    """Check that the page that opens a WebSocket is of this origin.

    A browser lets any page open a WebSocket to anywhere and read what arrives; only the Origin
    header, which it always sends, says whose page it is.

    Raises: RequestRefused (403).
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise RequestRefused("SF5023", 403, "a page of another origin may not open an event stream")


async def _deny(socket: WebSocket, error: RequestRefused | Unavailable) -> None:
    """Answer the handshake as a plain request would be answered."""
    if isinstance(error, RequestRefused):
        answer = refusal(error)
    else:
        answer = unavailability(socket.scope, error)
    await socket.send_denial_response(answer)
