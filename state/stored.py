"""What of an author's types can be stored, said where they are declared."""

from __future__ import annotations

from typing import Any

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
                f"{where}: {_name(kind)} names a type that is not defined "
                f"({why_not_storable(error)})",
            ) from error
    lost = mixed(kind)
    if lost is not None:
        raise ConfigError(
            "SF1184",
            f"{where}: {lost}; take one of them, or types that can be told apart, such as "
            "dataclasses with a Literal field each",
        )


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
