"""The loop that keeps a member in its group: it polls, from start to end.

Also with nothing to do: a member that stops polling is thrown out. While the log is away it is
asked again and again, with backoff, and given up in the end, for the process to be started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import structlog

from surefoot.consumers.backoff import Denials, backoff
from surefoot.state.errors import Unavailable
from surefoot.state.ports.clock import Clock

#: longest wait of one poll, in seconds
POLL_S = 0.2
#: polls that may fail in a row before the loop gives up
POLL_FAILURES_MAX = 60

T = TypeVar("T")


async def poll_on(
    poll: Callable[[float], Awaitable[T]],
    take: Callable[[T], None],
    *,
    clock: Clock,
    alive: Callable[[], bool],
    logger: structlog.stdlib.BoundLogger,
    denied_s: float,
) -> None:
    """Poll and take for as long as `alive` says so; it is asked before each poll.

    Raises: Unavailable — too many polls in a row have failed, or a right is missing for `denied_s`;
    what else `alive`, `poll` or `take` raises.
    """
    failures, denials = 0, Denials(clock, denied_s)
    waits: Iterator[float] = backoff(clock)
    while alive():
        try:
            polled = await poll(POLL_S)
        except Unavailable as error:
            failures += 1
            logger.warning("poll_failed", error=str(error), failures=failures)
            denials.look(error)
            if failures >= POLL_FAILURES_MAX:
                raise
            await asyncio.sleep(next(waits))
            continue
        failures = 0
        take(polled)
