"""Finds, at declaration, unions whose members cannot be told apart once they are stored.

A value is stored as JSON without its type: `UUID | str` would always be read back as a str, and of
two dataclasses with equal fields always the first. The check is a round trip, as for payloads: an
example of each member is stored as the union and read back. A type without examples, or with its
own serialization, is not judged here; every value is checked anyway when it is stored.
"""

from __future__ import annotations

import typing
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, Field, TypeAdapter

from surefoot.schemas.payload import BadPayload, Unserialisable, dump, load

__all__ = ["Mixed", "mixed"]

_EXAMPLES: dict[Any, list[Any]] = {
    NoneType: [None],
    bool: [True],
    bytes: [b"a"],
    date: [date(2026, 1, 2)],
    datetime: [datetime(2026, 1, 2, tzinfo=UTC)],
    Decimal: [Decimal("1.5"), Decimal(1)],
    dict: [{"a": 1}],
    float: [1.5, 1.0],
    int: [1],
    list: [[]],
    set: [set()],
    str: ["a", "1"],
    time: [time(1, 2)],
    timedelta: [timedelta(1)],
    tuple: [()],
    UUID: [UUID(int=1)],
}
#: longest repr of an example, in characters: nested types grow fast
_LONG_MOST = 4_000
_SEQUENCES = (list, set, frozenset, deque, tuple)


class Mixed(typing.NamedTuple):
    """A union that loses which of its members a value was."""

    #: the field whose type it is, if any
    path: str
    union: str
    #: the example's type before and after, and what was stored of it
    sent: str
    stored: str
    back: str

    def __str__(self) -> str:
        return (
            f"{self.path}{self.union}: the {self.sent} that is stored as {self.stored} would come "
            f"back as {self.back}"
        )


def mixed(kind: Any) -> Mixed | None:
    """Return the first such union in a type, at any depth; None if there is none. Pure."""
    return next(_mixed(kind, "", set(), _Examples()), None)


def _mixed(kind: Any, path: str, seen: set[Any], examples: _Examples) -> Iterator[Mixed]:
    with suppress(TypeError):  # an unhashable type cannot contain itself
        if kind in seen:
            return
        seen.add(kind)
    for name, part in _fields(kind).items():
        yield from _mixed(part, f"{path}{_class(kind).__name__}.{name}: ", seen, examples)
    if isinstance(kind, type) and not get_args(kind):
        return
    inner = _bare(kind)
    if get_origin(inner) in (Union, UnionType):
        yield from _lost(kind, inner, path, examples)
    if get_origin(inner) is not Literal:
        for part in get_args(inner):
            yield from _mixed(part, path, seen, examples)
    if inner is not kind and not get_args(inner):
        yield from _mixed(inner, path, seen, examples)


def _lost(kind: Any, union: Any, path: str, examples: _Examples) -> Iterator[Mixed]:
    """Check one union; `kind` is the union, possibly with a discriminator."""
    whole, members = _adapter(kind), get_args(union)
    if whole is None:
        return
    alone = [(member, each) for member in members if (each := _adapter(member)) is not None]
    texts = [
        text
        for member, adapter in alone
        for example in examples.of(member)
        if (text := _stored(adapter, example)) is not None
    ]
    for member, adapter in alone:
        for text in texts:  # also those of other members, if they can be read as this one
            example = _read(adapter, text)
            stored = None if example is None else _stored(adapter, example[0])
            if example is None or stored is None:
                continue
            kept = _stored(whole, example[0])
            back = _read(whole, kept or stored)
            if back is None or kept is None or type(back[0]) is not type(example[0]):
                told = "nothing" if back is None else _told(example[0], back[0])
                yield Mixed(path, _name(union), _name(member), stored.decode()[:80], told)
                return


def _told(sent: Any, back: Any) -> str:
    """Describe what was read back: its type, or, if that is the same, its repr."""
    return _name(type(back)) if type(sent) is not type(back) else repr(back)[:80]


def _stored(adapter: TypeAdapter[Any], value: Any) -> bytes | None:
    """Return what is stored of a value; None: it is not read back as it was."""
    with suppress(Unserialisable):
        return dump(adapter, value)
    return None


def _read(adapter: TypeAdapter[Any], text: bytes) -> tuple[Any] | None:
    """Return (the value,); None: the text is not of that type."""
    with suppress(BadPayload):
        return (load(adapter, text),)
    return None


def _adapter(kind: Any) -> TypeAdapter[Any] | None:
    with suppress(Exception):  # any class; the error is reported where the type is used
        adapter = TypeAdapter(kind)
        return adapter if adapter.pydantic_complete else None
    return None


