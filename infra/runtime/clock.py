"""The wall clock, the monotonic clock and randomness: the only module that reads them."""

from __future__ import annotations

import os
import random
import time


class SystemClock:
    """Implements ports.Clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return random.random()  # noqa: S311  (jitter)

    def unique(self) -> str:
        """Return a UUIDv7 in hex (RFC 9562, section 5.7)."""
        value = (self.now_ms() << 80) | int.from_bytes(os.urandom(10))
        value = (value & ~(0xF << 76)) | (0x7 << 76)
        value = (value & ~(0x3 << 62)) | (0x2 << 62)
        return f"{value:032x}"
