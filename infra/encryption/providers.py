"""Who wraps data keys: AWS KMS, or Vault's transit engine. Their keys stay with them."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Callable
from typing import Protocol

import httpx

from surefoot.infra.aws.client import Aws, AwsRefused
from surefoot.infra.encryption.cipher import KEY_BYTES
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.errors import ConfigError, Unavailable

#: how long Vault may take to answer, in seconds
_VAULT_S = 30.0
#: of a key in Vault, in the transit engine at its usual path or at another one
_VAULT_NAME = re.compile(r"(?:([A-Za-z0-9._/-]+)/)?([A-Za-z0-9._-]+)")


class KeyProvider(Protocol):
    """Wraps data keys with a key of its own, whose name it is given.

    Each method raises ConfigError — it refuses; Unavailable — it does not answer."""

    async def new(self, key_id: str, name: str) -> str:
        """Return a new data key, wrapped. `key_id` is bound to it."""

    async def unwrap(self, key_id: str, name: str, wrapped: str) -> bytes:
        """Return the data key."""


def provider(by: str, settings: Settings) -> KeyProvider:
    """Return the provider of that name. Raises ConfigError — its library is not installed."""
    return _PROVIDERS[by](settings)


class AwsKms:
    """Implements KeyProvider."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def new(self, key_id: str, name: str) -> str:
        made = await self._call(
            "generate_data_key_without_plaintext",
            key_id,
            KeyId=name,
            KeySpec="AES_256",
        )
        return base64.b64encode(made).decode()

    async def unwrap(self, key_id: str, name: str, wrapped: str) -> bytes:
        blob = _decoded(wrapped, key_id)
        return await self._call("decrypt", key_id, KeyId=name, CiphertextBlob=blob)

    async def _call(self, operation: str, key_id: str, **arguments: object) -> bytes:
        aws = Aws(self._settings, "kms", at_once=1)
        try:
            answer = await aws.call(
                operation, EncryptionContext={"surefoot-key": key_id}, **arguments
            )
        except AwsRefused as error:
            raise ConfigError("SF1091", f"AWS KMS refuses key {key_id}: {error}") from error
        finally:
            aws.close()
        found: bytes = answer["Plaintext" if operation == "decrypt" else "CiphertextBlob"]
        return found


class Vault:
    """Implements KeyProvider with Vault, or OpenBao: the transit engine of VAULT_ADDR, and
    VAULT_TOKEN, VAULT_NAMESPACE and VAULT_CACERT as for their own clients."""

    def __init__(self, settings: Settings) -> None:
        del settings
        self._address = os.environ.get("VAULT_ADDR", "").rstrip("/")
        if not self._address:
            raise ConfigError("SF1091", "keys are wrapped by Vault; set VAULT_ADDR and VAULT_TOKEN")

    async def new(self, key_id: str, name: str) -> str:
        secret = base64.b64encode(os.urandom(KEY_BYTES)).decode()
        return await self._call("encrypt", key_id, name, plaintext=secret)

    async def unwrap(self, key_id: str, name: str, wrapped: str) -> bytes:
        told = await self._call("decrypt", key_id, name, ciphertext=wrapped)
        return _decoded(told, key_id)

    async def _call(self, operation: str, key_id: str, name: str, **body: str) -> str:
        """Return what the operation makes of the only field of its body."""
        match = _VAULT_NAME.fullmatch(name)
        if match is None:
            raise ConfigError("SF1091", f"Vault has no key {name!r}; give KEY, or ENGINE/KEY")
        url = f"{self._address}/v1/{match[1] or 'transit'}/{operation}/{match[2]}"
        place = base64.b64encode(f"surefoot-key {key_id}".encode()).decode()
        headers = {
            header: value
            for header, value in (
                ("X-Vault-Token", os.environ.get("VAULT_TOKEN")),
                ("X-Vault-Namespace", os.environ.get("VAULT_NAMESPACE")),
            )
            if value
        }
        try:
            async with httpx.AsyncClient(timeout=_VAULT_S, verify=_authorities()) as client:
                answer = await client.post(
                    url, json={"associated_data": place, **body}, headers=headers
                )
            told = parse_json(answer.content)
        except (httpx.HTTPError, BadPayload) as error:
            raise Unavailable("SF1093", f"Vault at {self._address}: {error!r}") from error
        match answer.status_code, told:
            case 200, {"data": {"ciphertext": str(found)} | {"plaintext": str(found)}}:
                return found
            case status, _ if status >= 500 or status == 429:  # noqa: PLR2004
                raise Unavailable("SF1093", f"Vault at {self._address} answers {status}")
            case status, _:
                why = f"Vault refuses key {key_id}: {status} {str(told)[:300]}"
                raise ConfigError("SF1091", why)


def _decoded(text: str, key_id: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError("SF1090", f"key {key_id} is not wrapped by its provider") from None


def _authorities() -> ssl.SSLContext | bool:
    file = os.environ.get("VAULT_CACERT")
    try:
        return ssl.create_default_context(cafile=file) if file else True
    except OSError as error:
        raise ConfigError("SF1091", f"VAULT_CACERT cannot be used: {error}") from error


_PROVIDERS: dict[str, Callable[[Settings], KeyProvider]] = {"aws-kms": AwsKms, "vault": Vault}
#: their names
WRAPPING = tuple(_PROVIDERS)
