"""Declarations of events that start runs: records of any Kafka topic.

Every mistake in a declaration is an error here, at import. This module also decides what a trigger
makes of one event, once a decoder has turned its bytes into a value.
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
from surefoot.schemas.foreign.event_avro import (
    BadSchema,
    SchemaFile,
    load_schemas,
    parse_event_schema,
)
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
#: leaves room for partition and offset in a run_id
_TOPIC_MAX = 220
#: number of arguments of an author's function that also takes `received`
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
    #: the author's Avro schemas by fingerprint, and the one that events are read with
    schemas: Mapping[bytes, Any] = field(default_factory=dict)
    reader_schema: Any | None = None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.event_type)

    @cached_property
    def takes_null(self) -> bool:
        """Whether the function gets None for a tombstone, or for an event without data."""
        try:
            return validate(self.adapter, None) is None
        except BadPayload:
            return False

    @cached_property
    def by_branch(self) -> ByBranch | None:
        """What validates an Avro event if the type has unions of records; None otherwise."""
        made = ByBranch(self.adapter)
        return made if made.unions else None

    def of_json(self, text: bytes) -> Any:
        """Return the event in a JSON text. Raises Unusable."""
        try:
            parse_json(text)  # strict: refuses what pydantic would accept
            return load(self.adapter, text.removeprefix(b"\xef\xbb\xbf"))
        except BadPayload as error:
            raise self._not_of_its_type(error) from None

    def of_value(self, value: Any) -> Any:
        """Return the event of a decoder's value. Raises Unusable."""
        try:
            return validate(self.by_branch or self.adapter, value)
        except BadPayload as error:
            raise self._not_of_its_type(error) from None

    def _not_of_its_type(self, error: BadPayload) -> Unusable:
        return Unusable(
            "undecodable", f"the event is not of type {_name(self.event_type)}: {error}"
        )

    def begin(self, event: Any, received: Received) -> EventStart | None:
        """Ask the author's functions which run to start; None: no run. Raises Unusable."""
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
            raise Unusable(
                "bad_run_id",
                f"{told} must return text, an integer or a UUID; got {_name(type(made))}",
            )
        return str(made)

    @cached_property
    def _asked(self) -> Mapping[str, Callable[[Any, Received], Any]]:
        """The author's functions, all with the same signature."""
        key = _field(self.key) if isinstance(self.key, str) else self.key
        return {
            "fn": _asking(self.fn, label(self.fn)),
            "where": _asking(self.where or _always, "where"),
            "key": _asking(key or _always, "key"),
        }


def default_run_id(received: Received) -> str:
    """Return a run_id made of the event's place: the same each time it is read."""
    topic = received.topic if received.topic[0].isalnum() else f"t={received.topic}"
    return f"{topic}-{received.partition}-{received.offset}"


def begin_at(
    standing: SourceOffsets, start: StartPosition, *, refused: bool
) -> tuple[int, LostEvents | None]:
    """Return the offset to continue at, and what was lost. Pure.

    A partition without a committed offset was added after the trigger began, so everything in it
    is new.

    Args: refused: the broker said that the committed offset is out of range. Until it does, an end
          below the committed offset proves nothing: a new leader may not know the log's end yet
          (KIP-207)
    """
    committed, first, end = standing
    if committed is None:
        return first, None
    if first <= committed <= end or (committed > end and not refused):
        return committed, None
    if committed < first:
        told = f"retention has deleted {first - committed} offsets before they were read"
        return first, LostEvents(committed, first, f"{told}: {committed} to {first - 1}")
    position = first if start == "earliest" else end
    told = (
        f"the topic ends at {end}, before the committed offset {committed}: it was truncated or "
        "created again"
    )
    return position, LostEvents(
        end, committed, f"{told}; continuing at {position} (start={start!r})"
    )


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
    """Check an event trigger's declaration. Raises ConfigError when it cannot work."""
    place = f"on_event {label(fn)!r} of agent {agent!r}"
    if not _TOPIC.fullmatch(topic) or len(topic) > _TOPIC_MAX:
        raise ConfigError("SF1126", f"{place}: {topic[:80]!r} is not a valid topic name")
    if start not in ("latest", "earliest"):
        raise ConfigError("SF1126", f'{place}: start must be "latest" or "earliest"; got {start!r}')
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
        for line in trigger.by_branch.mistakable(*parse_event_schema(reader)):
            raise ConfigError(
                "SF1167", f"{place}: {line}; name each type as the schema names its record"
            )
    return trigger


def _arguments(fn: Callable[..., Any]) -> int:
    """Return how many arguments to pass: the event, and `received` if the function takes it."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # some builtins have no signature
        return 1
    asked = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in asked if p.default is p.empty]
    if not needed and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 1  # a decorator's (*args), which hides the number
    return len(needed)


def _check_function(fn: Callable[..., Any], what: str) -> None:
    if _arguments(fn) not in (1, _BOTH):
        raise ConfigError(
            "SF1126", f"{what} must take (event) or (event, received){why_hidden(fn)}"
        )


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
    elif hasattr(event_type, "__required_keys__"):  # a TypedDict, from typing or elsewhere
        fields = event_type.__annotations__
    if fields is not None and name not in fields:
        raise ConfigError("SF1126", f"{place}: key={name!r} is not a field of {_name(event_type)}")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
