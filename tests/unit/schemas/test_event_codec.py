"""What other people's records are in, told by their bytes and headers alone."""

from __future__ import annotations

import json
import zlib
from typing import Any
from uuid import UUID

import pytest

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.foreign.cloudevents import BadCloudEvent, sort_attributes
from surefoot.schemas.foreign.event_avro import AvroReader, BadSchema, load_schemas
from surefoot.schemas.foreign.event_codec import Framed, SchemaRef, framed
from tests.support.foreign_clients import (
    GUID,
    ORDER,
    ORDER_V1,
    avro,
    cloud_binary,
    cloud_structured,
    confluent,
    confluent_guid,
    single_object,
)

VALUE = {"id": "o1", "total": 5, "note": None, "lane": "FAST"}
BODY = avro(VALUE)


def of(value: bytes | None, headers: Any = ()) -> Framed:
    return framed(value, dict(headers))


def test_each_frame_is_told_from_the_others_and_names_its_schema() -> None:
    assert of(*confluent(VALUE)).schema == SchemaRef("id", 7)
    assert of(*confluent_guid(VALUE)).schema == SchemaRef("guid", GUID)
    assert of(b"\x01" + UUID(GUID).bytes + BODY).schema == SchemaRef("guid", GUID)
    assert of(BODY, [("__value_schema_id", b"\x00\x00\x00\x00\x09")]).schema == SchemaRef("id", 9)
    found = of(*single_object(VALUE)).schema
    assert found is not None
    assert found.kind == "fingerprint"
    for value, headers in (confluent(VALUE), confluent_guid(VALUE), single_object(VALUE)):
        found_at = of(value, headers)
        assert found_at.body[found_at.start :] == BODY
    for how, packed in ((b"\x00", BODY), (b"\x05", zlib.compress(BODY))):
        glue = of(b"\x03" + how + UUID(GUID).bytes + packed)
        assert (glue.schema, glue.body[glue.start :]) == (SchemaRef("guid", GUID), BODY)
    assert of(b'{"a": 1}') == Framed("json", b'{"a": 1}')
    assert of(None) == Framed("null")


def test_a_body_that_unpacks_to_more_than_any_event_is_refused_before_it_does() -> None:
    bomb = b"\x03\x05" + UUID(GUID).bytes + zlib.compress(bytes(17 * 1024 * 1024))
    with pytest.raises(UndecodableError, match="larger than 16777216 bytes"):
        of(bomb)


@pytest.mark.parametrize(
    ("value", "headers", "why"),
    [
        (b"\x00\x00\x00", (), "cut off in the schema id"),
        (b"\x01" + b"\x00" * 15, (), "cut off in the schema id"),
        (b"\xc3\x01\x00", (), "cut off in the fingerprint"),
        (b"\x03\x00" + b"\x00" * 15, (), "cut off in the version's UUID"),
        (b"\x03\x01" + b"\x00" * 16, (), "of an unknown compression"),
        (b"\x03\x05" + b"\x00" * 16 + b"no zlib", (), "cannot be decompressed"),
        (b"\x03\x05" + b"\x00" * 16 + zlib.compress(b"x" * 9)[:-4], (), "cut off, or larger"),
        (BODY, [("__value_schema_id", b"")], "is not a schema id"),
        (BODY, [("__value_schema_id", b"\x02\x00\x00\x00\x09")], "is not a schema id"),
        (BODY, [("__value_schema_id", b"\x00\x00\x00\x00\x09\x00")], "is not a schema id"),
        (b"[]", [("content-type", b"application/cloudevents-batch+json")], "cannot be read"),
        (b"{}", [("content-type", b"application/cloudevents+json")], "has no id"),
        (b"[]", [("content-type", b"application/cloudevents+json")], "not a JSON object"),
        (None, [("content-type", b"application/cloudevents+json")], "has no value"),
        (b"\xff", [("content-type", b"application/cloudevents+json")], "not strict JSON"),
        (b"{}", (*cloud_binary(0)[1], ("ce_id", b"\xff")), "id is not UTF-8"),
        (b"{}", [("ce_specversion", b"1.0")], "has no id"),
    ],
)
def test_what_names_no_schema_or_is_no_event_is_refused_with_the_reason(
    value: bytes | None, headers: Any, why: str
) -> None:
    with pytest.raises(UndecodableError, match=why):
        of(value, headers)


