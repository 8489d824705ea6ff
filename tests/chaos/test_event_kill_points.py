"""A trigger process is killed at points of its commits and takeovers: each event stays one run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from surefoot.infra.runtime.settings import Settings
from tests.chaos.processes.agents import JOURNAL
from tests.chaos.processes.event_child import listener
from tests.chaos.processes.lives import ROOT, Life
from tests.support.cluster import cluster
from tests.support.eventually import until
from tests.support.trigger_cluster import listening

#: one after the other, so that each life finds what the one before it left
POINTS = (
    "first-batch-acknowledged",
    "all-sent",
    "own",
    "offsets-sent",
    "end-written",
    "end-replied",
)
EVENTS = 40


async def begin(settings: Settings, topic: str, folder: Path, at: str | None) -> Life:
    log_path = folder / f"{at}.log"
    command = [sys.executable, "-m", "tests.chaos.processes.event_child", topic]
    set_here = settings.model_dump(exclude_unset=True, exclude_none=True)
    env = {f"SUREFOOT_{name.upper()}": str(value) for name, value in set_here.items()}
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            *(["--at", at] if at else []),
            cwd=ROOT,
            stderr=log,
            env={**os.environ, **env, JOURNAL: str(folder / "journal")},
        )
    return Life(process=process, log_path=log_path, agents=())


async def test_killed_at_any_point_each_event_is_one_run(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    topic = f"{app}-numbers"
    agent = listener(topic)
    async with cluster(bootstrap, app, agent) as kafka, listening(kafka, agent) as heard:
        sent: list[int] = []

        async def all_letters() -> bool:
            return len(await heard.codes()) > len(POINTS)

        for point in (*POINTS, None):
            # 13 is a dead letter each time, and what is below 0 is nothing
            new = [13, -1, *range(len(sent) + 20, len(sent) + 20 + EVENTS)]
            await heard.send_numbers(new)
            sent += new[2:]
            life = await begin(kafka.settings, topic, tmp_path, point)
            try:
                if point is not None:
                    assert await life.ended() == -signal.SIGKILL, life.log_path.read_text()[-4000:]
                    continue
                await heard.until_started(len(sent))
                assert await heard.started() == sent
                await until(all_letters, what="every dead letter")
                assert await heard.codes() == ["mapping_raised"] * (len(POINTS) + 1)
                await heard.check_once()
                life.process.terminate()
                assert await life.ended() == 0
            finally:
                if life.process.returncode is None:
                    life.process.kill()
                    await life.process.wait()
        journal = (tmp_path / "journal").read_text().splitlines()
        assert journal == [f"bitten {point}" for point in POINTS]
