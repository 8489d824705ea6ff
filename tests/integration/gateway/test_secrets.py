"""Secrets that go through all that a run has, on a real broker, come out nowhere; and what a run is
given is where it belongs, and not in logs, metrics and spans."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from standardwebhooks import Webhook

from surefoot import Agent
from surefoot.infra.demo.deliveries import signature
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.cluster import Cluster, cluster
from tests.support.effect_target import Reply, Sink, sink
from tests.support.eventually import until
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT
from tests.support.trigger_cluster import Listening

GITHUB = "canary-github-0123456789abcdef0123"
GITHUB_OLD = "canary-github-old-0123456789abcdef"
FORGER = "canary-forger-0123456789abcdef0123"
HOOK = b"canary-hook-0123456789abcdef0123"
HOOK_SECRET = f"whsec_{base64.b64encode(HOOK).decode()}"
REGISTRY = "canary-registry"
VIEWS = "canary-views"
AUTHOR = "canary-author"
#: of a delivery, as senders and proxies add them
SHOWN_BY_SENDERS = {
    "Authorization": "Bearer canary-authorization",
    "Proxy-Authorization": "Basic canary-proxy",
    "Cookie": "session=canary-cookie",
    "X-Api-Key": "canary-api-key",
    "X-Gitlab-Token": "canary-token",
}
SECRETS = [
    "canary-",
    HOOK_SECRET.removeprefix("whsec_"),
    *(
        base64.b64encode(secret.encode()).decode().rstrip("=")
        for secret in (f"registry:{REGISTRY}", f"views:{VIEWS}")
    ),
]
#: what the runs are given: in the topics, and in what tells of runs
NOTE = "a-note-4f1c"

AGENT = """
import logging
import os

import structlog

from surefoot import Agent, Context, Done, Retry, Webhook

shop = Agent("shop")
KEY = os.environ["SHOP_KEY"]
URL = f"https://shop:{KEY}@api.example/orders?api_key={KEY}"


@shop.step(retry=Retry(attempts=2, initial_s=0.01))
async def pack(ctx: Context, payload: dict) -> Done:
    headers = {"Authorization": f"Bearer {KEY}"}
    structlog.get_logger("author").info("asking", url=URL, headers=headers, payload=payload)
    logging.getLogger("author").warning("asking %s", URL)
    if payload["breaks"]:
        raise ValueError(f"401 for url '{URL}', sent as {headers}")
    return Done(payload["note"])


@shop.webhook("github", event="issues")
def opened(delivery: Webhook) -> dict:
    if delivery.json.get("odd"):
        raise ValueError(f"odd: {dict(delivery.headers)}")
    return delivery.json


@shop.on_event(topic="TOPIC", start="earliest")
def on_order(order: dict) -> dict:
    return order


shop.subscribe("crm", url="CRM", events=["run.completed", "run.failed"], start="earliest")
"""


@pytest.fixture
async def kafka(bootstrap: str, app: str) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, Agent("shop"), **PATIENT) as made:
        yield made


def settings_of(kafka: Cluster, registry: str) -> dict[str, str]:
    return {
        **{f"SUREFOOT_{name.upper()}": str(value) for name, value in PATIENT.items()},
        "SUREFOOT_BOOTSTRAP_SERVERS": str(kafka.settings.bootstrap_servers),
        "SUREFOOT_APP": kafka.settings.app,
        "SUREFOOT_PARTITIONS": str(kafka.settings.partitions),
        "SUREFOOT_GATEWAY_PORT": "0",
        "SUREFOOT_METRICS_PORT": "0",
        "SUREFOOT_TRACES": "1",
        "OTEL_TRACES_EXPORTER": "console",
        "SUREFOOT_WEBHOOK_GITHUB_SECRET": f"{GITHUB},{GITHUB_OLD}",
        "SUREFOOT_HOOK_CRM_SECRET": HOOK_SECRET,
        "SUREFOOT_REGISTRY_URL": registry,
        "SUREFOOT_REGISTRY_USERNAME": "registry",
        "SUREFOOT_REGISTRY_PASSWORD": REGISTRY,
        "SUREFOOT_VIEWS_URL": f"http://views:{VIEWS}@127.0.0.1:{unused_port()}",
        "SHOP_KEY": AUTHOR,
    }


class Asker:
    """Asks a gateway, and keeps all that it answers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.answers: list[str] = []

    async def ask(self, method: str, path: str, *wanted: int, **how: Any) -> httpx.Response:
        """Its answer, with one of these statuses; asked again while the log is too slow for one."""

        async def answered() -> httpx.Response | None:
            answer = await self.client.request(method, path, **how)
            self.answers.append(f"{path} {answer.headers} {answer.text}")
            if answer.status_code == 503 and 503 not in wanted:
                return None
            assert not wanted or answer.status_code in wanted, answer.text
            return answer

        answer = await until(answered, what=f"{method} {path} to be answered")
        assert answer is not None
        return answer

    async def deliver(self, name: str, secret: str, *wanted: int, **fields: Any) -> None:
        body = json.dumps({"note": NOTE, "breaks": False, **fields}).encode()
        headers = {
            **SHOWN_BY_SENDERS,
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": name,
            "X-Hub-Signature-256": signature(secret, body),
            "Content-Type": "application/json",
        }
        await self.ask("POST", "/webhooks/github", *wanted, content=body, headers=headers)

    async def everything(self, **names: list[str]) -> None:
        """Each GET that the gateway describes, with each of these names in its path."""
        described = (await self.ask("GET", "/openapi.json")).json()["paths"]
        paths = [path for path, methods in described.items() if "get" in methods]
        for name, values in names.items():
            paths = [path.replace(f"{{{name}}}", value) for path in paths for value in values]
        assert not any("{" in path for path in paths)
        await asyncio.gather(*(self._one_of_everything(path) for path in set(paths)))

    async def _one_of_everything(self, path: str) -> None:
        if path.startswith("/views/"):
            await self.ask("GET", path, 503)
        elif path.startswith("/events"):
            await self.watch(path)
        else:
            await self.ask("GET", path)

    async def watch(self, path: str) -> None:
        """The stream, until both runs are over."""

        async def watched() -> bool:
            left = {"event: run.completed", "event: run.failed"}
            async with self.client.stream("GET", path, params={"from": "earliest"}) as answer:
                async for line in answer.aiter_lines():
                    self.answers.append(line)
                    left.discard(line)
                    if not left:
                        return True
            return False

        await until(watched, what=f"both ends on {path}")


