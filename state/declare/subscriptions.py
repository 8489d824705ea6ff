"""Declarations of outgoing webhooks: who receives which events of an agent's runs.

Every mistake in a declaration is an error here, at import. This module also decides what an event
sends; signing is the relay's business (consumers.builtin.webhooks_out). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

from surefoot.schemas.payload import JsonObject, strict_json
from surefoot.state.declare.callables import finished
from surefoot.state.egress.policy import target_of
from surefoot.state.errors import ConfigError, TerminalError
from surefoot.state.machine.model import EventType
from surefoot.state.ports.sources import StartPosition
from surefoot.state.reading.runs import EventJson

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_TYPES: frozenset[str] = frozenset(get_args(EventType))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event of a run's history, as a subscription's functions see it."""

    type: str
    agent: str
    run_id: str
    #: the agent's version
    version: int
    #: the run's status after this event
    status: str
    seq: int
    #: epoch ms UTC
    at_ms: int
    #: the step that ended, and the one that comes next
    step: str | None = None
    next_step: str | None = None
    attempt: int = 0
    epoch: int = 0
    #: the run's result, as JSON values
    result: Any = None
    #: code, number, message, step
    failure: Mapping[str, Any] | None = None
    #: name of the signal, question or choice; and who asked
    name: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookMessage:
    """The body sent for one event, and its id: both are the same whenever it is sent again."""

    id: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A receiver, at `url`, of an agent's events."""

    name: str
    url: str
    events: frozenset[str]
    where: Callable[[RunEvent], Any] | None
    data: Callable[[RunEvent], Any] | None
    start: StartPosition

    def message(self, event: EventJson, place: tuple[int, int]) -> WebhookMessage | None:
        """Return what to send for the event at (partition, offset); None: nothing.

        Args:    event: its JSON values, as state.reading.runs.event_json makes them
        Raises:  whatever the author's functions raise; Unserialisable
        """
        if event["type"] not in self.events:
            return None
        told = run_event(event)
        if self.where is not None and not finished(self.where(told)):
            return None
        partition, offset = place
        data = default_data(told, offset) if self.data is None else finished(self.data(told))
        body = {"type": told.type, "timestamp": iso(told.at_ms), "data": data}
        # The time distinguishes it from an event at this offset of a recreated topic.
        identity = f"{told.agent}-{partition}-{offset}-{told.at_ms}"
        return WebhookMessage(id=identity, body=strict_json(body).decode())


def run_event(event: EventJson) -> RunEvent:
    """Return the part of an event that may leave the system: no inputs, no carried data."""
    return RunEvent(
        type=event["type"],
        agent=event["agent"],
        run_id=event["run_id"],
        version=event["version"],
        status=event["status"],
        seq=event["seq"],
        at_ms=event["at_ms"],
        step=event["step"],
        next_step=event["next_step"],
        attempt=event["attempt"],
        epoch=event["epoch"],
        result=event["result"],
        failure=event["failure"],
        name=event["name"],
        by=event["by"],
    )


def default_data(event: RunEvent, offset: int) -> JsonObject:
    """Return what is sent without a `data` function. Of two events of a run, the later one has the
    higher offset."""
    fields = {name: getattr(event, name) for name in RunEvent.__slots__}
    del fields["type"], fields["at_ms"]
    return {**fields, "offset": offset}


def iso(at_ms: int) -> str:
    """Format as ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def subscription(
    agent: str,
    name: str,
    *,
    url: str,
    events: Iterable[str],
    where: Callable[[RunEvent], Any] | None,
    data: Callable[[RunEvent], Any] | None,
    start: StartPosition,
) -> Subscription:
    """Check a subscription's declaration. Raises ConfigError when it cannot work."""
    place = f"subscription {name!r} of agent {agent!r}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "SF1138", f"{place}: name it with a lower-case letter, then up to 30 of a-z 0-9 -"
        )
    wanted = frozenset((events,) if isinstance(events, str) else events)
    if not wanted or wanted - _TYPES:
        unknown = ", ".join(sorted(wanted - _TYPES)) or "none"
        raise ConfigError(
            "SF1138",
            f"{place}: events must be of {', '.join(sorted(_TYPES))}; got {unknown}",
        )
    if start not in get_args(StartPosition):
        raise ConfigError("SF1138", f'{place}: start must be "latest" or "earliest"; got {start!r}')
    try:
        target_of(url)
    except TerminalError as error:
        raise ConfigError("SF1138", f"{place}: {error}") from None
    return Subscription(name=name, url=url, events=wanted, where=where, data=data, start=start)
