"""AWS Glue as the schema registry, over HTTP against moto's server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surefoot import ConfigError, NotFound, Refused
from surefoot.cli import app
from surefoot.infra.registry.confluent import open_registry
from surefoot.infra.registry.glue import GlueRegistry
from surefoot.infra.registry.schema_source import open_schemas
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.ports.sources import SchemaMissing
from tests.support.aws import REGION, aws_server, client
from tests.support.foreign_clients import ORDER

MORE = {**ORDER, "fields": [*ORDER["fields"], {"name": "gift", "type": "boolean"}]}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with aws_server() as url:
        client(url, "glue").create_registry(RegistryName="shop")
        yield url


@pytest.fixture
def settings(aws: str) -> Settings:
    return load_settings(aws_endpoint_url=aws, aws_region=REGION, registry_url="glue://shop")


async def test_what_was_registered_is_found_by_its_uuid(settings: Settings) -> None:
    async with open_registry(settings) as registry:
        assert isinstance(registry, GlueRegistry)
        name = f"orders-{uuid.uuid4().hex[:8]}"
        made = await registry.register(name, ORDER)
        assert await registry.register(name, ORDER) == made
        assert await registry.by_guid(made) == ORDER
    async with open_schemas(settings) as schemas:
        assert schemas is not None
        assert await schemas.by_guid(made) == ORDER
        with pytest.raises(LookupError, match="Glue identifies schemas by UUID"):
            await schemas.by_id(7)
        with pytest.raises(SchemaMissing):
            await schemas.by_guid(str(uuid.uuid4()))


async def test_a_schema_that_old_readers_cannot_read_is_told_before_it_is_registered(
    settings: Settings,
) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    async with open_registry(settings) as registry:
        assert await registry.problems(name, MORE) == []
        await registry.register(name, ORDER)
        assert await registry.problems(name, ORDER) == []
        (problem,) = await registry.problems(name, MORE)
        assert "gift" in problem


async def test_what_glue_refuses_says_why(settings: Settings) -> None:
    async with GlueRegistry(settings, "nowhere") as registry:
        with pytest.raises((NotFound, Refused)):
            await registry.register("orders", ORDER)


def test_the_commands_take_it_for_a_registry(
    aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_REGISTRY_URL", "glue://shop")
    monkeypatch.setenv("SUREFOOT_AWS_ENDPOINT_URL", aws)
    monkeypatch.setenv("SUREFOOT_AWS_REGION", REGION)
    name = f"orders-{uuid.uuid4().hex[:8]}"
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    made = CliRunner().invoke(app, ["schemas", "register", str(file), "--subject", name])
    assert made.exit_code == 0, made.output
    assert made.output.startswith(f"{name} ")
    file.write_text(json.dumps(MORE))
    told = CliRunner().invoke(app, ["schemas", "check", str(file), "--registry", "--subject", name])
    assert told.exit_code == 1
    assert "gift" in told.output


def test_without_a_region_it_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="SUREFOOT_AWS_REGION"):
        open_registry(load_settings(registry_url="glue://shop"))
