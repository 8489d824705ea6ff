"""A store of large payloads that keeps them encrypted."""

from __future__ import annotations

from collections.abc import AsyncIterator

from surefoot.consumers.attempts.threads import in_thread
from surefoot.infra.encryption.cipher import Tampered
from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.encryption.keyring import load_keyring
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.payload_fields import is_sealed
from surefoot.schemas.pointer import Pointer
from surefoot.state.errors import ConfigError, KeyMissing, StoreRefused
from surefoot.state.ports.blobs import Blobs

_PART = b"blob"


class EncryptedBlobs:
    """Implements ports.Blobs on another store. What was stored before encryption stays readable."""

    def __init__(self, inner: Blobs, settings: Settings) -> None:
        self.name = inner.name
        self._inner = inner
        self._settings = settings
        self._loaded: Envelope | None = None

    async def put(self, pointer: Pointer, content: bytes) -> None:
        envelope = await self._envelope()
        if envelope.seals:
            content = await in_thread(
                envelope.seal_bytes, content, b"", self._settings.app, pointer.key.encode(), _PART
            )
        await self._inner.put(pointer, content)

    async def get(self, pointer: Pointer) -> bytes | None:
        """Return the content; as it is stored, if it was changed or belongs to another pointer.

        Raises: StoreRefused — also without its key."""
        content = await self._inner.get(pointer)
        if not is_sealed(content):
            return content
        envelope = await self._envelope()
        try:
            opened: bytes = await in_thread(
                envelope.open_bytes, content, self._settings.app, pointer.key.encode(), _PART
            )
        except KeyMissing as error:
            raise StoreRefused(error.number, error.message) from error
        except Tampered:
            return content
        return opened

    def keys(self) -> AsyncIterator[tuple[str, int]]:
        return self._inner.keys()

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def _envelope(self) -> Envelope:
        """Load the keys at the first use. Raises StoreRefused — they cannot be used."""
        if self._loaded is None:
            try:
                keys = await load_keyring(self._settings)
            except ConfigError as error:
                raise StoreRefused(error.number, error.message) from error
            self._loaded = Envelope(self._settings.app, keys)
        return self._loaded
