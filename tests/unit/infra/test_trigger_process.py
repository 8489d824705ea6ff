"""What a trigger process refuses, and what it leaves to another log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, ConfigError
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.trigger import require_sources, trigger
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from tests.support.eventually import until


def listening(topic: str) -> Agent:
    agent = Agent("shop")

    @agent.on_event(topic=topic)
    def on_number(number: int) -> int:
        return number

    return agent


async def run(agent: Agent, settings: Settings, stop: asyncio.Event) -> None:
    clock = SystemClock()
    async with open_backend(settings, clock, owner=True) as backend:
        await trigger([agent], settings, backend, clock, stop, slot=0)


async def test_the_dead_letters_of_the_installation_are_not_listened_to() -> None:
    settings = load_settings(bootstrap_servers="127.0.0.1:1", app="mine")
    with pytest.raises(ConfigError, match="its own dead letters"):
        await run(listening("mine.dead"), settings, asyncio.Event())


async def test_on_an_embedded_log_it_says_which_topics_it_cannot_read(tmp_path: Path) -> None:
    stop = asyncio.Event()
    settings = load_settings(log=f"sqlite:///{tmp_path / 'x.db'}")
    with capture_logs() as logs:
        running = asyncio.create_task(run(listening("orders"), settings, stop))
        await until(lambda: "topic_needs_kafka" in str(logs), what="it to be said")
        stop.set()
        await running
    assert [line["topic"] for line in logs if line["event"] == "topic_needs_kafka"] == ["orders"]


def test_without_any_declaration_there_is_nothing_to_run() -> None:
    require_sources([listening("orders")])
    with pytest.raises(ConfigError, match=r"agent\.on_event"):
        require_sources([Agent("deaf")])
