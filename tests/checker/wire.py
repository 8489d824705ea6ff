"""Values as they are on the wire: Avro in single-object encoding, read by the schema files alone.

Marker C3 01, the CRC-64-AVRO of the writer's schema (little endian), the body.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import UnknownType, fingerprint, to_parsing_canonical_form

_SCHEMAS = Path(__file__).parents[2] / "schemas"
#: the schemas that are written today, by which a value is read whatever it was written by
TODAY = _SCHEMAS / "avro"
MARKER = b"\xc3\x01"


class Unreadable(Exception):
    """Not a value of ours."""


def decode(value: bytes | None, wanted: str) -> dict[str, Any]:
    """The fields of a value of that type. Raises Unreadable."""
    if value is None:
        raise Unreadable("no value")
    if value[:2] != MARKER or len(value) < 10:
        raise Unreadable(f"it begins with {value[:10].hex()}")
    found = writers().get(value[2:10])
    if found is None:
        raise Unreadable(f"no schema has the fingerprint {value[2:10].hex()}")
    name, schema = found
    if name != wanted:
        raise Unreadable(f"a {name} where a {wanted} should be")
    body = io.BytesIO(value[10:])
    try:
        fields = fastavro.schemaless_reader(body, schema, readers()[name])
    except (EOFError, ValueError, IndexError, OverflowError) as error:
        raise Unreadable(f"{name}: {error!r}") from error
    if body.read(1):
        raise Unreadable(f"{name}: there is more than its schema says")
    assert isinstance(fields, dict)
    return fields


@cache
def readers() -> Mapping[str, Any]:
    """Today's schema of each type."""
    return _parsed(_raw(TODAY))


@cache
def writers() -> Mapping[bytes, tuple[str, Any]]:
    """(name, schema) of each record type by fingerprint: of today's, and of those released."""
    found: dict[bytes, tuple[str, Any]] = {}
    for folder in (
        TODAY,
        *sorted(path for path in (_SCHEMAS / "released").iterdir() if path.is_dir()),
    ):
        raw = _raw(folder)
        for name, schema in _parsed(raw).items():
            if raw[name]["type"] == "record":
                found[_fingerprint(_whole(raw[name], raw, set()))] = (name, schema)
    return found


def _raw(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.avsc"))}


def _parsed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas that name each other, each after those that it names."""
    named: dict[str, Any] = {}
    parsed: dict[str, Any] = {}
    while left := raw.keys() - parsed.keys():
        for name in sorted(left):
            try:
                parsed[name] = fastavro.parse_schema(raw[name], named_schemas=named)
            except UnknownType:
                continue  # it names one that comes later
        assert left - parsed.keys() != left, f"these schemas name each other: {sorted(left)}"
    return parsed


def _fingerprint(schema: Any) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _whole(schema: Any, raw: Mapping[str, Any], seen: set[str]) -> Any:
    """The schema with every named type written out where it comes first."""
    match schema:
        case str():
            name = schema.removeprefix("surefoot.")
            return _whole(raw[name], raw, seen) if name in raw.keys() - seen else schema
        case list():
            return [_whole(each, raw, seen) for each in schema]
        case {"type": "record", "fields": fields}:
            seen.add(schema["name"])
            fields = [field | {"type": _whole(field["type"], raw, seen)} for field in fields]
            return schema | {"fields": fields}
        case {"type": "enum"}:
            seen.add(schema["name"])
        case {"type": "array"}:
            return schema | {"items": _whole(schema["items"], raw, seen)}
    return schema
