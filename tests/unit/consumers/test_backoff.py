"""Waits between tries."""

from __future__ import annotations

from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

from surefoot.consumers.backoff import backoff


def waits(random: float) -> list[float]:
    clock: Any = SimpleNamespace(random=lambda: random)
    return list(islice(backoff(clock), 100))


def test_after_a_long_outage_the_next_try_is_two_seconds_away_at_the_most() -> None:
    assert max(waits(1.0)) == 2.0


def test_waits_grow_and_differ_between_those_who_wait() -> None:
    assert all(later >= earlier for earlier, later in pairwise(waits(0.0)))
    assert waits(0.0)[0] == 0.05
    assert waits(1.0)[0] == 0.1
