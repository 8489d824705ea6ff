"""Checks, at declaration, which of an author's types can be stored."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from inspect import get_annotations
from typing import Any, get_args, get_origin

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass, rebuild_dataclass

from surefoot.schemas.payload import STORABLE, why_not_storable
from surefoot.schemas.unions import mixed
from surefoot.state.declare.annotations import resolved
from surefoot.state.errors import ConfigError


def adapter_of(kind: Any, where: str) -> TypeAdapter[Any]:
    """Return the adapter of a type. Raises ConfigError when no value of it can be stored."""
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigError(
            "SF1109",
            f"{where}: {_name(kind)} cannot be stored; use {STORABLE} ({why_not_storable(error)})",
        ) from error


def check_stored(adapter: TypeAdapter[Any], kind: Any, where: str) -> None:
    """Raise ConfigError if a stored value may not be read back as it was. Call it once all types
    are defined."""
    check_defined(adapter, kind, where)
    lost = mixed(kind)
    if lost is not None:
        raise ConfigError(
            "SF1184",
            f"{where}: {lost}; use one of them, or types that can be told apart, such as "
            "dataclasses with a Literal field each",
        )


def check_defined(adapter: TypeAdapter[Any], kind: Any, where: str) -> None:
    """Raise ConfigError if a field, at any depth, has an undefined type. Call it once all types
    are defined."""
    if adapter.pydantic_complete:
        return
    undefined = completed(kind)
    try:
        adapter.rebuild(raise_errors=True)
    except Exception as error:
        raise ConfigError(
            "SF1109",
            f"{where}: {undefined[0] if undefined else _name(kind)} uses an undefined type "
            f"({why_not_storable(error)}); define or import that type at module level, "
            "outside of `if TYPE_CHECKING:`",
        ) from error


def completed(kind: Any) -> list[str]:
    """Resolve the fields of its classes whose types are imported for type checkers only. Returns
    the fields, at any depth, whose type is not defined."""
    return list(_undefined(kind, set()))


def _undefined(kind: Any, seen: set[Any]) -> Iterator[str]:
    for part in get_args(kind):
        yield from _undefined(part, seen)
    kind = get_origin(kind) or kind
    if not isinstance(kind, type) or kind in seen:
        return
    seen.add(kind)
    found: dict[str, Any] = {}
    for owner in kind.__mro__:
        known = getattr(sys.modules.get(owner.__module__), "__dict__", {})
        for field, written in get_annotations(owner).items():
            names = {owner.__name__: owner}
            try:
                part = resolved(written, known, names, owner.__module__)
            except NameError:
                yield f"{owner.__qualname__}.{field}"
            except Exception:  # noqa: BLE001, S112  (wrong in another way)
                continue
            else:
                yield from _undefined(part, seen)
                if len(names) > 1:
                    _complete(owner, field, part)
                    found = {**names, **found}
    if found and issubclass(kind, BaseModel):
        kind.model_rebuild(force=True, raise_errors=False, _types_namespace=found)
    elif found and is_pydantic_dataclass(kind):
        rebuild_dataclass(kind, force=True, raise_errors=False, _types_namespace=found)


def _complete(owner: type, field: str, kind: Any) -> None:
    """Set the type on the class, where everybody looks for it."""
    owner.__annotations__[field] = kind
    if is_dataclass(owner):
        owner.__dataclass_fields__[field].type = kind


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
