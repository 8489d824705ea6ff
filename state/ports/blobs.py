"""A store for payloads that are too large for the log."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
)
from typing import Protocol

from surefoot.schemas.pointer import Pointer


class Blobs(Protocol):
    """Stores payloads that are too large for the log."""

    @property
    def name(self) -> str:
        """Where the blobs are, for a person."""

    async def put(self, pointer: Pointer, content: bytes) -> None:
        """Store content. Returns once it is durable. Idempotent.

        Raises: Unavailable - it may or may not have been stored; StoreRefused, a subclass
        """

    async def get(self, pointer: Pointer) -> bytes | None:
        """Return what is stored there, unchecked; None: nothing. Raises as put."""

    def keys(self) -> AsyncIterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every blob. Raises Unavailable."""

    async def delete(self, key: str) -> None:
        """Delete a blob. Returns once it is gone, even if it never existed. Raises Unavailable."""
