"""What of an author's types can be stored, said where they are declared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import get_annotations
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from surefoot.schemas.payload import STORABLE, why_not_storable
from surefoot.schemas.unions import mixed
from surefoot.state.errors import ConfigError


def adapter_of(kind: Any, where: str) -> TypeAdapter[Any]:
    """Raises ConfigError when nothing of that type can be stored."""
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigError(
            "SF1109",
            f"{where}: {_name(kind)} cannot be stored; use {STORABLE} ({why_not_storable(error)})",
        ) from error


def check_stored(adapter: TypeAdapter[Any], kind: Any, where: str) -> None:
    """Raises ConfigError when not all of it would come back. Call it when all types are defined."""
    if not adapter.pydantic_complete:
        try:
            adapter.rebuild(raise_errors=True)
        except Exception as error:
            raise ConfigError(
                "SF1109",
                f"{where}: {next(_undefined(kind, set()), _name(kind))} names a type that is not "
                f"defined ({why_not_storable(error)}); define or import that type at module level, "
                "outside of `if TYPE_CHECKING:`",
            ) from error
    lost = mixed(kind)
    if lost is not None:
        raise ConfigError(
            "SF1184",
            f"{where}: {lost}; take one of them, or types that can be told apart, such as "
            "dataclasses with a Literal field each",
        )


def _undefined(kind: Any, seen: set[Any]) -> Iterator[str]:
    """The fields, at whatever depth, whose annotations name what is not defined."""
    for part in get_args(kind):
        yield from _undefined(part, seen)
    if not isinstance(kind, type) or kind in seen:
        return
    seen.add(kind)
    for owner in kind.__mro__:
        names = vars(sys.modules[owner.__module__])
        for field, written in get_annotations(owner).items():
            alone: Any = SimpleNamespace(__annotations__={field: written})
            try:
                found = get_type_hints(alone, names, {owner.__name__: owner}, include_extras=True)
            except NameError:
                yield f"{owner.__qualname__}.{field}"
            except Exception:  # noqa: BLE001, S112  (something else is wrong with it)
                continue
            else:
                yield from _undefined(found[field], seen)


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
