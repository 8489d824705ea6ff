"""Credentials that can be told by their looks, in whatever text they stand. Pure.

The texts of exceptions have them: that of an HTTP client says the whole URL.
"""

from __future__ import annotations

import re

#: stands where one was
HIDDEN = "[redacted]"

_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<=://)[^/\s?#]+@"), f"{HIDDEN}@"),
    (
        re.compile(
            r"([?&;](?:[\w-]*(?:token|secret|password|key|signature|sig|credential))=)[^&;\s\"']+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)


def scrub(text: str) -> str:
    """The text without them."""
    for pattern, instead in _TEXTS:
        text = pattern.sub(instead, text)
    return text
