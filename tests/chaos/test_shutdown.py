"""SIGTERM: nothing new begins, what is running may finish, and nothing counts that did not."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes.agents import gated, slow
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT


async def test_when_the_grace_is_over_the_step_is_given_up_and_nothing_of_it_counts(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, gated, partitions=1, drain_timeout_s=0.5, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(gated, "r1")
        life = await children.begin("gated")
        await children.until_began("gated")
        before = await kafka.committed(gated)
        life.process.terminate()
        assert await life.ended() == 3  # by itself: its step is never let go
        assert await kafka.committed(gated) == before
        checkpoint = await kafka.checkpoint(gated, "r1")
        assert checkpoint is not None
        assert (checkpoint["status"], checkpoint["seq"], checkpoint["attempt"]) == ("running", 1, 0)
        assert await kafka.dead() == []

        children.open_gate()
        await children.begin("gated")
        await kafka.until_status(gated, "r1", "completed")
        assert children.began("gated") == [("r1", 1, 0), ("r1", 1, 0)]
        await kafka.check_history(gated)


async def test_a_second_sigterm_does_not_wait_for_the_grace(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, gated, partitions=1, drain_timeout_s=600.0, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(gated, "r1")
        # It sends itself the second one, when it has begun to drain.
        life = await children.begin("gated", at="draining", signal="TERM")
        await children.until_began("gated")
        life.process.terminate()
        assert await life.ended() == 3
        assert ["bitten", "draining"] in children.journal()
        children.open_gate()
        await children.begin("gated")
        await kafka.until_status(gated, "r1", "completed")


async def test_a_running_step_is_finished_and_committed_before_the_worker_leaves(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, gated, partitions=1, drain_timeout_s=60.0, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(gated, "r1")
        life = await children.begin("gated")
        await children.until_began("gated")
        life.process.terminate()
        await kafka.start(gated, "r2")
        children.open_gate()
        assert await life.ended() == 0
        assert await kafka.status(gated, "r1") == "completed"
        await children.begin("gated")
        await kafka.until_status(gated, "r2", "completed")
        assert children.began("gated") == [("r1", 1, 0), ("r2", 1, 0)]


async def test_a_rolling_restart_repeats_no_step(
    bootstrap: str,
    app: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    async with (
        cluster(bootstrap, app, slow, partitions=4, drain_timeout_s=60.0, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        started: list[str] = []
        restarting = True

        def in_work() -> int:
            """Runs started of which no attempt has ended."""
            over = {line[1] for line in children.journal() if line[0] == "over"}
            return len(started) - len(over)

        async def feed() -> None:
            """Keep two runs of every partition in work all the time."""
            while restarting:
                partition = len(started) % 4
                run_id = kafka.run_on(partition, f"p{partition}-{len(started)}")
                await kafka.start(slow, run_id)
                started.append(run_id)
                await until(lambda: in_work() < 8, what="a step to end")

        workers = [await children.begin("slow", slot=slot, patient=True) for slot in range(2)]
        for worker in workers:
            await worker.ready()
        feeding = asyncio.create_task(feed())
        for _ in range(2):
            for slot in range(2):
                await children.until_began("slow", len(children.began("slow")) + 8)
                workers[slot].process.terminate()
                assert await workers[slot].ended() == 0
                workers[slot] = await children.begin("slow", slot=slot, patient=True)
                await workers[slot].ready()
        restarting = False
        await feeding
        await kafka.until_status(slow, started, "completed")
        idle_s = longest_idle_s(await kafka.events(slow))
        request.node.user_properties.append(("longest_idle_s", idle_s))
        began = children.began("slow")
        assert sorted(began) == sorted((run_id, 0, 0) for run_id in started)
        await kafka.check_history(slow)


def longest_idle_s(events: list[dict[str, Any]]) -> float:
    """The longest time in which no step of a partition ended."""
    ends: dict[str, list[int]] = {}
    for event in events:
        if event["type"] == "run.completed":
            ends.setdefault(event["run_id"].partition("-")[0], []).append(event["at_ms"])
    return max(later - sooner for of in ends.values() for sooner, later in pairwise(of)) / 1000
