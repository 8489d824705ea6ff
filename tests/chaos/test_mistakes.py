"""What operators and authors of agents do wrong: nothing is lost or doubled by it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.chaos.processes.agents import chain, stubborn
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.effect_target import sink
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 1_000,
    "session_timeout_ms": 3_000,
    "rebalance_timeout_ms": 5_000,
    "drain_timeout_s": 60.0,
}


async def test_a_step_that_blocks_its_whole_process_loses_its_partition_and_its_result(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    async with (
        cluster(bootstrap, app, stubborn, partitions=1, **SHORT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        first = await children.begin("stubborn")
        await first.ready()
        second = await children.begin("stubborn", slot=1)
        await second.says("assignment")
        await kafka.start(stubborn, "r1", b"1")
        await until(
            lambda: ["blocked", "r1"] in children.journal(), what="the process to be blocked"
        )
        await kafka.until_status(stubborn, "r1", "completed")
        assignments = len(first.log("assignment"))
        gate = os.open(tmp_path / "gate", os.O_RDWR)
        await until(lambda: ["unblocked", "r1"] in children.journal(), what="it to go on")
        os.close(gate)
        await first.says("assignment", assignments + 1)  # it is a member again
        await kafka.start(stubborn, "r2", b"0")
        await kafka.until_status(stubborn, "r2", "completed")
        began = children.began("stubborn")
        assert began[:2] == [("r1", 0, 0)] * 2
        assert set(began) == {("r1", 0, 0), ("r2", 0, 0)}
        await kafka.check_history(stubborn)
        for life in (first, second):
            life.process.terminate()
            assert await life.ended() == 0


async def test_of_two_processes_of_one_identity_one_ends_and_no_step_is_done_twice(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    """They would take the membership from each other for ever."""
    runs = [f"r{n}" for n in range(20)]
    effects = {f"chain:{run_id}:{seq}:0" for run_id in runs for seq in range(3)}
    async with (
        sink() as target,
        cluster(bootstrap, app, chain, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        first = await children.begin("chain")
        await first.ready()
        for run_id in runs[:10]:
            await kafka.start(chain, run_id)
        second = await children.begin("chain")
        await second.says("assignment")
        for run_id in runs[10:]:
            await kafka.start(chain, run_id)
        ended = await until(
            lambda: next((each for each in (first, second) if each.process.returncode), None),
            what="one of the two to end",
        )
        assert ended is not None
        identity = f"{kafka.topics(chain).group}.{kafka.settings.instance}.0"
        assert f"another process is member '{identity}'" in ended.log_path.read_text()
        await kafka.until_status(chain, runs, "completed")
        assert set(await kafka.effects()) == effects
        await kafka.check_history(chain)
        assert [first.process.returncode, second.process.returncode].count(None) == 1


async def test_offsets_that_have_expired_run_nothing_again(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    """The broker forgets the offsets of a group that was idle for `offsets.retention.minutes`."""
    async with (
        cluster(bootstrap, app, chain, **SHORT) as kafka,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as children,
    ):
        runs = [f"r{n}" for n in range(5)]
        for run_id in runs:
            await kafka.start(chain, run_id)
        life = await children.begin("chain")
        await kafka.until_status(chain, runs, "completed")
        life.process.send_signal(signal.SIGTERM)
        assert await life.ended() == 0
        assert await kafka.committed(chain)
        began = children.began("chain")

        group = kafka.topics(chain).group
        admin = AdminClient({"bootstrap.servers": bootstrap})

        async def nobody_left() -> bool:
            described = admin.describe_consumer_groups([group])[group]
            return not (await asyncio.to_thread(described.result)).members

        await until(nobody_left, what="the group to be empty")
        deleted = admin.delete_consumer_groups([group])
        await asyncio.to_thread(deleted[group].result)
        assert not await kafka.committed(chain)

        await children.begin("chain")
        await kafka.start(chain, "last")
        await kafka.until_status(chain, "last", "completed")
        assert [attempt for attempt in children.began("chain") if attempt[0] != "last"] == began
        await kafka.check_history(chain)
