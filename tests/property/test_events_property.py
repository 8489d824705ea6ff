"""Whatever somebody else's record says: it is a start command, a dead letter, or nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot import Agent, Context, Done
from surefoot.consumers.topic_triggers.mapping import EventMapping, FramedEvent, Mapped, Schemas
from surefoot.schemas.codec.catalog import crc64
from surefoot.schemas.codec.codec import decode
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import Wire
from tests.support.foreign_clients import (
    GUID,
    ORDER,
    Registry,
    Sent,
    avro,
    cloud_binary,
    cloud_structured,
    confluent,
    confluent_guid,
    plain_json,
    single_object,
)

#: of everything that fastavro reads
RICH: dict[str, Any] = {
    "type": "record",
    "name": "Rich",
    "fields": [
        {"name": "items", "type": {"type": "array", "items": ["null", "long", ORDER]}},
        {"name": "by", "type": {"type": "map", "values": {"type": "array", "items": "boolean"}}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "cost",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "last", "type": ["double", "float", "shop.Lane", "bytes"]},
    ],
}
BODY = avro(
    {
        "items": [None, 5, {"id": "o", "total": 1, "lane": "FAST"}],
        "by": {"a": [True]},
        "at": 0,
        "on": 0,
        "id": GUID,
        "cost": b"\x01",
        "hash": b"abcd",
        "last": b"x",
    },
    RICH,
)
ORDERS = {"id": "o1", "total": 5, "note": None, "lane": "FAST"}
GOOD: list[Sent] = [
    plain_json(ORDERS),
    confluent(ORDERS),
    confluent_guid(ORDERS),
    single_object(ORDERS),
    cloud_binary(ORDERS),
    cloud_structured(ORDERS),
    (b"\x00\x00\x00\x00\x08" + BODY, ()),
    (b"\xc3\x01" + crc64(RICH) + BODY, ()),
    (None, ()),
]
NAMES = ["ce_specversion", "ce_id", "ce_time", "content-type", "__value_schema_id", "traceparent"]
HURT = [b"\xfe" * 9 + b"\x01", b"\x01", b"\xff" * 10, b"\x00", b"\x80\x80\x80\x80\x10"]


def _hurt(data: bytes, draw: st.DrawFn) -> bytes:
    made = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(made)))
        match draw(st.sampled_from(["flip", "cut", "insert", "huge"])):
            case "flip" if at < len(made):
                made[at] ^= draw(st.integers(1, 255))
            case "cut":
                del made[at:]
            case "insert":
                made[at:at] = draw(st.binary(max_size=8))
            case "huge":
                made[at:at] = draw(st.sampled_from(HURT))
    return bytes(made)


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    value, headers = draw(st.sampled_from(GOOD) | st.tuples(st.binary(max_size=40), st.just(())))
    if value is not None:
        value = _hurt(value, draw)
    hurt = [(name, _hurt(text, draw)) for name, text in headers]
    more: Any = st.tuples(st.sampled_from(NAMES), st.none() | st.binary(max_size=24))
    return value, (*hurt, *draw(st.lists(more, max_size=2)))


agent = Agent("shop")


@agent.step
async def ship(ctx: Context, order: Any) -> Done:
    return Done()


@agent.on_event(topic="orders", schema=[RICH, ORDER], key=lambda event: event.get("id"))
def on_order(event: dict[str, Any]) -> Any:
    return len(event)


#: read as it was written
TRIGGER = replace(agent.event_triggers["orders"], reader_schema=None)
MAPPING = EventMapping(
    agent=agent,
    trigger=TRIGGER,
    wire=Wire("app", AgentTopics("app", "shop"), 3),
    schemas=Schemas(TRIGGER, Registry(ORDER, RICH)),
    record_bytes=10_000,
)


async def _mapped(value: Sent) -> Mapped:
    prepared = await MAPPING.prepare(ConsumerRecord("orders", 0, 1, 0, None, *value))
    return MAPPING.map(prepared, 0) if isinstance(prepared, FramedEvent) else prepared


@given(sent())
@settings(max_examples=300, derandomize=True, deadline=None)
def test_any_record_is_a_start_command_a_dead_letter_or_nothing(value: Sent) -> None:
    result = asyncio.run(_mapped(value))
    if result.failure is not None:
        assert result.out is not None
        assert result.out.topic == "app.dead"
        assert result.out.value == value[0]
        assert result.failure.code != "mapping_raised" or "key raised" in result.failure.message
    elif result.out is not None:
        assert decode(result.out.value, "Command")[1]["kind"] == "start"


def test_what_is_hurt_above_is_good_as_it_is() -> None:
    for value in GOOD[:-1]:
        assert asyncio.run(_mapped(value)).failure is None, value
