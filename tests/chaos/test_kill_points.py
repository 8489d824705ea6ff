"""A worker is killed at each point of taking over and committing. Nothing is lost or doubled."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.group import LeaveGroupRequest

from surefoot.infra.kafka_client.tail import coordinator_of
from surefoot.state.ports.log import ProducerRecord
from tests.chaos.processes.agents import adder, chain, gated
from tests.chaos.processes.lives import Life, Lives, lives
from tests.support.cluster import Cluster, cluster, headers_of
from tests.support.effect_target import Request, sink
from tests.support.long_deadlines import PATIENT

RUNS = ("r1", "r2", "r3")
EFFECTS = {f"chain:{run_id}:{seq}:0" for run_id in RUNS for seq in range(3)}


async def killed_at(point: str, life: Life, children: Lives) -> None:
    assert await life.ended() == -signal.SIGKILL, life.log_path.read_text()[-4000:]
    assert ["bitten", point] in children.journal()


async def finish(kafka: Cluster, children: Lives, runs: tuple[str, ...]) -> None:
    """One more life, that nobody kills, ends all runs and delivers all effects."""
    await children.begin("chain", "outbox")
    await kafka.until_status(chain, runs, "completed")
    await kafka.until_status("outbox", EFFECTS, "completed")
    await kafka.check_history(chain)
    await kafka.check_history("outbox")


@pytest.mark.parametrize(
    "points",
    [
        ("before-begin",),
        ("first-batch-acknowledged",),
        ("all-sent",),
        ("offsets-alone",),
        ("offsets-sent",),
        ("end-written",),
        ("end-replied",),
        # Where a life dies while taking over, there is a dead one's work to be taken over.
        ("first-batch-acknowledged", "assigned"),
        ("offsets-sent", "own"),
        ("end-written", "owned"),
        ("end-replied", "restore"),
    ],
    ids="+".join,
)
async def test_killed_at_any_point_every_run_ends_and_every_effect_is_acted_on_once(
    bootstrap: str, app: str, tmp_path: Path, points: tuple[str, ...]
) -> None:
    async with (
        sink() as target,
        cluster(bootstrap, app, chain) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        for run_id in RUNS:
            await kafka.start(chain, run_id)
        for point in points:
            life = await children.begin("chain", "outbox", at=point)
            await killed_at(point, life, children)
        await finish(kafka, children, RUNS)
        assert set(await kafka.effects()) == EFFECTS
        target.check(await kafka.effects())


#: a broker leaves a transaction open for longer than a test waits
OPEN = {
    "transaction_timeout_ms": 600_000,
    "session_timeout_ms": 660_000,
    "rebalance_timeout_ms": 720_000,
}


async def put_out_of(group: str, bootstrap: str) -> None:
    """Have the group's members leave it, as at the end of their sessions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        coordinator = await coordinator_of(admin, group)
        (answer,) = await admin.describe_consumer_groups([group], coordinator)
        for member_id, *_ in answer.groups[0][5]:
            await admin._send_request(LeaveGroupRequest(group, member_id), coordinator)
    finally:
        await admin.close()


@pytest.mark.parametrize(
    "point", ["first-batch-acknowledged", "all-sent", "offsets-alone", "offsets-sent"]
)
async def test_what_a_member_leaves_open_in_its_first_transaction_is_ended_by_its_taker(
    bootstrap: str, app: str, tmp_path: Path, point: str
) -> None:
    async with (
        cluster(bootstrap, app, adder, partitions=1, **OPEN) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(adder, "r1")
        life = await children.begin("adder", at=point)
        await killed_at(point, life, children)
        await put_out_of(kafka.topics(adder).group, bootstrap)
        taker = await children.begin("adder", slot=1)  # nobody comes back under the other name
        await kafka.until_status(adder, "r1", "completed")
        assert taker.log("former_owner_fenced")
        await kafka.check_history(adder)


async def test_killed_while_the_target_has_the_request_and_before_the_done_mark(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        sink() as target,
        cluster(bootstrap, app, chain) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        for run_id in RUNS:
            await kafka.start(chain, run_id)
        life = await children.begin("chain", "outbox")

        def kill(_request: Request) -> None:
            target.on_request = None
            life.process.kill()

        target.on_request = kill
        assert await life.ended() == -signal.SIGKILL
        asked = set(target.keys())
        assert asked
        marking = await children.begin("outbox", at="before-begin")
        await killed_at("before-begin", marking, children)
        await finish(kafka, children, RUNS)
        assert set(await kafka.effects()) == EFFECTS
        target.check(await kafka.effects())
        assert all(target.keys().count(key) >= 2 for key in asked)


async def test_killed_while_draining_and_after_it_has_left_the_group(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, gated, drain_timeout_s=90.0, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(gated, "r1")
        life = await children.begin("gated", at="draining")
        await children.until_began("gated")
        life.process.terminate()
        await killed_at("draining", life, children)
        life = await children.begin("gated", at="left")
        await children.until_began("gated", 2)
        life.process.terminate()
        children.open_gate()
        await killed_at("left", life, children)
        assert await kafka.status(gated, "r1") == "completed"
        await kafka.start(gated, "r2")
        await children.begin("gated")
        await kafka.until_status(gated, "r2", "completed")
        assert children.began("gated") == [("r1", 1, 0), ("r1", 1, 0), ("r2", 1, 0)]
        await kafka.check_history(gated)


async def test_a_dead_letter_is_there_once_however_often_its_commit_was_cut_off(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, adder, partitions=1, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(adder, "r1")
        offset = await kafka.send(
            ProducerRecord(kafka.topics(adder).commands, 0, b"r2", b"not a command")
        )
        await kafka.start(adder, "r3")
        for _ in range(3):
            life = await children.begin("adder", at="dead-letter-sent")
            await killed_at("dead-letter-sent", life, children)
        await children.begin("adder")
        await kafka.until_status(adder, ("r1", "r3"), "completed")
        (dead,) = await kafka.dead()
        assert dead.value == b"not a command"
        assert headers_of(dead)["sf-dead-offset"] == b"%d" % offset
        topic = f"{app}.dead"
        assert len(await kafka.read(topic, isolation="read_uncommitted")) == 4
        await kafka.check_history(adder)


async def test_a_count_is_exact_after_a_worker_was_killed_again_and_again(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    runs: list[str] = []
    async with (
        cluster(bootstrap, app, adder, partitions=4, in_flight=8) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        for n in range(4):
            # Nobody lives now: of these each is begun by the next one, however fast it is.
            new = [f"add-{len(runs) + m}" for m in range(100)]
            for run_id in new:
                await kafka.start(adder, run_id, b"1")
            runs += new
            begun = len(children.began("adder"))
            life = await children.begin("adder")
            await children.until_began("adder", begun + 40 + 7 * n)
            life.process.kill()
            assert await life.ended() == -signal.SIGKILL
        await children.begin("adder")
        await kafka.until_status(adder, runs, "completed")
        events = await kafka.events(adder)
        assert sum(int(e["result"]) for e in events if e["type"] == "run.completed") == len(runs)
        await kafka.check_history(adder)
