"""A worker is frozen until others have taken over, then wakes up with old work in its hands."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.processes.agents import chain
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.effect_target import sink
from tests.support.eventually import until

#: a frozen worker is put out of its group soon
SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 1_000,
    "session_timeout_ms": 3_000,
    "rebalance_timeout_ms": 5_000,
    "drain_timeout_s": 60.0,
}


@pytest.mark.parametrize("point", ["before-begin", "all-sent", "offsets-sent"])
async def test_what_a_frozen_worker_commits_after_its_partition_was_taken_over_is_refused(
    bootstrap: str, app: str, tmp_path: Path, point: str
) -> None:
    async with (
        sink() as target,
        cluster(bootstrap, app, chain, partitions=1, **SHORT) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        await kafka.start(chain, "r1")
        # Only the fence can stop its commit: it wakes up with no deadline that is over, and leaves
        # its partition when the commit is over.
        old = await children.begin("chain", at=point, signal="STOP", patient=True)
        await old.frozen()
        new = await children.begin("chain", slot=1)
        await kafka.until_status(chain, "r1", "completed")
        before = await kafka.read(kafka.topics(chain).state)

        old.process.send_signal(signal.SIGCONT)
        # Fenced by its epoch or its group; where only EndTxn is left, it may be told that it asks
        # too late for a transaction that was aborted, and looks for it.
        await until(
            lambda: old.log("fenced") or old.log("commit_unknown"), what="its commit to be refused"
        )
        await old.says("assignment", 2)  # it is a member again
        after = await kafka.read(kafka.topics(chain).state)
        runs = [(r.offset, r.value) for r in after if r.key == b"r1"]
        assert runs == [(r.offset, r.value) for r in before if r.key == b"r1"]
        await kafka.start(chain, "r2")
        await kafka.until_status(chain, "r2", "completed")
        await kafka.check_history(chain)
        for life in (old, new):
            life.process.terminate()
            assert await life.ended() == 0


async def test_a_frozen_relay_does_not_send_what_its_successor_has_delivered(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    effects = {f"chain:r1:{seq}:0" for seq in range(3)}
    async with (
        sink() as target,
        cluster(bootstrap, app, chain, partitions=1, **SHORT) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        await kafka.start(chain, "r1")
        old = await children.begin("outbox", at="attempt", signal="STOP")
        await old.ready()
        new = await children.begin("chain")
        await old.frozen()
        successor = await children.begin("outbox", slot=1)
        await kafka.until_status("outbox", effects, "completed")
        delivered = target.keys()
        assert set(delivered) == effects

        old.process.send_signal(signal.SIGCONT)
        await old.says("assignment", 2)
        for life in (old, new, successor):
            life.process.terminate()
            assert await life.ended() == 0
        assert target.keys() == delivered
        assert set(await kafka.effects()) == effects
        target.check(await kafka.effects())
        await kafka.check_history("outbox")
