"""Deliveries of each sender through the gateway: real ones of GitHub, and those of the others."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from surefoot import Agent, Bearer, Context, Done, Flow, Hmac, Start, Webhook
from surefoot.producers.gateway import gateway_app
from surefoot.state.errors import Unavailable
from tests.unit import test_signatures as signed
from tests.unit.test_gateway import (
    DELIVERY,
    FakeClock,
    FakeCommands,
    FakeDeliveries,
    FakeOverview,
    FakeReader,
    FakeReadiness,
)
from tests.unit.test_how_to import module  # noqa: F401  (a fixture)

NOW = FakeClock().now_ms() // 1000
SHOP = Hmac(header="X-Shop-Signature", id_field="order.id", event_header="X-Shop-Event")
GITLAB = Bearer(header="X-Gitlab-Token", prefix="", event_header="X-Gitlab-Event")
SECRETS = {
    "github": [signed.SECRET],
    "billing": [signed.SECRET],
    "slack": [signed.SECRET],
    "standard": [signed.WHSEC, signed.WHPK],
    "shop": [signed.SECRET],
    "gitlab": [signed.SECRET],
}


class Site:
    """A gateway in front of one agent that takes what every sender sends, as it is."""

    def __init__(self) -> None:
        self.seen: list[Webhook] = []
        agent = Agent("all")

        @agent.step
        async def first(ctx: Context, said: Any) -> Done:
            return Done()

        def mapped(delivery: Webhook) -> Any:
            self.seen.append(delivery)
            return delivery.json

        agent.webhook("github")(mapped)
        agent.webhook("billing", provider="stripe", event="invoice.paid")(mapped)
        agent.webhook("slack")(mapped)
        agent.webhook("standard")(mapped)
        agent.webhook("shop", provider=SHOP)(mapped)
        agent.webhook("gitlab", provider=GITLAB)(mapped)
        reader = FakeReader()
        self.commands = FakeCommands(reader)
        self.deliveries = FakeDeliveries()
        self.app = gateway_app(
            agents=[agent],
            commands=self.commands,
            reader=reader,
            feed=reader,
            readiness=FakeReadiness(),
            secrets=SECRETS,
            deliveries=self.deliveries,
            overview=FakeOverview(),
            clock=FakeClock(),
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://gateway"
        )

    async def post(self, source: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        return await self.http.post(f"/webhooks/{source}", content=body, headers=headers)

    def runs(self) -> list[str]:
        return [run_id for _, run_id, _, _ in self.commands.started]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with made.http:
        yield made


def at(moved_s: int = 0) -> str:
    return str(NOW + moved_s)


# GitHub ---------------------------------------------------------------------------------------


async def test_github_may_send_a_form(site: Site) -> None:
    said = {"action": "opened", "issue": {"title": "café ☕ +&="}}
    body = urlencode({"payload": json.dumps(said)}).encode()
    headers = {
        **signed.github(signed.SECRET, body, ""),
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": DELIVERY,
        "Content-Type": "application/x-www-form-urlencoded",
    }
    answer = await site.post("github", body, headers)
    assert answer.status_code == 202
    assert site.seen[0].json == said
    assert site.seen[0].body == body


# Stripe ---------------------------------------------------------------------------------------


async def test_stripe_is_known_by_the_event_in_its_body_and_a_replay_is_the_same_run(
    site: Site,
) -> None:
    body = b'{"id": "evt_1", "type": "invoice.paid", "created": 1}'
    first = signed.stripe(signed.SECRET, body, at())
    for headers in (first, first, signed.stripe(signed.SECRET, body, at(10))):
        answer = await site.post("billing", body, headers)
        assert answer.json() == {"runs": [{"agent": "all", "run_id": "billing-evt_1"}]}
    assert set(site.runs()) == {"billing-evt_1"}
    assert "stripe-signature" not in site.seen[0].headers


@pytest.mark.parametrize("moved_s", [-360, -301, 301, 3600])
async def test_a_delivery_from_long_ago_or_from_the_future_starts_nothing(
    site: Site, moved_s: int
) -> None:
    body = b'{"id": "evt_1", "type": "invoice.paid"}'
    answer = await site.post("billing", body, signed.stripe(signed.SECRET, body, at(moved_s)))
    assert (answer.status_code, answer.json()["error"]) == (
        401,
        "SF5103: the signature is missing or wrong",
    )
    answer = await site.post("slack", body, signed.slack(signed.SECRET, body, at(moved_s)))
    assert answer.status_code == 401
    answer = await site.post("standard", body, signed.standard(signed.WHSEC, body, at(moved_s)))
    assert answer.status_code == 401
    assert site.runs() == []


async def test_an_event_that_is_not_wanted_is_acknowledged(site: Site) -> None:
    body = b'{"id": "evt_2", "type": "invoice.created"}'
    answer = await site.post("billing", body, signed.stripe(signed.SECRET, body, at()))
    assert (answer.status_code, answer.json()) == (200, {"runs": [], "ignored": True})


async def test_a_body_that_does_not_say_its_id_is_a_400(site: Site) -> None:
    for body in (b'{"type": "invoice.paid"}', b'{"id": true}', b'{"id": {}}', b'[{"id": "x"}]'):
        answer = await site.post("billing", body, signed.stripe(signed.SECRET, body, at()))
        assert answer.status_code == 400
        assert "'id' in the body" in answer.json()["error"]


# Slack ----------------------------------------------------------------------------------------


async def test_slack_is_answered_with_its_challenge_when_that_is_signed(site: Site) -> None:
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB"}'
    answer = await site.post("slack", body, signed.slack(signed.SECRET, body, at()))
    assert (answer.status_code, answer.json()) == (200, {"challenge": "3eZbrw1aB"})
    assert (await site.post("slack", body, {})).status_code == 401
    assert site.runs() == []


async def test_an_event_of_slack_is_one_run_however_often_it_is_retried(site: Site) -> None:
    event = {"type": "app_mention", "text": "hé"}
    body = json.dumps({"type": "event_callback", "event_id": "Ev1", "event": event}).encode()
    for number in range(4):
        headers = signed.slack(signed.SECRET, body, at(number))
        answer = await site.post("slack", body, {**headers, "X-Slack-Retry-Num": str(number)})
        assert (answer.status_code, answer.content) == (200, b"")
    assert set(site.runs()) == {"slack-Ev1"}
    assert site.seen[0].event == "app_mention"


async def test_a_slash_command_and_an_interaction_of_slack_are_forms(site: Site) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    fields = {"command": "/deploy", "text": "café ☕ now", "trigger_id": "13.73.80a"}
    body = urlencode(fields).encode()
    answer = await site.post("slack", body, form | signed.slack(signed.SECRET, body, at()))
    assert (answer.status_code, answer.content) == (200, b"")
    said = {"type": "block_actions", "trigger_id": "14.73.80a", "user": {"name": "Zoë"}}
    body = urlencode({"payload": json.dumps(said)}).encode()
    await site.post("slack", body, form | signed.slack(signed.SECRET, body, at()))
    assert [(each.event, each.json) for each in site.seen] == [
        ("/deploy", fields),
        ("block_actions", said),
    ]
    assert site.runs() == ["slack-13.73.80a", "slack-14.73.80a"]


async def test_what_slack_gives_no_id_is_known_by_its_body(site: Site) -> None:
    for body in (b'{"type": "a"}', b'{"type": "a"}', b'{"type": "b"}'):
        await site.post("slack", body, signed.slack(signed.SECRET, body, at()))
    one, again, other = site.runs()
    assert one == again != other


async def test_slack_is_not_told_of_a_start_that_is_not_acknowledged(site: Site) -> None:
    site.commands.fails["all"] = Unavailable("SF3002", "away")
    body = b'{"event_id": "Ev1"}'
    answer = await site.post("slack", body, signed.slack(signed.SECRET, body, at()))
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert max(site.commands.deadlines) < 3


# Standard Webhooks, and declared ones ---------------------------------------------------------


async def test_standard_webhooks_with_a_shared_secret_and_with_a_key(site: Site) -> None:
    body = '{"type": "user.created", "data": {"name": "Zoë"}}'.encode()
    for headers in (
        signed.standard(signed.WHSEC, body, at()),
        signed.ed25519(signed.WHPK, body, at()),
    ):
        answer = await site.post("standard", body, headers)
        assert answer.json() == {"runs": [{"agent": "all", "run_id": "standard-msg_1"}]}
    assert site.seen[0].event == "user.created"
    assert "webhook-signature" not in site.seen[0].headers


async def test_a_declared_sender_is_known_by_what_it_declares(site: Site) -> None:
    body = b'{"order": {"id": 9007199254740993}}'
    headers = {"X-Shop-Signature": signed.mac(signed.SECRET, body).hex(), "X-Shop-Event": "paid"}
    assert (await site.post("shop", body, headers)).status_code == 202
    assert site.runs() == ["shop-9007199254740993"]
    assert site.seen[0].event == "paid"
    assert "x-shop-signature" not in site.seen[0].headers


async def test_a_token_is_shown_to_nobody_and_equal_bodies_are_one_run(site: Site) -> None:
    headers = {"X-Gitlab-Token": signed.SECRET, "X-Gitlab-Event": "Push Hook"}
    for body in (b'{"a": 1}', b'{"a": 1}', b'{"a": 2}'):
        assert (await site.post("gitlab", body, headers)).status_code == 202
    one, again, other = site.runs()
    assert one == again != other
    assert signed.SECRET not in repr(site.seen)
    for token in (signed.OTHER, signed.SECRET[:-1], signed.SECRET + "x", "", "é"):
        raw = {"X-Gitlab-Token": token.encode().decode("latin-1")}
        assert (
            await site.http.post(
                "/webhooks/gitlab",
                content=b"{}",
                headers=[(b"x-gitlab-token", raw["X-Gitlab-Token"].encode("latin-1"))],
            )
        ).status_code == 401


# Several runs ---------------------------------------------------------------------------------


async def test_a_batch_is_several_runs_and_all_must_be_acknowledged() -> None:
    site = Site()
    batch = Agent("batch")

    @batch.step
    async def first(ctx: Context, number: int) -> Done:
        return Done()

    batch.webhook("billing", provider="stripe")(
        lambda delivery: [Start(each) for each in delivery.json["items"]]
    )
    async with _gateway(batch, site.commands) as http:
        body = b'{"id": "evt_9", "items": [5, 6]}'
        headers = signed.stripe(signed.SECRET, body, at())
        answer = await http.post("/webhooks/billing", content=body, headers=headers)
        assert answer.status_code == 202
        runs = [{"agent": "batch", "run_id": f"billing-evt_9.{n}"} for n in range(2)]
        assert answer.json() == {"runs": runs}
        assert [payload for *_, payload, _ in site.commands.started] == [b"5", b"6"]
        site.commands.fails["batch"] = Unavailable("SF3002", "away")
        answer = await http.post("/webhooks/billing", content=body, headers=headers)
        assert answer.status_code == 503


@asynccontextmanager
async def _gateway(
    agent: Agent, commands: FakeCommands, *others: Agent
) -> AsyncIterator[httpx.AsyncClient]:
    app = gateway_app(
        agents=[agent, *others],
        commands=commands,
        reader=FakeReader(),
        feed=FakeReader(),
        readiness=FakeReadiness(),
        secrets=SECRETS,
        deliveries=FakeDeliveries(),
        overview=FakeOverview(),
        clock=FakeClock(),
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway"
    ) as http:
        yield http


async def test_deliveries_about_one_subject_are_runs_of_one_lane() -> None:
    """They queue behind each other, whatever order and batches they come in."""
    agent = Agent("ordered", flow=Flow(key=lambda said: said["about"], concurrency=1))
    commands = FakeCommands(FakeReader())

    @agent.step
    async def first(ctx: Context, said: dict[str, Any]) -> Done:
        return Done()

    @agent.webhook("github")
    def mapped(delivery: Webhook) -> Any:
        return [Start(each) for each in delivery.json["all"]]

    async with _gateway(agent, commands) as http:
        for number, abouts in enumerate((["i-1", "i-2"], ["i-1"])):
            body = json.dumps({"all": [{"about": about} for about in abouts]}).encode()
            headers = {
                "X-GitHub-Event": "issues", "X-GitHub-Delivery": f"d-{number}",
                **signed.github(signed.SECRET, body, ""),
            }  # fmt: skip
            answer = await http.post("/webhooks/github", content=body, headers=headers)
            assert answer.status_code == 202
    assert [run_id for _, run_id, _, _ in commands.started] == [
        "i-1=github-d-0.0", "i-2=github-d-0.1", "i-1=github-d-1.0",
    ]  # fmt: skip
    assert answer.json()["runs"] == [{"agent": "ordered", "run_id": "i-1=github-d-1.0"}]


# The how-to page ------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["webhooks"], indirect=True)
async def test_the_senders_of_the_how_to_page_start_what_it_says(
    module: ModuleType,  # noqa: F811
) -> None:
    site = Site()
    issue = b'{"action": "opened", "issue": {"title": "It crashes", "user": {"login": "ann"}}}'
    ticket = urlencode({"command": "/ticket", "text": "help", "user_name": "bo"}).encode()
    paid = b'{"id": "evt_1", "type": "invoice.paid", "created": 5, "data": {"object": {"id": "i"}}}'
    sale = b'{"event": {"id": "e-1", "type": "sold"}, "sales": [{"id": "s-1"}, {"id": "s-2"}]}'
    form = {
        "Content-Type": "application/x-www-form-urlencoded",
        **signed.slack(signed.SECRET, ticket, at()),
    }
    shop = base64.b64encode(signed.mac(signed.SECRET, at().encode() + b"." + sale, "sha512"))
    async with _gateway(module.support, site.commands, module.billing) as http:
        for source, body, headers in (
            ("github", issue, {
                "X-GitHub-Event": "issues", "X-GitHub-Delivery": "d-1",
                **signed.github(signed.SECRET, issue, ""),
            }),
            ("slack", ticket, form),
            ("billing", paid, signed.stripe(signed.SECRET, paid, at())),
            ("shop", sale, {"X-Shop-Signature": f"v1={shop.decode()}", "X-Shop-Time": at()}),
            ("gitlab", b"{}", {"X-Gitlab-Token": signed.SECRET}),
        ):  # fmt: skip
            answer = await http.post(f"/webhooks/{source}", content=body, headers=headers)
            assert answer.is_success, answer.text
    github, slack, *rest = site.commands.started
    assert github[:3] == ("support", "github-d-1", b'{"title":"It crashes","opened_by":"ann"}')
    assert (slack[0], slack[2]) == ("support", b'{"title":"help","opened_by":"bo"}')
    assert [each[:3] for each in rest] == [
        ("billing", "billing-evt_1", b'{"id":"i","at":5}'),
        ("billing", "shop-s-1", b'{"id":"s-1","at":0}'),
        ("billing", "shop-s-2", b'{"id":"s-2","at":0}'),
    ]
