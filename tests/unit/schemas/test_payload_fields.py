"""What is payload is concealed, what is clear stays, and no field is left undecided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.codec import decode, encode
from surefoot.schemas.codec.payload_fields import (
    PAYLOAD,
    changes,
    conceal,
    is_concealed,
    is_sealed,
    readable_without_key,
)
from tests.unit.schemas.test_codec import RECORDS

SCHEMAS = catalog.current()
#: kinds of records that have nothing to conceal
CLEAR_KINDS = {
    *("AccessToken", "Amount", "Applied", "Audit", "Decided", "Parent", "RunName", "Sealed", "Task")
}


def leaves(schema: Any, value: Any, path: str = "", kind: str = "") -> Iterator[tuple[str, Any]]:
    """(record.field, value) of each text and each bytes value in a record."""
    match schema:
        case _ if value is None:
            return
        case "string" | "bytes":
            yield path, value
        case ["null", branch]:
            yield from leaves(branch, value, path, kind)
        case {"type": "array", "items": items}:
            for item in value:
                yield from leaves(items, item, path, kind)
        case {"type": "record", "name": name, "fields": fields}:
            for field in fields:
                yield from leaves(field["type"], value[field["name"]], f"{name}.{field['name']}")
        case str() if schema.startswith("surefoot."):
            yield from leaves(SCHEMAS[schema.removeprefix("surefoot.")], value)


def is_payload(path: str) -> bool:
    name, _, field = path.partition(".")
    return field in PAYLOAD.get(name, ())


@pytest.mark.parametrize("name", RECORDS)
def test_payload_is_concealed_and_everything_else_stays(name: str):
    value = encode(name, RECORDS[name])
    shown = conceal(value, "k1")

    assert (shown is value) == (name in CLEAR_KINDS)
    before, after = RECORDS[name], decode(shown, name)[1]
    pairs = zip(leaves(SCHEMAS[name], before), leaves(SCHEMAS[name], after), strict=True)
    for (path, was), (_, now) in pairs:
        if is_payload(path):
            assert now in ("<encrypted:k1>", b'"<encrypted:k1>"')
        else:
            assert now == was, path
    assert is_concealed(shown) == (shown is not value)
    assert not is_concealed(value)


@pytest.mark.parametrize("kind", ["string", "bytes", ["null", "bytes"]])
def test_a_new_field_has_to_be_decided(kind: Any):
    task = SCHEMAS["Task"]
    fields = [*task["fields"], {"name": "note", "type": kind}]

    with pytest.raises(NotImplementedError, match=r"Task\.note"):
        changes({"Task": {**task, "fields": fields}}, lambda value, _: value)


def test_a_decision_about_a_field_that_is_gone_is_noticed():
    task = SCHEMAS["Task"]

    with pytest.raises(NotImplementedError, match=r"Task\.step"):
        changes({"Task": {**task, "fields": task["fields"][:-1]}}, lambda value, _: value)


def test_a_placeholder_counts_only_where_it_is_the_whole_payload():
    told = {**RECORDS["Command"], "payload": b'{"said":"<encrypted:k1>"}'}

    assert not is_concealed(encode("Command", told))
    assert is_concealed(encode("Command", {**told, "carry": b'"<encrypted:k1>"'}))
    assert is_concealed(encode("Command", {**told, "messages": [b"1", b'"<encrypted:k1>"']}))


def test_a_receipt_has_no_payload_that_seems_to_be_concealed():
    receipt = {**RECORDS["Checkpoint"], "payload": b"", "result": None}

    shown = decode(conceal(encode("Checkpoint", receipt), "k1"), "Checkpoint")[1]
    assert (shown["payload"], shown["result"]) == (b"", None)


def test_bytes_that_are_no_record_are_concealed_whole():
    assert conceal(b"4111 1111", "k1") == b"<encrypted:k1>"
    assert is_concealed(b"<encrypted:k1>")


def test_of_an_encrypted_record_everybody_reads_what_it_shows():
    sealed = encode("Sealed", RECORDS["Sealed"])

    assert is_sealed(sealed)
    assert readable_without_key(sealed) == b"for all"
    assert readable_without_key(sealed[:-1]) == sealed[:-1]
    assert readable_without_key(b"other") == b"other"
    assert readable_without_key(None) is None
