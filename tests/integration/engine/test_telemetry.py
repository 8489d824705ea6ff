"""What the processes of a user tell about themselves, and what they keep to themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from surefoot import Agent, Context, Done
from surefoot.infra.demo.deliveries import signature
from surefoot.infra.telemetry.metrics import Prometheus
from surefoot.state.telemetry import metrics
from tests.integration.cli.test_cli_end_to_end import Cli, until_taken
from tests.support.cluster import cluster
from tests.support.eventually import until, until_sync
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT

SECRET = "canary-secret-0123456789abcdef0123"
CANARY = "canary-4f1c"
TRACE = "0af7651916cd43dd8448eb211c80319c"
AGENT = """
import logging

import structlog

from surefoot import Agent, Context, Done, Wait, Webhook

shop = Agent("shop")


@shop.step(start=True)
async def pack(ctx: Context, payload: dict) -> Wait:
    structlog.get_logger("author").info("packing", payload=payload, token=payload["mail"])
    logging.getLogger("author").warning("to https://u:%s@host", payload["mail"])
    async with ctx.stream("draft") as draft:
        await draft.write(payload["mail"])
    await ctx.call("ask", lambda mail: mail, payload["mail"])
    return Wait("go", then=send, carry=payload)


@shop.step
def send(ctx: Context, said: str, payload: dict) -> Done:
    ctx.outbox.http("POST", payload["url"], json=payload, headers={"X-Token": payload["mail"]})
    return Done(payload)


@shop.webhook("github", event="issues")
def opened(delivery: Webhook) -> dict:
    return delivery.json
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_LOG": "sqlite:///runs.db",
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_GATEWAY_PORT": "0",
        "SUREFOOT_METRICS_PORT": "0",
        "SUREFOOT_TRACES": "1",
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "SUREFOOT_WEBHOOK_GITHUB_SECRET": SECRET,
    }
    (tmp_path / "shop.py").write_text(AGENT)
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


def test_canaries_come_out_nowhere(cli: Cli) -> None:
    service = cli.start("serve", "shop.py")
    url = service.wait_for("gateway_ready")[0]["url"]
    scrape = service.wait_for("metrics_ready")[0]["url"]
    payload = {"mail": f"{CANARY}@x.test", "url": f"http://127.0.0.1:{unused_port()}/{CANARY}"}
    body = json.dumps(payload).encode()
    with httpx.Client(base_url=url, trust_env=False, timeout=90) as client:
        headers = {
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "d1",
            "X-Secret": CANARY,
            "Cookie": CANARY,
            "Content-Type": "application/json",
            "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
        }
        refused = client.post("/webhooks/github", content=body, headers=headers)
        assert refused.status_code == 401
        assert client.post("/webhooks/nobody", content=body).status_code == 404
        headers["X-Hub-Signature-256"] = signature(SECRET, body)
        taken = until_taken(lambda: client.post("/webhooks/github", content=body, headers=headers))
        run_id = taken.json()["runs"][0]["run_id"]
        until_sync(
            lambda: client.get(f"/runs/shop/{run_id}").json().get("status") == "waiting",
            what="the run to wait",
        )
        said = {"id": "s1", "name": "go", "payload": CANARY}
        until_sync(
            lambda: client.post(f"/runs/shop/{run_id}/signal", json=said).is_success,
            what="the signal to be taken",
        )
        until_sync(lambda: '"surefoot.run"' in service.said(), what="the run's span")

    def scraped() -> dict[str, float]:
        return {
            f"{sample.name}{sorted(sample.labels.values())}": sample.value
            for family in text_string_to_metric_families(
                httpx.get(scrape, trust_env=False, timeout=90).text
            )
            for sample in family.samples
        }

    nobody = "surefoot_outbox_deliveries_total['none']"
    ended = "surefoot_runs_ended_total['completed', 'shop']"
    until_sync(lambda: {nobody, ended} <= scraped().keys(), what="a delivery, and the run's end")
    found = scraped()
    assert found["surefoot_webhook_deliveries_total['github', 'started']"] == 1
    assert found["surefoot_webhook_deliveries_total['github', 'refused']"] == 1
    assert found["surefoot_webhook_deliveries_total['refused', 'unknown']"] == 1
    assert found[ended] == 1
    shown = httpx.get(scrape, trust_env=False, timeout=90).text
    service.stop()
    assert CANARY not in shown + service.said()
    assert SECRET not in shown + service.said()
    lines = [json.loads(line) for line in service.said().splitlines() if line.startswith('{"')]
    authors = [line for line in lines if line.get("run_id") == run_id and "step" in line]
    assert {"packing", "to https://[redacted]@host"} <= {line["event"] for line in authors}
    names = set(re.findall(r'"name": "(.+?)"', service.said()))
    assert names == {"surefoot.run", "surefoot.step"}
    assert set(re.findall(r'"trace_id": "0x(\w+)"', service.said())) == {TRACE}


async def test_an_open_transaction_shows_as_held_back(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def only(ctx: Context, payload: int) -> Done:
        return Done()

    registry = CollectorRegistry()
    before = metrics.use_sink(Prometheus(registry))
    stranger = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{app}-stranger")
    try:
        async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
            first = await kafka.work(agent)
            await kafka.start(agent, "r1")
            await kafka.until_status(agent, "r1", "completed")
            await until(lambda: first.log.lso_lag() == 0, what="nothing to be held back")
            await stranger.start()
            await stranger.begin_transaction()
            await stranger.send_and_wait(kafka.topics(agent).commands, b"?", b"?", 0)
            await until(lambda: first.log.lso_lag() == 1, what="the open transaction to be seen")
            await stranger.abort_transaction()
            await until(lambda: first.log.lso_lag() == 0, what="its end to be seen")
            # Another worker of the partition: this one finds itself fenced.
            other = await first.log.own(0)
            await kafka.start(agent, "r2")
            await kafka.until_status(agent, "r2", "completed")
            await other.close()
    finally:
        await stranger.stop()
        metrics.use_sink(before)
    labels = {"agent": agent_name}
    assert registry.get_sample_value("surefoot_producer_fenced_total", labels) == 1
    assert registry.get_sample_value("surefoot_state_restore_seconds_count", labels) == 2
