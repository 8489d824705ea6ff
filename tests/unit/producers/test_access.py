"""Accounts at the gateway: who may send which request, who sees which agent, the audit trail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Route, WebSocketRoute
from structlog.testing import capture_logs

from surefoot import Agent, ConfigError, Context, Done, Refused
from surefoot.client import Client
from surefoot.infra.http.client import GatewayHttp, with_token
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.views.http import MergedViews, views_app
from surefoot.producers.access.gate import STRANGERS_BURST, AccessControl
from surefoot.producers.access.rules import READ, RULES, rule_for
from surefoot.state.access.accounts import Account
from surefoot.state.access.audit import AuditEntry
from surefoot.state.errors import Unavailable
from surefoot.state.machine.commands import BODIES, COMMANDS
from surefoot.state.machine.model import State
from surefoot.state.names.roles import ROLES, Role, includes
from surefoot.state.reading.dead_letters import DeadLetter
from surefoot.state.reading.deliveries import Delivery
from surefoot.state.reading.lag import AgentStanding
from tests.support.eventually import until
from tests.support.fake_engine import a_run
from tests.unit.producers.test_gateway import RUN, Gateway, event, run, triage_agent

URL = "http://gateway"
#: a request to a route by its path: what stands in place of its parameters
PARAMS = {
    "{agent}": "triage",
    "{run_id}": RUN,
    "{effect_id}": f"triage:{RUN}:0:0",
    "{source}": "github",
    "{schedule}": "nightly",
    "{do}": "pause",
    "{path:path}": "main.js",
}


@dataclass
class FakeAccounts:
    """Accounts by their secrets; each role's name is the secret of an account of this name."""

    all: dict[str, Account] = field(
        default_factory=lambda: {role: Account(name=role, role=role) for role in ROLES}
    )
    away: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def sign_in(self, credential: str) -> Account | None:
        if self.away:
            raise Unavailable("SF3002", "secret-broker:9092 is away")
        return self.all.get(credential)

    async def ended(self, _account: Account) -> None:
        await self.gone.wait()


