"""AWS Glue as a schema registry, through boto3.

A schema's version has a UUID and no number. Glue checks compatibility only when a version is
registered; a check before that is made here, in both directions.
Source: https://docs.aws.amazon.com/glue/latest/dg/schema-registry.html
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

from surefoot.infra.aws.client import Aws, AwsAnswer, AwsRefused
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.catalog import Schema
from surefoot.schemas.codec.compatibility import between
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.errors import NotFound, Refused

#: prefix of a SUREFOOT_REGISTRY_URL that means Glue; the registry's name follows
SCHEME = "glue://"
_AT_ONCE = 4
_MISSING = "EntityNotFoundException"


class GlueRegistry:
    """Like infra.registry.confluent.Registry.

    Lives on one event loop; close it, or use `async with`. Every method raises: NotFound, Refused —
    Glue refuses; Unavailable — no answer, and asking again is safe.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        """Raises: ConfigError — boto3 is not installed, or no region is set."""
        self._name = name
        self._aws = Aws(settings, "glue", at_once=_AT_ONCE)
        self._known: dict[str, Schema] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the clients. Safe to call twice."""
        self._aws.close()

    async def by_id(self, number: int) -> Any:
        raise Refused(
            "no_numbers", f"Glue identifies schemas by UUID, not by a number such as {number}"
        )

    async def by_guid(self, guid: str) -> Any:
        """Return the Avro schema of that version."""
        if guid not in self._known:
            told = await self._ask("get_schema_version", SchemaVersionId=guid)
            self._known[guid] = _schema(told)
        return self._known[guid]

    async def register(self, subject: str, schema: Any) -> str:
        """Register a schema. Returns its version's UUID, also when it was registered before.

        A schema that does not exist yet is created, with Glue's level BACKWARD."""
        definition = json.dumps(schema)
        try:
            told = await self._ask(
                "register_schema_version", SchemaId=self._id(subject), SchemaDefinition=definition
            )
        except NotFound:
            told = await self._ask(
                "create_schema",
                RegistryId={"RegistryName": self._name},
                SchemaName=subject,
                DataFormat="AVRO",
                Compatibility="BACKWARD",
                SchemaDefinition=definition,
            )
        status = told.get("Status") or told.get("SchemaVersionStatus")
        if status == "FAILURE":
            raise Refused(
                "incompatible", f"{subject}: the schema is not compatible with the earlier versions"
            )
        return str(told["SchemaVersionId"])

    async def problems(self, subject: str, schema: Any) -> Sequence[str]:
        """Return why data of the latest version and of this schema is not mutually readable.

        [] if it is, also for a schema that does not exist yet."""
        try:
            told = await self._ask(
                "get_schema_version",
                SchemaId=self._id(subject),
                SchemaVersionNumber={"LatestVersion": True},
            )
        except NotFound:
            return []
        old = f"{subject} in Glue registry {self._name}"
        return between(schema, _schema(told), new="the new schema", old=old)

    def _id(self, subject: str) -> dict[str, str]:
        return {"RegistryName": self._name, "SchemaName": subject}

    async def _ask(self, operation: str, **arguments: Any) -> AwsAnswer:
        try:
            return await self._aws.call(operation, **arguments)
        except AwsRefused as error:
            if error.code == _MISSING:
                raise NotFound("404", str(error)) from None
            raise Refused(error.code or "refused", str(error)) from None


def _schema(told: AwsAnswer) -> Any:
    if told.get("DataFormat", "AVRO") != "AVRO":
        raise Refused("not_avro", f"the schema is {told['DataFormat']}, not Avro")
    try:
        return parse_json(told["SchemaDefinition"].encode())
    except (BadPayload, KeyError):
        raise Refused("not_avro", "Glue's answer contains no Avro schema") from None
