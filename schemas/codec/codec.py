"""Records to bytes and back: Avro single-object encoding.

    C3 01 | CRC-64-AVRO fingerprint of the writer's schema, 8 bytes little-endian | Avro body

fastavro reads. It would also write, but it takes `True` and 1.7 for an integer and 2**31 for an
int, and drops unknown fields, so each record would have to be checked first. The writers here do
both in one pass, and are made once per schema. A record that was read is written too: what decodes
can be encoded again.

Source: Avro 1.12 specification, "Single-object encoding"
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, overload

from fastavro import parse_schema, schemaless_reader

from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.catalog import Schema
from surefoot.schemas.codec.records import (
    AvroAccessToken,
    AvroApplied,
    AvroAudit,
    AvroCommand,
    AvroDelivery,
    AvroEntry,
    AvroEvent,
    AvroSealed,
    AvroStream,
    AvroTask,
)

__all__ = ["Codec", "CodecError", "UndecodableError", "decode", "encode", "guarded"]

_MAGIC = b"\xc3\x01"
_HEADER_BYTES = 10
_RANGES = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}

_Write = Callable[[Any], bytes]
_Data = bytes | memoryview | None


class CodecError(ValueError):
    """A record that does not fit its schema; the message names the field. Nothing was written."""


class UndecodableError(CodecError):
    """Bytes that are not a record of ours; the message is the reason, in plain words."""


class Codec:
    """Encodes and decodes the records of one set of schemas, parsed once, in the constructor."""

    def __init__(self, root: Path = catalog.ROOT) -> None:
        """Read the schema files under `root`. An error here is a mistake in those files."""
        current = {
            name: schema
            for name, schema in catalog.current(root).items()
            if schema["type"] == "record"
        }
        #: by name: header, writer of the body
        self._write = {
            name: (_MAGIC + catalog.crc64(schema), _writer(schema, {}))
            for name, schema in current.items()
        }
        #: by fingerprint: name, writer's schema, reader's schema (None: the same)
        self._read: dict[bytes, tuple[str, Any, Any]] = {}
        for version in catalog.released(root).values():
            for name in version.keys() & current.keys():
                self._read[catalog.crc64(version[name])] = (
                    name,
                    guarded(_parse(version[name])),
                    _parse(current[name]),
                )
        for name, schema in current.items():
            self._read[catalog.crc64(schema)] = (name, guarded(_parse(schema)), None)

    def encode(self, name: str, record: Mapping[str, object]) -> bytes:
        """Return `record` as bytes. Pure.

        Args:    name: the record's name in avro/, such as "Task"; record: a dict of exactly the
                 schema's fields, including those with a default
        Raises:  CodecError: unknown record, unknown or missing field, wrong type, number out of
                 range, lone surrogate
        """
        if (target := self._write.get(name)) is None:
            raise CodecError(f"unknown record {name!r}; use one of {sorted(self._write)}")
        header, write = target
        try:
            return header + write(record)
        except CodecError as error:
            raise CodecError(f"{name}{error}") from None

    @overload
    def decode(
        self, data: _Data, expect: Literal["AccessToken"]
    ) -> tuple[str, AvroAccessToken]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Applied"]) -> tuple[str, AvroApplied]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Audit"]) -> tuple[str, AvroAudit]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Command"]) -> tuple[str, AvroCommand]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Delivery"]) -> tuple[str, AvroDelivery]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Entry"]) -> tuple[str, AvroEntry]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Event"]) -> tuple[str, AvroEvent]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Sealed"]) -> tuple[str, AvroSealed]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Stream"]) -> tuple[str, AvroStream]: ...
    @overload
    def decode(self, data: _Data, expect: Literal["Task"]) -> tuple[str, AvroTask]: ...
    @overload
    def decode(self, data: _Data, expect: str | None = None) -> tuple[str, Any]: ...
    def decode(self, data: _Data, expect: str | None = None) -> tuple[str, Any]:
        """Return (name, record) of bytes that any released version of Surefoot wrote. Pure.

        The record has the fields of the current schema, whichever schema it was written with.
        `expect` refuses any other kind of record, and types the record (codec.records). Memory use
        is bounded by the size of `data`. Integers with padding bytes are accepted.

        Raises:  UndecodableError for anything else, whatever the bytes are
        """
        if not data:
            raise UndecodableError("no value" if data is None else "the value is empty")
        raw = bytes(data)
        if raw[:2] != _MAGIC:
            raise UndecodableError(
                f"not an Avro single-object record: begins with {raw[:2].hex()}, not {_MAGIC.hex()}"
            )
        if len(raw) < _HEADER_BYTES:
            raise UndecodableError(f"cut off in the header, after {len(raw)} bytes")
        if (source := self._read.get(raw[2:_HEADER_BYTES])) is None:
            raise UndecodableError(f"unknown schema fingerprint {raw[2:_HEADER_BYTES].hex()}")
        name, written, wanted = source
        if expect is not None and name != expect:
            raise UndecodableError(f"expected a {expect} record, got a {name}")
        record = _body(name, raw, written, wanted)
        try:
            self._write[name][1](record)
        except CodecError as error:
            raise UndecodableError(f"{name}{error}") from None
        return name, record


def _body(name: str, raw: bytes, written: Any, wanted: Any) -> Any:
    stream = io.BytesIO(raw)
    stream.seek(_HEADER_BYTES)
    try:
        record: Any = schemaless_reader(stream, written, wanted)
    except Exception as error:  # fastavro raises any exception for corrupt bytes
        raise UndecodableError(
            f"the body is not a {name}: {type(error).__name__} {error}".rstrip()
        ) from error
    if extra := len(raw) - stream.tell():
        raise UndecodableError(f"{extra} unexpected bytes after the {name}")
    return record


class _Branches(list[Any]):
    """A union to read with, in which a negative branch number selects nothing.

    fastavro looks up `branches[number]` from C, which adds the length to a negative number before
    it calls `__getitem__`; the length is therefore 0.
    """

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise IndexError(f"branch number {index}")
        return super().__getitem__(index)


def _parse(schema: Schema) -> Any:
    return parse_schema(schema, named_schemas={})


def guarded(schema: Any) -> Any:
    """Return a parsed schema to read with, in which only valid numbers select a choice.

    fastavro looks up an enum's symbol with `symbols[number]`, by the number in the bytes. `symbols`
    is a dict here, since a list would take -1 for the last symbol.
    """
    match schema:
        case list():
            return _Branches(guarded(branch) for branch in schema)
        case {"type": "enum", "symbols": symbols}:
            return {**schema, "symbols": dict(enumerate(symbols))}
        case dict():
            return {
                key: [guarded(field) for field in part] if key == "fields" else guarded(part)
                for key, part in schema.items()
            }
        case _:
            return schema


def _writer(schema: Any, named: dict[str, _Write]) -> _Write:
    """Return a function that returns the Avro body of its argument, or raises CodecError unless it
    fits `schema`.

    Supports only what our schemas use. A union may only be null or one other type: with more
    branches a value can fit several, and fields would be lost silently.
    """
    match schema:
        case "int" | "long":
            return _integer(schema, *_RANGES[schema])
        case "string":
            return _string
        case "bytes":
            return _bytes
        case ["null", branch]:
            return _nullable(_writer(branch, named))
        case {"type": "array", "items": items}:
            return _array(_writer(items, named))
        case {"type": "enum", "name": name, "namespace": space, "symbols": symbols}:
            return named.setdefault(f"{space}.{name}", _enum(symbols))
        case {"type": "record", "name": name, "namespace": space, "fields": fields}:
            writers = {field["name"]: _writer(field["type"], named) for field in fields}
            return named.setdefault(f"{space}.{name}", _record(writers))
        case str() if schema in named:
            return named[schema]
        case _:
            raise NotImplementedError(
                f"schemas/codec/codec.py does not know how to write {schema!r}"
            )


def _wrong(expected: str, value: Any) -> CodecError:
    return CodecError(f" must be {expected}; got {type(value).__name__} {repr(value)[:80]}")


@lru_cache(maxsize=4096)
def _number(value: int) -> bytes:
    """Return an integer as Avro writes it: zigzag, seven bits a byte. Cached: most are small, or
    the time of a batch."""
    left = value << 1 if value >= 0 else ~(value << 1)
    made = bytearray()
    while left > 0x7F:  # noqa: PLR2004
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


def _integer(kind: str, low: int, high: int) -> _Write:
    def write(value: Any) -> bytes:
        if type(value) is not int or not low <= value <= high:
            raise _wrong(f"an integer that fits {kind}", value)
        return _number(value)

    return write


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("text", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise _wrong("text without lone surrogates", value) from None
    return _number(len(data)) + data


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _wrong("bytes", value)
    return _number(len(value)) + value


def _nullable(write: _Write) -> _Write:
    null, branch = _number(0), _number(1)

    def write_unless_null(value: Any) -> bytes:
        return null if value is None else branch + write(value)

    return write_unless_null


def _array(write: _Write) -> _Write:
    end = _number(0)

    def write_items(value: Any) -> bytes:
        if type(value) is not list:
            raise _wrong("a list", value)
        if not value:
            return end
        parts = [_number(len(value))]
        for index, item in enumerate(value):
            try:
                parts.append(write(item))
            except CodecError as error:
                raise CodecError(f"[{index}]{error}") from None
        parts.append(end)
        return b"".join(parts)

    return write_items


def _enum(symbols: Sequence[str]) -> _Write:
    numbers = {symbol: _number(index) for index, symbol in enumerate(symbols)}

    def write(value: Any) -> bytes:
        if not isinstance(value, str) or value not in numbers:
            raise _wrong("one of " + ", ".join(sorted(numbers)), value)
        return numbers[value]

    return write


def _record(writers: dict[str, _Write]) -> _Write:
    names, fields = writers.keys(), tuple(writers.items())

    def misfit(value: dict[Any, Any]) -> CodecError:
        missing, unknown = sorted(names - value.keys()), sorted(map(str, value.keys() - names))
        return CodecError(f" has missing fields {missing}, unknown fields {unknown}")

    def write_fields(value: Any) -> bytes:
        if type(value) is not dict:
            raise _wrong("a dict", value)
        parts = []
        for name, write in fields:
            try:
                parts.append(write(value[name]))
            except CodecError as error:
                raise CodecError(f".{name}{error}") from None
            except KeyError:
                raise misfit(value) from None
        if len(value) != len(fields):
            raise misfit(value)
        return b"".join(parts)

    return write_fields


_surefoot = Codec()
encode = _surefoot.encode
decode = _surefoot.decode
