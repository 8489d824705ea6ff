"""Time and chance."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, epoch ms UTC."""

    def monotonic_s(self) -> float:
        """Seconds that only ever go up, also while the process is stopped."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def unique(self) -> str:
        """A new id: URL-safe, ordered by time to the millisecond."""