def test_a_cloud_event_in_either_mode_is_unwrapped() -> None:
    for value, headers in (cloud_binary(VALUE, subject="s"), cloud_structured(VALUE, subject="s")):
        found = of(value, headers)
        assert found.kind == "json"
        assert json.loads(found.body) == VALUE
        assert found.attributes["id"] == "e1"
        assert found.attributes["subject"] == "s"


def test_the_data_of_a_cloud_event_is_what_its_media_type_says() -> None:
    text = of(b"h\xc3\xa4llo", (*cloud_binary(0)[1][:-1], ("content-type", b"text/plain")))
    assert text.body == b'"h\\u00e4llo"'
    png = of(b"\x89PNG", (*cloud_binary(0)[1][:-1], ("content-type", b"image/png")))
    assert (png.kind, png.body) == ("bytes", b"\x89PNG")
    inside = of(confluent(VALUE)[0], cloud_binary(0)[1])
    assert inside.schema == SchemaRef("id", 7)
    assert of(None, cloud_binary(0)[1]).kind == "null"
    assert of(*cloud_structured(None)).kind == "null"
    value, headers = cloud_structured(0, data_base64="eyJhIjogMX0=")
    both = json.loads(value or b"")
    with pytest.raises(UndecodableError, match="both data"):
        of(value, headers)
    del both["data"]
    assert of(json.dumps(both).encode(), headers).body == b'{"a": 1}'
    both["data_base64"] = "?"
    with pytest.raises(UndecodableError, match="not base64"):
        of(json.dumps(both).encode(), headers)


GOOD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": 25},
        {"source": b"\xff"},
        {"type": None},
        {"specversion": "0.9"},
        {"specversion": "2.0"},
        {"specversion": "1"},
    ],
)
def test_without_what_makes_it_an_event_it_is_none(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadCloudEvent, match=name):
        sort_attributes(GOOD | wrong)


@pytest.mark.parametrize(
    "odd",
    [
        {"time": "lunchtime"},
        {"time": "2018-04-05T18:31Z"},
        {"time": "2018-04-05T18:31:00"},
        {"time": "2018-04-05T18:31:00+25:00"},
        {"time": "2018-04-05T18:31:00+05"},
        {"time": "2018-02-30T18:31:00Z"},
        {"time": "2018-04-05T18:31:00+01:60"},
        {"time": 1522950},
        {"datacontenttype": "xyz"},
        {"dataschema": ""},
        {"subject": ""},
        {"MyExtension": "bad"},
        {"correlation-id": "c"},
        {"ext": 1.5},
        {"ext": 2**31},
        {"ext": {}},
        {"ext": b"\xff"},
    ],
)
def test_what_else_is_odd_is_set_aside_and_costs_nobody_the_event(odd: dict[str, Any]) -> None:
    assert sort_attributes(GOOD | {"more": "m"} | odd) == (GOOD | {"more": "m"}, odd)


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"time": "2018-04-05T17:31:00Z"},
        {"time": "2018-04-05t17:31:60.123456789+01:00"},
        {"ext": 10, "extboolean": True},
        {"source": "#fragment"},
        {"datacontenttype": "text/plain; charset=utf-8"},
        {"specversion": "1.0.2"},
        {"specversion": "0.3", "schemaurl": "/schema"},
    ],
)
def test_a_right_attribute_is_taken(right: dict[str, Any]) -> None:
    assert sort_attributes(GOOD | right) == (GOOD | right, {})


