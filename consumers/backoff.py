"""Trying again: delays that grow, and rights that do not come by being asked for."""

from __future__ import annotations

from collections.abc import Iterator

from surefoot.state.errors import NotAllowed
from surefoot.state.ports.clock import Clock


def backoff(clock: Clock, first_s: float = 0.1, most_s: float = 5.0) -> Iterator[float]:
    """Endless waits in seconds: doubling, jittered, capped."""
    next_s = first_s
    while True:
        yield next_s * (0.5 + clock.random() / 2)
        next_s = min(most_s, next_s * 2)


class Denials:
    """How long a right has been missing: one that was granted a moment ago takes its time to reach
    every broker, and one that was not will not come by being asked for."""

    def __init__(self, clock: Clock, after_s: float) -> None:
        self._clock = clock
        self._after_s = after_s
        self._since_s: float | None = None

    def look(self, error: Exception) -> None:
        """Raises the error itself, when nothing but a missing right was seen for `after_s`."""
        if not isinstance(error, NotAllowed):
            self._since_s = None
            return
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= self._after_s:
            raise error
