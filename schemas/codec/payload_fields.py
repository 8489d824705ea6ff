"""Which fields of our records are payload, and records with their payload concealed. Pure.

Payload is what authors, callers and third parties put in: inputs, results, messages, texts of
errors, and digests of them, by which a guess could be confirmed. The rest is clear: by it records
are found, routed, counted and shown. Every text and every bytes field of a schema is in one of the
two tables, or this module cannot be imported.

A concealed payload reads `<encrypted:KEY>`; where JSON is due, as a JSON string. An empty one, as
in the receipt of a run that is over, stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.catalog import Schema
from surefoot.schemas.codec.codec import UndecodableError, decode, encode

__all__ = [
    "CLEAR",
    "PAYLOAD",
    "changes",
    "conceal",
    "is_concealed",
    "is_sealed",
    "placeholder",
    "readable_without_key",
]

#: by record: the fields that are encrypted
PAYLOAD: Mapping[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "Action": "digest",
        "Branch": "payload",
        "Checkpoint": "payload result input_digest baggage carry",
        "Command": "payload baggage carry messages input_digest",
        "Delivery": "reason body errors",
        "Entry": "digest value",
        "Event": "result payload carry",
        "Failure": "message",
        "Header": "value",
        "PlanItem": "text",
        "Stream": "text",
    }.items()
}
#: by record: the other fields that are text or bytes
CLEAR: Mapping[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "AccessToken": "name role agents digest",
        "Action": "run_id step call",
        "Amount": "what",
        "Audit": "id who action agent run_id origin note",
        "Branch": "agent step",
        "Checkpoint": "run_id agent step traceparent tracestate commands",
        "Command": "run_id kind step traceparent tracestate id name by repeat",
        "Decided": "question by",
        "Delivery": "id source outcome delivery event",
        "Entry": "run_id slot kind id name by",
        "Event": "run_id agent type step next_step effects id name by",
        "Failure": "code kind step frames",
        "Header": "name",
        "Parent": "agent run_id",
        "PlanItem": "id state",
        "RunName": "agent run_id",
        "Sealed": "key nonce shown sealed",
        "Stream": "run_id name kind",
        "Task": "run_id step",
        "Wait": "kind then on_timeout names mode question by",
    }.items()
}

#: returns a value with its payload changed; the second argument is for the change
_Change = Callable[[Any, Any], Any]
_PREFIX = b"<encrypted:"
#: the whole of a payload, as text or as JSON
_PLACEHOLDER = re.compile(rb'"?%b[A-Za-z0-9._-]{1,64}>"?' % _PREFIX)
_SEALED = encode("Sealed", {"key": "", "nonce": b"", "shown": b"", "sealed": b""})[:10]


def placeholder(key: str) -> str:
    """Return what stands in place of a payload that the key of this id has encrypted."""
    return f"{_PREFIX.decode()}{key}>"


def conceal(value: bytes, key: str) -> bytes:
    """Return a record with its payload replaced by placeholders; the very same bytes if it is of a
    kind without payload. Bytes that are no record of ours become a placeholder."""
    words = placeholder(key)
    try:
        name, record = decode(value)
    except UndecodableError:
        return words.encode()
    change = _CONCEAL[name]
    return value if change is None else encode(name, change(record, words))


def is_concealed(value: bytes | None) -> bool:
    """Whether a placeholder stands for the value, or for any payload in it: who used it as it is
    would put the placeholder in the payload's place."""
    if value is None or _PREFIX not in value:
        return False
    found = [value]
    with suppress(UndecodableError):
        name, record = decode(value)
        if (note := _NOTE[name]) is not None:
            note(record, found)
    return any(_PLACEHOLDER.fullmatch(each) for each in found)


def is_sealed(value: bytes | None) -> bool:
    """Whether the bytes are, or begin like, an encrypted record."""
    return value is not None and value.startswith(_SEALED)


def readable_without_key(value: bytes | None) -> bytes | None:
    """Return what everybody may read of a record's value: of an encrypted one the part without
    payload, any other unchanged."""
    if not is_sealed(value):
        return value
    try:
        return decode(value, "Sealed")[1]["shown"]
    except UndecodableError:
        return value


def changes(schemas: Mapping[str, Schema], leaf: _Change) -> dict[str, _Change | None]:
    """Return, by record, the function that applies `leaf` to each payload in it; None: it has none.

    Raises: NotImplementedError — a text or bytes field is neither payload nor clear, or both, or a
        table names one that is not there.
    """
    made: dict[str, _Change | None] = {}
    for schema in schemas.values():
        if schema["type"] == "record":
            _change(schema, None, leaf, made)
    return {name.removeprefix("surefoot."): change for name, change in made.items()}


def _change(
    schema: Any, here: _Change | None, leaf: _Change, made: dict[str, _Change | None]
) -> _Change | None:
    """`here`: the leaf, where text and bytes are payload; `made`: by full name, records so far."""
    match schema:
        case "string" | "bytes":
            return here
        case ["null", branch]:
            return _nullable(_change(branch, here, leaf, made))
        case {"type": "array", "items": items}:
            return _each(_change(items, here, leaf, made))
        case {"type": "record", "name": name, "namespace": space, "fields": fields}:
            full = f"{space}.{name}"
            if full not in made:
                payload = _payload(name, fields)
                parts = {
                    field["name"]: _change(
                        field["type"], leaf if field["name"] in payload else None, leaf, made
                    )
                    for field in fields
                }
                made[full] = _fields({n: part for n, part in parts.items() if part is not None})
            return made[full]
        case str():
            return made.get(schema)
        case _:
            return None


def _payload(name: str, fields: Sequence[Any]) -> frozenset[str]:
    """Return which fields are payload. Raises NotImplementedError."""
    texts = {field["name"] for field in fields if _is_text(field["type"])}
    payload, clear = PAYLOAD.get(name, frozenset()), CLEAR.get(name, frozenset())
    if payload & clear or payload | clear != texts:
        odd = sorted((payload & clear) | ((payload | clear) ^ texts))
        raise NotImplementedError(
            f"schemas/codec/payload_fields.py: put {name}.{odd[0]} into one of its two tables"
        )
    return payload


def _is_text(schema: Any) -> bool:
    match schema:
        case "string" | "bytes" | ["null", "string" | "bytes"]:
            return True
        case {"type": "array", "items": items}:
            return _is_text(items)
        case _:
            return False


def _nullable(change: _Change | None) -> _Change | None:
    return change and (lambda value, given: None if value is None else change(value, given))


def _each(change: _Change | None) -> _Change | None:
    return change and (lambda value, given: [change(item, given) for item in value])


def _fields(parts: Mapping[str, _Change]) -> _Change | None:
    if not parts:
        return None
    return lambda record, given: {
        **record,
        **{name: change(record[name], given) for name, change in parts.items()},
    }


def _concealed(payload: str | bytes, words: str) -> str | bytes:
    if not payload:
        return payload
    return words if isinstance(payload, str) else b'"%b"' % words.encode()


def _noted(payload: str | bytes, found: list[bytes]) -> str | bytes:
    found.append(payload.encode() if isinstance(payload, str) else payload)
    return payload


_CONCEAL = changes(catalog.current(), _concealed)
_NOTE = changes(catalog.current(), _noted)
