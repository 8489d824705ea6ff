"""A real gateway, and the mapping of one source hangs: the other goes on, and SIGTERM ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.eventually import until
from tests.unit.producers import test_signatures as signed

AGENT = """
import os
import threading
from surefoot import Agent, Bearer, Context, Done, Webhook

hung, fine = Agent("hung"), Agent("fine")
for agent in (hung, fine):

    @agent.step
    async def first(ctx: Context, number: int) -> Done:
        return Done(number)


@hung.webhook("slow", provider=Bearer())
def hangs(delivery: Webhook) -> int:
    os.write(1, b"hanging\\n")  # at once: eight threads do
    threading.Event().wait()


@fine.webhook("quick", provider=Bearer())
def maps(delivery: Webhook) -> int:
    return 1
"""
TOKEN = {"Authorization": f"Bearer {signed.SECRET}"}


@pytest.fixture
def cli(app: str, tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_LOG": "sqlite:///runs.db",
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "1",
        "SUREFOOT_GATEWAY_PORT": "0",
        "SUREFOOT_WEBHOOK_SLOW_SECRET": signed.SECRET,
        "SUREFOOT_WEBHOOK_QUICK_SECRET": signed.SECRET,
    }
    (tmp_path / "agent.py").write_text(AGENT)
    made = Cli(env, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("within_s", ["0.5", "3600"])
async def test_the_other_source_goes_on_and_the_process_ends(cli: Cli, within_s: str) -> None:
    cli._env |= {"SUREFOOT_GATEWAY_MAPPING_S": within_s, "SUREFOOT_GATEWAY_MAPPING_THREADS": "8"}
    service = cli.start("serve", "agent.py")
    [ready] = await asyncio.to_thread(service.wait_for, "gateway_ready")
    async with httpx.AsyncClient(base_url=ready["url"], timeout=600, headers=TOKEN) as http:
        hung = [
            asyncio.create_task(http.post("/webhooks/slow", content=b"%d" % number))
            for number in range(45)
        ]
        await until(lambda: service.said().count("hanging\n") == 8, what="every thread to hang")
        await until(lambda: quick(http), what="a run of the other source")
        if within_s == "0.5":
            answers = await asyncio.gather(*hung)
            assert {each.status_code for each in answers} == {503}
            assert {each.headers["Retry-After"] for each in answers} == {"5"}
            told = service.events("mapping_hangs")
            assert {(line["source"], *line["agents"]) for line in told} == {("slow", "hung")}
        assert await asyncio.to_thread(service.stop) == 0
        await asyncio.gather(*hung, return_exceptions=True)


async def quick(http: httpx.AsyncClient) -> bool:
    """False while the log is too slow."""
    answer = await http.post("/webhooks/quick", content=b"x")
    return answer.status_code == 202
