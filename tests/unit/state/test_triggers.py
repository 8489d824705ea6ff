"""What a trigger is declared with, and what it makes of one event."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from surefoot import Agent, ConfigError, Context, Done, Received
from surefoot.consumers.topic_triggers.mapping import EventMapping, FramedEvent, Mapped, Schemas
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.payload import parse_json, strict_json
from surefoot.schemas.pointer import pointers, unescaped
from surefoot.state.declare.topics import begin_at
from surefoot.state.errors import Unavailable
from surefoot.state.names.ids import run_id_for
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.ports.sources import LostEvents, SourceOffsets
from surefoot.state.records.encoding import Wire
from tests.support.foreign_clients import (
    ORDER,
    ORDER_V1,
    Order,
    Registry,
    Sent,
    cloud_binary,
    cloud_structured,
    confluent,
    confluent_guid,
    plain_json,
    single_object,
)


class Model(BaseModel):
    id: str


class Typed(TypedDict):
    id: str


def shop() -> Agent:
    agent = Agent("shop")

    @agent.step
    async def ship(ctx: Context, order: Order) -> Done:
        return Done(order.total)

    return agent


def mapping(agent: Agent, source: Any = None, record_bytes: int = 100_000) -> EventMapping:
    (event,) = agent.event_triggers.values()
    return EventMapping(
        agent=agent,
        trigger=event,
        wire=Wire("app", AgentTopics("app", agent.name), 3),
        schemas=Schemas(event, source),
        record_bytes=record_bytes,
    )


async def mapped(made: EventMapping, sent: Sent, offset: int = 4) -> Mapped:
    value, headers = sent
    event = await made.prepare(ConsumerRecord("orders", 2, offset, 1_000, b"k", value, headers))
    return made.map(event, 5_000) if isinstance(event, FramedEvent) else event


def command(result: Mapped) -> dict[str, Any]:
    assert result.failure is None
    assert result.out is not None
    return dict(decode(result.out.value, "Command")[1])


def why(result: Mapped) -> tuple[str, str]:
    assert result.failure is not None
    assert result.out is not None
    told = dict(result.out.headers)
    assert told["sf-dead-code"].decode() == result.failure.code
    assert told["sf-dead-topic"] == b"orders"
    assert (told["sf-dead-partition"], told["sf-dead-offset"]) == (b"2", b"4")
    return result.failure.code, result.failure.message


VALUE = {"id": "o1", "total": 5, "note": None, "lane": "FAST"}


@pytest.mark.parametrize(
    "sent",
    [
        plain_json(VALUE),
        confluent(VALUE),
        confluent_guid(VALUE),
        single_object(VALUE),
        cloud_binary(VALUE),
        cloud_structured(VALUE),
    ],
    ids=["json", "confluent", "guid", "single-object", "ce-binary", "ce-structured"],
)
async def test_one_event_in_any_encoding_is_one_start_command(sent: Sent) -> None:
    agent = shop()

    @agent.on_event(topic="orders", schema=ORDER)
    def on_order(order: Order) -> Order:
        return order

    result = await mapped(mapping(agent, Registry()), sent)
    started = command(result)
    assert (started["run_id"], started["kind"]) == ("orders-2-4", "start")
    assert parse_json(started["payload"]) == VALUE
    assert result.out is not None
    assert result.out.topic == "app.shop.commands"
    assert dict(result.out.headers) == {"sf-src": b"orders/2/4"}


async def test_an_event_of_an_older_schema_is_read_as_the_declared_one() -> None:
    agent = shop()

    @agent.on_event(topic="orders", schema=[ORDER, ORDER_V1])
    def on_order(order: Order) -> Order:
        return order

    registry = Registry()
    made = mapping(agent, registry)
    old = {"id": "o", "total": 1}
    for sent in (confluent(old, ORDER_V1, 8), single_object(old, ORDER_V1)):
        for _ in range(2):
            started = command(await mapped(made, sent))
            assert parse_json(started["payload"])["lane"] == "SLOW"
    assert registry.asked == [8], "each schema is asked for once"


async def test_where_key_and_the_function_may_ask_where_the_event_came_from() -> None:
    agent = shop()

    @agent.on_event(
        topic="orders",
        where=lambda order, received: order.total > 0 and received.partition == 2,
        key=lambda _order, received: f"{received.attributes['id']}-{received.key.decode()}",
    )
    def on_order(order: Order, received: Received) -> Order | None:
        assert (received.topic, received.offset, received.timestamp_ms) == ("orders", 4, 1_000)
        return order if "ce_id" in received.headers else None

    made = mapping(agent)
    assert command(await mapped(made, cloud_binary(VALUE)))["run_id"] == "e1-k"
    assert await mapped(made, cloud_binary(VALUE | {"total": 0})) == Mapped(None)
    assert await mapped(made, plain_json(VALUE)) == Mapped(None)


@pytest.mark.parametrize("event", [Order, Model, Typed, dict[str, Any]])
async def test_a_field_names_the_run_whatever_the_event_is_made_of(event: Any) -> None:
    agent = shop()

    def on_order(order: Any) -> Order:
        return Order("x", 1)

    on_order.__annotations__["order"] = event
    agent.on_event(topic="orders", key="id")(on_order)
    made = mapping(agent)
    assert command(await mapped(made, plain_json({"id": "o1", "total": 1})))["run_id"] == "o1"
    if event is dict[str, Any]:
        assert command(await mapped(made, plain_json({"id": 5})))["run_id"] == "5"
        assert why(await mapped(made, plain_json({"id": None})))[0] == "bad_run_id"
    odd = command(await mapped(made, plain_json({"id": "urn:x/7", "total": 1})))
    assert (odd["run_id"], odd["by"]) == (run_id_for("urn:x/7"), "urn:x/7")
    code, _ = why(await mapped(made, plain_json({"id": "", "total": 1})))
    assert code == "bad_run_id"


async def test_a_null_value_starts_nothing_unless_the_type_of_the_event_allows_it() -> None:
    quiet, told = shop(), shop()

    @quiet.on_event(topic="orders")
    def on_order(order: Order) -> Order:
        return order

    @told.on_event(topic="orders")
    def on_change(order: Order | None, received: Received) -> Order:
        assert order is None
        return Order((received.key or b"").decode(), 0)

    assert await mapped(mapping(quiet), (None, ())) == Mapped(None)
    assert await mapped(mapping(quiet), (None, cloud_binary(0)[1])) == Mapped(None)
    assert parse_json(command(await mapped(mapping(told), (None, ())))["payload"])["id"] == "k"


async def test_bytes_are_given_as_they_are_when_that_is_asked_for() -> None:
    agent = shop()

    @agent.on_event(topic="orders")
    def on_frame(frame: bytes) -> Order:
        return Order(frame.hex(), 0)

    started = command(await mapped(mapping(agent), (b"\x00\xff", ())))
    assert parse_json(started["payload"])["id"] == "00ff"


async def test_what_cannot_be_used_is_a_dead_letter_that_says_why() -> None:
    agent = shop()

    def where(order: Order) -> bool:
        if order.note == "exit":
            raise SystemExit(3)
        return 1 / order.total < 5

    @agent.on_event(topic="orders", where=where)
    def on_order(order: Order) -> Any:
        return order if order.note is None else object()

    made = mapping(agent, Registry(), record_bytes=1_000)
    assert why(await mapped(made, (b"{", ())))[0] == "undecodable"
    assert why(await mapped(made, (b'{"id":"a","id":"b","total":1}', ())))[0] == "undecodable"
    assert "$.total" in why(await mapped(made, plain_json({"id": "o"})))[1]
    assert "no such schema" in why(await mapped(made, confluent(VALUE, ORDER, 99)))[1]
    assert "schema=" in why(await mapped(made, single_object(VALUE)))[1]
    assert why(await mapped(made, ((confluent(VALUE)[0] or b"") + b"x", ())))[0] == "undecodable"
    zero = plain_json(VALUE | {"total": 0})
    assert why(await mapped(made, zero)) == (
        "mapping_raised",
        "where raised ZeroDivisionError: division by zero",
    )
    assert why(await mapped(made, plain_json(VALUE | {"note": "exit"})))[0] == "mapping_raised"
    assert why(await mapped(made, plain_json(VALUE | {"note": "odd"})))[0] == "unserialisable"
    large = await mapped(made, plain_json(VALUE | {"id": "x" * 900}))
    assert why(large)[0] == "too_large"
    assert large.out is not None
    assert large.out.value == plain_json(VALUE | {"id": "x" * 900})[0]
    larger = await mapped(made, plain_json(VALUE | {"id": "x" * 3_000}))
    assert why(larger)[0] == "too_large"
    assert larger.out is not None
    assert larger.out.value is None
    assert int(dict(larger.out.headers)["sf-dead-bytes"]) > 3_000
    assert "SUREFOOT_REGISTRY_URL" in why(await mapped(mapping(agent), confluent(VALUE)))[1]


async def test_a_registry_that_does_not_answer_makes_no_dead_letters() -> None:
    class Away(Registry):
        async def by_id(self, id: int, /) -> dict[str, Any]:  # noqa: A002
            raise Unavailable("SF3002", f"no answer about {id}")

    agent = shop()

    @agent.on_event(topic="orders")
    def on_order(order: Order) -> Order:
        return order

    with pytest.raises(Unavailable):
        await mapped(mapping(agent, Away()), confluent(VALUE))
    assert (
        "not among those of schema="
        in why(await mapped(mapping(agent, Away()), single_object(VALUE)))[1]
    )
    unknown = (confluent_guid(VALUE)[0], (("__value_schema_id", b"\x01" + b"\x00" * 16),))
    assert "no such schema" in why(await mapped(mapping(agent, Away()), unknown))[1]


async def test_the_trace_goes_on_in_the_run() -> None:
    agent = shop()

    @agent.on_event(topic="orders")
    def on_order(order: Order) -> Order:
        return order

    trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for header, wanted in ((trace, trace.decode()), (b"\xff", None)):
        sent: Sent = (plain_json(VALUE)[0], (("traceparent", header),))
        assert command(await mapped(mapping(agent), sent))["traceparent"] == wanted
    for sent in (
        cloud_binary(VALUE, traceparent=trace.decode()),
        cloud_structured(VALUE, traceparent=trace.decode()),
    ):
        assert command(await mapped(mapping(agent), sent))["traceparent"] == trace.decode()
    more = {"tracestate": "rojo=1", "baggage": "userId=amelie"}
    headers = [("traceparent", trace), *((name, text.encode()) for name, text in more.items())]
    for sent in (
        (plain_json(VALUE)[0], tuple(headers)),
        cloud_binary(VALUE, traceparent=trace.decode(), **more),
    ):
        told = command(await mapped(mapping(agent), sent))
        assert {name: told[name] for name in more} == more


@pytest.mark.parametrize("topic", ["_x", ".x", "a" * 220])
async def test_every_topic_makes_a_name_for_a_run(topic: str) -> None:
    agent = shop()

    @agent.on_event(topic=topic)
    def on_order(order: Order) -> Order:
        return order

    made = mapping(agent)
    event = await made.prepare(
        ConsumerRecord(topic, 2**31 - 1, 2**63 - 1, 0, None, plain_json(VALUE)[0])
    )
    assert isinstance(event, FramedEvent)
    assert command(made.map(event, 0))["run_id"].endswith(f"-{2**31 - 1}-{2**63 - 1}")


def two(a: Order, b: Received, c: int) -> None: ...
def bare(order) -> None: ...
def fine(order: Order) -> Order | None: ...
def odd(order: Registry) -> None: ...


@pytest.mark.parametrize(
    ("fn", "given", "told"),
    [
        (two, {}, "must take (event) or (event, received)"),
        (bare, {}, "annotate 'order'"),
        (odd, {}, "cannot be a Registry"),
        (fine, {"topic": "a b"}, "not a valid topic name"),
        (fine, {"topic": "a" * 221}, "not a valid topic name"),
        (fine, {"start": "now"}, '"latest" or "earliest"'),
        (fine, {"key": "nope"}, "key='nope' is not a field of"),
        (fine, {"key": lambda: 1}, "key must take"),
        (fine, {"schema": "nowhere.avsc"}, "nowhere.avsc"),
        (fine, {"schema": {"type": "array", "items": "null"}}, "take no bytes"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_at_once(
    fn: Any, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        shop().on_event(**{"topic": "orders"} | given)(fn)
    assert told in str(refused.value)


def test_an_agent_listens_to_a_topic_once() -> None:
    agent = shop()
    agent.on_event(topic="orders")(fine)
    agent.on_event(topic="returns")(fine)
    with pytest.raises(ConfigError, match="twice"):
        agent.on_event(topic="orders")(fine)


@pytest.mark.parametrize(
    ("standing", "start", "refused", "position", "lost"),
    [
        (SourceOffsets(None, 3, 9), "latest", False, 3, None),
        (SourceOffsets(5, 3, 9), "latest", False, 5, None),
        (SourceOffsets(9, 3, 9), "earliest", False, 9, None),
        (SourceOffsets(2, 5, 9), "latest", False, 5, (2, 5)),
        (SourceOffsets(2, 5, 9), "earliest", False, 5, (2, 5)),
        (SourceOffsets(12, 0, 9), "earliest", False, 12, None),
        (SourceOffsets(12, 0, 9), "earliest", True, 0, (9, 12)),
        (SourceOffsets(12, 0, 9), "latest", True, 9, (9, 12)),
    ],
)
def test_where_to_go_on_and_what_was_lost(
    standing: SourceOffsets, start: Any, refused: bool, position: int, lost: tuple[int, int] | None
) -> None:
    at, gap = begin_at(standing, start, refused=refused)
    assert at == position
    assert (None if gap is None else (gap.start, gap.end)) == lost


async def test_events_that_nobody_has_seen_leave_a_dead_letter_with_their_place() -> None:
    agent = shop()
    agent.on_event(topic="orders")(fine)
    out = mapping(agent).lost(2, LostEvents(3, 8, "5 are gone"), 1_000)
    told = dict(out.headers)
    assert (out.topic, out.value) == ("app.dead", None)
    assert told["sf-dead-code"] == b"events_lost"
    assert (told["sf-dead-offset"], told["sf-dead-until"]) == (b"3", b"8")


def test_a_type_that_has_no_schema_is_told_in_one_line_with_what_there_is() -> None:
    class Odd:
        pass

    def odd(event: Odd) -> None: ...

    odd.__annotations__["event"] = Odd
    for declare in (
        lambda: shop().on_event(topic="orders")(odd),
        lambda: shop().step(_takes(Odd)),
    ):
        with pytest.raises(ConfigError) as error:
            declare()
        assert "TypedDict (before Python 3.12 that of typing_extensions)" in str(error.value)
        assert "Unable to generate pydantic-core schema" in str(error.value)
        assert "\n" not in str(error.value)
        assert "http" not in str(error.value)


def _takes(kind: type) -> Any:
    async def step(ctx: Context, payload: Any) -> Done:
        return Done()

    step.__annotations__["payload"] = kind
    return step


async def test_what_looks_like_a_pointer_in_an_event_is_data() -> None:
    agent = Agent("a")

    @agent.step
    async def take(ctx: Context, value: Any) -> Done:
        return Done(value)

    @agent.on_event(topic="orders")
    def order(value: Any) -> Any:
        return value

    made_up = {"$surefoot.blob": f"20260101/{'0' * 64}/7"}
    payload = command(await mapped(mapping(agent), plain_json([made_up])))["payload"]
    assert pointers(payload) == set()
    assert unescaped(payload) == strict_json([made_up])
