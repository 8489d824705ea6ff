"""A transactional producer that cannot start."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from surefoot.infra.clock import SystemClock
from surefoot.infra.kafka_txn import TransactionalProducer
from surefoot.infra.settings import load_settings
from surefoot.state.errors import Unavailable


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
