"""What webhooks go out, how they are signed, and what becomes of the answers."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks import Webhook

from surefoot import Agent, ConfigError, Context, Done, RetryableError, RunEvent, TerminalError
from surefoot.consumers.builtin.signing import signers_of
from surefoot.consumers.builtin.webhooks_out import (
    hook_mapping,
    judge_hook,
    signed_request,
)
from surefoot.consumers.topic_triggers.mapping import Mapped
from surefoot.infra.processes.webhooks_out import new_secret, require_secrets
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.producers.webhooks.signatures import standard_verifier
from surefoot.schemas.codec.codec import decode, encode
from surefoot.schemas.codec.records import AvroCommand
from surefoot.state.names.partitioner import affinity
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.http import HttpResponse
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import Wire
from surefoot.state.steps.webhook_effect import WebhookEffect

NOW_MS = 1_795_824_000_000
OLD, NEW = new_secret(), new_secret()
TOPICS = AgentTopics("app", "shop")


def an_agent(**said: Any) -> Agent:
    agent = Agent("shop")

    @agent.step
    async def ship(ctx: Context, number: int) -> Done:
        return Done(number)

    agent.subscribe("crm", **{"url": "https://crm.example/hook", "events": "run.completed"} | said)
    return agent


def an_event(**said: Any) -> bytes:
    fields: dict[str, Any] = {
        "run_id": "r-1",
        "agent": "shop",
        "version": 1,
        "type": "run.completed",
        "status": "completed",
        "seq": 2,
        "step": "ship",
        "at_ms": 1_700_000_000_123,
        "result": b'{"total":5}',
        "payload": b'"secret input"',
        "carry": b'"secret carry"',
        "next_step": None,
        "attempt": 0,
        "started_ms": None,
        "due_ms": None,
        "effects": [],
        "failure": None,
        "epoch": 0,
        "id": None,
        "name": None,
        "by": None,
        "memory": None,
        "wait": None,
        "children": 0,
    }
    return encode("Event", fields | said)


async def mapped(agent: Agent, value: bytes | None, *, limit: int = 100_000) -> Mapped:
    mapping = hook_mapping(agent, agent.subscriptions["crm"], Wire("app", TOPICS, 6), limit)
    record = ConsumerRecord(TOPICS.events, 3, 41, 1, b"r-1", value)
    event = await mapping.prepare(record)
    return event if isinstance(event, Mapped) else mapping.map(event, NOW_MS)


def delivery_of(found: Mapped) -> tuple[AvroCommand, dict[str, Any], dict[str, Any]]:
    """The start command, what it delivers, and the body of that."""
    assert found.out is not None
    assert found.failure is None
    command = decode(found.out.value, "Command")[1]
    delivery = json.loads(command["payload"])
    return command, delivery, json.loads(delivery["body"])


async def test_an_event_that_is_wanted_becomes_one_run_of_the_outbox_named_after_it() -> None:
    found = await mapped(an_agent(), an_event())
    command, delivery, body = delivery_of(found)
    assert found.out is not None
    assert found.out.topic == "app.outbox.commands"
    assert (command["kind"], command["step"]) == ("start", "deliver_hook")
    assert command["run_id"] == "shop-3-41-1700000000123:crm"
    assert affinity(command["run_id"]) == command["run_id"]  # it waits behind no other
    assert delivery["id"] == "shop-3-41-1700000000123"
    assert delivery["url"] == "https://crm.example/hook"
    assert (await mapped(an_agent(), an_event())).out == found.out
    assert body["type"] == "run.completed"
    assert body["timestamp"] == "2023-11-14T22:13:20.123+00:00"
    assert body["data"]["run_id"] == "r-1"
    assert body["data"]["result"] == {"total": 5}
    assert body["data"]["offset"] == 41
    assert "secret" not in delivery["body"]  # neither inputs nor what a run carries along


async def test_what_is_not_wanted_is_not_sent() -> None:
    assert await mapped(an_agent(), an_event(type="step.completed")) == Mapped(None)
    picky = an_agent(where=lambda event: event.result["total"] > 5)
    assert await mapped(picky, an_event()) == Mapped(None)
    assert (await mapped(picky, an_event(result=b'{"total":6}'))).out is not None


async def test_the_author_says_what_is_sent() -> None:
    def short(event: RunEvent) -> dict[str, Any]:
        return {"total": event.result["total"]}

    _, _, body = delivery_of(await mapped(an_agent(data=short), an_event()))
    assert body["data"] == {"total": 5}


@pytest.mark.parametrize(
    ("said", "value", "limit", "code"),
    [
        ({"where": lambda event: event.result["lost"]}, an_event(), 100_000, "mapping_raised"),
        ({"data": lambda event: {event}}, an_event(), 100_000, "mapping_raised"),
        ({"where": lambda _: sys.exit(3)}, an_event(), 100_000, "mapping_raised"),
        (
            {"data": lambda event: {"at": event.seq * float("nan")}},
            an_event(),
            100_000,
            "unserialisable",
        ),
        ({}, b"garbage", 100_000, "undecodable"),
        ({}, an_event(result=b'"' + b"x" * 5_000 + b'"'), 4_000, "too_large"),
    ],
)
async def test_what_cannot_be_sent_is_a_dead_letter_and_the_others_go_on(
    said: Mapping[str, Any], value: bytes, limit: int, code: str
) -> None:
    found = await mapped(an_agent(**said), value, limit=limit)
    assert found.failure is not None
    assert found.failure.code == code
    assert found.out is not None
    assert found.out.topic == "app.dead"


@pytest.mark.parametrize(
    "said",
    [
        {"events": "run.finished"},
        {"events": ()},
        {"start": "now"},
        {"url": "crm.example/hook"},
        {"url": "https://user:word@crm.example/"},
        {"url": "http://2130706433/"},
        {"url": "https://crm.example:22/", "events": "nope"},
    ],
)
def test_a_declaration_that_cannot_work_is_refused(said: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="SF1138"):
        an_agent(**said)


def test_names_are_used_once() -> None:
    agent = an_agent()
    with pytest.raises(ConfigError, match="twice"):
        agent.subscribe("crm", url="https://crm.example/")
    with pytest.raises(ConfigError, match="name it"):
        agent.subscribe("C R M", url="https://crm.example/")


DELIVERY = WebhookEffect(hook="crm", url="https://crm.example/", id="shop-3-41-1", body='{"ü":1}')


def test_a_receiver_with_either_secret_verifies_it_while_one_is_replaced() -> None:
    now_ms = SystemClock().now_ms()  # the library looks at the clock itself
    request = signed_request(DELIVERY, signers_of({"crm": [NEW, OLD]}), now_ms)
    headers = dict(request.headers)
    for secret in (NEW, OLD):
        assert Webhook(secret).verify(request.body, headers) == {"ü": 1}
    assert headers["webhook-id"] == "shop-3-41-1"
    assert headers["webhook-timestamp"] == str(now_ms // 1000)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for forged in ({"webhook-id": "other"}, {"webhook-timestamp": str(now_ms // 1000 - 1)}):
        assert standard_verifier(NEW)(headers | forged, request.body, now_ms // 1000) is not None
    assert standard_verifier(new_secret())(headers, request.body, now_ms // 1000) is not None


def test_each_attempt_is_signed_with_its_own_time() -> None:
    signers = signers_of({"crm": [NEW]})
    first, later = (signed_request(DELIVERY, signers, NOW_MS + ms) for ms in (0, 600_000))
    assert first.headers["webhook-id"] == later.headers["webhook-id"]
    assert first.headers["webhook-signature"] != later.headers["webhook-signature"]
    assert standard_verifier(NEW)(later.headers, later.body, NOW_MS // 1000 + 600) is None


def test_a_private_key_signs_for_whoever_has_the_public_one() -> None:
    key = Ed25519PrivateKey.generate()
    private = "whsk_" + base64.b64encode(key.private_bytes_raw()).decode()
    public = "whpk_" + base64.b64encode(key.public_key().public_bytes_raw()).decode()
    request = signed_request(DELIVERY, signers_of({"crm": [private, NEW]}), NOW_MS)
    for secret in (public, NEW):
        assert standard_verifier(secret)(request.headers, request.body, NOW_MS // 1000) is None


@pytest.mark.parametrize(
    "secret", ["", "changeme", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%", "whsk_c2hvcnQ=", "ü" * 40]
)
def test_a_secret_that_is_none_is_refused_and_not_told(secret: str) -> None:
    with pytest.raises(ConfigError, match="SUREFOOT_HOOK_C_R_M_SECRET") as refused:
        signers_of({"c-r-m": [secret]})
    assert not secret or secret.removeprefix("whsec_") not in str(refused.value) or len(secret) < 7


def test_a_relay_without_the_secret_tries_again_and_says_what_to_set() -> None:
    with pytest.raises(RetryableError, match="SUREFOOT_HOOK_CRM_SECRET"):
        signed_request(DELIVERY, {}, NOW_MS)


def test_where_everything_is_one_process_a_missing_secret_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUREFOOT_HOOK_CRM_SECRET", "")
    with pytest.raises(ConfigError, match="SUREFOOT_HOOK_CRM_SECRET"):
        require_secrets([an_agent()], load_settings())
    monkeypatch.setenv("SUREFOOT_HOOK_CRM_SECRET", f"{NEW},{OLD}")
    require_secrets([an_agent()], load_settings())
    assert load_settings().hook_secrets() == {"crm": [NEW, OLD]}


def answer(status: int, **headers: str) -> HttpResponse:
    return HttpResponse(status=status, headers=headers, body=b"<b>inside</b>")


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 429, 500, 503])
def test_anything_but_success_is_tried_again_and_what_was_said_is_not_shown(status: int) -> None:
    assert judge_hook(answer(204), NOW_MS) == 204
    with pytest.raises(RetryableError, match=f"answered {status}") as told:
        judge_hook(answer(status, **{"retry-after": "7", "location": "http://10.0.0.1"}), NOW_MS)
    assert told.value.retry_after_s == 7.0
    assert "inside" not in str(told.value)
    assert "10.0.0.1" not in str(told.value)


def test_a_receiver_that_is_gone_is_asked_no_more() -> None:
    with pytest.raises(TerminalError, match="410"):
        judge_hook(answer(410), NOW_MS)


async def test_where_the_code_failed_is_nobodys_outside() -> None:
    failure = {
        "code": "step_raised",
        "message": "no",
        "kind": "KeyError",
        "step": "ship",
        "attempt": 4,
        "frames": ["agent.py:12 in ship"],
    }
    agent = an_agent(events="run.failed")
    found = await mapped(agent, an_event(type="run.failed", status="failed", failure=failure))
    assert found.out is not None
    command = decode(found.out.value, "Command")[1]
    told = json.loads(json.loads(command["payload"])["body"])["data"]
    del failure["frames"]
    assert told["failure"] == failure
