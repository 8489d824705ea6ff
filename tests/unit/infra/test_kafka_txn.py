"""A transactional producer that cannot start, or is fenced when nobody waits any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, ProducerFenced

from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import NoSuchTopic, Unavailable
from surefoot.state.ports.log import ProducerRecord


@pytest.mark.parametrize("error", [AssertionError("bootstrap?"), KafkaConnectionError()])
async def test_one_that_cannot_start_is_closed_and_can_be_asked_for_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(bootstrap_servers="127.0.0.1:1")
    producer = TransactionalProducer("x", settings, SystemClock())
    closed: list[Any] = []

    async def fail() -> None:
        raise error

    async def stop() -> None:
        closed.append(1)

    monkeypatch.setattr(producer._producer, "start", fail)
    monkeypatch.setattr(producer._producer, "stop", stop)
    with pytest.raises(Unavailable):
        await producer.start()
    assert closed == [1]
    monkeypatch.undo()
    await producer.retire()


async def test_a_commit_that_was_cancelled_and_then_fenced_is_nobodys_error() -> None:
    """The future of its offsets is aiokafka's; `no_swallowed_errors` in conftest.py looks."""
    producer = TransactionalProducer(
        "x", load_settings(bootstrap_servers="127.0.0.1:1"), SystemClock()
    )
    client, manager = producer._producer, producer._producer._txn_manager
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    adding = asyncio.create_task(
        client.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
    )
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.wait([adding])
    manager.fatal_error(ProducerFenced())
    await producer.retire()


@pytest.mark.parametrize("topic", ["app.no such.commands", "app.\ud83d.commands", "x" * 250, ""])
async def test_a_name_that_no_topic_can_have_is_refused_without_asking(topic: str) -> None:
    """Asked for by such a name, aiokafka's client breaks and answers nothing more."""
    producer = TransactionalProducer(
        "x", load_settings(bootstrap_servers="127.0.0.1:1"), SystemClock()
    )
    record = ProducerRecord(topic=topic, partition=0, key=b"k", value=b"v", headers=())
    with pytest.raises(NoSuchTopic, match="no topic can be called"):
        await producer.transact([record], {}, "group")
    await producer.retire()
