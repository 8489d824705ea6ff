"""W3C trace context: which trace a request belongs to, and which span of it asked. Pure.

Ids are derived from names, so that any process can tell the span of a run or of a step without
having been told it. Source: W3C Trace Context, version 00.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_TRACEPARENT = re.compile(
    r"00-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})", re.ASCII
)


class Trace(NamedTuple):
    """A place in a trace."""

    #: 32 hexadecimal digits
    trace_id: str
    #: 16 hexadecimal digits
    span_id: str
    #: 2 hexadecimal digits; the last bit: it is sampled
    flags: str = "01"

    def __str__(self) -> str:
        """As the header and the records have it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse(text: str | None) -> Trace | None:
    """None for what is no trace context."""
    match = _TRACEPARENT.fullmatch(text or "")
    return Trace(*match.groups()) if match else None


def valid(text: str | None) -> str | None:
    """The same text, if it is a trace context."""
    return text if parse(text) else None


def trace_id(*names: str | int) -> str:
    """The same for the same names."""
    return _digits(32, names)


def span_id(*names: str | int) -> str:
    """The same for the same names."""
    return _digits(16, names)


def child(of: Trace, *names: str | int) -> Trace:
    """A span below that one."""
    return of._replace(span_id=span_id(*names))


def _digits(count: int, names: tuple[str | int, ...]) -> str:
    told = "\0".join(str(name) for name in names)
    digits = hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:count]
    return digits if int(digits, 16) else "1".zfill(count)
