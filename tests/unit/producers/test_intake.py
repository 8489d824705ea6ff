"""Deliveries of each sender through the gateway: real ones of GitHub, and those of the others."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from surefoot import Agent, Bearer, Context, Done, Flow, Hmac, Start, Webhook
from surefoot.producers.api.app import GatewayLimits, gateway_app
from surefoot.producers.guards import RequestRefused
from surefoot.producers.webhooks.intake import gunzip
from surefoot.state.errors import Unavailable
from tests.unit.documents.test_how_to import module  # noqa: F401  (a fixture)
from tests.unit.producers import test_signatures as signed
from tests.unit.producers.test_gateway import (
    DELIVERY,
    FakeClock,
    FakeCommands,
    FakeDeliveries,
    FakeOverview,
    FakeReader,
    FakeReadiness,
)

FORM = "application/x-www-form-urlencoded"
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

    def __init__(self, secrets: Mapping[str, list[str]] = SECRETS) -> None:
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
            secrets=secrets,
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


async def test_the_secret_of_one_source_opens_no_other() -> None:
    one = Site(secrets=SECRETS | {"shop": [signed.OTHER], "gitlab": [signed.OTHER]})
    body = b'{"order": {"id": "1"}}'
    async with one.http:
        for secret, status in ((signed.SECRET, 401), (signed.OTHER, 202)):
            proofs = {
                "shop": {"X-Shop-Signature": signed.mac(secret, body).hex()},
                "gitlab": {"X-Gitlab-Token": secret},
            }
            for source, proof in proofs.items():
                answer = await one.post(source, body, proof)
                assert answer.status_code == status, (source, secret)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with made.http:
        yield made


def at(moved_s: int = 0) -> str:
    return str(NOW + moved_s)


# Whatever the body is -------------------------------------------------------------------------

BODIES = {
    "a field twice": (FORM, b"to=a&to=b"),
    "Latin-1": (FORM, b"who=J%FCrgen"),
    "multipart": ("multipart/form-data; boundary=x", b"--x\r\n\r\n\xff\r\n--x--\r\n"),
    "nothing": ("", b""),
    "text": ("text/plain", b"hello"),
    "bytes": ("application/octet-stream", b"\x00\xff"),
    "half JSON": ("application/json", b'{"a": '),
}


@pytest.mark.parametrize("source", ["github", "standard", "gitlab", "slack"])
@pytest.mark.parametrize(("content_type", "body"), BODIES.values(), ids=BODIES)
async def test_a_mapping_has_the_bytes_of_any_body(
    source: str, content_type: str, body: bytes
) -> None:
    agent, seen = Agent("raw"), list[Webhook]()

    @agent.step
    async def first(ctx: Context, size: int) -> Done:
        return Done(size)

    def mapped(delivery: Webhook) -> int:
        seen.append(delivery)
        return len(delivery.body)

    provider: Any = GITLAB if source == "gitlab" else source
    agent.webhook(source, provider=provider, event="never")(lambda delivery: delivery.json["x"])
    agent.webhook(source, provider=provider, where=lambda d: len(d.body) < 100)(mapped)
    sign = {
        "github": lambda: signed.github(signed.SECRET, body, ""),
        "standard": lambda: signed.standard(signed.WHSEC, body, at()),
        "gitlab": lambda: {"X-Gitlab-Token": signed.SECRET},
        "slack": lambda: signed.slack(signed.SECRET, body, at()),
    }[source]
    headers = {"Content-Type": content_type, "X-GitHub-Delivery": "d-1", **sign()}
    commands = FakeCommands(FakeReader())
    async with _gateway(agent, commands) as http:
        answer = await http.post(f"/webhooks/{source}", content=body, headers=headers)
    assert answer.is_success
    assert [each.body for each in seen] == [body]
    assert [payload for _, _, payload, _ in commands.started] == [b"%d" % len(body)]


async def test_a_filter_that_reads_what_is_not_there_is_told_and_costs_its_agent_only() -> None:
    picky, plain = Agent("picky"), Agent("plain")
    for agent in (picky, plain):

        @agent.step
        async def first(ctx: Context, said: Any) -> Done:
            return Done()

    picky.webhook("github", where=lambda delivery: delivery.json["a"])(lambda _: 1)
    plain.webhook("github")(lambda delivery: delivery.form["to"])
    body = b"to=a&to=b"
    headers = {
        "Content-Type": FORM,
        "X-GitHub-Delivery": "d-1",
        **signed.github(signed.SECRET, body, ""),
    }
    commands = FakeCommands(FakeReader())
    async with _gateway(picky, commands, plain) as http:
        answer = await http.post("/webhooks/github", content=body, headers=headers)
    assert answer.status_code == 422
    [told] = answer.json()["errors"]
    assert told == {
        "agent": "picky",
        "error": "the webhook mapping cannot read the delivery: the form has the field 'to' "
        "twice; delivery.form has all its values",
    }
    assert [payload for _, _, payload, _ in commands.started] == [b'["a","b"]']


async def test_a_sender_whose_id_is_in_the_body_is_told_why_it_cannot_be_read(site: Site) -> None:
    body = b"id=evt_1&id=evt_2"
    headers = {"Content-Type": FORM, **signed.stripe(signed.SECRET, body, at())}
    answer = await site.post("billing", body, headers)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("SF5105: the form has the field 'id' twice")


# gzip -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip"])
async def test_gzip_is_unpacked_where_it_is_taken_and_signed_as_it_was_sent(encoding: str) -> None:
    said = {"action": "opened"}
    plain = json.dumps(said).encode()
    body = gzip.compress(plain)
    async with _gateway(echo := Echo(), limits=GatewayLimits(gzip=True)) as http:
        answer = await http.post(
            "/webhooks/github", content=body, headers=packed(body, body, encoding)
        )
        assert answer.status_code == 202
        [delivery] = echo.seen
        assert (delivery.body, delivery.json) == (plain, said)
        assert "content-encoding" not in delivery.headers
        wrong = packed(body, plain, encoding)
        assert (await http.post("/webhooks/github", content=body, headers=wrong)).is_error


async def test_a_body_that_unpacks_to_more_than_is_allowed_is_refused() -> None:
    small, limits = 10_000, GatewayLimits(gzip=True, body_bytes=10_000)
    async with _gateway(echo := Echo(), limits=limits) as http:
        for size, status in ((small, 202), (small + 1, 413), (5_000_000, 413)):
            body = gzip.compress(b" " * size)
            assert len(body) < small
            answer = await http.post(
                "/webhooks/github", content=body, headers=packed(body, body, "gzip")
            )
            assert answer.status_code == status
    assert [len(each.body) for each in echo.seen] == [small]


def test_no_more_of_a_body_is_unpacked_than_is_allowed() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(RequestRefused, match="longer than 1000 bytes"):
            gunzip(bomb, 1_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        gzip.compress(b"{}")[:-1],
        gzip.compress(b"{}") * 2,
        b"\x1f\x8b",
        zlib.compress(b""),
    ],
)
async def test_what_is_no_whole_gzip_is_refused(body: bytes) -> None:
    async with _gateway(Echo(), limits=GatewayLimits(gzip=True)) as http:
        answer = await http.post(
            "/webhooks/github", content=body, headers=packed(body, body, "gzip")
        )
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("SF5178: the body cannot be decompressed")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip,identity", "zstd"])
async def test_any_other_encoding_is_refused(encoding: str) -> None:
    body = gzip.compress(b"{}")
    async with _gateway(Echo(), limits=GatewayLimits(gzip=True)) as http:
        answer = await http.post(
            "/webhooks/github", content=body, headers=packed(body, body, encoding)
        )
    assert answer.status_code == 415


def packed(body: bytes, signs: bytes, encoding: str) -> dict[str, str]:
    return {
        "Content-Encoding": encoding,
        "X-GitHub-Delivery": "d-1",
        **signed.github(signed.SECRET, signs, ""),
    }


class Echo(Agent):
    """Takes the body of any delivery of GitHub's."""

    def __init__(self) -> None:
        super().__init__("echo")
        self.seen: list[Webhook] = []

        @self.step
        async def first(ctx: Context, size: int) -> Done:
            return Done()

        @self.webhook("github")
        def mapped(delivery: Webhook) -> int:
            self.seen.append(delivery)
            return len(delivery.body)


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


