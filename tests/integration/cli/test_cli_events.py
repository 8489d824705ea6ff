"""Triggers on topics through the real command line."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from surefoot import Agent
from tests.integration.cli.test_cli_end_to_end import Cli, cli
from tests.support.cluster import Cluster, cluster
from tests.support.trigger_cluster import listening

__all__ = ["cli"]

AGENT = """
from surefoot import Agent, Context, Done

shop = Agent("shop")

@shop.step
async def ship(ctx: Context, number: int) -> Done:
    return Done(number + 1)

@shop.on_event(topic="TOPIC", start="earliest")
def on_number(number: int) -> int:
    return number
"""


@pytest.fixture
async def kafka(bootstrap: str, app: str) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, Agent("shop"), partitions=6) as made:
        yield made


def file_of(folder: Path, topic: str) -> str:
    path = folder / "shop.py"
    path.write_text(AGENT.replace("TOPIC", topic))
    return str(path)


def on(topic: str) -> Agent:
    agent = Agent("shop")

    @agent.on_event(topic=topic)
    def on_number(number: int) -> int:
        return number

    return agent


async def shown(cli: Cli, run_id: str) -> dict[str, Any]:
    done = await asyncio.to_thread(cli.here, "runs", "show", "shop", run_id, "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


async def test_trigger_processes_start_runs_also_when_killed_and_end_cleanly(
    cli: Cli, kafka: Cluster, app: str, tmp_path: Path
) -> None:
    agent = on(f"{app}-numbers")
    async with listening(kafka, agent) as heard:
        service = cli.start("trigger", file_of(tmp_path, heard.topic), "--processes", "2")
        await asyncio.to_thread(service.wait_for, "source_starts", 2)
        await heard.send_numbers([1, 2])
        await heard.until_started(2)
        for child in service.children():
            child.kill()
        await heard.send_numbers([3, 4])
        await heard.until_started(4)
        # a process that has not got as far ends without a word
        await asyncio.to_thread(service.wait_for, "source_starts", 4)
        assert await asyncio.to_thread(service.stop) == 0
        assert len(service.events("source_stopped")) == 2
        assert await heard.started() == [1, 2, 3, 4]
        await heard.check_once()


async def test_serve_does_it_all_in_one_process(
    cli: Cli, kafka: Cluster, app: str, tmp_path: Path
) -> None:
    agent = on(f"{app}-numbers")
    async with listening(kafka, agent, partitions=1) as heard:
        service = cli.start("serve", file_of(tmp_path, heard.topic))
        await heard.send(b"41")
        await kafka.until_status("shop", f"{heard.topic}-0-0", "completed")
        assert (await shown(cli, f"{heard.topic}-0-0"))["result"] == 42
        assert await asyncio.to_thread(service.stop) == 0


async def test_dev_runs_a_trigger_beside_the_others(
    cli: Cli, kafka: Cluster, app: str, tmp_path: Path
) -> None:
    agent = on(f"{app}-numbers")
    async with listening(kafka, agent, partitions=1) as heard:
        port = cli._env["SUREFOOT_GATEWAY_PORT"]
        service = cli.start("dev", file_of(tmp_path, heard.topic), "--port", port)
        await heard.send(b"41")
        await kafka.until_status("shop", f"{heard.topic}-0-0", "completed")
        assert await asyncio.to_thread(service.stop, signal.SIGINT) == 0


def test_an_agent_without_events_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "deaf.py"
    path.write_text(AGENT.partition("@shop.on_event")[0])
    refused = cli.run("trigger", str(path))
    assert refused.returncode == 2
    assert "agent.on_event" in refused.stderr
