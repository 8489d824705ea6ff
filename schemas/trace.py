"""W3C trace context: which trace a request belongs to, and which span of it asked. Pure.

It is a set of headers: traceparent names the place, tracestate has what tracing systems say of it,
baggage what the asker wants known further on. They come from anybody and go on to anybody, so only
what is as W3C has it goes on, in bounds.

Ids are derived from names, so that any process can tell the span of a run or of a step without
having been told it. Source: W3C Trace Context 2, W3C Baggage.
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
#: of a version to come, which may say more
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


#: the one flag that every version has
_SAMPLED = 1


#: as `carried` takes them
HEADERS = ("traceparent", "tracestate", "baggage")


class Carried(TypedDict, total=False):
    """The headers that go on together; those that there are."""

    traceparent: str
    tracestate: str
    baggage: str


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
    """None for what is no trace context. What a version to come says more is left out."""
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None or len(match[0]) > _LENGTH_MOST:
        return None
    version, trace_id_, span_id_, flags, more = match.groups()
    if version == "00":
        return None if more is not None else Trace(trace_id_, span_id_, flags)
    return Trace(trace_id_, span_id_, f"{int(flags, 16) & _SAMPLED:02x}")


def valid(text: str | None) -> str | None:
    """The same text, if it is a trace context."""
    return text if parse(text) else None


def carried_by(command: Mapping[str, Any]) -> Carried:
    """What goes on of a command, which may be anybody's."""
    return carried(*([command[name]] if command[name] else [] for name in HEADERS))


def carried(
    traceparents: Sequence[str], tracestates: Sequence[str], baggages: Sequence[str]
) -> Carried:
    """What goes on of the headers of those names, in their order. Of several traceparents none is
    meant; a tracestate is nothing without one."""
    found = Carried()
    if len(traceparents) == 1 and (traceparent := valid(traceparents[0])) is not None:
        found["traceparent"] = traceparent
        if tracestate := _tracestate(tracestates):
            found["tracestate"] = tracestate
    if baggage := _baggage(baggages):
        found["baggage"] = baggage
    return found


def carried_on(traceparent: str | None, tracestate: str | None, baggage: str | None) -> Carried:
    """What goes on of what a run was started with."""
    found = Carried()
    if traceparent is not None:
        found["traceparent"] = traceparent
        if tracestate is not None:
            found["tracestate"] = tracestate
    if baggage is not None:
        found["baggage"] = baggage
    return found


def _tracestate(headers: Sequence[str]) -> str:
    """With one member that is wrong, or one twice, all of it is: it is dropped."""
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
    """The first of them, as many as go on."""
    told = ""
    for each in members[:most]:
        longer = f"{told},{each}" if told else each
        if len(longer) > characters:
            break
        told = longer
    return told


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