# What types are made of -----------------------------------------------------------------------


def _bare(kind: Any) -> Any:
    """Return the type without its annotations and aliases."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):  # a NewType
            kind = kind.__supertype__
        elif hasattr(kind, "__value__") and hasattr(kind, "__type_params__"):  # type X = ...
            kind = kind.__value__
        else:
            return kind


def _class(kind: Any) -> Any:
    """Return the class without its parameters."""
    return get_origin(kind) or kind


def _fields(kind: Any) -> dict[str, Any]:
    """Return the field types of a dataclass, a model, a TypedDict or a NamedTuple, also with
    parameters. Empty for a class with its own serialization."""
    made = _class(kind)
    if not isinstance(made, type):
        return {}
    if issubclass(made, BaseModel):
        own = made.__pydantic_decorators__
        if own.model_serializers or own.field_serializers or own.model_validators:
            return {}
        return {name: _of_field(field) for name, field in made.model_fields.items()}
    if not is_dataclass(made) and not hasattr(made, "__required_keys__") and not _is_named(made):
        return {}
    try:
        hints = typing.get_type_hints(made, include_extras=True)
    except Exception:  # noqa: BLE001  (the author's; reported where the type is used)
        return {}
    given = dict(zip(getattr(made, "__parameters__", ()), get_args(kind), strict=False))
    return {name: _filled(part, given) for name, part in hints.items()}


def _filled(part: Any, given: dict[Any, Any]) -> Any:
    """Return the type of a field with the parameters of its class filled in."""
    if isinstance(part, typing.TypeVar):
        return given.get(part, part)
    wanted = getattr(part, "__parameters__", ())
    if isinstance(part, type) or not any(each in given for each in wanted):
        return part
    return part[tuple(given.get(each, each) for each in wanted)]


def _of_field(field: Any) -> Any:
    told = list(field.metadata)
    if field.discriminator is not None:
        told.append(Field(discriminator=field.discriminator))
    return Annotated[field.annotation, *told] if told else field.annotation


def _is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


class _Examples:
    """A few values of each type; none where none can be made. Each type is visited once; inside
    itself it has no examples."""

    def __init__(self) -> None:
        self._made: dict[Any, list[Any]] = {}

    def of(self, kind: Any) -> list[Any]:
        kind = _bare(kind)
        try:
            if kind in self._made:
                return self._made[kind]
            self._made[kind] = []
        except TypeError:  # unhashable
            return []
        self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Any) -> list[Any]:
        origin, args = get_origin(kind), get_args(kind)
        if origin is Literal:
            return list(args)
        if origin in (Union, UnionType):
            return [each for member in args for each in self.of(member)]
        if kind in _EXAMPLES:
            return _EXAMPLES[kind]
        if origin is tuple and args[-1:] != (...,):
            parts = [self.of(each) for each in args]
            return [tuple(part[n] for part in parts) for n in (0, -1)] if all(parts) else []
        if origin in _SEQUENCES:
            with suppress(TypeError):  # unhashable, so not in a set
                return [origin(), *(origin([each]) for each in self.of(args[0]))]
        if origin is dict:
            keys, values = self.of(args[0]), self.of(args[1])
            return [{keys[n]: values[n]} for n in (0, -1)] if keys and values else []
        if isinstance(kind, type) and not args and issubclass(kind, Enum):
            return list(kind)[:1]
        return self._objects(kind)

    def _objects(self, kind: Any) -> list[Any]:
        """Make objects with only the required fields, and with all fields."""
        parts = {name: self.of(part) for name, part in _fields(kind).items()}
        if not parts:
            return []
        kind = _class(kind)
        needed = _needed(kind, parts.keys())
        made = []
        for names, n in ((needed, 0), (parts.keys(), 0), (parts.keys(), -1)):
            given = {name: parts[name][n] for name in parts if name in names and parts[name]}
            if needed <= given.keys():
                with suppress(Exception):  # one of the author's checks
                    example = kind(**given)
                    if len(repr(example)) <= _LONG_MOST:
                        made.append(example)
        return made


def _needed(kind: Any, names: Iterable[str]) -> set[str]:
    if issubclass(kind, BaseModel):
        return {name for name, field in kind.model_fields.items() if field.is_required()}
    if is_dataclass(kind):
        return {
            each.name
            for each in fields(kind)
            if each.init and each.default is MISSING and each.default_factory is MISSING
        }
    if hasattr(kind, "__required_keys__"):
        return set(kind.__required_keys__)
    return set(names) - set(kind._field_defaults)


def _name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return text.replace("typing.", "")
