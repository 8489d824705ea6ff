"""W3C trace context: the trace that a request belongs to, and the span that sent it. Pure.

It is a set of headers: traceparent names the span, tracestate is data of tracing systems, baggage
is data that the sender passes on. They come from anybody and go to anybody, so only values that
follow the specification are passed on, up to a size.

Ids are derived from names, so that any process knows the span of a run or a step without being
told. Source: W3C Trace Context 2, W3C Baggage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?",
    re.ASCII,
)
#: longest traceparent of a future version, which may have more fields
_LENGTH_MOST = 256
_STATE = re.compile(
    r"([a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]",
    re.ASCII,
)
_STATE_MEMBERS, _STATE_CHARACTERS, _STATE_LARGE = 32, 512, 128
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE = r"[!#-+\--:<-\[\]-~]*"
_BAGGAGE = re.compile(
    rf"{_NAME}[ \t]*=[ \t]*{_VALUE}([ \t]*;[ \t]*{_NAME}([ \t]*=[ \t]*{_VALUE})?)*", re.ASCII
)
_BAGGAGE_MEMBERS, _BAGGAGE_CHARACTERS = 64, 8192


#: the one flag that all versions define
_SAMPLED = 1


#: in the order in which `carried` takes them
HEADERS = ("traceparent", "tracestate", "baggage")


class Carried(TypedDict, total=False):
    """The headers that are passed on together; missing ones are left out."""

    traceparent: str
    tracestate: str
    baggage: str


class Trace(NamedTuple):
    """A span of a trace."""

    #: 32 hexadecimal digits
    trace_id: str
    #: 16 hexadecimal digits
    span_id: str
    #: 2 hexadecimal digits; the lowest bit means sampled
    flags: str = "01"

    def __str__(self) -> str:
        """Format it as in the header and in the records."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse_traceparent(text: str | None) -> Trace | None:
    """Parse a traceparent; None if it is invalid. Drops what a future version adds."""
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None or len(match[0]) > _LENGTH_MOST:
        return None
    version, trace_id_, span_id_, flags, more = match.groups()
    if version == "00":
        return None if more is not None else Trace(trace_id_, span_id_, flags)
    return Trace(trace_id_, span_id_, f"{int(flags, 16) & _SAMPLED:02x}")


def valid(text: str | None) -> str | None:
    """Return the text if it is a valid traceparent, else None."""
    return text if parse_traceparent(text) else None


def carried_by(command: Mapping[str, Any]) -> Carried:
    """Return what to pass on from a command, which anybody may have sent."""
    return carried(*([command[name]] if command[name] else [] for name in HEADERS))


def carried(
    traceparents: Sequence[str], tracestates: Sequence[str], baggages: Sequence[str]
) -> Carried:
    """Return what to pass on from the headers of each name, in order.

    More than one traceparent counts as none; a tracestate needs a traceparent."""
    found = Carried()
    if len(traceparents) == 1 and (traceparent := valid(traceparents[0])) is not None:
        found["traceparent"] = traceparent
        if tracestate := _tracestate(tracestates):
            found["tracestate"] = tracestate
    if baggage := _baggage(baggages):
        found["baggage"] = baggage
    return found


def carried_on(traceparent: str | None, tracestate: str | None, baggage: str | None) -> Carried:
    """Return what to pass on from what a run was started with."""
    found = Carried()
    if traceparent is not None:
        found["traceparent"] = traceparent
        if tracestate is not None:
            found["tracestate"] = tracestate
    if baggage is not None:
        found["baggage"] = baggage
    return found


def _tracestate(headers: Sequence[str]) -> str:
    """Join the tracestate. One invalid or repeated member invalidates all of it."""
    members = [each for each in _members(headers) if each]
    keys = [each.partition("=")[0] for each in members]
    if len(set(keys)) < len(keys) or not all(map(_STATE.fullmatch, members)):
        return ""
    if len(",".join(members)) > _STATE_CHARACTERS:
        members = [each for each in members if len(each) <= _STATE_LARGE]
    return _bounded(members, _STATE_MEMBERS, _STATE_CHARACTERS)


def _baggage(headers: Sequence[str]) -> str:
    members = [each for each in _members(headers) if _BAGGAGE.fullmatch(each)]
    return _bounded(members, _BAGGAGE_MEMBERS, _BAGGAGE_CHARACTERS)


def _members(headers: Sequence[str]) -> list[str]:
    return [each.strip(" \t") for header in headers for each in header.split(",")]


def _bounded(members: Sequence[str], most: int, characters: int) -> str:
    """Join the first members, up to `most` and `characters`."""
    told = ""
    for each in members[:most]:
        longer = f"{told},{each}" if told else each
        if len(longer) > characters:
            break
        told = longer
    return told


def trace_id(*names: str | int) -> str:
    """Derive a trace id from names: the same for the same names."""
    return _digits(32, names)


def span_id(*names: str | int) -> str:
    """Derive a span id from names: the same for the same names."""
    return _digits(16, names)


def child(of: Trace, *names: str | int) -> Trace:
    """Return a child span of `of`."""
    return of._replace(span_id=span_id(*names))


def _digits(count: int, names: tuple[str | int, ...]) -> str:
    told = "\0".join(str(name) for name in names)
    digits = hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:count]
    return digits if int(digits, 16) else "1".zfill(count)
