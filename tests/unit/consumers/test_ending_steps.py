"""What is ready to commit waits for steps that are about to end, and for no others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from surefoot.consumers.partition.in_flight import EndingSteps
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.errors import OutcomeUnknown

#: far longer than a test may take
LONG_S = 600.0


class MovedClock(SystemClock):
    """Monotonic time, and what a test adds to it."""

    added_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.added_s


async def test_with_no_step_running_nothing_waits() -> None:
    async with asyncio.timeout(60):
        await EndingSteps(SystemClock()).wait(LONG_S)


async def test_what_is_ready_waits_for_the_steps_of_every_partition() -> None:
    steps, here, there = EndingSteps(SystemClock()), _call(), _call()
    steps.begin(here)
    steps.begin(there)
    waiting = asyncio.create_task(steps.wait(LONG_S))
    await asyncio.sleep(0)
    steps.end(here)
    await asyncio.sleep(0)
    assert not waiting.done()
    steps.end(there)
    async with asyncio.timeout(60):
        await waiting


async def test_a_step_that_has_been_running_for_so_long_already_is_not_waited_for() -> None:
    clock = MovedClock()
    steps = EndingSteps(clock)
    steps.begin(_call())
    clock.added_s = LONG_S
    async with asyncio.timeout(60):
        await steps.wait(LONG_S)


async def test_a_step_that_does_not_end_is_waited_for_only_so_long() -> None:
    steps = EndingSteps(SystemClock())
    steps.begin(_call())
    async with asyncio.timeout(60):
        await steps.wait(0.001)


async def test_what_is_ready_waits_for_the_commits_in_progress_and_the_steps_that_go_on() -> None:
    steps, call = EndingSteps(SystemClock()), _call()
    with steps.committing():
        with steps.committing():
            waiting = asyncio.create_task(steps.wait(LONG_S))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        steps.begin(call)
    await asyncio.sleep(0)
    assert not waiting.done()
    steps.end(call)
    async with asyncio.timeout(60):
        await waiting


async def test_a_commit_that_fails_is_over() -> None:
    steps = EndingSteps(SystemClock())
    with suppress(OutcomeUnknown), steps.committing():
        raise OutcomeUnknown("no answer")
    async with asyncio.timeout(60):
        await steps.wait(LONG_S)


def _call() -> Any:
    """A step: only its identity counts here."""
    return object()
