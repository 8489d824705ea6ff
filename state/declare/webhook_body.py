"""Reads the body of a delivery as JSON or as a form. Pure; parsed on first access.

Any problem is a BadPayload that says what to do instead: the raw bytes are always available.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.schemas.text import halves_are_refused, whole

_FORM = "application/x-www-form-urlencoded"
_FIELDS_MAX = 1_000
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([A-Za-z0-9_.:-]+)", re.IGNORECASE | re.ASCII)
#: what senders use; some other codecs of Python expand their input without bound
_CHARSETS = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252"})


def json_values(content_type: str, body: bytes) -> Any:
    """Return the values of a JSON body, or the fields of a form as texts. A form whose only field
    is `payload` holds JSON, as GitHub and Slack send it.

    Raises: BadPayload
    """
    kind, charset = _kind(content_type)
    if kind == _FORM:
        fields = form_fields(content_type, body)
        if fields.keys() != {"payload"}:
            return {name: _one(name, values) for name, values in fields.items()}
        text = _one("payload", fields["payload"]).encode()
    elif kind.startswith("multipart/"):
        raise BadPayload("$", f"the body is {kind}, not JSON; read delivery.body")
    elif not body:
        raise BadPayload("$", "the body is empty")
    else:
        text = body if charset == "utf-8" else _decoded(body, charset).encode()
    try:
        return parse_json(text)
    except BadPayload as error:
        raise BadPayload(error.path, f"the body: {error.reason}") from None


def form_fields(content_type: str, body: bytes) -> dict[str, list[str]]:
    """Return every field of a form with its values, in the order received.

    Raises: BadPayload
    """
    kind, charset = _kind(content_type)
    if kind != _FORM:
        told = f"the body is not a form, its type is {kind or 'missing'}; read delivery.body"
        raise BadPayload("$", told)
    try:
        pairs = parse_qsl(
            body.decode("latin-1"),  # maps every byte; the fields are decoded below
            keep_blank_values=True,
            strict_parsing=True,
            encoding="latin-1",
            max_num_fields=_FIELDS_MAX,
        )
    except ValueError as error:
        raise BadPayload("$", f"the body is not a form: {error}") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(_decoded(name.encode("latin-1"), charset), []).append(
            _decoded(value.encode("latin-1"), charset)
        )
    return fields


def _one(name: str, values: list[str]) -> str:
    if len(values) > 1:
        told = f"the form has the field {name[:80]!r} twice; delivery.form has all its values"
        raise BadPayload("$", told)
    return values[0]


def _kind(content_type: str) -> tuple[str, str]:
    """Return (media type, charset by Python's name for it) of a Content-Type."""
    kind = content_type.partition(";")[0].strip().lower()
    found = _CHARSET.search(content_type)
    charset = "utf-8" if found is None else found[1]
    with suppress(LookupError):
        charset = codecs.lookup(charset).name
    return kind, charset


def _decoded(data: bytes, charset: str) -> str:
    if charset not in _CHARSETS:
        told = f"the charset {charset[:40]!r} is not supported; decode delivery.body"
        raise BadPayload("$", told)
    try:
        if charset == "utf-8" and not halves_are_refused():
            return whole(data.decode(charset, "surrogatepass"))
        return data.decode(charset)
    except UnicodeDecodeError as error:
        told = f"the body is not {charset}, and names no other charset; decode delivery.body"
        raise BadPayload("$", f"{told} ({error.reason})") from None