async def all_topics(kafka: Cluster) -> bytes:
    """Keys, values and headers of every record that the app's topics have, as they are."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.settings.bootstrap_servers)
    await admin.start()
    names = sorted(
        name for name in await admin.list_topics() if name.startswith(kafka.settings.app)
    )
    await admin.close()
    found = []
    for name in names:
        for record in await kafka.read(name, isolation="read_uncommitted"):
            found += [name.encode(), record.key or b"", record.value or b""]
            found += [
                part for key, value in record.headers for part in (key.encode(), value or b"")
            ]
    return b"\n".join(found)


def found_in(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [
        data[max(0, at - 120) : at + 60].decode(errors="replace")
        for secret in SECRETS
        if (at := data.find(secret.encode())) >= 0
    ]


async def test_no_secret_comes_out_anywhere(kafka: Cluster, tmp_path: Path) -> None:
    topic = f"{kafka.settings.app}-orders"
    orders = Listening(kafka, Agent("shop"), topic, 1)
    await orders.create()
    await orders.send(b"\0\0\0\0\x07an order of a schema that has to be asked for")
    async with sink() as crm, sink() as registry:
        crm.script = {"/crm": [Reply(500)]}
        registry.script = {"/schemas/ids/7": [Reply(401)] * 10_000}
        source = AGENT.replace("TOPIC", topic).replace("CRM", f"{crm.url}/crm")
        (tmp_path / "shop.py").write_text(source)
        cli = Cli(settings_of(kafka, registry.url), tmp_path)
        try:
            out = await went_through(cli, crm, registry)
        finally:
            cli.close()
    records = await all_topics(kafka)
    assert NOTE.encode() in records
    assert found_in(records) == []
    for what, told in out.items():
        assert found_in(told) == [], what
        assert (NOTE in told) == (what in ("answers", "commands", "webhooks")), what


async def went_through(cli: Cli, crm: Sink, registry: Sink) -> dict[str, str]:
    """What was told in which way, of runs that did all that could let a secret out."""
    service = await asyncio.to_thread(cli.start, "serve", "shop.py")
    [ready] = await asyncio.to_thread(service.wait_for, "gateway_ready")
    [scrape] = await asyncio.to_thread(service.wait_for, "metrics_ready")
    async with httpx.AsyncClient(base_url=ready["url"], trust_env=False, timeout=90) as client:
        gateway = Asker(client)
        await gateway.deliver("good", GITHUB, 202)
        await gateway.deliver("bad", GITHUB_OLD, 202, breaks=True)
        await gateway.deliver("odd", GITHUB, 422, odd=True)
        await gateway.deliver("forged", FORGER, 401)
        await until(lambda: len(crm.acted) == 2, what="both webhooks, the first one tried twice")
        await until(lambda: registry.book, what="the registry to be asked")

        async def recorded() -> bool:
            told = (await gateway.ask("GET", "/deliveries", 200)).json()["deliveries"]
            return {each["outcome"] for each in told} >= {"started", "refused", "failed"}

        await until(recorded, what="the records of the deliveries")
        await gateway.everything(
            agent=["shop"],
            run_id=["github-good", "github-bad"],
            effect_id=[key for hook in crm.acted for key in (hook, f"{hook}:crm")],
        )
        letters = (await gateway.ask("GET", "/dead-letters")).json()
        assert "github-bad" in json.dumps(letters)
        metrics = (await client.get(scrape["url"])).text
    commands = [
        await asyncio.to_thread(cli.here, *command)
        for command in (
            ("runs", "show", "shop", "github-good"),
            ("runs", "show", "shop", "github-bad"),
            ("runs", "show", "shop", "github-bad", "--json"),
            ("webhooks", "deliveries", "--json"),
            ("webhooks", "show", "good", "--json"),
            ("hooks", "list", "shop.py"),
        )
    ]
    await asyncio.to_thread(service.stop)
    for request in crm.book:
        Webhook(HOOK_SECRET).verify(request.body, request.headers)
    shown = registry.book[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(shown).decode() == f"registry:{REGISTRY}"
    assert [each["url"] for each in service.events("asking")] != []
    return {
        "answers": "\n".join(gateway.answers),
        "commands": "\n".join(each.stdout + each.stderr for each in commands),
        "webhooks": "\n".join(request.body.decode() for request in crm.book),
        "metrics": metrics,
        "log": service.said(),
    }
