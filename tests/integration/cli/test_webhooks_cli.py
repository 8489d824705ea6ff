"""Deliveries through the real command line, on a real broker and on an embedded log: what came, why
it was refused, which runs it became; and mapping it again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from surefoot.infra.demo.deliveries import issue_event
from surefoot.state.names.ids import run_id_for
from tests.integration.cli.test_cli_end_to_end import Cli, until_taken
from tests.support.eventually import until_sync
from tests.unit.producers import test_signatures as signed

AGENT = """
from surefoot import Agent, Context, Done, Start, Webhook

hooks = Agent("hooks")


@hooks.step
async def first(ctx: Context, number: int) -> Done:
    return Done(number)


@hooks.webhook("github", event="issues")
def on_issue(delivery: Webhook) -> int:
    return delivery.json["issue"]["number"]


@hooks.webhook("billing", provider="stripe")
def on_bill(delivery: Webhook) -> list[Start]:
    return [Start(item) for item in delivery.json["items"]]
"""


@pytest.fixture(params=["kafka", "embedded"])
def cli(request: pytest.FixtureRequest, app: str, tmp_path: Path) -> Iterator[Cli]:
    if request.param == "kafka":
        log = {"SUREFOOT_BOOTSTRAP_SERVERS": request.getfixturevalue("bootstrap")}
    else:
        log = {"SUREFOOT_LOG": "sqlite:///runs.db"}
    env = {
        **log,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_GATEWAY_PORT": "0",
        "SUREFOOT_WEBHOOK_GITHUB_SECRET": signed.SECRET,
        "SUREFOOT_WEBHOOK_BILLING_SECRET": f"{signed.OTHER},{signed.SECRET}",
    }
    (tmp_path / "hooks.py").write_text(AGENT)
    made = Cli(env, tmp_path)
    yield made
    made.close()


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_what_came_is_told_and_can_be_mapped_again(cli: Cli, tmp_path: Path) -> None:
    service = cli.start("serve", "hooks.py")
    [ready] = service.wait_for("gateway_ready")
    now = str(int(time.time()))
    issue, bill = issue_event(7, Random(1)), b'{"id": "evt_1", "type": "paid", "items": [1, 2]}'
    github = {
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": "d@1",
        "Authorization": "Bearer canary",
        **signed.github(signed.SECRET, issue, now),
    }
    with httpx.Client(base_url=ready["url"], timeout=90) as http:
        until_taken(lambda: http.post("/webhooks/github", content=issue, headers=github))
        stripe = signed.stripe(signed.SECRET, bill, now)
        until_taken(lambda: http.post("/webhooks/billing", content=bill, headers=stripe))
        assert http.post("/webhooks/github", content=issue + b" ", headers=github).is_error
        named = run_id_for("github-d@1")
        run = f"/runs/hooks/{named}"
        until_sync(lambda: http.get(run).json().get("status") == "completed", what="the run")
        history = [each["event"] for each in http.get(f"{run}/history").json()["events"]]
        assert [each["by"] for each in history if each["type"] == "run.started"] == ["github-d@1"]

    def listed(*options: str) -> list[dict[str, Any]]:
        """Without those that the log was too slow for, which were sent again."""
        found = lines(cli.here("webhooks", "deliveries", "--json", *options).stdout)
        return [each for each in found if each["outcome"] != "unavailable"]

    def done() -> list[dict[str, Any]]:
        found = cli.here("runs", "list", "hooks", "--status", "completed", "--json")
        return lines(found.stdout)

    told = until_sync(lambda: found if len(found := listed()) == 3 else [], what="three records")
    assert [(each["source"], each["outcome"]) for each in told] == [
        ("github", "refused"),
        ("billing", "started"),
        ("github", "started"),
    ]
    table = cli.ok("webhooks", "deliveries", "--source", "billing")
    assert "hooks/billing-evt_1.1" in table
    assert "github" not in table
    assert [each["id"] for each in listed("--refused", "--limit", "1")] == [told[0]["id"]]
    assert told[0]["reason"] == "x-hub-signature-256 does not match this body and secret"
    shown = json.loads(cli.ok("webhooks", "show", "d@1", "--json"))
    assert (shown["delivery"], shown["runs"]) == ("d@1", [{"agent": "hooks", "run_id": named}])
    assert shown["body"] == issue.decode()

    until_sync(lambda: len(done()) == 3, what="the runs to be there")
    mapped = AGENT.replace('["items"]]', '["items"] + [3]]')
    (tmp_path / "hooks.py").write_text(mapped)
    again = lines(cli.ok("webhooks", "redeliver", "evt_1", "hooks.py", "--json"))
    assert [(each["run_id"], each["started"]) for each in again] == [
        ("billing-evt_1.0", False),
        ("billing-evt_1.1", False),
        ("billing-evt_1.2", True),
    ]
    refused = cli.run("webhooks", "redeliver", told[0]["id"], "hooks.py")
    assert refused.returncode == 2
    assert "was not verified" in refused.stderr

    until_sync(lambda: len(done()) == 4, what="four runs")
    assert service.stop() == 0
    assert "canary" not in service.said() + json.dumps(told)
    for file in tmp_path.glob("runs.db*"):
        assert b"canary" not in file.read_bytes()