@dataclass
class FakeAudit:
    entries: list[AuditEntry] = field(default_factory=list)

    async def record(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    def told(self) -> list[tuple[str | None, str, int]]:
        return [(each.who, each.action, each.status) for each in self.entries]


def other_agent(name: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def first(ctx: Context, payload: int) -> Done:
        return Done()

    return agent


class Guarded(Gateway):
    accounts: FakeAccounts
    audit: FakeAudit

    def __init__(self, *agents: Agent, **limits: Any) -> None:
        self.accounts, self.audit = FakeAccounts(), FakeAudit()
        self.access = self.access_of()
        super().__init__(*agents, **{"answer_s": 0.01, **limits})
        self.reader.runs[RUN] = run(status="completed")
        self.reader.gone.set()

    def access_of(self) -> AccessControl:
        return AccessControl(accounts=self.accounts, audit=self.audit)

    async def ask(
        self, method: str, path: str, who: str | None, body: Any = None, **headers: str
    ) -> httpx.Response:
        if who is not None:
            headers["Authorization"] = f"Bearer {who}"
        content = ({} if body is None else body) if method == "POST" else None
        return await self.http.request(method, path, headers=headers, json=content)


@pytest.fixture
async def gateway() -> AsyncIterator[Guarded]:
    one = Guarded()
    async with one.http:
        yield one


def requests(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    """Method and path of each request that the routes answer; a command to a run is one each."""
    found: list[tuple[str, str]] = []
    for route in routes:
        if isinstance(route, Route):
            verbs = BODIES if "{verb}" in route.path else [""]
            paths = [route.path.replace("{verb}", verb) for verb in verbs]
            found += ((method, path) for method in route.methods or () for path in paths)
        elif isinstance(route, WebSocketRoute):
            found.append(("WS", route.path))
    return found


REQUESTS = requests(list(Guarded().app.routes))
#: of `surefoot views`
VIEWS_REQUESTS = requests(
    list(views_app({}, MergedViews({}, SystemClock(), 1, {}), SystemClock()).routes)
)


def rule_of(method: str, path: str) -> Any:
    verb = path.rpartition("/")[2]
    if path.startswith("/runs/{agent}/{run_id}/") and method == "POST":
        return rule_for("POST /runs/{agent}/{run_id}/{verb}", {"verb": verb})
    return RULES.get(f"{method.replace('HEAD', 'GET')} {path}")


def filled(path: str) -> str:
    for name, value in PARAMS.items():
        path = path.replace(name, value)
    return path


def test_every_route_is_in_the_table_and_the_table_has_no_other() -> None:
    every = [*REQUESTS, *VIEWS_REQUESTS]
    for method, path in every:
        assert rule_of(method, path) is not None, f"{method} {path} is not in RULES"
    known = {f"{method} {path}" for method, path in every}
    assert {*RULES} - known == {"POST /ui/demo/crash"}  # only in the demo


@pytest.mark.parametrize("who", [None, *ROLES])
async def test_each_request_is_for_whom_the_table_says(gateway: Guarded, who: Role | None) -> None:
    for method, path in REQUESTS:
        if method == "WS":
            continue
        needed = rule_of(method, path).role
        answer = await gateway.ask(method, filled(path), who)
        told = f"{method} {path}: {answer.status_code} {answer.text}"
        if path == "/webhooks/{source}":
            assert "SF5103" in answer.text, told  # it has no signature
        elif needed is None:
            assert answer.status_code not in (401, 403), told
        elif who is None:
            assert answer.status_code == 401, told
            assert answer.headers["www-authenticate"].startswith("Bearer"), told
        else:
            assert (answer.status_code == 403) is not includes(who, needed), told
            assert answer.status_code != 401, told


async def test_each_websocket_needs_an_account(gateway: Guarded) -> None:
    for path in (path for method, path in REQUESTS if method == "WS"):
        answer = await handshake(gateway, filled(path), {})
        assert answer[0]["status"] == 401
    assert gateway.reader.followed == []


async def handshake(gateway: Guarded, path: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    """What the application sends for a WebSocket, until it closes it."""
    sent: list[dict[str, Any]] = []
    told = asyncio.Queue[dict[str, Any]]()
    told.put_nowait({"type": "websocket.connect"})
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("10.0.0.7", 1),
        "extensions": {"websocket.http.response": {}},
    }

    async def send(message: Any) -> None:
        sent.append(message)

    await gateway.app(scope, told.get, send)
    return sent


async def test_every_answer_keeps_browsers_from_guessing_and_framing(gateway: Guarded) -> None:
    for method, path in REQUESTS:
        for who in (None, "admin"):
            if method == "WS":
                continue
            answer = await gateway.ask(method, filled(path), who)
            told = f"{method} {path}: {answer.headers}"
            assert answer.headers["x-content-type-options"] == "nosniff", told
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, told
            assert "frame-ancestors 'none'" in policy, told
            assert "unsafe" not in policy, told


def test_only_a_post_changes_anything() -> None:
    assert {method for method, _ in REQUESTS} == {"GET", "HEAD", "POST", "WS"}
    for request, rule in RULES.items():
        changes = request.startswith("POST ") and not request.startswith("POST /webhooks/")
        assert (rule.action != READ) is changes, request


POSTS = [path for method, path in REQUESTS if method == "POST" and "{source}" not in path]
#: and whether somebody has to sign in
CHANGES = [(path, True) for path in POSTS] + [
    (path, False) for path in POSTS if not path.startswith("/session")
]


@pytest.mark.parametrize(("path", "accounts"), CHANGES)
async def test_a_page_of_another_site_sends_nothing(path: str, accounts: bool) -> None:
    """Neither with what a form may send, nor as a script: also where nobody has to sign in."""
    one = Guarded() if accounts else Gateway()
    one.reader.runs[RUN] = run(status="completed")
    one.overview.books["triage"] = {"nightly": State(a_run(run_id="~nightly"))}
    own = {"Authorization": "Bearer admin"} if accounts else {}
    async with one.http as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = await http.post(
                filled(path), content=b"{}", headers={**own, "Content-Type": kind}
            )
            assert answer.status_code == 415, kind
        for told in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            answer = await http.post(filled(path), json={}, headers={**own, **told})
            assert answer.status_code == 403, told
    assert (one.commands.started, one.commands.sent) == ([], [])


def test_roles_keep_asking_and_approving_apart() -> None:
    allowed = {role: {needed for needed in ROLES if includes(role, needed)} for role in ROLES}
    assert allowed == {
        "viewer": {"viewer"},
        "approver": {"viewer", "approver"},
        "operator": {"viewer", "operator"},
        "admin": set(ROLES),
    }
    assert {word for word, row in COMMANDS.items() if row.role == "approver"} == {"approve"}
    assert {row.role for row in COMMANDS.values()} == {"approver", "operator"}
    for word, row in COMMANDS.items():
        assert rule_of("POST", f"/runs/{{agent}}/{{run_id}}/{word}").role == row.role


async def test_nothing_of_a_body_is_read_before_somebody_may_send_it(gateway: Guarded) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"{}"

    for who, status in ((None, 401), ("viewer", 403)):
        headers = {"Content-Type": "application/json"}
        if who is not None:
            headers["Authorization"] = f"Bearer {who}"
        answer = await gateway.http.post("/runs/triage", content=body(), headers=headers)
        assert (answer.status_code, read) == (status, [])


async def test_only_a_known_token_signs_in(gateway: Guarded) -> None:
    none = ("", "Bearer", "Bearer ", "Basic admin", "Bearer nobody", "admin", "Bearer admin x")
    for header in none:
        answer = await gateway.http.get("/agents", headers={"Authorization": header})
        assert answer.status_code == 401, header
    assert (await gateway.ask("GET", "/agents", "viewer")).status_code == 200


async def test_who_cannot_be_known_now_is_to_come_again(gateway: Guarded) -> None:
    gateway.accounts.away = True
    answer = await gateway.ask("GET", "/agents", "admin")
    assert answer.status_code == 503
    assert "secret-broker" not in answer.text
    assert (await gateway.ask("GET", "/health", None)).status_code == 200


async def test_a_stranger_is_told_no_name_by_a_probe(gateway: Guarded) -> None:
    gateway.readiness.reasons["triage"] = "secret-broker:9092 is away"
    gateway.archive = "SF3066: s3://secret-bucket/ refuses"
    with capture_logs() as logs:
        for path, told in (
            ("/ready", (503, {"ready": False})),
            ("/ready/triage", (503, {"ready": False})),
            ("/ready/nobody", (404, {"error": "SF5011: unknown agent"})),
        ):
            answer = await gateway.ask("GET", path, None)
            assert (answer.status_code, answer.json()) == told
    assert [line["event"] for line in logs] == ["not_ready", "not_ready"]
    assert all("secret-broker" in line["reasons"]["triage"] for line in logs)


# by -------------------------------------------------------------------------------------------


async def test_a_command_is_by_who_is_signed_in(gateway: Guarded) -> None:
    gateway.accounts.all["s3cret"] = Account(name="ann", role="admin")
    said = {"question": "q-1", "approved": True}
    for body in (said, {**said, "by": "ann"}, {**said, "by": None}):
        assert (await gateway.ask("POST", f"/runs/triage/{RUN}/approve", "s3cret", body)).is_success
    assert [fields["by"] for *_, fields in gateway.commands.sent] == ["ann"] * 3
    for path in (f"/runs/triage/{RUN}/approve", "/runs/triage/retry-failed"):
        answer = await gateway.ask("POST", path, "s3cret", {"by": "bob"})
        assert (answer.status_code, answer.json()["error"][:6]) == (403, "SF5083")
    assert len(gateway.commands.sent) == 3


async def test_a_bulk_retry_is_by_who_is_signed_in(gateway: Guarded) -> None:
    gateway.reader.runs = {RUN: run(status="failed")}
    assert (await gateway.ask("POST", "/runs/triage/retry-failed", "operator")).is_success
    assert [fields["by"] for *_, fields in gateway.commands.sent] == ["operator"]


# Scope ----------------------------------------------------------------------------------------


@pytest.fixture
async def scoped() -> AsyncIterator[Guarded]:
    """Agents triage, billing and billing-eu; `bill` signs in an admin of `billing*`."""
    one = Guarded(triage_agent(), other_agent("billing"), other_agent("billing-eu"))
    one.accounts.all["bill"] = Account(name="bill", role="admin", agents=("billing*",))
    async with one.http:
        yield one


async def test_what_is_out_of_scope_is_as_if_it_were_not_there(scoped: Guarded) -> None:
    for method, path in REQUESTS:
        if "{agent}" not in path or path.startswith(("/ready", "/ws")):
            continue
        real = await scoped.ask(method, filled(path), "bill")
        unreal = await scoped.ask(method, filled(path).replace("triage", "no-such"), "bill")
        assert real.status_code == 404, f"{method} {path}"
        assert (real.status_code, real.text) == (unreal.status_code, unreal.text)
        assert "triage" not in real.text
    assert (scoped.commands.sent, scoped.commands.started) == ([], [])


async def test_a_stream_has_nothing_of_what_is_out_of_scope(scoped: Guarded) -> None:
    who = {"authorization": "Bearer bill"}
    for path in (f"/ws/runs/triage/{RUN}/events", "/ws/events/triage"):
        [start, *rest] = await handshake(scoped, path, who)
        assert (start["status"], b"triage" in rest[0]["body"]) == (404, False)
    place = {"Last-Event-ID": "triage_4_4.billing_1_1"}  # as of somebody who sees more
    assert (await scoped.ask("GET", "/events", "bill", **place)).status_code == 200
    await handshake(scoped, "/ws/events", who | {"last-event-id": "triage_4_4"})
    assert [(agents, start) for agents, start, *_ in scoped.reader.followed] == [
        (["billing", "billing-eu"], {"billing": [1, 1]}),
        (["billing", "billing-eu"], {}),
    ]


async def test_the_outbox_needs_every_agent(scoped: Guarded) -> None:
    path = "/runs/outbox/retry-failed"
    assert (await scoped.ask("POST", path, "bill")).status_code == 404
    assert scoped.opens == 0
    assert (await scoped.ask("POST", path, "admin")).status_code == 200


async def test_lists_have_what_is_in_scope(scoped: Guarded) -> None:
    letter = DeadLetter(
        offset=1,
        at_ms=1,
        code="poison",
        message="m",
        attempts=1,
        agent="triage",
        run_id=None,
        step=None,
        source=None,
        value_bytes=0,
    )
    scoped.overview.letters = [letter]
    started: Any = {"source": "github", "at_ms": 1, "outcome": "started", "status": 202}
    scoped.overview.delivered = [
        Delivery(id="d1", runs=(("billing", "r1"),), **started),
        Delivery(id="d2", runs=(("billing", "r2"), ("triage", "r3")), **started),
        Delivery(id="d3", runs=(("billing", "r4"),), errors=("triage: no",), **started),
        Delivery(id="d4", **started),
    ]
    scoped.overview.standing = [
        AgentStanding(agent=name, group=name)
        for name in ("triage", "billing", "billing.schedules", "outbox")
    ]

    async def told(path: str, who: str) -> Any:
        return (await scoped.ask("GET", path, who)).json()

    for who, agents, ids, standing, letters in (
        ("bill", {"billing", "billing-eu"}, ["d1"], ["billing", "billing.schedules"], 0),
        (
            "viewer",
            {"billing", "billing-eu", "triage"},
            ["d1", "d2", "d3", "d4"],
            ["triage", "billing", "billing.schedules", "outbox"],
            1,
        ),
    ):
        assert {each["name"] for each in (await told("/agents", who))["agents"]} == agents
        assert [each["id"] for each in (await told("/deliveries", who))["deliveries"]] == ids
        assert [each["agent"] for each in (await told("/topics", who))["agents"]] == standing
        assert len((await told("/dead-letters", who))["dead_letters"]) == letters
        described = await scoped.ask("GET", "/openapi.json", who)
        assert ("triage" in described.text) == ("triage" in agents)
        assert ("/webhooks/{source}" in described.json()["paths"]) == ("triage" in agents)
        await scoped.ask("GET", "/events", who)
        assert set(scoped.reader.followed[-1][0]) == agents


async def test_an_effect_is_seen_with_its_agent(scoped: Guarded) -> None:
    done = event("run.completed", "completed", attempt=0, due_ms=None)
    for agent, status in (("triage", 404), ("billing", 200), ("billing.pool", 200)):
        scoped.reader.history[f"{agent}:r:0:0"] = [(0, done)]
        answer = await scoped.ask("GET", f"/effects/{agent}:r:0:0", "bill")
        assert answer.status_code == status


# Streams --------------------------------------------------------------------------------------


async def test_an_open_stream_ends_with_its_account(gateway: Guarded) -> None:
    gateway.reader.gone.clear()
    asking = asyncio.ensure_future(gateway.ask("GET", "/events", "viewer"))
    await until(lambda: gateway.reader.followed, what="the stream")
    assert not asking.done()
    gateway.accounts.gone.set()
    answer = await asking
    assert (answer.status_code, gateway.reader.closed) == (200, 1)
    assert answer.text.startswith("id: triage_0_0")


async def test_an_open_websocket_ends_with_its_account(gateway: Guarded) -> None:
    gateway.reader.gone.clear()
    headers = {"authorization": "Bearer viewer"}
    watching = asyncio.ensure_future(handshake(gateway, "/ws/events", headers))
    await until(lambda: gateway.reader.followed, what="the stream")
    gateway.accounts.gone.set()
    sent = await watching
    assert (sent[0]["type"], sent[-1]["type"], sent[-1]["code"]) == (
        "websocket.accept",
        "websocket.close",
        1008,
    )
    assert gateway.reader.closed == 1


async def test_one_account_keeps_no_other_from_a_stream() -> None:
    one = Guarded(streams=8)
    one.reader.gone.clear()
    headers = {"authorization": "Bearer viewer"}
    async with one.http:
        watching = [
            asyncio.ensure_future(one.ask("GET", "/events", "viewer")),
            asyncio.ensure_future(handshake(one, "/ws/events", headers)),
        ]
        await until(lambda: len(one.reader.followed) == 2, what="both streams")
        refused = await one.ask("GET", "/events", "viewer")
        assert (refused.status_code, refused.json()["error"][:6]) == (429, "SF5005")
        assert int(refused.headers["retry-after"]) > 0
        assert (await handshake(one, "/ws/events", headers))[0]["status"] == 429
        other = asyncio.ensure_future(one.ask("GET", "/events", "operator"))
        await until(lambda: len(one.reader.followed) == 3, what="the stream of another account")
        watching[0].cancel()
        await asyncio.wait(watching[:1])
        one.reader.gone.set()
        assert (await one.ask("GET", "/events", "viewer")).status_code == 200
        await asyncio.gather(other, *watching[1:])


async def test_a_stream_whose_client_leaves_is_closed(gateway: Guarded) -> None:
    gateway.reader.gone.clear()
    asking = asyncio.ensure_future(gateway.ask("GET", "/events", "viewer"))
    await until(lambda: gateway.reader.followed, what="the stream")
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    assert gateway.reader.closed == 1


# Audit ----------------------------------------------------------------------------------------


async def test_what_changes_something_is_recorded_with_its_outcome(gateway: Guarded) -> None:
    body = {"payload": {"number": 1, "title": "t"}, "run_id": "r-1"}
    await gateway.ask("POST", "/runs/triage", "operator", body)
    await gateway.ask("POST", "/runs/triage", "operator", {"no": 1})
    await gateway.ask("POST", f"/runs/triage/{RUN}/pause", "admin")
    gateway.reader.away = True
    await gateway.ask("POST", f"/runs/triage/{RUN}/pause", "admin")
    assert gateway.audit.told() == [
        ("operator", "start", 202),
        ("operator", "start", 422),
        ("admin", "pause", 200),
        ("admin", "pause", 503),
    ]
    start, _, pause, _ = gateway.audit.entries
    assert (start.agent, start.run_id, start.origin) == ("triage", "r-1", "127.0.0.1")
    assert (pause.agent, pause.run_id) == ("triage", RUN)


async def test_what_is_refused_is_recorded_and_what_is_read_is_not(gateway: Guarded) -> None:
    gateway.accounts.all["narrow"] = Account(name="narrow", role="viewer", agents=("billing",))
    await gateway.ask("GET", "/agents", "viewer")
    await gateway.ask("POST", f"/runs/triage/{RUN}/cancel", "viewer")
    await gateway.ask("GET", f"/runs/triage/{RUN}", "narrow")
    await gateway.ask("GET", f"/runs/triage/{RUN}", None)
    assert gateway.audit.told() == [
        ("viewer", "cancel", 403),
        ("narrow", "read", 404),
        (None, "read", 401),
    ]
    assert "needs the role operator" in str(gateway.audit.entries[0].note)


async def test_a_request_that_fails_is_recorded(gateway: Guarded) -> None:
    gateway.commands.fails["triage"] = RuntimeError("a bug")
    body = {"payload": {"number": 1, "title": "t"}}
    assert (await gateway.ask("POST", "/runs/triage", "operator", body)).status_code == 500
    assert gateway.audit.told() == [("operator", "start", 500)]


async def test_tries_of_strangers_are_recorded_now_and_then(gateway: Guarded) -> None:
    for _ in range(STRANGERS_BURST + 5):
        assert (await gateway.ask("POST", "/runs/triage", "wrong")).status_code == 401
    assert len(gateway.audit.entries) == STRANGERS_BURST
    await gateway.ask("POST", f"/runs/triage/{RUN}/cancel", "viewer")  # no stranger
    assert gateway.audit.told()[-1] == ("viewer", "cancel", 403)


async def test_no_secret_is_recorded(gateway: Guarded) -> None:
    gateway.accounts.all["c4nary"] = Account(name="ann", role="viewer")
    await gateway.ask("POST", f"/runs/triage/{RUN}/cancel?token=c4nary", "c4nary")
    await gateway.ask("GET", "/agents", "c4nary-wrong")
    assert len(gateway.audit.entries) == 2
    assert "c4nary" not in repr(gateway.audit.entries)


async def test_schedules_are_steered_by_operators(gateway: Guarded) -> None:
    gateway.overview.books["triage"] = {"nightly": State(None)}
    path = "/schedules/triage/nightly/pause"
    assert (await gateway.ask("POST", path, "approver")).status_code == 403
    assert gateway.audit.told() == [("approver", "schedule pause", 403)]


# Sessions -------------------------------------------------------------------------------------

#: as a browser says that the page is of this site
OWN = {"Sec-Fetch-Site": "same-origin"}


async def test_a_session_signs_in_until_it_is_ended(gateway: Guarded) -> None:
    gateway.accounts.all["s3cret"] = Account(name="ann", role="operator", agents=("tri*",))
    begun = await gateway.ask("POST", "/session", "s3cret", **OWN)
    assert begun.json() == {
        "name": "ann",
        "role": "operator",
        "agents": ["tri*"],
        "expires_ms": None,
    }
    [cookie] = begun.headers.get_list("set-cookie")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Max-Age" not in cookie  # it ends with the browser
    assert (await gateway.ask("GET", "/session", None)).json()["name"] == "ann"
    pause = f"/runs/triage/{RUN}/pause"
    assert (await gateway.ask("POST", pause, None, **OWN)).is_success
    assert [fields["by"] for *_, fields in gateway.commands.sent] == ["ann"]
    del gateway.accounts.all["s3cret"]
    assert (await gateway.ask("GET", "/agents", None)).status_code == 401
    gateway.accounts.all["s3cret"] = Account(name="ann", role="viewer")
    assert (await gateway.ask("POST", "/session/end", None, **OWN)).is_success
    assert (await gateway.ask("GET", "/agents", None)).status_code == 401
    assert [action for _, action, _ in gateway.audit.told() if "sign" in action] == [
        "sign in",
        "sign out",
    ]


async def test_over_https_the_cookie_never_leaves_it(gateway: Guarded) -> None:
    headers = {"Authorization": "Bearer viewer"}
    url = "https://gateway/session"
    begun = await gateway.http.post(url, headers=headers, json={})
    assert "Secure" in begun.headers["set-cookie"].split("; ")


async def test_no_session_is_begun_without_a_token(gateway: Guarded) -> None:
    for who in (None, "wrong"):
        refused = await gateway.ask("POST", "/session", who, **OWN)
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)


async def test_another_sites_page_cannot_use_a_session(gateway: Guarded) -> None:
    await gateway.ask("POST", "/session", "admin", **OWN)
    # the last is no request at all: the gate refuses before anybody could forget to
    for path in (f"/runs/triage/{RUN}/pause", "/session/end", "/runs/triage", "/agents"):
        for told in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            answer = await gateway.ask("POST", path, None, **told)
            assert (answer.status_code, answer.json()["error"][:6]) == (403, "SF5033")
    cookie = {"cookie": "surefoot-session=admin", "host": "gateway"}
    page = {"origin": "https://evil.example"}
    assert (await handshake(gateway, "/ws/events", cookie | page))[0]["status"] == 403
    assert (gateway.commands.sent, gateway.reader.followed) == ([], [])


async def test_the_dashboard_knows_whether_somebody_signs_in(gateway: Guarded) -> None:
    assert " data-accounts>" in (await gateway.ask("GET", "/ui/now", None)).text
    async with Gateway().http as http:
        assert "data-accounts" not in (await http.get("/ui/now")).text
        assert (await http.get("/session")).status_code == 404


# The client -----------------------------------------------------------------------------------


async def test_a_client_is_told_that_it_has_no_token_or_not_the_role(gateway: Guarded) -> None:
    def client(who: str) -> Client:
        headers = with_token(URL, {}, who, {})
        transport = httpx.ASGITransport(gateway.app)
        return Client(GatewayHttp(URL, headers=headers, transport=transport))

    async with client("viewer") as viewer, client("nobody") as nobody:
        assert (await viewer.run("triage", RUN).show()).status == "completed"
        with pytest.raises(Refused, match="role operator") as refused:
            await viewer.run("triage", RUN).pause()
        assert refused.value.code == "forbidden"
        with pytest.raises(Refused) as refused:
            await nobody.run("triage", RUN).show()
        assert refused.value.code == "not_signed_in"


def test_a_client_takes_the_token_that_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-a-file\n")
    environ = {"SUREFOOT_TOKEN_FILE": str(file)}
    both = {**environ, "SUREFOOT_TOKEN": "of-a-variable"}
    own = {"authorization": "Basic x"}
    assert with_token(URL, {"A": "b"}, None, {}) == {"A": "b"}
    assert with_token(URL, {}, None, environ) == {"Authorization": "Bearer of-a-file"}
    assert with_token(URL, {}, None, both) == {"Authorization": "Bearer of-a-variable"}
    assert with_token(URL, {}, "given", both) == {"Authorization": "Bearer given"}
    assert with_token(URL, own, None, both) == own
    for unusable in ("two words", "half\nline", "ä"):
        with pytest.raises(ConfigError, match="SF1085") as error:
            with_token(URL, {}, unusable, {})
        assert unusable not in str(error.value)
    with pytest.raises(ConfigError, match="SUREFOOT_TOKEN_FILE"):
        with_token(URL, {}, None, {"SUREFOOT_TOKEN_FILE": str(tmp_path / "none")})
