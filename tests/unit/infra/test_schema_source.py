"""What a registry says no to is told from what it cannot answer now."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from surefoot.infra.registry.confluent import Registry
from surefoot.infra.registry.schema_source import RegistrySchemas, open_schemas
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import Unavailable
from surefoot.state.ports.sources import SchemaMissing
from tests.support.foreign_clients import GUID, ORDER


def source(status: int, told: Any) -> RegistrySchemas:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json=told)

    return RegistrySchemas(Registry("http://registry", transport=httpx.MockTransport(answer)))


async def test_a_schema_that_is_there_is_given() -> None:
    given = source(200, {"schema": json.dumps(ORDER)})
    assert await given.by_id(7) == ORDER
    assert await given.by_guid(GUID) == ORDER


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, {"schema": "{}", "schemaType": "JSON"}),
        (200, {"schema": "{}", "references": [{"name": "x"}]}),
    ],
)
async def test_what_no_asking_again_would_mend_is_the_events_fault(status: int, told: Any) -> None:
    with pytest.raises(LookupError):
        await source(status, told).by_id(7)


@pytest.mark.parametrize("code", [40401, 40402, 40403])
async def test_a_schema_that_is_not_there_may_be_there_later(code: int) -> None:
    told = {"error_code": code, "message": "not found"}
    with pytest.raises(SchemaMissing, match="not found"):
        await source(404, told).by_id(7)


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
async def test_a_registry_that_is_away_or_refuses_us_is_no_events_fault(status: int) -> None:
    with pytest.raises(Unavailable):
        await source(status, "not the registry's own words").by_guid(GUID)


async def test_without_a_registry_there_is_none() -> None:
    async with open_schemas(load_settings()) as schemas:
        assert schemas is None
    async with open_schemas(load_settings(registry_url="http://127.0.0.1:1")) as schemas:
        assert schemas is not None
        with pytest.raises(Unavailable):
            await schemas.by_id(1)
