"""Removes credentials that can be recognised by their form from any text. Pure.

Texts of exceptions contain them: an HTTP client's has the whole URL.
"""

from __future__ import annotations

import re

#: replaces a credential
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
    """Return the text without credentials."""
    for pattern, instead in _TEXTS:
        text = pattern.sub(instead, text)
    return text
