"""Redaction of log lines: secrets, by field name or by pattern, and payloads.

Applies to every line of the process: Surefoot's, libraries' and the author's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic import SecretBytes, SecretStr

from surefoot.state.errors.scrubbing import HIDDEN, scrub

#: levels of a value that are inspected; deeper ones are hidden
_DEPTH_MAX = 6

_SECRET_FIELD = re.compile(
    r"pass(word|wd|phrase)|secret|token(?!s)|authorization|(api|access|private|signing)[_-]?key"
    r"|cookie|credential",
    re.IGNORECASE,
)
#: fields that contain the whole input or output of a step
_PAYLOADS = frozenset(
    {"args", "body", "carry", "input", "messages", "output", "payload", "result", "value"}
)


def redact(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor; runs just before the renderer."""
    for name, value in entry.items():
        entry[name] = _shown(name, value, 0)
    return entry


def _shown(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if name.lower() in _PAYLOADS or _SECRET_FIELD.search(name):
        return HIDDEN
    return _scrubbed(value, depth)


def _scrubbed(value: Any, depth: int) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return scrub(value)
        case SecretStr() | SecretBytes():
            return HIDDEN
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
    if depth >= _DEPTH_MAX:
        return HIDDEN
    match value:
        case Mapping():
            return {key: _shown(str(key), each, depth + 1) for key, each in value.items()}
        case list() | tuple() | AbstractSet():
            return [_scrubbed(each, depth + 1) for each in value]
    return scrub(repr(value))
