"""What is in a message of a queue, in the shapes that AWS documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surefoot import ConfigError, EventBridgeEvent, QueueMessage, S3Object
from surefoot.producers.sources.sqs_messages import (
    NotThatShape,
    events_in,
    message_of,
    queue_run_id,
)
from surefoot.state.declare.agent import Agent
from surefoot.state.names.ids import check_run_id


def raw(body: Any, message_id: str = "m-1", **attributes: str) -> dict[str, Any]:
    made: dict[str, Any] = {"MessageId": message_id, "Body": body}
    if not isinstance(body, str):
        made["Body"] = json.dumps(body)
    made["MessageAttributes"] = {
        name: {"DataType": "String", "StringValue": text} for name, text in attributes.items()
    }
    return made


def record(key: str, **fields: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "eu-west-1",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": "in"},
            "object": {"key": key, "size": 12, "eTag": "e", "sequencer": "0055AED6DCD90281E5"},
        },
    } | fields


BRIDGE = {
    "version": "0",
    "id": "17793124-05d4-b198-2fde-7ededc63b103",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "111122223333",
    "time": "2026-11-12T00:00:00Z",
    "region": "ca-central-1",
    "resources": ["arn:aws:s3:::in"],
    "detail": {
        "version": "0",
        "bucket": {"name": "in"},
        "reason": "PutObject",
        "object": {
            "key": "a b.json",
            "size": 12,
            "etag": "e",
            "version-id": "v1",
            "sequencer": "0055AED6DCD90281E5",
        },
    },
}


def only(message: QueueMessage, shape: Any) -> Any:
    (event,) = events_in(message, shape)
    return event


def test_the_key_of_a_notification_is_url_encoded_and_that_of_eventbridge_is_not():
    direct = message_of("q", raw({"Records": [record("in%2Fa+b%25.json")]}))
    assert only(direct, S3Object).key == "in/a b%.json"

    bridged = message_of("q", raw({**BRIDGE, "detail": BRIDGE["detail"]}))
    found = only(bridged, S3Object)
    assert (found.key, found.version, found.reason) == ("a b.json", "v1", "PutObject")
    assert only(bridged, EventBridgeEvent).detail["bucket"] == {"name": "in"}


def test_every_record_of_a_notification_is_a_run_of_its_own_and_deletions_are_none():
    gone = record("c", eventName="ObjectRemoved:Delete")
    message = message_of("q", raw({"Records": [record("a"), gone, record("b")]}))
    events = events_in(message, S3Object)
    assert [event.key for event in events if isinstance(event, S3Object)] == ["a", "b"]
    assert len({queue_run_id(event, "q") for event in events}) == 2


def test_the_run_id_is_of_the_object_and_not_of_the_message():
    once = only(message_of("q", raw({"Records": [record("a")]}, "m-1")), S3Object)
    again = only(message_of("q", raw({"Records": [record("a")]}, "m-2")), S3Object)
    assert queue_run_id(once, "q") == queue_run_id(again, "q")

    later = record("a")
    later["s3"]["object"]["sequencer"] = "0055AED6DCD90281E6"
    overwritten = only(message_of("q", raw({"Records": [later]})), S3Object)
    assert queue_run_id(overwritten, "q") != queue_run_id(once, "q")


def test_stores_that_give_no_sequencer_are_told_apart_by_time_and_etag():
    def bare(at: str) -> str:
        made = record("a", eventTime=at)
        del made["s3"]["object"]["sequencer"]
        return queue_run_id(only(message_of("q", raw({"Records": [made]})), S3Object), "q")

    assert bare("2026-01-01T00:00:00Z") == bare("2026-01-01T00:00:00Z")
    assert bare("2026-01-01T00:00:00Z") != bare("2026-01-01T00:00:01Z")


def test_what_sns_has_wrapped_has_the_id_of_the_notification():
    def wrapped(message_id: str) -> QueueMessage:
        body = {
            "Type": "Notification",
            "MessageId": "sns-1",
            "Message": '{"Records": []}',
            "MessageAttributes": {"kind": {"Type": "String", "Value": "x"}},
        }
        return message_of("q", raw(body, message_id))

    assert wrapped("m-1").attributes == {"kind": "x"}
    assert wrapped("m-1").json == {"Records": []}
    assert queue_run_id(wrapped("m-1"), "q") == queue_run_id(wrapped("m-2"), "q") == "sqs-q-sns-1"


def test_what_s3_says_when_notifications_are_switched_on_starts_nothing():
    message = message_of("q", raw({"Service": "Amazon S3", "Event": "s3:TestEvent"}))
    assert events_in(message, S3Object) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no json",
        "[]",
        "null",
        {"Records": None},
        {"Records": [{}]},
        {"Records": [record("")]},
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": []}]},
        {**BRIDGE, "source": "my.app"},
        '{"Records": [], "Records": []}',
    ],
)
def test_what_is_no_s3_event_is_refused_whatever_it_is(body: Any):
    with pytest.raises(NotThatShape, match="not a valid S3Object"):
        events_in(message_of("q", raw(body)), S3Object)


def test_any_message_is_a_message():
    message = message_of("q", raw("plain text", kind="x"))
    assert events_in(message, QueueMessage) == [message]
    assert (message.body, message.attributes) == ("plain text", {"kind": "x"})


@pytest.mark.parametrize("identity", ["m-1", "", "..", "a/b", "x" * 300, "\u202e"])
def test_a_run_id_can_always_name_a_run(identity: str):
    message = QueueMessage(queue="q", id=identity, body="", attributes={})
    check_run_id(queue_run_id(message, "https://sqs.eu-west-1.amazonaws.com/1/orders.fifo"))


def test_a_declaration_that_cannot_work_is_an_error_at_import():
    agent = Agent("a")

    def untyped(message) -> int:
        return 0

    def two(message: QueueMessage, more: int) -> int:
        return 0

    for fn, told in ((untyped, "annotate"), (two, "one argument")):
        with pytest.raises(ConfigError, match=told):
            agent.sqs("q")(fn)
    with pytest.raises(ConfigError, match="give its name"):
        agent.sqs(" ")(lambda_of())


def lambda_of() -> Any:
    def fine(message: QueueMessage) -> int:
        return 0

    return fine
