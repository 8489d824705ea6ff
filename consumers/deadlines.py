"""How long consumers wait for what sends no notification."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDeadlines:
    """Deadlines of consumers, in seconds."""

    #: a right missing for this long is not about to arrive
    denied_s: float = 60.0
    #: how often a worker that may not take over checks whether it may now
    lease_poll_s: float = 0.5
    #: how long an attempt waits for a given-up one of the same step before it begins beside it
    twin_wait_s: float = 30.0
    #: a batch of events that spends longer than this in the author's functions is reported
    slow_mapping_s: float = 5.0


#: the defaults
DEADLINES = ConsumerDeadlines()
