"""Halves of surrogate pairs in text, such as half an emoji that was cut in two.

UTF-8 cannot encode such a half, so it cannot be stored or sent. Adjacent halves are joined; one
that stays alone becomes U+FFFD wherever text enters or leaves, unless the process refuses it.
"""

from __future__ import annotations

import re

__all__ = ["halves_are_refused", "joined", "refuse_halves", "whole", "whole_json"]

#: in JSON text: what stays unchanged (other escapes, and pairs), or else an escaped half
_ESCAPES = re.compile(
    rb"(\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)

_refused = False


def refuse_halves(refused: bool) -> None:
    """Set whether this process refuses halves, from now on."""
    global _refused  # noqa: PLW0603
    _refused = refused


def halves_are_refused() -> bool:
    return _refused


def whole(text: str) -> str:
    """Return the text with adjacent halves joined, and U+FFFD for each that stays alone. Pure."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def joined(text: str) -> str:
    """Return the text with adjacent halves joined. Pure."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def whole_json(data: bytes) -> bytes:
    """Return JSON text with each escaped half that stands alone replaced by U+FFFD; unchanged if
    halves are refused."""
    if _refused or b"\\" not in data or (b"\\ud" not in data and b"\\uD" not in data):
        return data
    return _ESCAPES.sub(lambda found: found[1] or rb"\ufffd", data)
