"""Payloads are kept from who may not see them: in every answer, and in every event of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import ConfigError
from surefoot.infra.runtime.settings import load_settings
from surefoot.producers.access.gate import AccessControl
from surefoot.producers.access.withholding import Withholding
from surefoot.schemas.payload import strict_json
from surefoot.state.access.withheld import WITHHELD, parse_payload_roles, withhold
from surefoot.state.feeds.feed import FeedMessage
from surefoot.state.machine.model import Amount, Memory, PlanItem, WaitState
from surefoot.state.names.roles import ROLES, Role
from surefoot.state.reading.dead_letters import DeadLetter
from surefoot.state.reading.deliveries import Delivery
from surefoot.state.reading.runs import event_json
from tests.unit.producers.test_access import OWN, REQUESTS, Guarded, filled, handshake, rule_of
from tests.unit.producers.test_gateway import RUN, event, run

#: is in everything that a run works on, and in nothing else
CANARY = "c4nary"
_TEXT = strict_json({"prompt": CANARY, "status": CANARY, "run_id": [CANARY]})
_FAILURE = {
    "code": "step_failed",
    "message": CANARY,
    "kind": "ValueError",
    "step": "classify",
    "attempt": 1,
    "frames": [CANARY],
}
_MEMORY = Memory(
    plan=(PlanItem(id="p1", text=CANARY, state="done"),), thread=3, spent=(Amount("money", 5),)
)


class Withheld(Guarded):
    """A gateway that shows payloads to operators and admins; each run is full of the canary."""

    def __init__(self) -> None:
        super().__init__()
        full: dict[str, Any] = {"payload": _TEXT, "result": _TEXT, "carry": _TEXT}
        wait = WaitState(kind="approval", since_ms=7, question="q-1", by=("ann",))
        self.reader.runs[RUN] = run(
            status="failed", failure=_FAILURE, memory=_MEMORY, wait=wait, **full
        )
        told = event("step.failed", failure=_FAILURE, wait=None, memory=None, **full)
        output = {"run_id": RUN, "name": "answer", "text": CANARY, "at_ms": 1}
        effect = f"triage:{RUN}:0:0"
        done = event("run.failed", attempt=0, due_ms=None, failure=_FAILURE, result=_TEXT)
        self.reader.history = {RUN: [(3, told)], effect: [(0, done)]}
        self.reader.told = [
            FeedMessage("triage_0_1", "step.failed", strict_json(event_json(told)).decode()),
            FeedMessage(None, "output", strict_json(output).decode()),
            FeedMessage(None, "odd", CANARY),
            FeedMessage(None, "slow", '{"resume":"triage_0_1"}'),
        ]
        self.overview.letters = [
            DeadLetter(
                offset=1,
                at_ms=1,
                code="poison",
                message=CANARY,
                attempts=1,
                agent="triage",
                run_id=RUN,
                step=None,
                source=None,
                value_bytes=9,
            )
        ]
        failed = Delivery(
            id="d1",
            source="github",
            at_ms=1,
            outcome="failed",
            status=422,
            reason=CANARY,
            errors=(f"triage: {CANARY}",),
            headers=(("x", CANARY),),
            body=CANARY.encode(),
        )
        self.overview.delivered = [failed]
        self.reader.answers_with = ("command.refused", "too_late", CANARY)
        self.reader.gone.set()

    def access_of(self) -> AccessControl:
        roles = parse_payload_roles("operator")
        return AccessControl(accounts=self.accounts, audit=self.audit, payload_roles=roles)


async def answers(who: Role) -> dict[str, str]:
    """What every request is answered, by its route, with the messages of the WebSockets."""
    gateway, found = Withheld(), {}
    async with gateway.http:
        for method, path in REQUESTS:
            if method == "WS":
                signed = {"authorization": f"Bearer {who}"}
                sent = await handshake(gateway, filled(path), signed)
                found[f"{method} {path}"] = "".join(each.get("text", "") for each in sent)
            elif method != "HEAD" and rule_of(method, path).role is not None:
                answer = await gateway.ask(method, filled(path), who, **OWN)
                if answer.content:
                    assert int(answer.headers.get("content-length", len(answer.content))) == len(
                        answer.content
                    )
                found[f"{method} {path}"] = answer.text
    return found


async def test_no_answer_has_a_payload_for_who_may_not_see_it() -> None:
    for who in ("viewer", "approver"):
        for route, text in (await answers(who)).items():
            assert CANARY not in text, f"{who}: {route}: {text}"


async def test_who_may_see_payloads_is_answered_as_ever() -> None:
    operator, admin = await answers("operator"), await answers("admin")
    with_canary = {route for route, text in operator.items() if CANARY in text}
    assert with_canary >= {
        "GET /runs/{agent}",
        "GET /runs/{agent}/{run_id}",
        "GET /runs/{agent}/{run_id}/why",
        "GET /runs/{agent}/{run_id}/history",
        "GET /runs/{agent}/{run_id}/events",
        "GET /effects/{effect_id}",
        "GET /events",
        "GET /events/{agent}",
        "GET /deliveries",
        "GET /dead-letters",
        "WS /ws/runs/{agent}/{run_id}/events",
        "WS /ws/events",
        "WS /ws/events/{agent}",
        "POST /runs/{agent}/{run_id}/pause",
    }
    assert all(admin[route] == operator[route] for route in with_canary)


async def test_what_says_where_a_run_stands_is_shown() -> None:
    gateway = Withheld()
    async with gateway.http:
        told = (await gateway.ask("GET", f"/runs/triage/{RUN}", "viewer")).json()
        operators = (await gateway.ask("GET", f"/runs/triage/{RUN}", "operator")).json()
        why = (await gateway.ask("GET", f"/runs/triage/{RUN}/why", "viewer")).json()
        [line] = (await gateway.ask("GET", "/runs/triage", "viewer")).json()["runs"]
        refused = await gateway.ask("GET", "/runs/triage/nobody", "viewer")
    withheld = {name for name, value in told.items() if value != operators[name]}
    assert withheld == {"payload", "result", "carry", "failure", "memory"}
    assert told["payload"] == told["result"] == told["carry"] == WITHHELD
    assert told["failure"] == {
        **operators["failure"],
        "message": WITHHELD,
        "frames": [WITHHELD],
    }
    assert told["memory"]["plan"] == [{"id": "p1", "text": WITHHELD, "state": "done"}]
    assert told["memory"]["spent"] == operators["memory"]["spent"] != {}
    assert (told["wait"]["question"], told["wait"]["by"]) == ("q-1", ["ann"])
    assert (why["because"], why["backlog"]["tasks"]) == ([WITHHELD], 3)
    assert (line["run_id"], line["failure"]["code"]) == (RUN, "step_failed")
    assert refused.json() == {"error": "SF4101: there is no such run"}


async def test_a_stream_goes_on_as_it_would_but_for_the_payloads() -> None:
    gateway = Withheld()
    async with gateway.http:
        shown = await gateway.ask("GET", "/events", "operator")
        withheld = await gateway.ask("GET", "/events", "viewer")
    lines = [each.text.split("\n") for each in (shown, withheld)]
    others = [[line for line in each if not line.startswith("data:")] for each in lines]
    assert others[0] == others[1]
    assert len(lines[0]) == len(lines[1]) > len(others[0])
    at = lines[1].index("event: step.failed")
    told = json.loads(lines[1][at + 1].removeprefix("data: "))
    assert (told["run_id"], told["seq"], told["payload"]) == (RUN, 0, WITHHELD)
    assert withheld.headers["content-type"] == shown.headers["content-type"]


async def sent_on(*messages: Any) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    withholding = Withholding(send)
    for message in messages:
        await withholding(message)
    return sent


def begin(content_type: str, status: int = 200) -> dict[str, Any]:
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"99")]
    return {"type": "http.response.start", "status": status, "headers": headers}


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", ""])
async def test_what_cannot_be_looked_at_is_not_sent(content_type: str) -> None:
    body = {"type": "http.response.body", "body": CANARY.encode()}
    start, end = await sent_on(begin(content_type), body)
    assert end["body"] == strict_json(WITHHELD)
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(end["body"])


@given(st.integers(1, 40), st.sampled_from(["\n", "\r\n"]))
async def test_it_does_not_matter_how_a_stream_is_cut(size: int, end: str) -> None:
    text = f'id: 1{end}event: x{end}data: {{"payload": "{CANARY}", "seq": 1}}{end}{end}: beat{end}'
    raw = text.encode()
    chunks = [raw[at : at + size] for at in range(0, len(raw), size)]
    bodies = [{"type": "http.response.body", "body": chunk, "more_body": True} for chunk in chunks]
    sent = await sent_on(begin("text/event-stream; charset=utf-8"), *bodies)
    told = b"".join(each["body"] for each in sent[1:]).decode()
    assert told.replace("\r", "").split("\n") == [
        "id: 1",
        "event: x",
        f'data: {{"payload":"{WITHHELD}","seq":1}}',
        "",
        ": beat",
        "",
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(CANARY),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.sampled_from(["payload", "odd", "failure", "spent", "seq"]), each)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["payload", "result", "carry", "text", "message", "a new field"]))
def test_a_field_that_nobody_has_listed_is_withheld(name: str) -> None:
    for value in ({"seq": 1}, [CANARY], CANARY, 7, True, 0.5):
        told = withhold({name: value})[name]
        assert told in (WITHHELD, [WITHHELD])
    assert withhold({name: None}) == {name: None}
    assert withhold({name: []}) == {name: []}


@given(json_values)
def test_whatever_is_withheld_once_stays_so_and_has_the_same_fields(value: Any) -> None:
    told = withhold({"runs": value, "result": value})
    assert withhold(told) == told
    assert told.keys() == {"runs", "result"}
    assert CANARY not in json.dumps(told["result"])


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("viewer,approver,operator", {*ROLES}),
        (" operator ", {"operator", "admin"}),
        ("admin", {"admin"}),
    ],
)
def test_an_admin_sees_payloads_whoever_else_does(text: str, roles: set[str]) -> None:
    gateway = Guarded()
    access = AccessControl(
        accounts=gateway.accounts, audit=gateway.audit, payload_roles=parse_payload_roles(text)
    )
    assert {role for role in ROLES if access.shows_payloads(role)} == roles
    assert load_settings(payload_roles=text).payload_roles == text


def test_a_role_that_does_not_exist_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"SUREFOOT_PAYLOAD_ROLES.*'operators'"):
        load_settings(payload_roles="operators")
