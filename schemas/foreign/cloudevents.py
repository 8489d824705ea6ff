"""CloudEvents in Kafka records: their attributes and their data. Pure.

Binary mode: attributes are headers `ce_NAME`, the record's value is the data. Structured mode: the
value is one JSON object that holds both.

Only what identifies an event has to be valid: id, source, type and a known version, 1.x or 0.3. Any
other invalid attribute is set aside unchanged, and the event is still used.

Source: CloudEvents 1.0.2 and 0.3; Kafka protocol binding 1.0.2; JSON event format 1.0.2 and 0.3
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from surefoot.schemas.payload import BadPayload, JsonObject, parse_json

__all__ = ["BadCloudEvent", "CloudEvent", "binary", "is_binary", "sort_attributes", "structured"]

_STRUCTURED = "application/cloudevents"
_REQUIRED = ("id", "source", "specversion", "type")
_TEXT = (*_REQUIRED, "datacontenttype", "dataschema", "subject", "time")
#: supported versions
_VERSION = re.compile(r"0\.3|1\.\d+(\.\d+)?", re.ASCII)
_NAME = re.compile(r"[a-z0-9]+")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+*-]+(\s*;.*)?", re.ASCII | re.DOTALL)
_OFFSET = r"[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d"
_TIME = re.compile(rf"(\d{{4}}-\d\d-\d\d[Tt]\d\d:\d\d:)(\d\d)(?:\.\d+)?(?:{_OFFSET})", re.ASCII)
_INT = range(-(2**31), 2**31)


class BadCloudEvent(ValueError):
    """A record that claims to be a CloudEvent and is not; the message is the reason."""


class CloudEvent(NamedTuple):
    """One event, without attributes that are null."""

    attributes: JsonObject
    #: attributes that violate the CloudEvents specification, unchanged
    odd: JsonObject
    #: bytes as they were sent, or (structured mode) a JSON value; None: the event has no data
    data: Any
    #: whether `data` is a JSON value rather than bytes
    is_json: bool


def is_structured(content_type: str) -> bool:
    """Whether that content type means an event in structured mode."""
    return content_type.strip().lower().startswith(_STRUCTURED)


def is_binary(headers: Mapping[str, bytes]) -> bool:
    """Whether those headers mean an event in binary mode."""
    return "ce_specversion" in headers


def structured(value: bytes | None, content_type: str) -> CloudEvent:
    """Return the event in the value of a record. Raises BadCloudEvent."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != f"{_STRUCTURED}+json":
        raise BadCloudEvent(
            f"a CloudEvent of content type {media_type} cannot be read; send {_STRUCTURED}+json"
        )
    if value is None:
        raise BadCloudEvent("the structured CloudEvent has no value")
    try:
        event = parse_json(value)
    except BadPayload as error:
        raise BadCloudEvent(f"the CloudEvent is not strict JSON: {error}") from None
    if not isinstance(event, dict):
        raise BadCloudEvent("the CloudEvent is not a JSON object")
    attributes, odd = sort_attributes(
        {
            name: item
            for name, item in event.items()
            if name not in ("data", "data_base64") and item is not None
        }
    )
    packed = _packed(event, attributes)
    if packed is None:
        return CloudEvent(attributes, odd, event.get("data"), is_json=True)
    try:
        return CloudEvent(attributes, odd, base64.b64decode(packed, validate=True), is_json=False)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadCloudEvent(f"the CloudEvent's data is not base64: {error}") from None


def _packed(event: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return the data if it is in base64; None: it is JSON, or missing."""
    if "data_base64" in event:
        if "data" in event:
            raise BadCloudEvent("the CloudEvent has both data and data_base64")
        return event["data_base64"]
    encoding = str(attributes.get("datacontentencoding", "")).lower()
    is_old = attributes["specversion"] == "0.3"
    return event.get("data") if is_old and encoding == "base64" else None


def binary(value: bytes | None, headers: Mapping[str, bytes], content_type: str) -> CloudEvent:
    """Return the event of a record in binary mode. Raises BadCloudEvent."""
    told: JsonObject = {
        name[3:]: _text(text) for name, text in headers.items() if name.startswith("ce_")
    }
    if content_type:
        told["datacontenttype"] = content_type
    attributes, odd = sort_attributes(told)
    return CloudEvent(attributes, odd, value, is_json=False)


def _text(header: bytes) -> str | bytes:
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header


def sort_attributes(told: Mapping[str, Any]) -> tuple[JsonObject, JsonObject]:
    """Split attributes into valid and invalid ones.

    Raises: BadCloudEvent - names a required attribute that is missing or invalid
    """
    attributes: JsonObject = {}
    odd: JsonObject = {}
    for name in _REQUIRED:
        if name not in told:
            raise BadCloudEvent(f"the CloudEvent has no {name}")
        if (why := _oddity(name, told[name])) is not None:
            raise BadCloudEvent(f"{name} {why}")
    for name, value in told.items():
        (attributes if _oddity(name, value) is None else odd)[name] = value
    return attributes, odd


def _oddity(name: str, value: Any) -> str | None:
    """Say what is wrong with an attribute, if anything."""
    if isinstance(value, bytes):
        return "is not UTF-8"
    if name in _TEXT:
        if not isinstance(value, str) or not value:
            return "is not text, or is empty"
        return _oddity_of_text(name, value)
    if not _NAME.fullmatch(name):
        return "is not a valid attribute name"
    if not isinstance(value, str | bool) and not (isinstance(value, int) and value in _INT):
        return "is neither text, a boolean nor a 32-bit integer"
    return None


def _oddity_of_text(name: str, text: str) -> str | None:
    if name == "specversion" and not _VERSION.fullmatch(text):
        return f"must be 1.x or 0.3; got {text[:20]!r}"
    if name == "datacontenttype" and not _MEDIA_TYPE.fullmatch(text):
        return "is not a media type"
    if name == "time" and not _is_time(text):
        return "is not an RFC 3339 timestamp"
    return None


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
