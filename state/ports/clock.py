"""Time and randomness."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock, epoch ms UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back, and advance even while the process is stopped."""

    def random(self) -> float:
        """Return a number that is uniform in [0, 1)."""

    def unique(self) -> str:
        """Return a new id: URL-safe, ordered by time to the millisecond."""
