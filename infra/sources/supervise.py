"""Runs sources side by side, and restarts those that end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from surefoot.consumers.backoff import backoff
from surefoot.state.errors import ConfigError, NotAllowed
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: longest wait before a source that keeps failing is restarted, in seconds
SOURCE_WAIT_MOST_S = 30.0
#: a source that ran for this long counts as healthy, in seconds
SOURCE_HEALTHY_S = 60.0


class RunningSource(Protocol):
    """An external system whose events start runs: a topic, a queue, a folder."""

    @property
    def name(self) -> str:
        """For people; in every log line about it."""

    async def run(self) -> None:
        """Run until cancelled; then finish what has begun, and close.

        Any error it raises leads to a restart, except ConfigError and NotAllowed, which end the
        process."""


async def run_sources(sources: Sequence[RunningSource], stop: asyncio.Event, clock: Clock) -> None:
    """Run all of them until `stop` is set. A failing one does not disturb the others.

    Raises: ConfigError, NotAllowed — one of them cannot work, or is not allowed to; the others have
    been ended.
    """
    running = {asyncio.create_task(_keep(source, clock)) for source in sources}
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        for task in running:
            task.cancel()
        await asyncio.wait({stopping, *running})
    for task in running:
        if not task.cancelled():
            task.result()


async def _keep(source: RunningSource, clock: Clock) -> None:
    waits = backoff(clock, most_s=SOURCE_WAIT_MOST_S)
    while True:
        began_s = clock.monotonic_s()
        log.info("source_starts", source=source.name)
        try:
            await source.run()
            log.error("source_ended", source=source.name)
        except (ConfigError, NotAllowed):
            raise
        except Exception:
            log.exception("source_failed", source=source.name)
        except asyncio.CancelledError:
            log.info("source_stopped", source=source.name)
            raise
        if clock.monotonic_s() - began_s >= SOURCE_HEALTHY_S:
            waits = backoff(clock, most_s=SOURCE_WAIT_MOST_S)
        wait_s = next(waits)
        log.info("source_waits", source=source.name, wait_s=round(wait_s, 1))
        await asyncio.sleep(wait_s)
