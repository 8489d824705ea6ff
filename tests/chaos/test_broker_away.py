"""The broker freezes, or goes away and comes back. It is one of this module's own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.infra.broker.config import free_ports
from surefoot.infra.broker.find import Broker, start_broker
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.transactions import Membership
from surefoot.state.errors import OutcomeUnknown
from surefoot.state.ports.log import ProducerRecord
from tests.chaos.processes.agents import adder, chain, gated, undone
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.effect_target import sink

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="Java is not installed; a broker in Docker keeps nothing"
)

#: A commit without an answer is soon given up; a busy machine is no reason to leave the group.
SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 1_000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 12_000,
}
#: a producer may take its time to start, and is told soon that nobody answers
SLOW_TO_START = SHORT | {
    "transaction_timeout_ms": 60_000,
    "session_timeout_ms": 70_000,
    "rebalance_timeout_ms": 80_000,
}
CLIENT_PORT, CONTROLLER_PORT = free_ports(2)
#: no client of a broker that is away can be given one of its ports
PROPERTIES = {
    "listeners": (f"PLAINTEXT://127.0.0.1:{CLIENT_PORT},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}"),
    "controller.quorum.bootstrap.servers": f"127.0.0.1:{CONTROLLER_PORT}",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


def start(folder: Path) -> Broker:
    return start_broker(ways=("java",), folder=folder, port=CLIENT_PORT, properties=PROPERTIES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def own(folder: Path) -> Iterator[list[Broker]]:
    """The broker, in a list: a test that stops it puts the next one there."""
    held = [start(folder)]
    yield held
    held[0].stop()


async def test_a_worker_told_to_stop_while_the_broker_is_frozen_leaves(
    own: list[Broker], app: str, tmp_path: Path
) -> None:
    """Four agents with four consumers and a dozen producers, none of which gets an answer."""
    (broker,) = own
    agents = (gated, chain, adder, undone)
    async with (
        cluster(
            broker.bootstrap, app, *agents, partitions=3, drain_timeout_s=2.0, **SHORT
        ) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(gated, "r1")
        life = await children.begin(*(agent.name for agent in agents))
        await life.ready()
        await children.until_began("gated")
        broker.pause()
        try:
            children.open_gate()
            await life.says("commit_unknown")
            life.process.terminate()
            assert await life.ended(60.0) == 3  # by itself: nobody has killed it
            assert "was destroyed but it is pending" not in life.log_path.read_text()
        finally:
            broker.resume()
        await children.begin("gated")
        await kafka.until_status(gated, "r1", "completed")
        await kafka.check_history(gated)


async def test_a_commit_cut_off_by_a_frozen_broker_is_settled_when_it_thaws(
    own: list[Broker], app: str, tmp_path: Path
) -> None:
    (broker,) = own
    async with (
        cluster(broker.bootstrap, app, gated, partitions=1, drain_timeout_s=60.0, **SHORT) as kafka,
        lives(kafka.settings, tmp_path) as children,
    ):
        await kafka.start(gated, "r1")
        life = await children.begin("gated")
        await children.until_began("gated")
        broker.pause()
        try:
            children.open_gate()
            await life.says("commit_unknown")
        finally:
            broker.resume()
        await kafka.until_status(gated, "r1", "completed")
        await kafka.start(gated, "r2")
        await kafka.until_status(gated, "r2", "completed")
        await kafka.check_history(gated)
        life.process.terminate()
        assert await life.ended() == 0


async def test_a_topic_that_nobody_can_be_asked_about_is_not_taken_for_missing(
    own: list[Broker], app: str
) -> None:
    (broker,) = own
    async with cluster(broker.bootstrap, app, adder, partitions=1, **SLOW_TO_START) as kafka:
        topics = kafka.topics(adder)
        producer = TransactionalProducer(f"{topics.group}.x", kafka.settings, kafka.clock)
        await producer.start()
        broker.pause()
        try:
            with pytest.raises(OutcomeUnknown):
                await producer.transact(
                    [ProducerRecord(topics.events, 0, None, b"x")], {}, Membership(topics.group)
                )
        finally:
            broker.resume()
            await producer.retire()


async def test_no_run_is_lost_while_the_broker_is_away(
    own: list[Broker], folder: Path, app: str, tmp_path: Path
) -> None:
    before, after = [f"r{n}" for n in range(60)], [f"s{n}" for n in range(10)]
    async with (
        sink() as target,
        cluster(own[0].bootstrap, app, chain, adder, in_flight=4) as kafka,
        lives(kafka.settings, tmp_path, target.url) as children,
    ):
        for run_id in before:
            await kafka.start(chain, run_id)
        life = await children.begin("chain", "outbox")
        await children.until_began("chain", 30)
        await asyncio.to_thread(own[0].stop)
        own[0] = await asyncio.to_thread(start, folder)
        await kafka.until_status(chain, before, "completed")
        for run_id in after:
            await kafka.start(chain, run_id)
        await kafka.until_status(chain, after, "completed")
        effects = {f"chain:{run_id}:{seq}:0" for run_id in before + after for seq in range(3)}
        await kafka.until_status("outbox", effects, "completed")
        assert set(await kafka.effects()) == effects
        target.check(await kafka.effects())
        await kafka.check_history(chain)
        await kafka.check_history("outbox")
        assert life.process.returncode is None
