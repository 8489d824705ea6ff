"""Any record has the bytes of Apache Avro and comes back; any bytes get a clean answer."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import avro.errors
import avro.io
import avro.schema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.codec import CodecError, UndecodableError, decode, encode

SCHEMAS = {name: schema for name, schema in catalog.current().items() if schema["type"] == "record"}
APACHE = {name: avro.schema.parse(json.dumps(schema)) for name, schema in SCHEMAS.items()}
HEADERS = {name: b"\xc3\x01" + schema.fingerprint("CRC-64-AVRO") for name, schema in APACHE.items()}

TEXT = st.text(st.characters(codec="utf-8"))


def values_of(schema: Any, named: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Values that fit a schema, with its limits often among them."""
    match schema:
        case "null":
            return st.none()
        case "int":
            return st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1])
        case "long":
            return st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
        case "string":
            return TEXT
        case "bytes":
            return st.binary()
        case list():
            return st.one_of([values_of(branch, named) for branch in schema])
        case {"type": "array", "items": items}:
            return st.lists(values_of(items, named))
        case {"type": "enum", "name": name, "symbols": symbols}:
            return named.setdefault(f"surefoot.{name}", st.sampled_from(symbols))
        case {"type": "record", "name": name, "fields": fields}:
            record = st.fixed_dictionaries(
                {field["name"]: values_of(field["type"], named) for field in fields}
            )
            return named.setdefault(f"surefoot.{name}", record)
        case _:
            return named[schema]


RECORDS = st.one_of(
    [st.tuples(st.just(name), values_of(schema, {})) for name, schema in SCHEMAS.items()]
)

# Values of the right and the wrong type alike, to see that what is accepted is also exact.
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.text() | st.integers(), max_size=2),
    st.just({}),
)


def apache_bytes(name: str, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    avro.io.DatumWriter(APACHE[name]).write(record, avro.io.BinaryEncoder(out))
    return out.getvalue()


def apache_record(name: str, data: bytes) -> Any:
    return avro.io.DatumReader(APACHE[name]).read(avro.io.BinaryDecoder(io.BytesIO(data)))


@given(RECORDS)
def test_every_record_has_the_bytes_that_apache_avro_writes(pair: tuple[str, dict[str, Any]]):
    name, record = pair
    assert encode(name, record) == HEADERS[name] + apache_bytes(name, record)


@given(RECORDS)
def test_every_record_is_read_by_both_from_either(pair: tuple[str, dict[str, Any]]):
    name, record = pair
    assert decode(HEADERS[name] + apache_bytes(name, record)) == (name, record)
    assert apache_record(name, encode(name, record)[10:]) == record


@given(RECORDS, st.data())
def test_one_wrong_value_is_refused_or_comes_back_exactly(
    pair: tuple[str, dict[str, Any]], data: st.DataObject
):
    name, record = pair
    changed = record | {data.draw(st.sampled_from(sorted(record))): data.draw(ANYTHING)}
    try:
        raw = encode(name, changed)
    except CodecError:
        return
    back = decode(raw)[1]
    assert back == changed
    assert [type(back[key]) for key in changed] == [type(value) for value in changed.values()]


@given(RECORDS, st.data())
def test_corrupt_bytes_are_undecodable_or_a_record_that_could_have_been_written(
    pair: tuple[str, dict[str, Any]], data: st.DataObject
):
    raw = bytearray(encode(*pair))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(10, max(10, len(raw) - 1)))
        raw[position : position + 1] = data.draw(st.binary(max_size=2))
    try:
        name, record = decode(bytes(raw))
    except UndecodableError:
        return
    assert decode(encode(name, record)) == (name, record)
    # Known difference: fastavro takes numbers that are padded to more than ten bytes.
    with suppress(avro.errors.InvalidAvroBinaryEncoding):
        assert apache_record(name, bytes(raw[10:])) == record


@given(st.binary())
def test_any_bytes_at_all_get_a_clean_answer(data: bytes):
    with pytest.raises(UndecodableError):
        decode(data)


@given(st.sampled_from(sorted(HEADERS)), st.binary())
def test_any_body_behind_a_good_header_gets_a_clean_answer(name: str, body: bytes):
    try:
        kind, record = decode(HEADERS[name] + body)
    except UndecodableError:
        return
    assert (kind, decode(encode(kind, record))[1]) == (name, record)
