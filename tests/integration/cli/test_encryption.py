"""A secret goes through a run by the commands that a user types, and stands on no topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.cli.test_cli_end_to_end import Cli, shown
from tests.support.eventually import until_sync
from tests.support.long_deadlines import PATIENT

SECRET = "4111-1111-1111-1111"
AGENT = """
from surefoot import Agent, Context, Done, Next, Retry

spy = Agent("spy")


async def charge(card: str) -> str:
    return f"charged {card}"


@spy.step(start=True)
async def first(ctx: Context, card: str) -> Next:
    charged = await ctx.call("charge", charge, card)
    ctx.outbox.http("POST", "https://pay.example/charges", json={"card": card})
    ctx.thread.append({"role": "user", "content": card})
    async with ctx.stream("draft") as out:
        await out.write(card)
    return Next(second, charged)


@spy.step(retry=Retry(attempts=1))
async def second(ctx: Context, charged: str) -> Done:
    if charged.endswith("boom"):
        raise ValueError(f"cannot use {charged}")
    return Done(charged)
"""


@pytest.fixture
def cli(bootstrap: str, app: str, tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "spy.py").write_text(AGENT)
    settings = {**PATIENT, "bootstrap_servers": bootstrap, "app": app, "partitions": 1}
    env = {f"SUREFOOT_{name.upper()}": str(value) for name, value in settings.items()}
    env["SUREFOOT_ENCRYPTION"] = str(tmp_path / "keys.json")
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


def raw(bootstrap: str, app: str) -> dict[str, list[bytes]]:
    """Every key, value and header on each topic of the app, as any client of Kafka sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{app}-raw",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    found: dict[str, list[bytes]] = {}
    try:
        for topic in [name for name in consumer.list_topics().topics if name.startswith(f"{app}.")]:
            consumer.assign([TopicPartition(topic, 0, 0)])
            found[topic.removeprefix(f"{app}.")] = records = []
            while (message := consumer.poll(60)) is not None and not message.error():
                headers: Any = message.headers() or []
                parts = [message.key(), message.value(), *(value for _, value in headers)]
                records.append(b"".join(part or b"" for part in parts))
    finally:
        consumer.close()
    return found


def test_a_secret_stands_on_no_topic_and_is_shown_with_the_key_alone(
    cli: Cli, bootstrap: str, app: str
) -> None:
    assert cli.here("keys", "add", "keys.json", "k1").returncode == 0
    assert cli.here("topics", "apply", "spy.py").returncode == 0
    worker = cli.start("worker", "spy.py")
    worker.wait_for("worker_ready")
    for run_id, card in (("good", SECRET), ("bad", f"{SECRET} boom")):
        started = cli.here("runs", "start", "spy", json.dumps(card), "--run-id", run_id)
        assert started.returncode == 0, started.stderr
    until_sync(lambda: shown(cli, "spy", "bad").get("status") == "failed", what="the failure")
    until_sync(lambda: shown(cli, "spy", "good").get("status") == "completed", what="the result")
    assert worker.stop() == 0

    records = raw(bootstrap, app)
    written = {"spy.commands", "spy.state", "spy.events", "outbox.commands", "dead"}
    assert all(records[topic] for topic in written), records
    assert [topic for topic, found in records.items() if SECRET.encode() in b"".join(found)] == []
    assert shown(cli, "spy", "good")["result"] == f"charged {SECRET}"

    keyless = Cli({**cli._env, "SUREFOOT_ENCRYPTION": ""}, cli._folder)
    good, bad = shown(keyless, "spy", "good"), shown(keyless, "spy", "bad")
    assert (good["status"], good["result"]) == ("completed", "<encrypted:k1>")
    assert (bad["status"], bad["failure"]["message"]) == ("failed", "<encrypted:k1>")
    refused = keyless.here("runs", "rewind", "spy", "good", "--to", "1")
    assert refused.returncode == 77
    assert "SF2090" in refused.stderr
