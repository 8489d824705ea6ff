"""One HTTP request as an effect: what of it can never be sent, and which answers are worth another
attempt. Pure.

Sources: RFC 9110, sections 5.1, 5.5, 7.6.1 and 15; RFC 9112, section 6
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

#: fields that say where a message ends
FRAMING = frozenset({"content-length", "transfer-encoding"})
#: what is between the relay and whoever it talks to
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
#: by which the target tells an effect that is sent again
KEY_HEADER = "Idempotency-Key"

#: what an answer's status is among: itself, or all that begin with that digit
Statuses = int | Literal["3xx", "4xx", "5xx"]
#: not now: the target, or what is before it, is out, full, or busy with this very key
OUTAGE = frozenset({"408", "409", "421", "423", "425", "429", "5xx"})
#: not like this, or just not yet: a deploy, a token that is being replaced
DOUBTFUL = frozenset({"401", "403", "404"})
#: attempts of an effect after which a doubtful answer is believed: two to four minutes
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
    #: answers that are outages; None: OUTAGE, and for a while DOUBTFUL
    retry_on: Annotated[tuple[str, ...] | None, Field(exclude_if=lambda on: on is None)] = None
    #: the beginning of an answer's body is part of the failure that everybody sees
    keep_body: Annotated[bool, Field(exclude_if=lambda keep: not keep)] = False


def check_texts(**given: Any) -> None:
    """Raises BadArgument for what is no text, by the name of the argument."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise _refused(f"{name} is text; got {type(value).__name__}")


def check_request(method: str, url: str, headers: Mapping[Any, Any]) -> None:
    """Raises BadArgument for what can never be sent as it is, wherever it goes."""
    if method not in _METHODS:
        raise _refused(f"unknown method {method!r}; there are: {', '.join(sorted(_METHODS))}")
    try:
        target_of(url)
    except Forbidden as error:
        raise _refused(f"{url!r} cannot be asked for: {error}") from None
    seen: set[str] = set()
    for name, value in headers.items():
        why = _why_not(name, value)
        if why is None and name.lower() in seen:
            why = "is there twice, as the case of letters tells no names apart"
        if why is not None:
            raise _refused(f"header {name!r} {why}")
        seen.add(name.lower())


def _why_not(name: Any, value: Any) -> str | None:
    """What is wrong with a header; its value may be a secret."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "has a name that is not made of letters, digits and !#$%&'*+-.^_`|~"
    if name.lower() in _RELAYS:
        return "is the relay's to set"
    if name.lower() == KEY_HEADER.lower():
        return "is the effect's own key, which ctx.outbox.http returns; leave it out"
    if not isinstance(value, str):
        return f"has a value that is no text but {type(value).__name__}"
    if value != value.strip():
        return "has a value that begins or ends with a blank or a line break"
    if not value.isascii():
        return "has a value that is not ASCII; encode it as the target reads it"
    if not _VALUE.fullmatch(value):
        return "has a value with a line break, a NUL or another control character in it"
    return None


def parse_statuses(given: Iterable[Statuses]) -> tuple[str, ...]:
    """Raises BadArgument for what is no status of an answer that was not taken."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _refused(f"retry_on is a list of statuses, also for one; got {given!r}")
    told = tuple(str(each) for each in given)
    for each in told:
        if not _STATUS.fullmatch(each):
            raise _refused(
                f'retry_on has statuses from 300 to 599, "3xx", "4xx" or "5xx"; got {each}'
            )
    return told


def worth_another(effect: HttpEffect, status: int, attempt: int) -> bool:
    """Whether a target that has answered so, to that attempt (from 0), is asked again."""
    words = {str(status), f"{status // 100}xx"}
    if effect.retry_on is not None:
        return not words.isdisjoint(effect.retry_on)
    if not words.isdisjoint(DOUBTFUL):
        return attempt + 1 < DOUBTFUL_ATTEMPTS
    return not words.isdisjoint(OUTAGE)


def _refused(why: str) -> BadArgument:
    return BadArgument("SF1206", f"outbox.http: {why}")
