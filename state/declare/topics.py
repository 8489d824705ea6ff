"""What an author declares about events that start runs: records of any Kafka topic.

Everything that can be wrong with a declaration is an error here, at import. What a trigger makes of
one event is decided here too, but for the bytes: `start` is given what they say.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from surefoot.schemas.foreign.branches import ByBranch
from surefoot.schemas.foreign.event_avro import BadSchema, SchemaFile, load_schemas, parsed
from surefoot.schemas.payload import (
    STORABLE,
    BadPayload,
    load,
    parse_json,
    validate,
    why_not_storable,
)
from surefoot.state.declare.annotations import MISSING, annotation, plain_function, why_hidden
from surefoot.state.declare.callables import finished, label
from surefoot.state.declare.stored_types import check_defined
from surefoot.state.errors import ConfigError
from surefoot.state.ports.sources import LostEvents, Received, SourceOffsets, StartPosition

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
#: so that topic, partition and offset still make a run_id
_TOPIC_MAX = 220
#: arguments of an author's function that also asks where the event came from
_BOTH = 2


class Unusable(Exception):
    """An event that cannot be used; it becomes a dead letter with this code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class EventStart(NamedTuple):
    """The run that an event asks for."""

    run_id: str
    payload: Any


@dataclass(frozen=True, kw_only=True)
class EventTrigger:
    """Starts a run from each event of a topic for which `fn` returns a payload rather than None."""

    topic: str
    fn: Callable[..., Any]
    event_type: Any
    start: StartPosition
    key: Callable[..., Any] | str | None = None
    where: Callable[..., Any] | None = None
    #: Avro schemas of the author's by fingerprint, and the one that events are read as
    schemas: Mapping[bytes, Any] = field(default_factory=dict)
    reader_schema: Any | None = None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.event_type)

    @cached_property
    def takes_null(self) -> bool:
        """Whether a tombstone, or an event without data, is given to the function as None."""
        try:
            return validate(self.adapter, None) is None
        except BadPayload:
            return False

    @cached_property
    def by_branch(self) -> ByBranch | None:
        """What an event in Avro is validated with where the type has unions of records."""
        made = ByBranch(self.adapter)
        return made if made.unions else None

    def of_json(self, text: bytes) -> Any:
        """The event that a JSON text is. Raises Unusable."""
        try:
            parse_json(text)  # says it without doubt
            return load(self.adapter, text.removeprefix(b"\xef\xbb\xbf"))
        except BadPayload as error:
            raise Unusable("undecodable", f"no {_name(self.event_type)}: {error}") from None

    def of_value(self, value: Any) -> Any:
        """The event that a decoder's value is. Raises Unusable."""
        try:
            return validate(self.by_branch or self.adapter, value)
        except BadPayload as error:
            raise Unusable("undecodable", f"no {_name(self.event_type)}: {error}") from None

    def begin(self, event: Any, received: Received) -> EventStart | None:
        """Ask the author's functions what to start; None: nothing. Raises Unusable."""
        if not self._asked["where"](event, received):
            return None
        payload = self._asked["fn"](event, received)
        return None if payload is None else EventStart(self._run_id(event, received), payload)

    def _run_id(self, event: Any, received: Received) -> str:
        if self.key is None:
            return default_run_id(received)
        made = self._asked["key"](event, received)
        if isinstance(made, bool) or not isinstance(made, str | int | UUID):
            told = f"key={self.key!r}" if isinstance(self.key, str) else "key"
            raise Unusable("bad_run_id", f"{told} gave {_name(type(made))}, not a text or a number")
        return str(made)

    @cached_property
    def _asked(self) -> Mapping[str, Callable[[Any, Received], Any]]:
        """The author's functions, all called in one way."""
        key = _field(self.key) if isinstance(self.key, str) else self.key
        return {
            "fn": _asking(self.fn, label(self.fn)),
            "where": _asking(self.where or _always, "where"),
            "key": _asking(key or _always, "key"),
        }


def default_run_id(received: Received) -> str:
    """A run_id for the event's place: the same however often it is read."""
    topic = received.topic if received.topic[0].isalnum() else f"t={received.topic}"
    return f"{topic}-{received.partition}-{received.offset}"


