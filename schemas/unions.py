"""Unions whose members cannot be told apart once they are stored: found when they are declared.

A value is stored as JSON without its type, so `UUID | str` would come back as a str, always, and of
two dataclasses with the same fields the first one would. Found as payloads are kept, by making the
trip: an example of each member is stored as the union and read back. A type of which no example can
be made, or one that has a way of storing of its own, is not judged; whether a value comes back is
seen for each one anyway when it is stored.
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
_SEQUENCES: dict[Any, Any] = {
    list: list, set: set, frozenset: frozenset, deque: deque, tuple: tuple
}  # fmt: skip
#: so many types stand inside of each other at most, where examples are made
_DEPTH_MAX = 6


class Mixed(typing.NamedTuple):
    """A union that loses which of its members a value was."""

    #: the field that it is the type of, if it is
    path: str
    union: str
    #: what an example was before and after, and what was stored of it
    sent: str
    stored: str
    back: str

    def __str__(self) -> str:
        return (
            f"{self.path}{self.union}: the {self.sent} that is stored as {self.stored} would come "
            f"back as {self.back}"
        )


def mixed(kind: Any) -> Mixed | None:
    """The first such union in a type, at whatever depth; None: there is none. Pure."""
    return next(_mixed(kind, "", set()), None)


def _mixed(kind: Any, path: str, seen: set[Any]) -> Iterator[Mixed]:
    with suppress(TypeError):  # what is no key is nothing that contains itself
        if kind in seen:
            return
        seen.add(kind)
    if isinstance(kind, type) and not get_args(kind):
        for name, part in _fields(kind).items():
            yield from _mixed(part, f"{path}{kind.__name__}.{name}: ", seen)
        return
    inner = _bare(kind)
    if get_origin(inner) in (Union, UnionType):
        yield from _lost(kind, inner, path)
    if get_origin(inner) is not Literal:
        for part in get_args(inner):
            yield from _mixed(part, path, seen)
    if inner is not kind and not get_args(inner):
        yield from _mixed(inner, path, seen)


def _lost(kind: Any, union: Any, path: str) -> Iterator[Mixed]:
    """`kind` is the union, and perhaps how to tell its members apart."""
    whole, members = _adapter(kind), get_args(union)
    if whole is None:
        return
    alone = [(member, each) for member in members if (each := _adapter(member)) is not None]
    texts = [
        text
        for member, adapter in alone
        for example in _examples(member)
        if (text := _stored(adapter, example)) is not None
    ]
    for member, adapter in alone:
        for text in texts:  # also what is stored of another member, if it can be one of this
            example = _read(adapter, text)
            stored = None if example is None else _stored(adapter, example[0])
            if example is None or stored is None:
                continue
            back = _read(whole, _stored(whole, example[0]) or stored)
            if back is None or type(back[0]) is not type(example[0]):
                told = "nothing" if back is None else _name(type(back[0]))
                yield Mixed(path, _name(union), _name(member), stored.decode()[:80], told)
                return


def _stored(adapter: TypeAdapter[Any], value: Any) -> bytes | None:
    """None: it does not come back as it was."""
    with suppress(Unserialisable):
        return dump(adapter, value)
    return None


def _read(adapter: TypeAdapter[Any], text: bytes) -> tuple[Any] | None:
    """(the value,); None: it is none of that type."""
    with suppress(BadPayload):
        return (load(adapter, text),)
    return None


def _adapter(kind: Any) -> TypeAdapter[Any] | None:
    with suppress(Exception):  # of many classes: it is told where the type is used
        adapter = TypeAdapter(kind)
        return adapter if adapter.pydantic_complete else None
    return None


# What types are made of -----------------------------------------------------------------------


def _bare(kind: Any) -> Any:
    """Without what is said of it beside what it is."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):  # a NewType
            kind = kind.__supertype__
        elif hasattr(kind, "__value__") and hasattr(kind, "__type_params__"):  # type X = ...
            kind = kind.__value__
        else:
            return kind


def _fields(kind: type) -> dict[str, Any]:
    """Types of the fields of a dataclass, a model, a TypedDict or a NamedTuple. None of a class
    that has a way of storing of its own."""
    if issubclass(kind, BaseModel):
        own = kind.__pydantic_decorators__
        if own.model_serializers or own.field_serializers or own.model_validators:
            return {}
        return {name: _of_field(field) for name, field in kind.model_fields.items()}
    if not is_dataclass(kind) and not hasattr(kind, "__required_keys__") and not _is_named(kind):
        return {}
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  (of the author's: it is told where the type is used)
        return {}


def _of_field(field: Any) -> Any:
    told = list(field.metadata)
    if field.discriminator is not None:
        told.append(Field(discriminator=field.discriminator))
    return Annotated[field.annotation, *told] if told else field.annotation


def _is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _examples(kind: Any, depth: int = 0) -> list[Any]:
    """A few values of the type; none where none can be made."""
    kind = _bare(kind)
    origin, args = get_origin(kind), get_args(kind)
    if depth > _DEPTH_MAX:
        return []
    if origin is Literal:
        return list(args)
    if origin in (Union, UnionType):
        return [each for member in args for each in _examples(member, depth + 1)]
    if kind in _EXAMPLES:
        return _EXAMPLES[kind]
    if origin in _SEQUENCES:
        return _sequences(_SEQUENCES[origin], args, depth)
    if origin is dict:
        keys, values = (_examples(each, depth + 1) for each in args)
        return [{key: value} for key in keys[:1] for value in values[:1]]
    if not isinstance(kind, type):
        return []
    if issubclass(kind, Enum):
        return list(kind)[:1]
    return _objects(kind, depth)


def _sequences(make: Any, args: tuple[Any, ...], depth: int) -> list[Any]:
    if make is tuple and args[-1:] != (...,):
        parts = [_examples(each, depth + 1)[:1] for each in args]
        return [tuple(part[0] for part in parts)] if all(parts) else []
    found = _examples(args[0], depth + 1)
    with suppress(TypeError):  # what a set cannot hold
        return [make(), *(make([each]) for each in found)]
    return []


def _objects(kind: type, depth: int) -> list[Any]:
    """With what they need, and with all that they can have."""
    parts = {name: _examples(part, depth + 1)[:1] for name, part in _fields(kind).items()}
    if not parts:
        return []
    needed = _needed(kind, parts.keys())
    made = []
    for names in (needed, parts.keys()):
        given = {name: parts[name][0] for name in parts if name in names and parts[name]}
        if needed <= given.keys():
            with suppress(Exception):  # a check of the author's
                made.append(kind(**given))
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
