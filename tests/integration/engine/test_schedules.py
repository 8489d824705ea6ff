"""Schedules on a real broker, through the command line, with processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from surefoot.infra.runtime.loader import load_agents
from surefoot.schemas.codec.codec import decode
from tests.support.cluster import QUICK, Cluster, cluster
from tests.support.eventually import until

ROOT = Path(__file__).parents[3]
TICKING = str(Path(__file__).parent / "ticking.py")
SCHEDULES = ("queue-0", "queue-1", "allow-0", "allow-1")
KEEPER = "ticking.schedules"

Surefoot = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def surefoot(bootstrap: str, app: str) -> Iterator[Surefoot]:
    """Starts `surefoot ...` in a process of its own."""
    started: list[subprocess.Popen[str]] = []
    settings = {**QUICK, "drain_timeout_s": 120}
    quick = {f"SUREFOOT_{name.upper()}": str(value) for name, value in settings.items()}
    env = {
        **os.environ,
        **quick,
        "PYTHONPATH": str(ROOT),
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_INSTANCE": app,
    }

    def start(*args: str, module: str = "surefoot") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(surefoot: Surefoot, *args: str) -> list[dict[str, Any]]:
    patient = () if "list" in args else ("--wait", "90")
    process = surefoot(*args, *patient, "--json", module="tests.support.patient_cli")
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return [json.loads(line) for line in out.splitlines()]


async def started(kafka: Cluster) -> list[str]:
    """The run_id of each start command that is committed."""
    commands = [
        decode(r.value, "Command")[1] for r in await kafka.read(kafka.topics("ticking").commands)
    ]
    return [command["run_id"] for command in commands if command["kind"] == "start"]


def ticks_of(schedule: str, run_ids: list[str]) -> list[datetime]:
    mark = f"schedule~{schedule}~"
    mine = [run_id.removeprefix(mark) for run_id in run_ids if run_id.startswith(mark)]
    return sorted(datetime.fromisoformat(tick) for tick in mine)


async def test_each_tick_has_one_run_whichever_scheduler_is_killed(
    bootstrap: str, app: str, surefoot: Surefoot
) -> None:
    (agent,) = load_agents([Path(TICKING)])
    async with cluster(bootstrap, app, agent) as kafka:

        async def ticked(before: set[str], times: int) -> bool:
            """Whether each schedule has ticked so often since then."""
            made = [run_id for run_id in await started(kafka) if run_id not in before]
            return all(len(ticks_of(name, made)) >= times for name in SCHEDULES)

        workers = {slot: surefoot("worker", TICKING, "--slot", str(slot)) for slot in range(3)}
        await until(lambda: ticked(set(), 2), what="the first ticks")
        for slot in (0, 1):
            before = set(await started(kafka))
            await until(lambda: ticked(before, 1), what="a tick to kill at")  # noqa: B023
            workers[slot].send_signal(signal.SIGKILL)
            workers[slot].wait()
            workers[slot] = surefoot("worker", TICKING, "--slot", str(slot))
            before = set(await started(kafka))
            await until(lambda: ticked(before, 4), what="ticks after the kill")  # noqa: B023
        for name in SCHEDULES:
            said(surefoot, "schedules", "pause", "ticking", name)
        run_ids = await started(kafka)
        for name in SCHEDULES:
            made = ticks_of(name, run_ids)
            assert made == [made[0] + timedelta(seconds=n) for n in range(len(made))], name
        assert max(Counter(run_ids).values()) == 1
        await kafka.until_status("ticking", run_ids, "completed")

        def all_paused() -> bool:
            lines = said(surefoot, "schedules", "list", "ticking")
            return [line["state"] for line in lines] == ["paused"] * 4

        await until(all_paused, what="the ends of the last runs to be told")
        await kafka.check_history("ticking", KEEPER)
        await kafka.check_history(KEEPER, "ticking")
        # By hand, of a paused schedule: a run now, and none for ticks that have had theirs.
        told = said(surefoot, "schedules", "trigger", "ticking", "queue-0", "--id", "by-hand")
        assert told[-1]["event"] == "signal.received"
        first, last = ticks_of("queue-0", run_ids)[::3][:2]
        bounds = ("--from", first.isoformat(), "--to", last.isoformat())
        said(surefoot, "schedules", "backfill", "ticking", "queue-0", *bounds)
        await kafka.until_status("ticking", ["schedule~queue-0~now~by-hand"], "completed")
        await until(all_paused, what="the backfilled runs to be over")
        begun = Counter(
            event["run_id"]
            for event in await kafka.events("ticking")
            if event["type"] == "run.started"
        )
        assert begun == Counter([*run_ids, "schedule~queue-0~now~by-hand"])
        for worker in workers.values():
            worker.terminate()
        assert [worker.wait(120) for worker in workers.values()] == [0] * 3