async def test_slack_may_look_at_the_certificate_signed_or_not(site: Site) -> None:
    body = b"token=xyzz&ssl_check=1"
    form = {"Content-Type": FORM}
    for headers in (form, form | signed.slack(signed.SECRET, body, at())):
        answer = await site.post("slack", body, headers)
        assert (answer.status_code, answer.content) == (200, b"")
    assert [each.outcome for each in site.deliveries.offered] == ["answered", "answered"]
    for other in (
        b"ssl_check=0",
        b"ssl_check=1&ssl_check=1",
        b"x=1",
        b"ssl_check=1&a=" + b"a" * 990,
    ):
        assert (await site.post("slack", other, form)).status_code == 401
    assert (await site.post("slack", body, {})).status_code == 401
    assert (await site.post("github", body, form)).status_code == 401
    assert site.runs() == []
    assert site.seen == []


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
    agent: Agent,
    commands: FakeCommands | None = None,
    *others: Agent,
    limits: GatewayLimits | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    app = gateway_app(
        agents=[agent, *others],
        commands=commands or FakeCommands(FakeReader()),
        reader=FakeReader(),
        feed=FakeReader(),
        readiness=FakeReadiness(),
        secrets=SECRETS,
        deliveries=FakeDeliveries(),
        overview=FakeOverview(),
        clock=FakeClock(),
        limits=limits,
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
                "X-GitHub-Event": "issues",
                "X-GitHub-Delivery": f"d-{number}",
                **signed.github(signed.SECRET, body, ""),
            }
            answer = await http.post("/webhooks/github", content=body, headers=headers)
            assert answer.status_code == 202
    assert [run_id for _, run_id, _, _ in commands.started] == [
        "i-1=github-d-0.0",
        "i-2=github-d-0.1",
        "i-1=github-d-1.0",
    ]
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
            (
                "github",
                issue,
                {
                    "X-GitHub-Event": "issues",
                    "X-GitHub-Delivery": "d-1",
                    **signed.github(signed.SECRET, issue, ""),
                },
            ),
            ("slack", ticket, form),
            ("billing", paid, signed.stripe(signed.SECRET, paid, at())),
            ("shop", sale, {"X-Shop-Signature": f"v1={shop.decode()}", "X-Shop-Time": at()}),
            ("gitlab", b"{}", {"X-Gitlab-Token": signed.SECRET}),
        ):
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
