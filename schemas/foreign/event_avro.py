"""Avro with other people's schemas: read as written, and resolved to the schema that the author
declared.

Such a schema comes from a registry, and the bytes from anybody. fastavro follows both in C: a
schema that contains itself lets a few kilobytes overflow the stack, which ends the process; an
array of items that take no bytes lets a few bytes request all memory. Such schemas are refused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.codec import UndecodableError, guarded
from surefoot.schemas.foreign.branches import named

__all__ = ["AvroReader", "BadSchema", "SchemaFile", "load_schemas", "parse_event_schema"]

#: what `schema=` takes: an .avsc file, its content, or several of these, the current one first
SchemaFile = str | Path | Mapping[str, Any] | Sequence["str | Path | Mapping[str, Any]"]

#: upper bound on the fields and branches of a schema with every name expanded
PARTS_MAX = 10_000
_IN_WORK = (-1, -1)


class BadSchema(ValueError):
    """A schema that cannot be used to read events; the message is the reason."""


class AvroReader:
    """Reads what was written with one schema, resolved to another one if given."""

    def __init__(self, writer: Any, reader: Any | None = None, *, branches: bool = False) -> None:
        """Prepare a reader.

        Args:   branches: name the records of a union, see schemas.foreign.branches
        Raises: BadSchema
        """
        self._branches = branches
        self._writer = guarded(_parsed(writer))
        self._reader = None if reader is None or reader == writer else _parsed(reader)

    def read(self, data: bytes, start: int = 0) -> Any:
        """Return the value in the bytes from `start` on. Memory use is bounded by their number.
        Pure.

        Raises: UndecodableError - anything else, whatever the bytes are
        """
        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            one: Any = schemaless_reader(
                stream, self._writer, self._reader, self._branches, self._branches
            )
        except Exception as error:  # fastavro raises any exception for corrupt bytes
            told = f"{type(error).__name__} {str(error)[:200]}".rstrip()
            raise UndecodableError(f"the Avro value does not fit its schema: {told}") from error
        if extra := len(data) - stream.tell():
            raise UndecodableError(f"{extra} unexpected bytes after the Avro value")
        return named(one["value"]) if self._branches else one["value"]


def load_schemas(schema: SchemaFile | None, folder: Path) -> tuple[dict[bytes, Any], Any | None]:
    """Return (schemas by fingerprint, the one to read with) of an author's declaration. Paths are
    relative to `folder`. Reads files.

    Raises: BadSchema
    """
    if schema is None:
        return {}, None
    given = [schema] if isinstance(schema, str | Path | Mapping) else list(schema)
    found: list[Any] = [
        _file(folder / each) if isinstance(each, str | Path) else each for each in given
    ]
    for each in found:
        AvroReader(each)
    return {catalog.crc64(each): each for each in found}, found[0]


def parse_event_schema(schema: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the schema as parsed by fastavro, and its named types. Raises BadSchema."""
    one = _parsed(schema)
    return one["fields"][0]["type"], one["__named_schemas"]


def _file(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadSchema(f"the schema {path} cannot be read: {error}") from error


def _parsed(schema: Any) -> catalog.Schema:
    """Parse it as the only field of a record: only inside a record is a union guarded. The record
    itself takes no bytes."""
    one = {"type": "record", "name": "one", "fields": [{"name": "value", "type": schema}]}
    try:
        parsed: Any = parse_schema(one, named_schemas={})
    except (SchemaParseException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadSchema(f"not an Avro schema: {type(error).__name__} {error}") from error
    _Measure(parsed["__named_schemas"]).of(parsed)
    return dict(parsed)


class _Measure:
    """Walks a schema once, and refuses those with which bytes could exhaust stack or memory."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._sizes: dict[str, tuple[int, int]] = {}

    def of(self, schema: Any) -> tuple[int, int]:
        """Return (least bytes of a value, number of parts with every name expanded)."""
        match schema:
            case "null":
                return 0, 1
            case str() if schema in self._names:
                return self._named(schema, self._names[schema])
            case str():
                return 1, 1
            case list():
                return 1, self._sum([self.of(branch) for branch in schema])[1]
            case {"type": "record" | "error", "name": name}:
                return self._named(name, schema)
            case {"type": "array", "items": items}:
                least, parts = self.of(items)
                if not least:
                    raise BadSchema("an array of items that take no bytes cannot be read safely")
                return 1, parts + 1
            case {"type": "map", "values": values}:
                return 1, self.of(values)[1] + 1
            case {"type": "fixed", "size": size}:
                return int(size), 1
            case {"type": "enum"}:
                return 1, 1
            case {"type": inner}:
                return self.of(inner)
        raise BadSchema(f"not an Avro schema: {str(schema)[:80]}")

    def _named(self, name: str, schema: Any) -> tuple[int, int]:
        if schema["type"] not in ("record", "error"):
            return self.of(schema)
        if name not in self._sizes:
            self._sizes[name] = _IN_WORK
            self._sizes[name] = self._sum([self.of(field["type"]) for field in schema["fields"]])
        if self._sizes[name] is _IN_WORK:
            raise BadSchema(f"{name} contains itself, which cannot be read safely")
        return self._sizes[name]

    def _sum(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        least, parts = sum(size[0] for size in sizes), sum(size[1] for size in sizes) + 1
        if parts > PARTS_MAX:
            raise BadSchema(f"a value has more than {PARTS_MAX} parts")
        return least, parts
