"""Retrying: growing delays, and a limit for missing rights, which retrying does not bring."""

from __future__ import annotations

from collections.abc import Iterator

from surefoot.state.errors import NotAllowed
from surefoot.state.ports.clock import Clock

#: longest wait: a partition stands still for as long after the end of an outage
WAIT_MOST_S = 2.0


def backoff(clock: Clock, first_s: float = 0.1, most_s: float = WAIT_MOST_S) -> Iterator[float]:
    """Yield endless waits in seconds: doubling, jittered, capped."""
    next_s = first_s
    while True:
        yield next_s * (0.5 + clock.random() / 2)
        next_s = min(most_s, next_s * 2)


class Denials:
    """Tracks how long a right has been missing.

    A right granted a moment ago takes time to reach every broker; one that was never granted will
    not appear by retrying.
    """

    def __init__(self, clock: Clock, after_s: float) -> None:
        self._clock = clock
        self._after_s = after_s
        self._since_s: float | None = None

    def look(self, error: Exception) -> None:
        """Take note of a failed try.

        Raises: the error itself, once only missing rights were seen for `after_s`.
        """
        if not isinstance(error, NotAllowed):
            self._since_s = None
            return
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= self._after_s:
            raise error
