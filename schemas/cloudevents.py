"""CloudEvents 1.0 in a Kafka record: its attributes, and where its data is. Pure.

Binary mode: attributes are headers `ce_NAME`, the record's value is the data. Structured mode: the
value is one JSON object that holds both.

Source: CloudEvents 1.0.2; Kafka protocol binding 1.0.2; JSON event format 1.0.2
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from surefoot.schemas.payload import BadPayload, parse_json

__all__ = ["BadCloudEvent", "CloudEvent", "binary", "check_attributes", "is_binary", "structured"]

_STRUCTURED = "application/cloudevents"
_REQUIRED = ("id", "source", "specversion", "type")
_TEXT = (*_REQUIRED, "datacontenttype", "dataschema", "subject", "time")
_NAME = re.compile(r"[a-z0-9]+")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+*-]+(\s*;.*)?", re.ASCII | re.DOTALL)
_OFFSET = r"[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d"
_TIME = re.compile(rf"(\d{{4}}-\d\d-\d\d[Tt]\d\d:\d\d:)(\d\d)(?:\.\d+)?(?:{_OFFSET})", re.ASCII)
_INT = range(-(2**31), 2**31)


class BadCloudEvent(ValueError):
    """What says that it is a CloudEvent and is none; the message is the reason."""


class CloudEvent(NamedTuple):
    """One event: attributes that are null are left out."""

    attributes: dict[str, Any]
    #: bytes as they were sent, or (structured mode) a JSON value; None: the event has no data
    data: Any
    #: whether `data` is a JSON value rather than bytes
    is_json: bool


def is_structured(content_type: str) -> bool:
    """Whether a record with that content type is an event in structured mode."""
    return content_type.strip().lower().startswith(_STRUCTURED)


def is_binary(headers: Mapping[str, bytes]) -> bool:
    """Whether a record with those headers is an event in binary mode."""
    return "ce_specversion" in headers


def structured(value: bytes | None, content_type: str) -> CloudEvent:
    """The event that the value of a record is. Raises BadCloudEvent."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != f"{_STRUCTURED}+json":
        raise BadCloudEvent(f"a CloudEvent as {media_type} cannot be read; {_STRUCTURED}+json can")
    if value is None:
        raise BadCloudEvent("a structured CloudEvent without a value")
    try:
        event = parse_json(value)
    except BadPayload as error:
        raise BadCloudEvent(f"the CloudEvent is not strict JSON: {error}") from None
    if not isinstance(event, dict):
        raise BadCloudEvent("the CloudEvent is not a JSON object")
    attributes = {
        name: item
        for name, item in event.items()
        if name not in ("data", "data_base64") and item is not None
    }
    check_attributes(attributes)
    if "data_base64" not in event:
        return CloudEvent(attributes, event.get("data"), is_json=True)
    if "data" in event:
        raise BadCloudEvent("the CloudEvent has both data and data_base64")
    try:
        return CloudEvent(attributes, base64.b64decode(event["data_base64"], validate=True), False)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadCloudEvent(f"data_base64 is not base64: {error}") from None


def binary(value: bytes | None, headers: Mapping[str, bytes], content_type: str) -> CloudEvent:
    """The event of a record in binary mode. Raises BadCloudEvent."""
    try:
        attributes: dict[str, Any] = {
            name[3:]: text.decode() for name, text in headers.items() if name.startswith("ce_")
        }
    except UnicodeDecodeError as error:
        raise BadCloudEvent(f"a CloudEvents header is not UTF-8: {error}") from None
    if content_type:
        attributes["datacontenttype"] = content_type
    check_attributes(attributes)
    return CloudEvent(attributes, value, is_json=False)


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """Raises BadCloudEvent that names the attribute which is missing or wrong."""
    for name in _REQUIRED:
        if name not in attributes:
            raise BadCloudEvent(f"the CloudEvent has no {name}")
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise BadCloudEvent(f"a CloudEvents attribute is called {name[:80]!r}")
        if name in _TEXT and not isinstance(value, str):
            raise BadCloudEvent(f"{name} is not text")
        if name in _TEXT and not value:
            raise BadCloudEvent(f"{name} is empty")
        if not isinstance(value, str | bool) and not (isinstance(value, int) and value in _INT):
            raise BadCloudEvent(f"{name} is neither text, a boolean nor a 32-bit integer")
    if attributes["specversion"] != "1.0":
        raise BadCloudEvent(f"specversion is {attributes['specversion'][:20]!r}, not '1.0'")
    if not _MEDIA_TYPE.fullmatch(attributes.get("datacontenttype", "text/plain")):
        raise BadCloudEvent("datacontenttype is not a media type")
    if "time" in attributes and not _is_time(attributes["time"]):
        raise BadCloudEvent("time is not an RFC 3339 timestamp")


def _is_time(text: str) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    second = "59" if match[2] == "60" else match[2]  # a leap second
    try:
        datetime.fromisoformat((match[1] + second).upper())
    except ValueError:
        return False
    return True
