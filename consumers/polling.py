"""The loop that keeps a member in its group: it polls from start to end.

It polls also with nothing to do, since a group evicts a member that stops polling. While the log is
unavailable it retries with backoff, and finally gives up so that the process is restarted.
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
#: number of polls that may fail in a row before the loop gives up, after some minutes
POLL_FAILURES_MAX = 150

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
    """Poll and take while `alive()` holds; it is called before each poll.

    Raises: Unavailable — too many polls failed in a row, or a right was missing for `denied_s`;
        whatever else `alive`, `poll` or `take` raises.
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
