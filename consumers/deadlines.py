"""How long consumers wait for what nobody tells them of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDeadlines:
    """In seconds."""

    #: a right that has been missing for so long is not on its way
    denied_s: float = 60.0
    #: how often a worker that may not take over looks whether it may now
    lease_poll_s: float = 0.5
    #: an attempt waits so long for one of the same step that was given up, then begins beside it
    twin_wait_s: float = 30.0
    #: a batch of events that takes longer than this in the author's functions is told of
    slow_mapping_s: float = 5.0


#: what holds where nothing else is said
DEADLINES = ConsumerDeadlines()
