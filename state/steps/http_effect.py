"""One HTTP request as an effect: which ones can never be sent, which answers to retry. Pure.

Source: RFC 9110, sections 5.1, 5.5, 7.6.1 and 15; RFC 9112, section 6
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from surefoot.state.egress.policy import Forbidden, target_of
from surefoot.state.errors import BadArgument

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})

#: header fields that delimit a message
FRAMING = frozenset({"content-length", "transfer-encoding"})
#: header fields between the relay and its peer
_RELAYS = FRAMING | {
    "connection",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
}
#: header by which the target recognises an effect that is sent again
KEY_HEADER = "Idempotency-Key"

#: an HTTP status, or all with that first digit
AnswerStatuses = int | Literal["3xx", "4xx", "5xx"]
#: retry: the target, or a proxy in front of it, is down, full, or busy with this very key
OUTAGE = frozenset({"408", "409", "421", "423", "425", "429", "5xx"})
#: retry for a while: a deploy, or a token being replaced
DOUBTFUL = frozenset({"401", "403", "404"})
#: attempts after which a doubtful answer is final: two to four minutes
DOUBTFUL_ATTEMPTS = 10
_STATUS = re.compile(r"[345](?:[0-9]{2}|xx)")

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEffect:
    """One HTTP request that the outbox delivers; its Idempotency-Key is the effect's run_id."""

    method: str
    url: str
    headers: dict[str, str]
    #: sent as UTF-8
    body: str
    #: statuses that mean an outage; None: OUTAGE, and for a while DOUBTFUL
    retry_on: Annotated[tuple[str, ...] | None, Field(exclude_if=lambda on: on is None)] = None
    #: include the beginning of the answer's body in the failure that everybody sees
    keep_body: Annotated[bool, Field(exclude_if=lambda keep: not keep)] = False


def check_texts(**given: Any) -> None:
    """Raise BadArgument, by argument name, for a value that is not text."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise _refused(f"{name} must be text; got {type(value).__name__}")


def check_request(method: str, url: str, headers: Mapping[Any, Any]) -> None:
    """Raise BadArgument for a request that can never be sent, whatever the target."""
    if method not in _METHODS:
        raise _refused(f"unknown method {method!r}; use one of {', '.join(sorted(_METHODS))}")
    try:
        target_of(url)
    except Forbidden as error:
        raise _refused(f"{url!r} cannot be requested: {error}") from None
    seen: set[str] = set()
    for name, value in headers.items():
        why = _why_not(name, value)
        if why is None and name.lower() in seen:
            why = "is given twice; header names are case-insensitive"
        if why is not None:
            raise _refused(f"header {name!r} {why}")
        seen.add(name.lower())


def _why_not(name: Any, value: Any) -> str | None:
    """Say what is wrong with a header, without its value, which may be a secret."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "has an invalid name; use letters, digits and !#$%&'*+-.^_`|~"
    if name.lower() in _RELAYS:
        return "is set by the relay; leave it out"
    if name.lower() == KEY_HEADER.lower():
        return "is set to the effect's key, which ctx.outbox.http returns; leave it out"
    if not isinstance(value, str):
        return f"must have a text value; got {type(value).__name__}"
    if value != value.strip():
        return "has a value that begins or ends with white space"
    if not value.isascii():
        return "has a value that is not ASCII; encode it as the target reads it"
    if not _VALUE.fullmatch(value):
        return "has a value that contains a line break, a NUL or another control character"
    return None


def parse_statuses(given: Iterable[AnswerStatuses]) -> tuple[str, ...]:
    """Parse `retry_on`. Raises BadArgument for anything but the status of a failure."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _refused(f"retry_on must be a list of statuses, even of one; got {given!r}")
    told = tuple(str(each) for each in given)
    for each in told:
        if not _STATUS.fullmatch(each):
            raise _refused(
                f'retry_on takes statuses from 300 to 599, "3xx", "4xx" or "5xx"; got {each}'
            )
    return told


def worth_another(effect: HttpEffect, status: int, attempt: int) -> bool:
    """Whether to send again after this status of that attempt (from 0)."""
    words = {str(status), f"{status // 100}xx"}
    if effect.retry_on is not None:
        return not words.isdisjoint(effect.retry_on)
    if not words.isdisjoint(DOUBTFUL):
        return attempt + 1 < DOUBTFUL_ATTEMPTS
    return not words.isdisjoint(OUTAGE)


def _refused(why: str) -> BadArgument:
    return BadArgument("SF1206", f"outbox.http: {why}")
