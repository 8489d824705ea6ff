"""The client, with the real gateway behind it over ASGI, and a network that fails between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

import surefoot
from surefoot import (
    Agent,
    ConfigError,
    Context,
    Done,
    Flow,
    NotFound,
    Refused,
    RunFailed,
    Unavailable,
)
from surefoot.client import Client, Gap
from surefoot.infra.http.client import Frames, GatewayHttp
from surefoot.schemas.payload import strict_json
from surefoot.state.declare.retry import Retry
from surefoot.state.errors import Unavailable as LogAway
from surefoot.state.feeds.feed import EventFilter, FeedMessage
from surefoot.state.machine.model import TERMINAL, WaitState
from surefoot.state.names.ids import run_id_for
from surefoot.state.reading.runs import event_json
from tests.unit.producers.test_gateway import RUN, Gateway, Issue, event, run

FAST = Retry(initial_s=0.001, max_s=0.002)


class Faults(httpx.AsyncBaseTransport):
    """The gateway's app; what is in `answers` comes first, one a request: a response, or an error
    instead of one. `lost`: the gateway has done it, and the answer did not arrive."""

    def __init__(self, app: Any) -> None:
        self._app = httpx.ASGITransport(app)
        self.answers: list[httpx.Response | Exception | Callable[[], None]] = []
        self.lost = 0
        self.seen: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.seen.append(request)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, httpx.Response):
                return answer
            answer()
        response = await self._app.handle_async_request(request)
        if self.lost:
            self.lost -= 1
            await response.aread()
            raise httpx.ReadError("the connection was reset")
        return response


class Site:
    def __init__(self, *agents: Agent, **limits: Any) -> None:
        self.gateway = Gateway(*agents, **limits)
        self.faults = Faults(self.gateway.app)
        self.client = self.another()

    def another(self, patience_s: float = 60.0) -> Client:
        return Client(
            GatewayHttp(
                "http://gateway", patience_s=patience_s, backoff=FAST, transport=self.faults
            )
        )

    def tells(self, *history: tuple[int, dict[str, Any]], **fields: Any) -> None:
        """The run as it is now, and its history."""
        self.gateway.reader.runs[RUN] = run(**fields)
        self.gateway.reader.history[RUN] = list(history)
        if fields.get("status") in TERMINAL:
            self.gateway.reader.gone.set()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    one = Site()
    async with one.client, one.gateway.http:
        yield one


# Starting -----------------------------------------------------------------------------------


class Titled(BaseModel):
    number: int
    title: str


@pytest.mark.parametrize(
    "payload",
    [{"number": 2**60, "title": "☕"}, Issue(2**60, "☕"), Titled(number=2**60, title="☕")],
)
async def test_a_run_is_started_with_json_a_dataclass_or_a_model(site: Site, payload: Any) -> None:
    handle = await site.client.start("triage", payload, "r1")
    assert (handle.agent, handle.run_id) == ("triage", "r1")
    [(_, run_id, sent, _)] = site.gateway.commands.started
    assert (run_id, json.loads(sent)) == ("r1", {"number": 2**60, "title": "☕"})


async def test_a_start_without_a_name_is_one_run_however_often_it_is_sent(site: Site) -> None:
    site.faults.answers = [httpx.ConnectError("no one there"), httpx.Response(502, text="<html>")]
    site.faults.lost = 1
    handle = await site.client.start("triage", {"number": 1, "title": ""})
    assert len(site.faults.seen) == 4
    assert [each[1] for each in site.gateway.commands.started] == [handle.run_id] * 2


async def test_the_handle_has_the_name_that_an_agent_with_lanes_gives() -> None:
    agent = Agent("lanes", flow=Flow(key=lambda number: f"n{number}", concurrency=1))

    @agent.step
    async def first(ctx: Context, number: int) -> Done:
        return Done(number)

    site = Site(agent)
    async with site.client, site.gateway.http:
        handle = await site.client.start("lanes", 7, "r1")
        again = await site.client.start("lanes", 7, handle.run_id)
    assert (handle.run_id, again.run_id) == ("n7=r1", "n7=r1")
    assert [each[1] for each in site.gateway.commands.started] == ["n7=r1"] * 2


async def test_a_payload_that_does_not_fit_is_refused_and_not_sent_again(site: Site) -> None:
    with pytest.raises(Refused, match="payload of classify") as caught:
        await site.client.start("triage", {"number": "x"})
    assert caught.value.code == "bad_request"
    assert len(site.faults.seen) == 1


async def test_what_is_no_json_and_no_name_of_a_run_is_not_sent(site: Site) -> None:
    with pytest.raises(ValueError, match="cannot be sent as JSON"):
        await site.client.start("triage", object())
    with pytest.raises(ValueError, match="run_id"):
        await site.client.start("triage", {}, "")
    assert site.faults.seen == []


async def test_an_id_of_somebody_elses_is_the_same_run_each_time(site: Site) -> None:
    starts = [
        await site.client.start("triage", {"number": 1, "title": ""}, "order/7") for _ in range(2)
    ]
    assert [handle.run_id for handle in starts] == [run_id_for("order/7")] * 2
    assert [each[1] for each in site.gateway.commands.started] == [run_id_for("order/7")] * 2


async def test_an_agent_that_there_is_not_is_not_found(site: Site) -> None:
    with pytest.raises(NotFound, match="use one of: triage"):
        await site.client.start("nobody", 1)
    with pytest.raises(NotFound):
        await site.client.list("../agents")


async def test_a_log_that_stays_away_is_unavailable_and_can_be_tried_again(site: Site) -> None:
    site.gateway.commands.fails["triage"] = LogAway("SF3002", "broker:9092")
    with pytest.raises(Unavailable, match="the log is not available") as caught:
        await site.another(patience_s=1).start("triage", {"number": 1, "title": ""}, "r1")
    assert caught.value.retry_after_s == 5  # what the gateway asks for; longer than our patience
    assert len(site.faults.seen) == 1


async def test_what_is_no_gateway_is_told_as_that(site: Site) -> None:
    site.faults.answers = [httpx.Response(401, text="<h1>Log in</h1>")]
    with pytest.raises(Refused, match="Log in") as caught:
        await site.client.count("triage")
    assert caught.value.code == "not_a_gateway"


@pytest.mark.parametrize("url", ["gateway:8787", "kafka://b:9092", "", "http://ann:pw@h/"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client.connect(url)
    assert "pw" not in str(caught.value)


# Steering -----------------------------------------------------------------------------------


async def test_a_command_whose_answer_is_lost_is_sent_again_with_the_same_id(site: Site) -> None:
    site.gateway.reader.runs[RUN] = run(status="paused")
    site.faults.lost = 2
    paused = await site.client.run("triage", RUN).pause(by="ann")
    assert paused is not None
    assert paused.status == "paused"
    sent = site.gateway.commands.sent
    assert len(sent) == 3
    assert len({fields["id"] for *_, fields in sent}) == 1
    assert {fields["by"] for *_, fields in sent} == {"ann"}
    await site.client.run("triage", RUN).pause()
    assert sent[-1][3]["id"] != sent[0][3]["id"]


async def test_a_command_that_no_owner_answers_is_asked_again_until_one_does() -> None:
    site = Site(answer_s=0.01)
    reader = site.gateway.reader
    said, reader.answers_with = reader.answers_with, None
    site.faults.answers = [lambda: None, lambda: setattr(reader, "answers_with", said)]
    async with site.client, site.gateway.http:
        assert await site.client.run("triage", RUN).pause() is None
    assert len({fields["id"] for *_, fields in site.gateway.commands.sent}) == 1
    assert len(site.gateway.commands.sent) >= 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [("too_late", Refused), ("unknown_run", NotFound), ("mailbox_full", Refused)],
)
async def test_a_refusal_has_the_owners_code_and_is_not_repeated(
    site: Site, code: str, kind: type[Exception]
) -> None:
    site.gateway.reader.answers_with = ("command.refused", code, "it is over")
    with pytest.raises(Refused, match=f"{code}: it is over") as caught:
        await site.client.run("triage", RUN).cancel(command_id="c1")
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert [fields["id"] for *_, fields in site.gateway.commands.sent] == ["c1"]


async def test_every_verb_says_what_it_was_given(site: Site) -> None:
    handle = site.client.run("triage", RUN)
    question = WaitState(kind="approval", since_ms=1, question="abc", then="classify")
    site.gateway.reader.runs[RUN] = run(status="waiting", wait=question)
    await handle.signal("paid", Issue(1, "a"), by="bank")
    await handle.approve(True, note="fine", by="ann")
    await handle.approve(False, question="other")
    await handle.resume()
    await handle.retry()
    await handle.resolve("happened", {"n": 1})
    await handle.resolve("did_not")
    told = [
        (kind, fields.get("name"), json.loads(fields["payload"]) if "payload" in fields else None)
        for _, _, kind, fields in site.gateway.commands.sent
    ]
    assert told == [
        ("signal", "paid", {"number": 1, "title": "a"}),
        ("approve", "abc", {"approved": True, "note": "fine"}),
        ("approve", "other", {"approved": False, "note": None}),
        ("resume", None, None),
        ("retry", None, None),
        ("resolve", "happened", {"n": 1}),
        ("resolve", "did_not", None),
    ]


async def test_a_run_that_asks_nothing_cannot_be_approved(site: Site) -> None:
    site.gateway.reader.runs[RUN] = run()
    with pytest.raises(NotFound, match="has no open question; it is running"):
        await site.client.run("triage", RUN).approve(True)


# Looking ------------------------------------------------------------------------------------


async def test_a_run_is_shown_with_exact_numbers_and_what_a_newer_gateway_adds_is_left_out(
    site: Site,
) -> None:
    site.gateway.reader.runs[RUN] = run()
    shown = await site.client.run("triage", RUN).show()
    assert (shown.payload, shown.status, shown.over) == ({"n": 2**53 + 1}, "running", False)
    whole = (await site.gateway.http.get(f"/runs/triage/{RUN}")).json()
    site.faults.answers = [httpx.Response(200, json=whole | {"mood": "fine"})]
    assert await site.client.run("triage", RUN).show() == shown
    [listed] = await site.client.list("triage", status="running", limit=3)
    assert (listed.run_id, listed.payload) == (RUN, None)
    assert (await site.client.count("triage"))["runs"] == 6
    assert "because" in await site.client.run("triage", RUN).why()
    with pytest.raises(NotFound):
        await site.client.run("triage", "other").show()


@dataclass
class Verdict:
    good: bool


@pytest.mark.parametrize(
    ("of", "result", "wanted"),
    [
        (Verdict, b'{"good": true}', Verdict(good=True)),
        (TypeAdapter(list[int] | None), b"[9007199254740993]", [2**53 + 1]),
        (TypeAdapter(Any), b"null", None),
    ],
)
async def test_a_result_is_of_the_type_that_was_asked_for(
    site: Site, of: Any, result: bytes, wanted: Any
) -> None:
    site.tells((1, event("run.completed", "completed")), status="completed", result=result)
    assert await site.client.run("triage", RUN).result(of) == wanted


async def test_a_result_of_another_type_is_a_value_error(site: Site) -> None:
    site.tells(status="completed", result=b'"no"')
    with pytest.raises(ValueError, match=r"good|object|dictionary"):
        await site.client.run("triage", RUN).result(Verdict)


async def test_a_run_that_failed_raises_why(site: Site) -> None:
    failure = {"code": "step_failed", "message": "no such issue"}
    site.tells(status="failed", failure=failure)
    with pytest.raises(RunFailed, match="failed: step_failed: no such issue") as caught:
        await site.client.run("triage", RUN).result()
    assert (caught.value.status, caught.value.code) == ("failed", "step_failed")
    site.tells(status="cancelled")
    with pytest.raises(RunFailed, match=r"was cancelled$"):
        await site.client.run("triage", RUN).result()


async def test_waiting_for_a_result_ends_at_its_time_limit(site: Site) -> None:
    site.tells((1, event("run.started")))
    with pytest.raises(TimeoutError):
        await site.client.run("triage", RUN).result(timeout_s=0.05)


# The stream ---------------------------------------------------------------------------------


class Broken(httpx.AsyncByteStream):
    """A body that comes in these pieces and then breaks off, or just ends."""

    def __init__(self, pieces: Iterable[bytes], error: Exception | None) -> None:
        self._pieces, self._error = pieces, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error


def cut(body: bytes, error: Exception | None = None) -> httpx.Response:
    return httpx.Response(200, stream=Broken([body], error))


HISTORY = [
    (3, event("run.started")),
    (5, event("run.failed", "failed")),
    (8, event("run.retried")),
    (9, event("step.completed", result=b'"\xe2\x80\xa8\xc2\x85"')),
    (12, event("run.completed", "completed", seq=1)),
]


async def whole(site: Site) -> bytes:
    site.tells(*HISTORY, status="completed")
    return (await site.gateway.http.get(f"/runs/triage/{RUN}/events")).content


async def test_cut_off_at_any_byte_a_stream_goes_on_without_gap_or_repeat(site: Site) -> None:
    body = await whole(site)
    assert len(body) > 500
    for at in range(0, len(body), 29):
        site.faults.answers = [cut(body[:at], httpx.ReadError("reset") if at % 2 else None)]
        site.faults.answers += [httpx.ConnectError("starting again")] * (at % 3)
        seen = [each.id async for each in site.client.run("triage", RUN).events()]
        assert seen == [3, 5, 8, 9, 12], at


async def test_a_line_separator_in_a_result_ends_no_line(site: Site) -> None:
    body = await whole(site)
    assert "\u2028".encode() in body
    [told] = [each async for each in site.client.run("triage", RUN).events(8) if each.id == 9]
    assert told.result == "\u2028\x85"


async def test_a_gateway_that_stops_behind_an_end_that_was_none_does_not_end_the_stream(
    site: Site,
) -> None:
    body = await whole(site)
    site.faults.answers = [cut(body[: body.index(b"id: 8")])]
    handle = site.client.run("triage", RUN)
    seen = [(each.id, each.ends_run) async for each in handle.events()]
    assert seen == [(3, False), (5, True), (8, False), (9, False), (12, True)]


async def test_a_result_waits_until_the_run_itself_is_over(site: Site) -> None:
    body = await whole(site)
    reader = site.gateway.reader
    site.tells(*HISTORY, status="completed", result=b"1")
    finished = reader.runs.pop(RUN)
    site.faults.answers = [
        cut(body),
        httpx.Response(204),
        httpx.Response(200, json=(await shown(site, status="running"))),
        lambda: reader.runs.update({RUN: finished}),
    ]
    assert await site.client.run("triage", RUN).result(int) == 1


async def shown(site: Site, **fields: Any) -> Any:
    site.gateway.reader.runs[RUN] = run(**fields)
    answer = await site.gateway.http.get(f"/runs/triage/{RUN}")
    site.gateway.reader.runs.pop(RUN)
    return answer.json()


async def test_a_stream_of_a_gateway_that_stays_away_is_unavailable(site: Site) -> None:
    body = await whole(site)
    site.faults.answers = [cut(body[: body.index(b"id: 8")])]
    site.faults.answers += [httpx.ConnectError("gone")] * 10_000
    seen: list[Any] = []

    async def watch() -> None:
        async for each in site.another(patience_s=0.05).run("triage", RUN).events():
            seen.append(each.id)  # noqa: PERF401  (what was seen before the error counts)

    with pytest.raises(Unavailable, match="gone"):
        await watch()
    assert seen == [3, 5]
    site.faults.answers = []
    rest = [each.id async for each in site.client.run("triage", RUN).events(seen[-1])]
    assert rest == [8, 9, 12]


async def test_too_many_streams_are_waited_for() -> None:
    site = Site(streams=0)
    site.tells(*HISTORY, status="completed")
    async with site.client, site.another(patience_s=0.05) as client, site.gateway.http:
        with pytest.raises(Unavailable, match="too many event streams"):
            await client.run("triage", RUN).result()


async def test_a_stream_that_is_left_closes_its_connection(site: Site) -> None:
    body = await whole(site)
    site.faults.answers = [cut(body)]
    async with aclosing(site.client.run("triage", RUN).events()) as events:
        assert (await anext(events)).id == 3
    assert site.faults.answers == []


async def test_events_of_all_runs_go_on_behind_the_last_one_that_was_told(site: Site) -> None:
    """Also behind a `slow`, which ends a stream, and a gap is told as one."""

    def happened(number: int) -> FeedMessage:
        told = strict_json(event_json(event("run.failed", "failed", seq=number))).decode()
        return FeedMessage(f"triage_{number}_0", "run.failed", told)

    reader = site.gateway.reader
    first = [
        FeedMessage(None, "gap", '{"agent": "triage", "partition": 0, "from": 2, "to": 5}'),
        happened(1),
        FeedMessage(None, "slow", '{"resume": "triage_1_7"}'),
    ]
    reader.told = first

    def more() -> None:
        reader.told = [happened(2), FeedMessage(None, "slow", '{"resume": "triage_2_7"}')]

    asked = site.client.events(
        "triage", types=["run.failed"], statuses=["failed"], steps=["a"], earliest=True
    )
    seen: list[Any] = []
    async with aclosing(asked) as told:
        async for each in told:
            seen.append(each if isinstance(each, Gap) else (each.id, each.run_id, each.seq))
            site.faults.answers = [more] if len(seen) == 2 else []
            if len(seen) == 3:
                break
    assert seen == [Gap("triage", 0, 2, 5), ("triage_1_0", RUN, 1), ("triage_2_0", RUN, 2)]
    wanted = EventFilter(
        types=frozenset({"run.failed"}), statuses=frozenset({"failed"}), steps=frozenset({"a"})
    )
    assert reader.followed == [
        (["triage"], None, wanted, True),
        (["triage"], {"triage": [1, 7]}, wanted, True),
    ]


async def test_a_gap_is_told_again_to_a_stream_that_was_cut_before_it(site: Site) -> None:
    site.faults.answers = [cut(b"id: triage_5_0\nevent: begin\ndata: {}\n\n")]
    site.gateway.reader.told = [
        FeedMessage(None, "gap", '{"agent": "triage", "partition": 0, "from": 2, "to": 5}'),
        FeedMessage(None, "slow", '{"resume": "triage_5_0"}'),
    ]
    async with aclosing(site.client.events(after="triage_2_0")) as told:
        assert await anext(told) == Gap("triage", 0, 2, 5)
    assert [start for _, start, *_ in site.gateway.reader.followed] == [{"triage": [2, 0]}]


async def test_what_cannot_be_chosen_is_refused(site: Site) -> None:
    for wrong in ({"types": ["run.feild"]}, {"after": "7"}):
        with pytest.raises(Refused, match="SF50"):
            await anext(site.client.events(**wrong))
    with pytest.raises(NotFound):
        await anext(site.client.events("nobody"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"id: 1\ndata: a\n\n", [("1", "message", b"a")]),
        (b"id: 1\r\ndata: a\r\n\r\n", [("1", "message", b"a")]),
        (b"id:1\ndata:a\ndata: b\n\n", [("1", "message", b"a\nb")]),
        (b": heartbeat\n\nid: 2\nevent: x\ndata: c\n\n", [("2", "x", b"c")]),
        (b"event: y\ndata: d\n\ndata: e\n\n", [(None, "y", b"d"), (None, "message", b"e")]),
        (b"id: 1\ndata: a\n", []),
        (b"id: 1\ndata", []),
    ],
)
def test_frames_are_the_same_in_pieces_of_any_size(
    text: bytes, wanted: list[tuple[str | None, str, bytes]]
) -> None:
    for size in range(1, len(text) + 1):
        frames = Frames()
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert [each for piece in pieces for each in frames.feed(piece)] == wanted


async def test_a_client_is_cancelled_at_once(site: Site) -> None:
    site.tells((1, event("run.started")))
    waiting = asyncio.create_task(_awaited(site.client.run("triage", RUN).result()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _awaited(one: Awaitable[Any]) -> Any:
    return await one


def test_the_client_is_a_public_name() -> None:
    assert surefoot.Client is Client
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = surefoot.nothing_of_the_kind
