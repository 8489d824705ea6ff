"""Whatever JSON says, wherever in a known shape: it is that message's problem, if one at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

from hypothesis import example, given, settings
from hypothesis import strategies as st

from surefoot import Agent, Context, Done
from surefoot.consumers.topic_triggers.mapping import EventMapping, FramedEvent, Schemas
from surefoot.producers.guards import RequestRefused
from surefoot.producers.sources.sqs_messages import (
    NotThatShape,
    events_in,
    message_of,
    queue_run_id,
)
from surefoot.producers.webhooks.intake import read_webhook
from surefoot.producers.webhooks.verification import sender
from surefoot.state.declare.sources import QueueEvent
from surefoot.state.declare.webhooks import Provider
from surefoot.state.names.ids import check_run_id
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import Wire

EXAMPLES = settings(max_examples=300, derandomize=True, deadline=None, database=None)

S3 = {
    "Records": [
        {
            "eventTime": "2026-01-01T00:00:00.000Z",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "bucket": {"name": "in"},
                "object": {"key": "a", "size": 1, "eTag": "e", "sequencer": "1", "versionId": "v"},
            },
        }
    ]
}
BRIDGE = {
    "id": "i",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "1",
    "time": "2026-11-12T00:00:00Z",
    "region": "r",
    "resources": ["arn"],
    "detail": {
        "bucket": {"name": "in"},
        "reason": "PutObject",
        "object": {"key": "a", "size": 1, "etag": "e", "version-id": "v", "sequencer": "1"},
    },
}
SNS = {
    "Type": "Notification",
    "MessageId": "m",
    "Message": json.dumps(S3),
    "MessageAttributes": {"kind": {"Type": "String", "Value": "x"}},
}
CLOUD = {
    "specversion": "1.0",
    "id": "1",
    "source": "/s",
    "type": "t",
    "time": "2026-11-12T00:00:00Z",
    "subject": "s",
    "datacontenttype": "application/json",
    "traceparent": "00-x",
    "data": {"n": 1},
}
DELIVERY = {
    "id": "e1",
    "type": "charge.failed",
    "event_id": "E1",
    "trigger_id": "t",
    "command": "/do",
    "event": {"type": "message"},
    "challenge": "c",
    "action": "opened",
    "data": {"object": {}},
}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in _inside(value):
        yield from places(inner, (*path, key))


def _inside(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def with_odd(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """The same, with something else at that place."""
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_odd(value[path[0]], path[1:], odd)
    return copy


def oddly(*shapes: Any) -> st.SearchStrategy[Any]:
    """One of the shapes with anything at any one of its places, the outermost one included."""
    where = [(shape, path) for shape in shapes for path in places(shape)]
    return st.builds(lambda at, odd: with_odd(at[0], at[1], odd), st.sampled_from(where), anything)


@EXAMPLES
@given(oddly(S3, BRIDGE, SNS), oddly({"kind": {"DataType": "String", "StringValue": "x"}}))
@example({"Type": "Notification", "Message": "hi", "MessageAttributes": []}, {})
@example({"Type": "Notification", "Message": "hi", "MessageId": 7}, [])
@example(with_odd(S3, ("Records", 0, "s3", "object", "versionId"), {"a": [1.5]}), {})
@example(with_odd(S3, ("Records", 0, "s3", "object", "sequencer"), ["1"]), {})
def test_of_a_queue(body: Any, attributes: Any) -> None:
    raw = {"MessageId": "m-1", "Body": json.dumps(body), "MessageAttributes": attributes}
    message = message_of("q", raw)
    assert all(isinstance(value, str) for value in message.attributes.values())
    for shape in get_args(QueueEvent):
        try:
            events = events_in(message, shape)
        except NotThatShape:
            continue
        for event in events:
            assert check_run_id(queue_run_id(event, "q"))
            for name, text in _fields_of_text(event):
                assert isinstance(text, str), name


def _fields_of_text(event: Any) -> Iterator[tuple[str, Any]]:
    for name in ("id", "body", "source", "detail_type", "bucket", "key", "sequencer"):
        if hasattr(event, name):
            yield name, getattr(event, name)


def numbers() -> Agent:
    agent = Agent("numbers")

    @agent.step
    async def take(ctx: Context, value: Any) -> Done:
        return Done(value)

    @agent.on_event(topic="orders")
    def order(value: Any) -> Any:
        return value

    return agent


MAPPING = EventMapping(
    agent=numbers(),
    trigger=numbers().event_triggers["orders"],
    wire=Wire("app", AgentTopics("app", "numbers"), 3),
    schemas=Schemas(numbers().event_triggers["orders"], None),
    record_bytes=100_000,
)


@EXAMPLES
@given(oddly(CLOUD), st.sampled_from(["application/cloudevents+json", "application/json"]))
def test_of_a_topic(body: Any, content_type: str) -> None:
    headers = (("content-type", content_type.encode()),)
    record = ConsumerRecord("orders", 0, 7, 1_000, None, json.dumps(body).encode(), headers)
    prepared = asyncio.run(MAPPING.prepare(record))
    mapped = MAPPING.map(prepared, 0) if isinstance(prepared, FramedEvent) else prepared
    assert mapped.failure is None or mapped.failure.code in ("undecodable", "unserialisable")


@EXAMPLES
@given(oddly(DELIVERY), st.sampled_from(["github", "stripe", "slack", "standard"]))
def test_of_a_webhook(body: Any, provider: Provider) -> None:
    chosen = sender(provider)
    headers = {"content-type": "application/json", "x-github-delivery": "d", "webhook-id": "w"}
    with suppress(RequestRefused):
        sent = json.dumps(body).encode()
        delivery = read_webhook("source", chosen, headers, sent, bytes_max=100_000, gzip=False)
        assert isinstance(delivery.event, str)
        json.dumps(chosen.answer(delivery))
