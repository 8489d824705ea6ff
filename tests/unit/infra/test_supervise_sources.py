"""Sources run side by side: one that fails is run again, and disturbs no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.sources.supervise import run_sources
from surefoot.state.errors import ConfigError, NotAllowed
from tests.support.eventually import until


class Fake:
    def __init__(self, name: str, then: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self.begun = 0
        self.closed = 0
        self._then = then

    async def run(self) -> None:
        self.begun += 1
        try:
            await self._then()
        finally:
            self.closed += 1


async def fail() -> None:
    raise ValueError("broken")


async def end() -> None: ...


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_source_that_fails_or_ends_is_run_again_and_the_others_go_on() -> None:
    broken, ending, good = Fake("broken", fail), Fake("ending", end), Fake("good", forever)
    stop = asyncio.Event()
    with capture_logs() as logs:
        running = asyncio.create_task(run_sources([broken, ending, good], stop, SystemClock()))
        await until(lambda: broken.begun > 1 and ending.begun > 1, what="both to be run again")
        assert (good.begun, good.closed) == (1, 0)
        stop.set()
        await running
    assert good.closed == 1
    assert broken.begun == broken.closed
    told = {(line["event"], line["source"]) for line in logs}
    assert {
        ("source_failed", "broken"),
        ("source_ended", "ending"),
        ("source_waits", "broken"),
        ("source_stopped", "good"),
    } <= told
    assert ("source_failed", "good") not in told


@pytest.mark.parametrize(
    "why", [ConfigError("SF1021", "no such queue"), NotAllowed("SF3093", "ann lacks Read")]
)
async def test_one_that_cannot_work_ends_them_all_and_says_so(why: Exception) -> None:
    async def refuse() -> None:
        raise why

    good = Fake("good", forever)
    with pytest.raises(type(why), match=str(why)):
        await run_sources([good, Fake("bad", refuse)], asyncio.Event(), SystemClock())
    assert good.closed == 1


async def test_without_any_it_waits_to_be_stopped() -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(run_sources([], stop, SystemClock()))
    stop.set()
    await running
