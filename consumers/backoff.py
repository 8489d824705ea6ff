"""Delays between tries that grow."""

from __future__ import annotations

from collections.abc import Iterator

from surefoot.state.ports.clock import Clock


def backoff(clock: Clock, first_s: float = 0.1, most_s: float = 5.0) -> Iterator[float]:
    """Endless waits in seconds: doubling, jittered, capped."""
    next_s = first_s
    while True:
        yield next_s * (0.5 + clock.random() / 2)
        next_s = min(most_s, next_s * 2)
