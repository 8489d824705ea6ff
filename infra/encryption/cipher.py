"""One data key: XAES-256-GCM, that is AES-256-GCM with a key derived for each nonce of 24 bytes.

Random nonces of plain AES-GCM are safe for 2**32 messages, which a busy agent writes in days. Here
the first half of the nonce chooses the derived key. It stays the same for some messages, so that
its derivation costs nothing.

Source: C2SP, XAES-256-GCM; NIST SP 800-108 (derivation), SP 800-38D (GCM)
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from surefoot.state.errors import ConfigError

KEY_BYTES = 32
_HALF = 12
#: messages under one derived key
_MESSAGES = 2**20
#: derived keys that are remembered, one for each recent writer
_DERIVED_MAX = 4096


class Tampered(Exception):
    """A ciphertext that this key did not make for this place, or not as it is now."""


class DataKey:
    """Seals and opens with one key of 32 bytes. Safe to share between threads."""

    def __init__(self, key: bytes) -> None:
        """Raises: ConfigError — the library is not installed."""
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
            from cryptography.hazmat.primitives.ciphers.algorithms import AES  # noqa: PLC0415
            from cryptography.hazmat.primitives.cmac import CMAC  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "SF1090", "encryption needs cryptography: pip install 'surefoot[encryption]'"
            ) from error

        @lru_cache(maxsize=_DERIVED_MAX)
        def derived(half: bytes) -> AESGCM:
            parts = []
            for counter in (b"\x00\x01", b"\x00\x02"):
                mac = CMAC(AES(key))
                mac.update(counter + b"X\x00" + half)
                parts.append(mac.finalize())
            return AESGCM(b"".join(parts))

        self._derived: Any = derived
        self._invalid = InvalidTag
        self._half, self._left = b"", 0

    def seal(self, plain: bytes, place: bytes) -> tuple[bytes, bytes]:
        """Return (nonce, ciphertext with its tag). `place` is bound to it, and not part of it."""
        if self._left <= 0:
            self._half, self._left = os.urandom(_HALF), _MESSAGES
        self._left -= 1
        half, rest = self._half, os.urandom(_HALF)
        return half + rest, self._derived(half).encrypt(rest, plain, place)

    def open(self, nonce: bytes, sealed: bytes, place: bytes) -> bytes:
        """Return the plain bytes. Raises Tampered — also for a nonce of another length."""
        if len(nonce) != 2 * _HALF:
            raise Tampered
        try:
            opened: bytes = self._derived(nonce[:_HALF]).decrypt(nonce[_HALF:], sealed, place)
        except self._invalid:
            raise Tampered from None
        return opened
