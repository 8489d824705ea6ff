"""Who wraps data keys: AWS KMS. The provider's own key never leaves it."""

from __future__ import annotations

import base64
import binascii
from typing import Protocol

from surefoot.infra.aws.client import Aws, AwsRefused
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError


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
        try:
            blob = base64.b64decode(wrapped, validate=True)
        except binascii.Error:
            raise ConfigError("SF1090", f"key {key_id} is not wrapped as KMS does it") from None
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


_PROVIDERS = {"aws-kms": AwsKms}
#: their names
WRAPPING = tuple(_PROVIDERS)
