"""A Confluent-compatible schema registry, over HTTP.

An id's schema never changes, so it is fetched once. Works with the API of Confluent's own server,
Apicurio (`/apis/ccompat/v7`), Karapace and Redpanda.
Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from surefoot.infra.registry.glue import SCHEME, GlueRegistry
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.catalog import Schema
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.errors import ConfigError, NotFound, Refused, Unavailable

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
#: statuses of a registry that is reachable but cannot answer now
_AWAY = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a subject's schema."""

    id: int
    version: int
    schema: Any


class Registry:
    """Client with kept, shared connections. Lives on one event loop; close it, or use `async with`.

    Every method raises: NotFound, Refused — the registry refuses, with its own `code`; Unavailable
    — no answer, and asking again is safe.

    Args:    url: with the path of the API, if it has one; username and password, or token: its
    credentials; timeout_s: per request
    Raises:  ConfigError — not an http or https address, a password inside of it, or both kinds of
    credentials
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: SecretStr | None = None,
        token: SecretStr | None = None,
        timeout_s: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = _base(url)
        if token is not None and username is not None:
            raise ConfigError(
                "SF1025", "give the registry a token, or username and password, not both"
            )
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=self.url,
            auth=(username, password.get_secret_value() if password else "") if username else None,
            headers=headers,
            follow_redirects=False,
            timeout=timeout_s,
            transport=transport,
        )
        self._known: dict[str, Schema] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self._client.aclose()

    async def by_id(self, number: int) -> Any:
        """Return the Avro schema with that id: mostly a dict; a name for a primitive type."""
        return await self._immutable(f"/schemas/ids/{number}")

    async def by_guid(self, guid: str) -> Any:
        """Return the Avro schema with that globally unique id (Confluent's server: from 8.0 on)."""
        return await self._immutable(f"/schemas/guids/{_part(guid)}")

    async def latest(self, subject: str) -> Registered:
        told = await self._ask("GET", f"/subjects/{_part(subject)}/versions/latest")
        return Registered(told["id"], told["version"], _schema(told))

    async def register(self, subject: str, schema: Any) -> int:
        """Register a schema. Returns its id, also when it was registered before."""
        body = {"schema": json.dumps(schema)}
        told = await self._ask("POST", f"/subjects/{_part(subject)}/versions", body)
        return int(told["id"])

    async def problems(self, subject: str, schema: Any) -> Sequence[str]:
        """Return why the subject's compatibility level rejects the schema as its next version.

        [] if it is allowed, also for a subject that does not exist yet."""
        path = f"/compatibility/subjects/{_part(subject)}/versions/latest"
        try:
            told = await self._ask(
                "POST", path, {"schema": json.dumps(schema)}, params={"verbose": "true"}
            )
        except NotFound:
            return []
        if told["is_compatible"]:
            return []
        said = told.get("messages") or [told.get("reason") or "the schema is not compatible"]
        return [str(each) for each in said]

    async def _immutable(self, path: str) -> Any:
        if path not in self._known:
            self._known[path] = _schema(await self._ask("GET", path))
        return self._known[path]

    async def _ask(
        self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": _MEDIA_TYPE}
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.request(
                    method, path, content=content, headers=headers, params=params
                )
        except (TimeoutError, httpx.TransportError) as error:
            raise Unavailable(
                "SF3012", f"the schema registry {self.url} did not answer: {error!r}"
            ) from None
        return self._told(response)

    def _told(self, response: httpx.Response) -> Any:
        status = response.status_code
        try:
            told = parse_json(response.content)
        except BadPayload:
            told = None
        if response.is_success and isinstance(told, dict):
            return told
        said = told if isinstance(told, dict) else {}
        message = f"the schema registry {self.url} says {said.get('message', f'HTTP {status}')}"
        if status in _AWAY:
            raise Unavailable("SF3012", message)
        code = str(said.get("error_code", f"http_{status}"))
        error = NotFound if status == HTTPStatus.NOT_FOUND else Refused
        raise error(code, message)


def open_registry(settings: Settings) -> Registry | GlueRegistry:
    """Open the registry that the settings name. Raises ConfigError — they name none."""
    if settings.registry_url is None:
        raise ConfigError(
            "SF1025",
            "no schema registry is set; set SUREFOOT_REGISTRY_URL=http://host:8081, or "
            "glue://REGISTRY",
        )
    if settings.registry_url.startswith(SCHEME):
        return GlueRegistry(settings, settings.registry_url.removeprefix(SCHEME))
    return Registry(
        settings.registry_url,
        username=settings.registry_username,
        password=settings.registry_password,
        token=settings.registry_token,
        timeout_s=settings.deadlines.registry_s,
    )


def _schema(told: Mapping[str, Any]) -> Any:
    if (kind := told.get("schemaType", "AVRO")) != "AVRO":
        raise Refused("not_avro", f"the schema is {kind}, not Avro")
    if told.get("references"):
        raise Refused("references", "the schema references others; register it with those inlined")
    try:
        return parse_json(told["schema"].encode())
    except (BadPayload, KeyError, AttributeError):
        raise Refused("not_avro", "the registry's answer contains no Avro schema") from None


def _base(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.userinfo:
        raise ConfigError("SF1025", "the registry's address contains a password; set it separately")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(
            "SF1025", f"a schema registry's address must look like http://host:8081; got {url!r}"
        )
    return str(parsed).rstrip("/")


def _part(text: str) -> str:
    return quote(text, safe="")