@pytest.mark.parametrize("make", [cloud_binary, cloud_structured])
def test_the_data_of_an_odd_event_is_read_as_of_any(make: Any) -> None:
    odd = {"subject": "", "time": "2018-04-05T18:31:00", "MyExtension": "m", "a-b": "c"}
    found = of(*make(VALUE, **odd))
    assert (json.loads(found.body), found.attributes["id"], found.odd) == (VALUE, "e1", odd)
    assert not odd.keys() & found.attributes.keys()


def test_an_event_of_the_version_before_has_its_data_in_base64_where_it_says_so() -> None:
    old = cloud_structured("eyJhIjogMX0=", specversion="0.3", datacontentencoding="base64")
    assert of(*old).body == b'{"a": 1}'
    assert of(*cloud_structured({"a": 1}, specversion="0.3")).body == b'{"a": 1}'
    assert json.loads(of(*cloud_structured("eA==", datacontentencoding="base64")).body) == "eA=="


def test_avro_is_read_as_it_was_written_or_as_the_author_declares() -> None:
    assert AvroReader(ORDER).read(BODY) == VALUE
    old = avro({"id": "o1", "total": 5}, ORDER_V1)
    assert AvroReader(ORDER_V1, ORDER).read(old) == VALUE | {"lane": "SLOW"}
    assert AvroReader(["null", ORDER]).read(b"\x02" + BODY) == VALUE


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (ORDER, BODY + b"\x00"),
        (ORDER, BODY[:-1]),
        (ORDER, BODY[:-1] + b"\x01"),  # the last symbol, if -1 were an index
        (ORDER, b"\x01" + BODY[1:]),  # a length below zero
        (ORDER, b"\xfe\xff\xff\xff\x0f"),  # a length beyond the end
        (ORDER, avro({"id": "o", "total": 1})[:3] + b"\x03\x00"),  # a branch that is none
        (["null", "string"], b"\x01"),  # the last branch, if -1 were an index
        ("string", b"\x02\xff"),
    ],
)
def test_bytes_that_do_not_fit_the_schema_are_refused(schema: Any, data: bytes) -> None:
    with pytest.raises(UndecodableError):
        AvroReader(schema).read(data)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]},
            "contains itself",
        ),
        ({"type": "array", "items": "null"}, "take no bytes"),
        (
            {
                "type": "map",
                "values": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
            },
            "take no bytes",
        ),
        ({"type": "nope"}, "not an Avro schema"),
        ("missing.Name", "not an Avro schema"),
        (5, "not an Avro schema"),
        (None, "not an Avro schema"),
    ],
)
def test_a_schema_that_bytes_could_make_endless_of_is_refused(schema: Any, why: str) -> None:
    """fastavro would end the process for the first one: see what 200 kB of b"\\x02" do."""
    with pytest.raises(BadSchema, match=why):
        AvroReader(schema)


def test_a_schema_that_doubles_with_every_name_is_refused() -> None:
    schema: dict[str, Any] = {"type": "record", "name": "R0", "fields": []}
    for n in range(1, 40):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{n - 1}"}]
        schema = {"type": "record", "name": f"R{n}", "fields": fields}
    with pytest.raises(BadSchema, match="parts"):
        AvroReader(schema)


def test_schemas_are_read_from_files_beside_the_agent(tmp_path: Any) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    known, current = load_schemas(["order.avsc", ORDER_V1], tmp_path)
    assert current == ORDER
    assert len(known) == 2
    for value in (single_object(VALUE), single_object({"id": "o", "total": 1}, ORDER_V1)):
        ref = of(*value).schema
        assert ref is not None
        assert ref.name in known
    assert load_schemas(None, tmp_path) == ({}, None)
    with pytest.raises(BadSchema, match=r"missing\.avsc"):
        load_schemas("missing.avsc", tmp_path)
