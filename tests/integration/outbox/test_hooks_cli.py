"""Webhooks that go out, through the real command line, on the embedded log, whose one process does
it all. (On Kafka: tests/chaos/test_hook_kill_points.py.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from surefoot.infra.processes.webhooks_out import new_secret
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.effect_target import Reply, Sink, sink
from tests.support.eventually import until
from tests.support.free_ports import unused_port

AGENT = """
from surefoot import Agent, Context, Done

shop = Agent("shop")

@shop.step
async def ship(ctx: Context, number: int) -> Done:
    return Done(number)

shop.subscribe("crm", url="URL", where=lambda event: event.result > 0)
"""
SECRET = new_secret()


@pytest.fixture
def port() -> int:
    return unused_port()


@pytest.fixture
def cli(tmp_path: Path, port: int) -> Iterator[Cli]:
    env = {
        "SUREFOOT_LOG": "sqlite:///runs.db",
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_GATEWAY_PORT": str(port),
        "SUREFOOT_HOOK_CRM_SECRET": SECRET,
    }
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


def file_of(folder: Path, target: Sink) -> str:
    path = folder / "shop.py"
    path.write_text(AGENT.replace("URL", f"{target.url}/hook"))
    return str(path)


async def start(port: int, run_id: str, number: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as gateway:

        async def ready() -> bool:
            try:
                return (await gateway.get("/ready")).is_success
            except httpx.TransportError:
                return False

        await until(ready, what="the gateway")

        async def taken() -> bool:
            answer = await gateway.post("/runs/shop", json={"run_id": run_id, "payload": number})
            assert answer.status_code in (202, 503), answer.text
            return answer.status_code == 202

        await until(taken, what="the run to be taken")


async def test_serve_tells_of_each_run_once_also_when_it_was_killed(
    cli: Cli, port: int, tmp_path: Path
) -> None:
    async with sink() as target:
        target.script = {"/hook": [Reply(500)]}
        path = file_of(tmp_path, target)
        service = await asyncio.to_thread(cli.start, "serve", path)
        await start(port, "small", 0)
        await start(port, "first", 1)
        await until(lambda: target.acted, what="the first webhook, tried twice")
        service.kill()
        service = await asyncio.to_thread(cli.start, "serve", path)
        await start(port, "second", 2)
        await until(lambda: len(target.acted) >= 2, what="the second webhook")
        assert await asyncio.to_thread(service.stop) == 0
    told = {
        (Webhook(SECRET).verify(request.body, request.headers)["data"]["run_id"], request.key)
        for request in target.book
    }
    assert sorted(run_id for run_id, _ in told) == ["first", "second"]


async def test_a_subscription_can_be_seen_and_tried(cli: Cli, tmp_path: Path) -> None:
    async with sink() as target:
        path = file_of(tmp_path, target)
        (line,) = (await asyncio.to_thread(cli.ok, "hooks", "list", path, "--json")).splitlines()
        shown = json.loads(line)
        assert (shown["name"], shown["secret"], shown["url"]) == (
            "crm",
            "set",
            f"{target.url}/hook",
        )
        await asyncio.to_thread(cli.ok, "hooks", "test", path, "crm")
        (request,) = target.book
        assert Webhook(SECRET).verify(request.body, request.headers)["type"] == "surefoot.test"
        cli._env["SUREFOOT_OUT_ALLOW"] = ""
        refused = await asyncio.to_thread(cli.run, "hooks", "test", path, "crm")
        assert refused.returncode == 1
        assert "SUREFOOT_OUT_ALLOW" in refused.stderr
        assert len(target.book) == 1
