"""Text that is no text: half of a surrogate pair, as half of an emoji is when somebody cuts it.

UTF-8 has no form for it, so it cannot be stored or sent. Halves that stand side by side are joined;
a half that stays alone becomes U+FFFD at the edge, wherever it comes in or goes out, unless the
process is told to refuse it.
"""

from __future__ import annotations

import re

__all__ = ["halves_are_refused", "joined", "refuse_halves", "whole", "whole_json"]

#: what is left as it is in a JSON text: other escapes, and pairs; then a half
_ESCAPES = re.compile(
    rb"(\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)

_refused = False


def refuse_halves(refused: bool) -> None:
    """Say what this process does with halves, from now on."""
    global _refused  # noqa: PLW0603
    _refused = refused


def halves_are_refused() -> bool:
    return _refused


def whole(text: str) -> str:
    """The text with its halves joined, and U+FFFD for each that stays alone. Pure."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def joined(text: str) -> str:
    """The text with its halves joined where they stand side by side. Pure."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def whole_json(data: bytes) -> bytes:
    """JSON text in which each escaped half that stands alone is U+FFFD; as it is, if they are
    refused."""
    if _refused or (b"\\ud" not in data and b"\\uD" not in data):
        return data
    return _ESCAPES.sub(lambda found: found[1] or rb"\ufffd", data)
