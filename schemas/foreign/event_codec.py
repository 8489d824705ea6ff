"""Detects the encoding of a foreign record's value, and takes the value out of its frame. Pure.

The first bytes tell the encodings apart; JSON text begins with none of the others' bytes:

    00 | schema id, 4 bytes big-endian | body      Confluent
    01 | schema GUID, 16 bytes | body              Confluent, since 8.0
    03 | 00 or 05 | version UUID, 16 bytes | body  AWS Glue; after 05 the body is zlib's
    C3 01 | CRC-64-AVRO fingerprint | Avro body    Avro single-object encoding
    anything else                                  JSON

Confluent's clients may put the schema id or GUID, prefix included, into the header
`__value_schema_id` instead. CloudEvents are unwrapped first; with a text media type, data is text.

Source: Confluent Schema Registry, wire format; Avro 1.12, "Single-object encoding"; AWS Glue Schema
Registry, GlueSchemaRegistrySerializer (Apache-2.0), header version 3
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from uuid import UUID

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.foreign.cloudevents import (
    BadCloudEvent,
    CloudEvent,
    binary,
    is_binary,
    is_structured,
    structured,
)

__all__ = ["Framed", "SchemaRef", "framed"]

_SCHEMA_HEADER = "__value_schema_id"
_SINGLE_OBJECT = b"\xc3\x01"
_FINGERPRINT_END = 10
_ID, _GUID = b"\x00", b"\x01"
_ID_END, _GUID_END = 5, 17
_GLUE, _GLUE_PLAIN, _GLUE_ZLIB, _GLUE_END = b"\x03", 0, 5, 18
#: upper bound on an unpacked body, in bytes
_UNPACKED_MOST = 16 * 1024 * 1024


class SchemaRef(NamedTuple):
    """Names the schema that a value was written with."""

    kind: Literal["id", "guid", "fingerprint"]
    name: int | str | bytes

    def __str__(self) -> str:
        name = self.name.hex() if isinstance(self.name, bytes) else self.name
        return f"schema {self.kind} {name}"


@dataclass(frozen=True, slots=True)
class Framed:
    """A value taken out of its frame.

    `kind` is null: a tombstone, or an event without data; json: `body` is JSON text; bytes: neither
    JSON nor Avro, according to the CloudEvent; schema: `body` from `start` on was written with
    `schema`.
    """

    kind: Literal["null", "json", "bytes", "schema"]
    body: bytes = b""
    start: int = 0
    schema: SchemaRef | None = None
    #: attributes, if it is a CloudEvent
    attributes: Mapping[str, Any] = field(default_factory=dict)
    #: attributes that violate the CloudEvents specification
    odd: Mapping[str, Any] = field(default_factory=dict)


def framed(value: bytes | None, headers: Mapping[str, bytes]) -> Framed:
    """Unframe a record's value. Parses nothing of the body, except for a structured CloudEvent.

    Raises: UndecodableError - whatever the bytes are
    """
    event = _cloud_event(value, headers) if headers else None
    if event is None:
        return _frame(value, headers)
    if event.data is None:
        found = Framed("null")
    elif event.is_json:
        found = Framed("json", json.dumps(event.data).encode())
    else:
        found = _data(event.data, headers, event.attributes)
    return replace(found, attributes=event.attributes, odd=event.odd)


def _cloud_event(value: bytes | None, headers: Mapping[str, bytes]) -> CloudEvent | None:
    content_type = next((v for k, v in headers.items() if k.lower() == "content-type"), b"")
    media_type = content_type.decode("utf-8", "replace")
    try:
        if is_structured(media_type):
            return structured(value, media_type)
        return binary(value, headers, media_type) if is_binary(headers) else None
    except BadCloudEvent as error:
        raise UndecodableError(str(error)) from None


def _data(data: bytes, headers: Mapping[str, bytes], attributes: Mapping[str, Any]) -> Framed:
    media_type = attributes.get("datacontenttype", "").partition(";")[0].strip().lower()
    if media_type.startswith("text/") and media_type != "text/json":
        try:
            return Framed("json", json.dumps(data.decode()).encode())
        except UnicodeDecodeError as error:
            raise UndecodableError(f"the text is not UTF-8: {error}") from None
    found = _frame(data, headers)
    is_json = media_type in ("", "application/json", "text/json") or media_type.endswith("+json")
    if found.kind == "json" and not is_json:
        return Framed("bytes", data)
    return found


def _frame(value: bytes | None, headers: Mapping[str, bytes]) -> Framed:
    if value is None:
        return Framed("null")
    named = headers.get(_SCHEMA_HEADER)
    if named is not None:
        found = _confluent(named)
        if found is None or found[1] != len(named):
            raise UndecodableError(f"the header {_SCHEMA_HEADER} is not a schema id")
        return Framed("schema", value, 0, found[0])
    if value[:1] in (_ID, _GUID):
        found = _confluent(value)
        if found is None:
            raise UndecodableError(f"cut off in the schema id, after {len(value)} bytes")
        return Framed("schema", value, found[1], found[0])
    if value[:1] == _GLUE:
        version, body = _glue(value)
        return Framed("schema", body, 0, version)
    if value[:2] == _SINGLE_OBJECT:
        if len(value) < _FINGERPRINT_END:
            raise UndecodableError(f"cut off in the fingerprint, after {len(value)} bytes")
        fingerprint = SchemaRef("fingerprint", value[2:_FINGERPRINT_END])
        return Framed("schema", value, _FINGERPRINT_END, fingerprint)
    return Framed("json", value)


def _glue(value: bytes) -> tuple[SchemaRef, bytes]:
    if len(value) < _GLUE_END or value[1] not in (_GLUE_PLAIN, _GLUE_ZLIB):
        raise UndecodableError("cut off in the version's UUID, or of an unknown compression")
    version, body = SchemaRef("guid", str(UUID(bytes=value[2:_GLUE_END]))), value[_GLUE_END:]
    if value[1] == _GLUE_PLAIN:
        return version, body
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(body, _UNPACKED_MOST)
    except zlib.error as error:
        raise UndecodableError(f"the body cannot be decompressed: {error}") from None
    if not unpacking.eof:
        raise UndecodableError(
            f"the decompressed body is cut off, or larger than {_UNPACKED_MOST} bytes"
        )
    return version, body


def _confluent(data: bytes) -> tuple[SchemaRef, int] | None:
    """Return (schema, length of its prefix) at the beginning of `data`; None if it is cut off."""
    if data[:1] == _ID and len(data) >= _ID_END:
        return SchemaRef("id", int.from_bytes(data[1:_ID_END], "big")), _ID_END
    if data[:1] == _GUID and len(data) >= _GUID_END:
        return SchemaRef("guid", str(UUID(bytes=data[1:_GUID_END]))), _GUID_END
    return None
