"""A store of what is too large for the log."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
)
from typing import Protocol

from surefoot.schemas.pointer import Pointer


class Blobs(Protocol):
    """Keeps what is too large for the log."""

    @property
    def name(self) -> str:
        """For a person: where it is kept."""

    async def put(self, pointer: Pointer, content: bytes) -> None:
        """Return once it will not be lost. Storing it again changes nothing.

        Raises: Unavailable — it may or may not have been stored; StoreRefused, which is one.
        """

    async def get(self, pointer: Pointer) -> bytes | None:
        """What is stored there, whatever it is; None: nothing. Raises as put."""

    def keys(self) -> AsyncIterator[tuple[str, int]]:
        """(key, size in bytes) of everything that is stored. Raises Unavailable."""

    async def delete(self, key: str) -> None:
        """Return once it is gone, or was not there. Raises Unavailable."""
