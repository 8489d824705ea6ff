"""A sender of webhooks that repeats one delivery, while the gateway goes away and comes back."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from surefoot import Agent, Context, Done, Webhook
from surefoot.state.names.partitioner import partition_of
from tests.integration.gateway.test_gateway_kafka import SECRET, delivery
from tests.support.cluster import cluster
from tests.support.eventually import until
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT
from tests.support.servers import served


async def test_fifty_deliveries_of_one_event_over_a_restart_of_the_gateway_are_one_run(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_WEBHOOK_GITHUB_SECRET", SECRET)
    agent = Agent(agent_name)
    ran: list[str] = []

    @agent.step
    async def first(ctx: Context, payload: int) -> Done:
        ran.append(ctx.run_id)
        return Done(payload)

    @agent.webhook("github", event="issues")
    def on_issue(event: Webhook) -> int:
        return int(event.json["issue"]["number"])

    port = unused_port()
    body, headers = delivery()
    acknowledged: list[str] = []
    refused = 0

    async def deliver(client: httpx.AsyncClient) -> None:
        """Until it is acknowledged, as senders do."""
        nonlocal refused

        async def taken() -> bool:
            nonlocal refused
            try:
                answer = await client.post("/webhooks/github", content=body, headers=headers)
            except httpx.TransportError:
                refused += 1
                return False
            if answer.status_code != 202:
                refused += 1
                return False
            acknowledged.append(answer.text)
            return True

        await until(taken, what="the delivery to be acknowledged")

    async with cluster(bootstrap, app, agent, gateway_port=port, **PATIENT) as kafka:
        await kafka.work(agent)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            async with served(agent, kafka.settings):
                early = [asyncio.create_task(deliver(client)) for _ in range(25)]
                await until(lambda: acknowledged, what="the first answers")
            late = [asyncio.create_task(deliver(client)) for _ in range(25)]
            await until(lambda: refused, what="deliveries that find nobody")
            async with served(agent, kafka.settings):
                await asyncio.gather(*early, *late)
        run_id = "github-delivery-1347"
        await kafka.until_status(agent, run_id, "completed")
        # The copies have all been looked at when one that comes after them is done.
        await kafka.start(agent, behind := kafka.run_on(partition_of(run_id, 2), "behind"))
        await kafka.until_status(agent, behind, "completed")
        assert len(acknowledged) == 50
        assert len(set(acknowledged)) == 1
        assert ran.count(run_id) == 1
        await kafka.check_history(agent)
