"""Reads SQS messages, and derives run_ids from them. Pure.

Sources: docs.aws.amazon.com: S3 "Event message structure" (the key is URL-encoded there),
EventBridge "Amazon S3 object-created event" (the key is not), SNS "HTTP/HTTPS notification JSON
format".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus

from surefoot.schemas.payload import BadPayload, JsonObject, parse_json, strict_json
from surefoot.schemas.text import halves_are_refused, whole
from surefoot.state.declare.sources import EventBridgeEvent, QueueEvent, QueueMessage, S3Object
from surefoot.state.names.ids import check_run_id


class NotThatShape(ValueError):
    """The message does not have the shape that the mapping takes."""


def message_of(queue: str, raw: Mapping[str, Any]) -> QueueMessage:
    """Convert a message of boto3.

    An SNS notification is unwrapped: its id is then the notification's, which is equal on every
    delivery by SNS too. A body that is not exactly SNS's shape stays as it is."""
    identity, body = raw["MessageId"], raw["Body"]
    attributes = _texts(raw.get("MessageAttributes"), "StringValue") or {}
    if not halves_are_refused():
        body = whole(body)
    told = _object(body)
    wrapped, named = told.get("Message"), told.get("MessageId") or identity
    more = _texts(told.get("MessageAttributes"), "Value")
    complete = isinstance(wrapped, str) and isinstance(named, str) and more is not None
    if told.get("Type") == "Notification" and complete:
        identity, body, attributes = named, wrapped, attributes | (more or {})
    system = raw.get("Attributes", {})
    return QueueMessage(
        queue=queue,
        id=identity,
        body=body,
        attributes=attributes,
        group=system.get("MessageGroupId"),
        deduplication_id=system.get("MessageDeduplicationId"),
    )


def _texts(attributes: Any, field: str) -> dict[str, str] | None:
    """Return the text attributes of a message; None if they are not attributes."""
    if attributes is None:
        return {}
    if not isinstance(attributes, dict):
        return None
    given = {name: of.get(field) for name, of in attributes.items() if isinstance(of, dict)}
    return {name: value for name, value in given.items() if isinstance(value, str)}


def events_in(message: QueueMessage, shape: type[QueueEvent]) -> list[QueueEvent]:
    """Return the events in the message for a mapping that takes `shape`.

    [] if the message is well-formed and has no event for such a mapping.

    Raises: NotThatShape — says how it differs.
    """
    if shape is QueueMessage:
        return [message]
    told = _object(message.body)
    try:
        if shape is EventBridgeEvent:
            return [_eventbridge(told)]
        return list(_s3(told))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotThatShape(
            f"the message is not a valid {shape.__name__}: {type(error).__name__}: {error}"
        ) from None


def queue_run_id(event: QueueEvent, queue: str) -> str:
    """Return the run_id: the same for every delivery of the same event."""
    match event:
        case S3Object():
            parts = [event.bucket, event.key, event.version, event.sequencer]
            return f"s3-{_short(strict_json(parts))}"
        case EventBridgeEvent():
            return _named("eventbridge", event.id)
        case QueueMessage():
            return _named(f"sqs-{queue.rpartition('/')[2].removesuffix('.fifo')}", event.id)


def _named(prefix: str, identity: str) -> str:
    try:
        return check_run_id(f"{prefix}-{identity}")
    except ValueError:
        return f"{prefix}-{_short(identity.encode())}"


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _object(body: str) -> JsonObject:
    """Parse the body as a JSON object; {} if it is not one."""
    try:
        told = parse_json(body.encode("utf-8", "surrogatepass"))
    except BadPayload:
        return {}
    return told if isinstance(told, dict) else {}


def _eventbridge(told: JsonObject) -> EventBridgeEvent:
    return EventBridgeEvent(
        id=_text(told["id"]),
        source=_text(told["source"]),
        detail_type=_text(told["detail-type"]),
        account=_text(told["account"]),
        region=_text(told["region"]),
        time=_text(told["time"]),
        resources=tuple(_text(each) for each in told.get("resources", ())),
        detail=told["detail"],
    )


def _s3(told: JsonObject) -> Iterator[S3Object]:
    if told.get("Event") == "s3:TestEvent":  # S3 sends it when notifications are switched on
        return
    if "detail-type" in told:
        yield from _s3_by_eventbridge(_eventbridge(told))
        return
    for record in told["Records"]:
        event, of, thing = _text(record["eventName"]), record["s3"], record["s3"]["object"]
        kind, _, reason = event.removeprefix("s3:").partition(":")
        if kind == "ObjectCreated":
            yield S3Object(
                bucket=_text(of["bucket"]["name"]),
                key=unquote_plus(_text(thing["key"])),
                version=_version(thing.get("versionId")),
                sequencer=_text(
                    thing.get("sequencer") or f"{_text(record['eventTime'])} {_text(thing['eTag'])}"
                ),
                size=int(thing.get("size", 0)),
                etag=str(thing.get("eTag", "")),
                reason=reason,
            )


def _s3_by_eventbridge(event: EventBridgeEvent) -> Iterator[S3Object]:
    if event.source != "aws.s3":
        raise ValueError(f"its source is {event.source!r}")
    if event.detail_type == "Object Created":
        thing = event.detail["object"]
        yield S3Object(
            bucket=_text(event.detail["bucket"]["name"]),
            key=_text(thing["key"]),
            version=_version(thing.get("version-id")),
            sequencer=_text(thing["sequencer"]),
            size=int(thing.get("size", 0)),
            etag=str(thing.get("etag", "")),
            reason=str(event.detail.get("reason", "")),
        )


def _version(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"expected text; got {value!r}")
    return value
