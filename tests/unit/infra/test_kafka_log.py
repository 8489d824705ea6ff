"""A member of a group that cannot get in, or out: no client is left open, which aiokafka would tell
the loop when it is collected (`no_swallowed_errors` in conftest.py looks)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from surefoot.infra.kafka.log import KafkaLog
from surefoot.infra.kafka.source import KafkaSourceLog
from surefoot.infra.kafka_client import clients as kafka_shared
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import AgentTopics
from tests.support.free_ports import deaf_port

TOPICS = AgentTopics("app", "agent")


def a_log(settings: Settings) -> KafkaLog:
    return KafkaLog(topics=TOPICS, partitions=1, settings=settings, clock=SystemClock(), slot=0)


def a_source(settings: Settings) -> KafkaSourceLog:
    return KafkaSourceLog(
        topic="t", topics=TOPICS, settings=settings, clock=SystemClock(), slot=0, group="g"
    )


@pytest.mark.parametrize("make", [a_log, a_source])
async def test_one_that_cannot_connect_leaves_no_client_open(make: Any) -> None:
    async def nothing(*_: Any) -> None: ...

    with deaf_port() as port:
        log = make(load_settings(bootstrap_servers=f"127.0.0.1:{port}"))
        with pytest.raises(Unavailable):
            await log.start(nothing, nothing)


@pytest.mark.parametrize("make", [a_log, a_source])
async def test_a_group_that_does_not_answer_keeps_no_client_open(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_shared, "_LEAVE_S", 0.0)
    asked, stopped = [], []

    async def unanswered(request: Any) -> None:
        asked.append(request)
        await asyncio.Future()

    async def stop() -> None:
        stopped.append(1)

    log = make(load_settings(bootstrap_servers="127.0.0.1:1"))
    log._consumer = SimpleNamespace(
        _coordinator=SimpleNamespace(
            generation=1, group_id="g", member_id="m", _send_req=unanswered
        ),
        stop=stop,
    )
    await log.stop(leave=True) if make is a_log else await log.stop()
    assert (len(asked), stopped) == (1, [1])
