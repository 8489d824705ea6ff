"""The schema registry, as triggers ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from surefoot.infra.glue import GlueRegistry
from surefoot.infra.registry import Registry, open_registry
from surefoot.infra.settings import Settings
from surefoot.state.errors import NotFound, Refused, Unavailable
from surefoot.state.source_ports import SchemaSource

#: what no asking again would mend; "404.." are the registry's own codes, "http_404" a wrong address
_FOR_GOOD = ("404", "not_avro", "references")


@asynccontextmanager
async def open_schemas(settings: Settings) -> AsyncIterator[SchemaSource | None]:
    """The registry that the settings name; None: they name none."""
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
    except (NotFound, Refused) as error:
        if error.code.startswith(_FOR_GOOD):
            raise LookupError(str(error)) from None
        raise Unavailable("SF3012", str(error)) from None  # a password, say: no event is at fault
