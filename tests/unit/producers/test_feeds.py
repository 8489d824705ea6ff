"""The streams of whole agents at the gateway: what they take, and what they hand on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.websockets import WebSocket

from surefoot.producers.event_stream import EventStreams
from surefoot.state.feeds.feed import EventFilter, FeedMessage
from tests.unit.producers.test_gateway import Gateway, Watching, parsed


@pytest.fixture
def gateway() -> Gateway:
    made = Gateway()
    made.reader.told = [
        FeedMessage("triage_1_0", "run.failed", '{"run_id": "r"}'),
        FeedMessage(None, "slow", '{"resume": "triage_1_0"}'),
    ]
    return made


async def test_events_have_positions_and_what_else_is_told_has_none(gateway: Gateway) -> None:
    answer = await gateway.http.get("/events")
    assert [(frame.get("id"), frame["event"]) for frame in parsed(answer.text)] == [
        ("triage_0_0", "begin"),
        ("triage_1_0", "run.failed"),
        (None, "slow"),
    ]
    assert gateway.reader.closed == 1


async def test_filters_and_the_position_are_handed_on(gateway: Gateway) -> None:
    query = "type=run.failed&type=step.completed&status=failed&step=a&from=earliest"
    await gateway.http.get(f"/events/triage?{query}&last_event_id=triage_1_2")
    await gateway.http.get("/events", headers={"Last-Event-ID": "triage_5_6.other_7_8"})
    assert gateway.reader.followed == [
        (
            ["triage"],
            {"triage": [1, 2]},
            EventFilter(
                types=frozenset({"run.failed", "step.completed"}),
                statuses=frozenset({"failed"}),
                steps=frozenset({"a"}),
            ),
            True,
        ),
        (["triage"], {"triage": [5, 6]}, EventFilter(), False),
    ]


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("tpye=run.failed", "SF5022"),
        ("type=run.feild", "SF5022"),
        ("status=", "SF5022"),
        ("from=latest", "SF5022"),
        ("step=a&" * 65, "SF5022"),
        ("last_event_id=7", "SF5004"),
        ("last_event_id=triage_1", "SF5004"),  # as many partitions as another app has
    ],
)
async def test_what_is_misspelt_is_refused(gateway: Gateway, query: str, number: str) -> None:
    answer = await gateway.http.get(f"/events?{query}")
    assert (answer.status_code, answer.json()["error"][:6]) == (400, number)
    assert gateway.reader.followed == []


async def test_a_log_that_is_away_is_told_before_the_stream_begins(gateway: Gateway) -> None:
    gateway.reader.away = True
    answer = await gateway.http.get("/events")
    assert (answer.status_code, "secret" in answer.text) == (503, False)


async def test_streams_of_agents_count_as_those_of_runs_do() -> None:
    gateway = Gateway(streams=0)
    assert (await gateway.http.get("/events")).status_code == 429
    assert (await gateway.http.get("/events/nobody")).status_code == 404


async def test_a_heartbeat_has_no_id() -> None:
    gateway = Gateway(heartbeat_s=0.01)
    watching = Watching(gateway.app, "/events")
    assert b"event: begin" in await watching.next()
    assert await watching.next() == b": heartbeat\n\n"
    watching.leave.set()
    await watching.done


class Socket:
    """A WebSocket's end in the server, and what is sent over it while it `takes` anything."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.takes = asyncio.Event()
        self.takes.set()
        self.leaves = asyncio.Event()
        self._asked = False
        scope = {"type": "websocket", "path": "/ws/events", "headers": [], "query_string": b""}
        self.made = WebSocket(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "websocket.connect"}
        await self.leaves.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            await self.takes.wait()
        self.sent.append(message)


class Telling:
    """Tells these, and then nothing more, until it is closed."""

    def __init__(self, *told: FeedMessage, ends: bool = False) -> None:
        self.closed = False
        self.events = self._events(told, ends=ends)

    async def _events(self, told: tuple[FeedMessage, ...], *, ends: bool) -> Any:
        try:
            for each in told:
                yield each
            if not ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


def streams(send_s: float = 10.0) -> EventStreams:
    return EventStreams(limit=1, heartbeat_s=15, send_s=send_s)


@pytest.mark.parametrize(
    ("last", "ends", "code"),
    [
        (FeedMessage(None, "slow", "{}"), False, 1013),
        (FeedMessage("2", "x", "{}"), True, 1000),
        (FeedMessage("2", "x", "{}"), False, 1001),
    ],
)
async def test_a_websocket_is_closed_with_the_reason(
    last: FeedMessage, ends: bool, code: int
) -> None:
    socket, telling = Socket(), Telling(last, ends=True)
    await streams().serve(socket.made, [FeedMessage("1", "begin", "{}")], telling.events, ends=ends)
    assert [json.loads(each["text"])["event"] for each in socket.sent[1:-1]] == [
        "begin",
        last.event,
    ]
    assert socket.sent[-1]["code"] == code
    assert telling.closed


async def test_a_websocket_that_takes_nothing_is_cut_off() -> None:
    socket, telling = Socket(), Telling(FeedMessage("1", "x", "{}"))
    socket.takes.clear()
    open_ = streams(send_s=0.05)
    await asyncio.wait_for(open_.serve(socket.made, [], telling.events, ends=False), 60)
    assert telling.closed
    open_.check_room()


async def test_a_websocket_that_leaves_is_let_go() -> None:
    socket, telling = Socket(), Telling(FeedMessage("1", "x", "{}"))
    open_ = streams()
    serving = asyncio.create_task(open_.serve(socket.made, [], telling.events, ends=False))
    socket.leaves.set()
    await asyncio.wait_for(serving, 60)
    open_.check_room()
