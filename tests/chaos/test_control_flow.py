"""Workers are killed at every boundary of calls, one-shot actions, waits, timers, forks and
cancels. What was paid for is not paid again, and what must happen once happens once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.processes.agents import DIE, survivor, undone
from tests.chaos.processes.lives import Life, Lives, lives
from tests.support.cluster import Cluster, cluster, names
from tests.support.effect_target import sink
from tests.support.eventually import until

RESULT = b'[37,1000,1010,1020,"receipt for r"]'


async def killed_until(
    kafka: Cluster, children: Lives, agent: str, status: str, *, at: str, skip: int
) -> int:
    """Lives that die at that point, one after the other, until the run has that status. Returns
    how many died."""
    died = 0

    async def over(life: Life) -> bool:
        return life.process.returncode is not None or await kafka.status(agent, "r") == status

    while await kafka.status(agent, "r") != status:
        life = await children.begin(agent, at=at, skip=skip)
        await until(lambda life=life: over(life), what=f"the run to be {status}, or a death")  # type: ignore[misc]
        if life.process.returncode is not None:
            assert life.process.returncode == -signal.SIGKILL, life.log_path.read_text()[-4000:]
            died += 1
        else:
            life.process.kill()
            await life.ended()
    return died


def times(children: Lives, *words: str) -> int:
    return children.journal().count(list(words))


@pytest.mark.parametrize(("at", "skip"), [("end-written", 0), ("before-begin", 1)])
async def test_killed_at_every_commit_of_a_run_that_uses_everything(
    bootstrap: str, app: str, tmp_path: Path, at: str, skip: int
) -> None:
    async with (
        sink() as target,
        cluster(bootstrap, app, survivor, partitions=1) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        await kafka.start(survivor, "r", b"0")
        await kafka.tell(survivor, "r", "signal", name="go", payload=b"7")
        died = await killed_until(kafka, children, "survivor", "completed", at=at, skip=skip)
        assert died >= 4
        await children.begin("survivor", "outbox")
        checkpoint = await kafka.checkpoint(survivor, "r")
        assert checkpoint is not None
        assert checkpoint["result"] == RESULT
        assert times(children, "paid", "r") == 1
        told = names(await kafka.events(survivor, "r"))
        assert told.count("wait.over") == 2
        assert told.count("child.finished") == 3
        effects = {"survivor:r:0:0"}
        await kafka.until_status("outbox", effects, "completed")
        assert set(await kafka.effects()) == effects
        target.check(await kafka.effects())
        await kafka.check_history(survivor)


@pytest.mark.parametrize("point", ["call", "before-act", "after-act", "before-return"])
async def test_killed_inside_of_a_step_that_calls_and_acts(
    bootstrap: str, app: str, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIE, point)
    async with (
        cluster(bootstrap, app, survivor, partitions=1) as kafka,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as children,
    ):
        await kafka.start(survivor, "r", b"0")
        await kafka.tell(survivor, "r", "signal", name="go", payload=b"7")
        life = await children.begin("survivor")
        assert await life.ended() == -signal.SIGKILL
        assert ["died", point] in children.journal()
        await children.begin("survivor")
        await kafka.until_status(survivor, "r", "completed")
        checkpoint = await kafka.checkpoint(survivor, "r")
        assert checkpoint is not None
        assert checkpoint["result"] == RESULT
        assert times(children, "paid", "r") == 1
        asked = [times(children, "asked", str(number)) for number in range(3)]
        if point == "call":
            assert asked[0] >= 2  # in the air when the worker died
        else:
            assert asked == [1, 1, 1]
        await kafka.check_history(survivor)


@pytest.mark.parametrize(("at", "skip"), [("end-written", 0), ("before-begin", 1)])
async def test_killed_at_every_commit_of_a_cancel(
    bootstrap: str, app: str, tmp_path: Path, at: str, skip: int
) -> None:
    async with (
        cluster(bootstrap, app, undone, partitions=1) as kafka,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as children,
    ):
        await kafka.start(undone, "r", b"0")
        life = await children.begin("undone")
        branches = [f"r~1~{number}" for number in range(3)]
        await kafka.until_status(undone, branches, "waiting")
        life.process.kill()
        await life.ended()
        await kafka.tell(undone, "r", "cancel")
        died = await killed_until(kafka, children, "undone", "cancelled", at=at, skip=skip)
        assert died >= 1
        await children.begin("undone")
        await kafka.until_status(undone, ["r", *branches], "cancelled")
        everyone = ("r", *branches)
        assert [times(children, "paid", run_id) for run_id in everyone] == [1, 1, 1, 1]
        assert set(await kafka.effects()) == {f"undone:{run_id}~c:2:0" for run_id in everyone}
        await kafka.check_history(undone)


async def test_a_sleeper_whose_worker_is_frozen_wakes_up_once(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, survivor, partitions=1) as kafka,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as children,
    ):
        await kafka.start(survivor, "r", b"0")
        frozen = await children.begin("survivor", at="asleep", signal="STOP")
        await frozen.frozen()
        await children.begin("survivor", slot=1)
        await kafka.tell(survivor, "r", "signal", name="go", payload=b"7")
        await kafka.until_status(survivor, "r", "completed")
        frozen.process.send_signal(signal.SIGCONT)
        await frozen.says("assignment", 2)  # it is a member again
        await kafka.start(survivor, "r2", b"0")
        await kafka.tell(survivor, "r2", "signal", name="go", payload=b"7")
        await kafka.until_status(survivor, "r2", "completed")
        assert times(children, "paid", "r") == 1
        await kafka.check_history(survivor)
