"""Three brokers, of which one after the other is killed or stands still, and workers on them;
`python -m tests.chaos.cluster` goes on for longer."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.chaos.cluster import PROPERTIES, trial
from tests.chaos.faults.trial import listed
from tests.support.cluster import QUICK
from tests.support.three_brokers import NODES, ThreeBrokers, three_brokers

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="Java is not installed; a broker in Docker is alone"
)


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    with three_brokers(properties=PROPERTIES) as started:
        yield started


async def append(brokers: ThreeBrokers, topic: str, value: bytes) -> None:
    """Returns once two replicas have it."""
    producer = AIOKafkaProducer(bootstrap_servers=brokers.bootstrap, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def test_a_cluster_goes_on_without_its_controller_and_is_whole_when_that_is_back(
    brokers: ThreeBrokers, app: str
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(app, len(NODES), len(NODES))])
    finally:
        await admin.close()
    await brokers.until_whole()
    await append(brokers, app, b"before")
    first = await brokers.controller()
    led = [n for n in range(len(NODES)) if await brokers.leader(app, n) == first]
    assert led  # each broker is the first replica of one
    brokers.kill(first)
    assert await brokers.controller() != first
    assert await brokers.view(first) is None
    for partition in led:  # somebody else takes them over
        assert await brokers.leader(app, partition)
    await append(brokers, app, b"meanwhile")
    await asyncio.to_thread(brokers.start, first)
    await brokers.until_whole()


async def test_a_frozen_broker_answers_nobody_until_it_thaws(brokers: ThreeBrokers) -> None:
    frozen = await brokers.controller()
    brokers.freeze(frozen)
    try:
        assert await brokers.view(frozen) is None
        assert await brokers.controller() != frozen
    finally:
        brokers.thaw(frozen)
    await brokers.until_whole()


async def test_what_was_asked_for_is_done_once_though_brokers_and_workers_die(
    brokers: ThreeBrokers, app: str, tmp_path: Path
) -> None:
    faults = ["leader_killed", "worker_killed", "broker_frozen"]
    random_ = random.Random(84)  # thaws the broker soon
    result = await trial(
        brokers, app, tmp_path, listed(faults), random_, lambda _: None, steps=20, **QUICK
    )
    assert result.violations == []
    assert (result.lost, result.doubled) == (0, 0)
    assert result.steps > 0
    assert [outcome.kind for outcome in result.outcomes] == faults
