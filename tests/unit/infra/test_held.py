"""An agent whose topics are not there keeps a gateway from serving that agent, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes import gateway as gateway_main
from surefoot.infra.processes.gateway import serve_gateway
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import ConfigError
from tests.support.eventually import until


def agent_named(name: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def step(ctx: Context, payload: int) -> Done:
        return Done(payload)

    return agent


async def test_a_gateway_serves_the_others_and_this_one_once_its_topics_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_main, "_LOOK_AGAIN_S", 0.05)
    settings = load_settings(log=f"sqlite:///{tmp_path}/runs.db", partitions=1, gateway_port=0)
    agents = [agent_named("there"), agent_named("new")]
    stop = asyncio.Event()
    urls: list[str] = []
    with capture_logs() as logs:
        async with open_backend(settings, SystemClock(), owner=True) as backend:
            async with backend.topics() as topics:
                await topics.apply(specs_for(["there"], settings))
            serving = asyncio.create_task(
                serve_gateway(agents, settings, backend, stop, urls.append)
            )
            await until(lambda: urls or serving.done(), what="the gateway to listen")
            async with httpx.AsyncClient(base_url=urls[0], trust_env=False, timeout=90) as client:

                async def start(agent: str) -> int:
                    return (await client.post(f"/runs/{agent}", json={"payload": 1})).status_code

                assert (await start("there"), await start("new")) == (202, 503)
                assert (await client.get("/topics")).status_code == 200
                ready = await client.get("/ready")
                assert (ready.status_code, list(ready.json()["reasons"])) == (200, ["new"])
                assert "topics apply" in ready.json()["reasons"]["new"]
                async with backend.topics() as topics:
                    assert "surefoot.new.state" not in await topics.names()
                    await topics.apply(specs_for(["new"], settings))

                async def served() -> bool:
                    return (await client.get("/ready/new")).is_success

                await until(served, what="the agent to be served")
                assert await start("new") == 202
                assert (await client.get("/runs/new")).json()["matches"] == 0
            stop.set()
            await serving
    told = [(line["event"], line["agent"]) for line in logs if line["event"].startswith("agent_")]
    assert told == [("agent_held", "new"), ("agent_served", "new")]


async def test_topics_that_all_agents_share_have_to_be_there(tmp_path: Path) -> None:
    settings = load_settings(log=f"sqlite:///{tmp_path}/runs.db", partitions=1, gateway_port=0)
    async with open_backend(settings, SystemClock(), owner=True) as backend:
        with pytest.raises(ConfigError, match=r"surefoot\.dead does not exist"):
            await serve_gateway([agent_named("a")], settings, backend, asyncio.Event())