def begin_at(
    standing: SourceOffsets, start: StartPosition, *, refused: bool
) -> tuple[int, LostEvents | None]:
    """The offset to go on at, and what was lost. Pure.

    A partition without a committed offset was added after the trigger had begun, so all that is in
    it is new. `refused`: the broker has said that the committed offset is out of range. Before it
    does, an end that lies below proves nothing: a new leader may not know it all yet (KIP-207).
    """
    committed, first, end = standing
    if committed is None:
        return first, None
    if first <= committed <= end or (committed > end and not refused):
        return committed, None
    if committed < first:
        told = f"retention has deleted {first - committed} offsets that had not been read"
        return first, LostEvents(committed, first, f"{told}: {committed} to {first - 1}")
    position = first if start == "earliest" else end
    told = f"the log ends at {end}, before the committed offset {committed}: cut, or made anew"
    return position, LostEvents(end, committed, f"{told}; going on at {position} (start={start!r})")


def _always(_event: Any) -> bool:
    return True


def _field(name: str) -> Callable[[Any], Any]:
    def get(event: Any) -> Any:
        return event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)

    return get


def _asking(fn: Callable[..., Any], name: str) -> Callable[[Any, Received], Any]:
    both = _arguments(fn) == _BOTH

    def asked(event: Any, received: Received) -> Any:
        try:
            return finished(fn(event, received) if both else fn(event))
        except (Exception, SystemExit) as error:
            told = f"{name} raised {type(error).__name__}: {error}"
            raise Unusable("mapping_raised", told) from error

    return asked


def declare_event(
    agent: str,
    fn: Callable[..., Any],
    *,
    topic: str,
    schema: SchemaFile | None,
    key: Callable[..., Any] | str | None,
    where: Callable[..., Any] | None,
    start: str,
) -> EventTrigger:
    """Raises ConfigError when the declaration cannot work."""
    place = f"on_event {label(fn)!r} of agent {agent!r}"
    if not _TOPIC.fullmatch(topic) or len(topic) > _TOPIC_MAX:
        raise ConfigError("SF1126", f"{place}: {topic[:80]!r} cannot be the name of a topic")
    if start not in ("latest", "earliest"):
        raise ConfigError("SF1126", f'{place}: start is "latest" or "earliest"; got {start!r}')
    for each, name in ((fn, "the function"), (where, "where"), (key, "key")):
        if callable(each):
            _check_function(each, f"{place}: {name}")
    event_type = _event_type(fn, place)
    if isinstance(key, str):
        _check_field(event_type, key, place)
    folder = Path(inspect.getfile(plain_function(fn))).parent
    try:
        schemas, reader = load_schemas(schema, folder)
    except BadSchema as error:
        raise ConfigError("SF1126", f"{place}: {error}") from error
    trigger = EventTrigger(
        topic=topic,
        fn=fn,
        event_type=event_type,
        start=typing.cast("StartPosition", start),
        key=key,
        where=where,
        schemas=schemas,
        reader_schema=reader,
    )
    try:
        _ = trigger.adapter
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigError(
            "SF1126",
            f"{place}: an event cannot be a {_name(event_type)}; use {STORABLE} "
            f"({why_not_storable(error)})",
        ) from error
    check_defined(trigger.adapter, event_type, place)
    if trigger.by_branch is not None and reader is not None:
        for line in trigger.by_branch.mistakable(*parsed(reader)):
            raise ConfigError(
                "SF1167", f"{place}: {line}: call the types as the schema calls its records"
            )
    return trigger


def _arguments(fn: Callable[..., Any]) -> int:
    """How many arguments it is to be given: the event, and where it came from if it asks."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # some builtins do not tell
        return 1
    asked = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in asked if p.default is p.empty]
    if not needed and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 1  # a decorator's, which does not tell
    return len(needed)


def _check_function(fn: Callable[..., Any], what: str) -> None:
    if _arguments(fn) not in (1, _BOTH):
        raise ConfigError("SF1126", f"{what} takes (event) or (event, received){why_hidden(fn)}")


def _event_type(fn: Callable[..., Any], place: str) -> Any:
    first = next(iter(inspect.signature(fn).parameters))
    found = annotation(fn, first, place)
    if found is MISSING:
        raise ConfigError(
            "SF1126",
            f"{place}: annotate {first!r} with the type of the event{why_hidden(fn)}",
        )
    return found


def _check_field(event_type: Any, name: str, place: str) -> None:
    fields: Any = None
    if isinstance(event_type, type) and issubclass(event_type, BaseModel):
        fields = event_type.model_fields
    elif dataclasses.is_dataclass(event_type):
        fields = {each.name for each in dataclasses.fields(event_type)}
    elif hasattr(event_type, "__required_keys__"):  # a TypedDict of whichever module
        fields = event_type.__annotations__
    if fields is not None and name not in fields:
        raise ConfigError(
            "SF1126", f"{place}: {_name(event_type)} has no field {name!r}, which key= names"
        )


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
