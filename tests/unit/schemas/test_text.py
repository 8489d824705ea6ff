"""Half of a surrogate pair costs no run and no delivery: joined, or replaced; refused by choice."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from surefoot import Agent, Approve, Context, Done, Handoff, Wait
from surefoot.consumers.attempts.interpret import interpret
from surefoot.infra.runtime.settings import load_settings
from surefoot.producers.sources.sqs_messages import message_of
from surefoot.schemas.payload import (
    BadPayload,
    Unserialisable,
    dump_and_load,
    dump_own,
    load,
    parse_json,
    strict_json,
)
from surefoot.schemas.text import refuse_halves, whole, whole_json
from surefoot.state.declare.webhook_body import json_values
from surefoot.state.machine.model import AwaitInput, HandOver
from surefoot.state.steps.thread import Plan, Thread
from surefoot.testing import from_event
from tests.support.fake_engine import FakeEngine, a_run

HIGH, LOW, GONE = "\ud83d", "\ude00", "\ufffd"
FACE = "\U0001f600"


@pytest.fixture
def strict() -> Iterator[None]:
    refuse_halves(True)
    yield
    refuse_halves(False)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a_run())


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    more: tuple[str, ...] = ()


@dataclass
class Notes:
    notes: list[Note]
    by: dict[str, set[str]] = field(default_factory=dict)


class Model(BaseModel, frozen=True):
    text: str
    counts: dict[str, int] = {}


class Row(TypedDict):
    text: str


class Pair(NamedTuple):
    one: str
    other: str


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("", ""),
        ("plain", "plain"),
        (f"a{HIGH}", f"a{GONE}"),
        (f"{LOW}a", f"{GONE}a"),
        (HIGH + LOW, FACE),
        (HIGH + HIGH + LOW + LOW, GONE + FACE + GONE),
        (FACE, FACE),
    ],
)
def test_halves_are_joined_or_replaced(text: str, made: str) -> None:
    assert whole(text) == made
    as_json = json.dumps(text).encode()
    assert parse_json(as_json) == made
    assert load(TypeAdapter(str), as_json) == made


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (rb'"\ud800"', rb'"\ufffd"'),
        (rb'"\uDFFF\uD83D\uDE00"', rb'"\ufffd\uD83D\uDE00"'),
        (rb'"\\ud800"', rb'"\\ud800"'),
        (rb'"\\\ud800"', rb'"\\\ufffd"'),
        (rb'"\ud83d\n\ude00"', rb'"\ufffd\n\ufffd"'),
        (rb'"\ud7ff\ue000"', rb'"\ud7ff\ue000"'),
    ],
)
def test_only_halves_are_touched_in_json(given: bytes, made: bytes) -> None:
    assert whole_json(given) == made


@pytest.mark.parametrize(
    ("declared", "value", "made"),
    [
        (str, HIGH, GONE),
        (Any, {"a": [HIGH + LOW, {HIGH: "b"}]}, {"a": [FACE, {GONE: "b"}]}),
        (Note, Note(HIGH, ("a", LOW)), Note(GONE, ("a", GONE))),
        (
            Notes,
            Notes([Note("a"), Note(HIGH)], {LOW: {HIGH}}),
            Notes([Note("a"), Note(GONE)], {GONE: {GONE}}),
        ),
        (
            Model,
            Model.model_construct(text=HIGH, counts={LOW: 1}),
            Model(text=GONE, counts={GONE: 1}),
        ),
        (Row, {"text": HIGH}, {"text": GONE}),
        (Pair, Pair(HIGH, "a"), Pair(GONE, "a")),
        (dict[str, int], {HIGH: 1}, {GONE: 1}),
        (OrderedDict[str, str], OrderedDict(a=HIGH), OrderedDict(a=GONE)),
    ],
    ids=repr,
)
def test_a_value_is_stored_with_a_replacement(declared: Any, value: Any, made: Any) -> None:
    before = repr(value)
    data, back = dump_and_load(TypeAdapter(declared), value)
    assert back == made
    assert load(TypeAdapter(declared), data) == made
    assert repr(value) == before


def test_what_else_is_wrong_is_still_refused_and_keys_are_not_mixed() -> None:
    for value in ([HIGH, float("nan")], {HIGH: 1, LOW: 2}, [HIGH, object()]):
        with pytest.raises(Unserialisable):
            strict_json(value)


async def test_it_is_the_same_in_calls_streams_and_whatever_a_step_keeps(
    engine: FakeEngine,
) -> None:
    async def ask(text: str) -> Note:
        return Note(text + HIGH)

    for _ in range(2):
        ctx = engine.attempt()
        assert await ctx.call(f"ask{HIGH}", ask, HIGH) == Note(GONE + GONE)
        assert await ctx.once(f"once{HIGH}", ask, "a") == Note(f"a{GONE}")
    thread, plan = Thread([]), Plan((), seq=0)
    thread.append({"text": HIGH})
    plan.add(HIGH)
    assert thread.messages == [{"text": GONE}]
    assert plan.items[0].text == GONE
    ctx.outbox.http("POST", "https://example.com/", json={"a": HIGH})
    ctx.outbox.http("POST", "https://example.com/", body=HIGH)
    first, second = (json.loads(effect.payload) for effect in ctx.effects())
    assert json.loads(first["body"]) == {"a": GONE}
    assert second["body"] == GONE
    assert json.loads(dump_own([Note(HIGH), HIGH])) == [{"text": GONE, "more": []}, GONE]


async def test_a_character_that_is_split_over_two_pieces_is_put_together(
    engine: FakeEngine,
) -> None:
    async with engine.attempt().stream(f"draft{HIGH}") as draft:
        for piece in (f"a{HIGH}", f"{LOW}b", HIGH, "c", LOW, HIGH):
            await draft.write(piece)
        assert draft.text == f"a{FACE}b{GONE}c{GONE}"
    assert draft.text == f"a{FACE}b{GONE}c{GONE}{GONE}"
    texts = [piece for piece in engine.pieces if piece.kind == "text"]
    assert "".join(piece.text for piece in texts) == draft.text
    assert {piece.name for piece in engine.pieces} == {f"draft{GONE}"}
    assert [piece.offset for piece in texts] == [0, 1, 3, 5, 6]


def test_a_wait_and_a_question_have_whole_names() -> None:
    agent = Agent("a")

    @agent.step
    async def heard(ctx: Context, payload: Any, about: Any) -> Done:
        return Done()

    for value in (Wait(f"go{HIGH}", then=heard), Approve(HIGH, then=heard, by=f"ann{HIGH}")):
        then, _ = interpret(agent, agent.steps["heard"], value)
        assert isinstance(then, AwaitInput)
        assert (then.names, then.by) in (((f"go{GONE}",), ()), ((), (f"ann{GONE}",)))


# What comes in ---------------------------------------------------------------------------------


def test_a_delivery_with_a_half_is_read() -> None:
    assert json_values("application/json", rb'{"text": "a\ud83d"}') == {"text": f"a{GONE}"}
    form = "application/x-www-form-urlencoded"
    assert json_values(form, b"text=a%ED%A0%BD&%ED%A0%BD=b") == {"text": f"a{GONE}", GONE: "b"}
    payload = b"payload=%7B%22text%22%3A%22%5Cud83d%22%7D"
    assert json_values(form, payload) == {"text": GONE}


def an_agent() -> Agent:
    agent = Agent("a")

    @agent.step
    async def read(ctx: Context, note: Note) -> Done:
        return Done()

    @agent.on_event(topic="t")
    def on(note: Note) -> Note:
        return note

    return agent


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")],
    ],
)
def test_an_event_of_a_topic_with_a_half_is_read(headers: list[tuple[str, bytes]]) -> None:
    asked = from_event(an_agent(), "t", rb'{"text": "a\ud83d"}', headers=headers)
    assert asked is not None
    assert asked.payload == Note(f"a{GONE}")


def test_a_message_of_a_queue_with_a_half_is_read() -> None:
    message = message_of("q", {"MessageId": "1", "Body": json.dumps({"text": FACE})})
    assert message.json == {"text": FACE}
    message = message_of("q", {"MessageId": "1", "Body": f'{{"text": "{HIGH}"}}'})
    assert (message.body, message.json) == (f'{{"text": "{GONE}"}}', {"text": GONE})


# By choice -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("strict")
async def test_strictly_a_half_is_refused_everywhere(engine: FakeEngine) -> None:
    ctx = engine.attempt()
    for value in (HIGH, {"a": HIGH}, [HIGH + LOW]):
        with pytest.raises(Unserialisable, match="lone surrogates"):
            strict_json(value)
    with pytest.raises(Unserialisable):
        ctx.outbox.http("POST", "https://example.com/", body=HIGH)
    with pytest.raises(Unserialisable):
        await ctx.call("ask", lambda: HIGH)
    with pytest.raises(Unserialisable):
        async with ctx.stream("draft") as draft:
            await draft.write(HIGH)
    with pytest.raises(BadPayload):
        parse_json(rb'"\ud800"')
    for body, kind in (
        (rb'{"a": "\ud800"}', "application/json"),
        (b"payload=%7B%22text%22%3A%22%5Cud83d%22%7D", "application/x-www-form-urlencoded"),
    ):
        with pytest.raises(BadPayload):
            json_values(kind, body)
    with pytest.raises(BadPayload):
        _ = message_of("q", {"MessageId": "1", "Body": f'"{HIGH}"'}).json


@pytest.mark.usefixtures("strict")
async def test_strictly_the_halves_of_one_character_are_put_together_in_a_stream_all_the_same(
    engine: FakeEngine,
) -> None:
    async with engine.attempt().stream("draft") as draft:
        await draft.write(HIGH)
        await draft.write(LOW)
    assert draft.text == FACE


@pytest.mark.usefixtures("strict")
def test_the_setting_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    load_settings()
    assert parse_json(rb'"\ud800"') == GONE
    monkeypatch.setenv("SUREFOOT_LONE_SURROGATES", "strict")
    load_settings()
    with pytest.raises(BadPayload):
        parse_json(rb'"\ud800"')


def test_another_agent_is_handed_a_run_by_a_whole_name() -> None:
    agent = Agent("a")

    @agent.step
    async def give(ctx: Context, payload: Any) -> Done:
        return Done()

    then, _ = interpret(agent, agent.steps["give"], Handoff(f"other{HIGH}", 1))
    assert isinstance(then, HandOver)
    assert then.to.agent == f"other{GONE}"
