"""The schema registry, as triggers use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from surefoot.infra.registry.confluent import Registry, open_registry
from surefoot.infra.registry.glue import GlueRegistry
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import Refused, Unavailable
from surefoot.state.ports.sources import SchemaMissing, SchemaSource

#: codes that no retry would change
_FOR_GOOD = ("no_numbers", "not_avro", "references")
#: prefix of the registry's own codes for what it lacks; "http_404" is a wrong address
_MISSING = "404"


@asynccontextmanager
async def open_schemas(settings: Settings) -> AsyncIterator[SchemaSource | None]:
    """Open the registry that the settings name; None: they name none."""
    if settings.registry_url is None:
        yield None
        return
    async with open_registry(settings) as registry:
        yield RegistrySchemas(registry)


class RegistrySchemas:
    """Implements SchemaSource."""

    def __init__(self, registry: Registry | GlueRegistry) -> None:
        self._registry = registry

    async def by_id(self, id: int, /) -> Any:  # noqa: A002
        return await _told(self._registry.by_id(id))

    async def by_guid(self, guid: str, /) -> Any:
        return await _told(self._registry.by_guid(guid))


async def _told(asked: Awaitable[Any]) -> Any:
    try:
        return await asked
    except Refused as error:
        if error.code.startswith(_MISSING):
            raise SchemaMissing(str(error)) from None
        if error.code in _FOR_GOOD:
            raise LookupError(str(error)) from None
        raise Unavailable("SF3012", str(error)) from None  # e.g. a password: no event is at fault
