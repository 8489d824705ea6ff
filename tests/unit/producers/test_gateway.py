import asyncio
import hashlib
import hmac
import json
from collections.abc import Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import structlog

from surefoot import Agent, Context, Done, Webhook
from surefoot.producers.access.gate import AccessControl
from surefoot.producers.api.app import GatewayLimits, gateway_app
from surefoot.producers.commands.operations import REFUSALS
from surefoot.schemas.payload import strict_json
from surefoot.state.errors import ConfigError, RecordTooLarge, Unavailable
from surefoot.state.errors.catalogue import number_of
from surefoot.state.feeds.feed import EventFilter, FeedMessage
from surefoot.state.machine.model import Amount, Memory, State, WaitState, jsonable
from surefoot.state.names.ids import check_run_id
from surefoot.state.ports.log import Position
from surefoot.state.reading.admin import DeadLetters
from surefoot.state.reading.dead_letters import DeadLetter
from surefoot.state.reading.deliveries import Delivery
from surefoot.state.reading.lag import AgentStanding
from surefoot.state.reading.ports import Backlog, RunPage, RunView
from surefoot.state.reading.query import HistoryEntry, HistoryPage, PageCursor, RunQuery
from surefoot.state.reading.runs import event_json
from surefoot.state.reading.select import activity

SECRET = "0123456789abcdef0123456789abcdef"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
RUN = f"github-{DELIVERY}"
#: the shape of a GitHub `issues` delivery, cut down
OPENED = {
    "action": "opened",
    "issue": {
        "id": 9_007_199_254_740_993,
        "number": 1347,
        "title": "Crash on start ☕",
        "body": "It crashes.\r\n",
        "labels": [],
        "user": {"login": "octocat"},
        "comments_url": "https://api.github.com/repos/octocat/hello/issues/1347/comments",
    },
    "repository": {"full_name": "octocat/hello"},
    "sender": {"login": "octocat"},
}
RAW = json.dumps(OPENED).encode()
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass
class Issue:
    number: int
    title: str


@dataclass
class FakeCommands:
    """Remembers what was started and sent; `fails` by agent. `owner` answers what is sent."""

    owner: "FakeReader"
    started: list[tuple[str, str, bytes, str | None]] = field(default_factory=list)
    sent: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)
    carried: list[dict[str, str]] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    deadlines: list[float] = field(default_factory=list)
    #: what asks for each that was started, where its run_id does not say so
    asked_by: list[str | None] = field(default_factory=list)

    async def send(self, agent, run_id, kind, *, deadline_s, **fields):
        self.deadlines.append(deadline_s)
        if agent in self.fails:
            raise self.fails[agent]
        self.sent.append((agent, run_id, kind, fields))
        self.owner.answer(run_id, fields["id"])
        return Position(0, len(self.sent) - 1)

    async def start(
        self, agent, run_id, payload, *, traceparent=None, by=None, deadline_s, **carried
    ):
        self.carried.append(carried)
        self.deadlines.append(deadline_s)
        if agent in self.fails:
            raise self.fails[agent]
        for _ in range(9):  # the log takes its time
            await asyncio.sleep(0)
        self.started.append((agent, run_id, payload, traceparent))
        self.asked_by.append(by)
        return Position(0, len(self.started) - 1)


@dataclass
class FakeDeliveries:
    """Remembers what was offered to be recorded."""

    offered: list[Delivery] = field(default_factory=list)

    def offer(self, delivery: Delivery) -> None:
        self.offered.append(delivery)


@dataclass
class FakeOverview:
    """What it is given; `away`: the log cannot be read."""

    standing: list[AgentStanding] = field(default_factory=list)
    delivered: list[Delivery] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    books: dict[str, dict[str, State]] = field(default_factory=dict)
    away: bool = False

    def _look(self) -> None:
        if self.away:
            raise Unavailable("SF3002", "secret-broker:9092 is away")

    async def standings(self):
        self._look()
        return self.standing

    async def deliveries(self, *, source, outcome, limit):
        self._look()
        wanted = [
            each
            for each in self.delivered
            if source in (None, each.source) and outcome in (None, each.outcome)
        ]
        return wanted[:limit]

    async def dead_letters(self, *, before, limit):
        self._look()
        older = [each for each in self.letters if before is None or each.offset < before]
        page = older[:limit]
        return DeadLetters(page, page[-1].offset if len(older) > limit else None)

    async def schedules(self, agent):
        self._look()
        return self.books.get(agent, {})


class FakeReader:
    """Runs and their events by run_id; the stream of a run that goes on ends with `gone`."""

    def __init__(self):
        self.runs: dict[str, RunView] = {}
        self.history: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[int | None] = []
        self.queries: list[RunQuery] = []
        self.closed = 0
        self.away = False
        self.gone = asyncio.Event()
        #: type, code and message of the event that answers a command; None: nobody is there
        self.answers_with: tuple[str, str | None, str] | None = ("run.paused", None, "")
        self.watched: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        #: what is told of whole agents, and what has been asked for
        self.told: list[FeedMessage] = []
        self.followed: list[tuple[list[str], Any, EventFilter, bool]] = []

    def answer(self, run_id, command_id):
        if self.answers_with is not None:
            kind, code, message = self.answers_with
            told = event(kind, id=command_id, name=code, failure={"message": message})
            self.watched[run_id].put_nowait(event("run.paused", id="of somebody else"))
            self.watched[run_id].put_nowait(told)

    @asynccontextmanager
    async def answers(self, _agent, run_id):
        if self.away:
            raise Unavailable("SF3002", "secret-broker:9092 is away")
        queue = self.watched[run_id] = asyncio.Queue()

        async def taken():
            while True:
                yield await queue.get()

        yield taken()

    async def latest(self, agent, run_id):
        return await self.get(agent, run_id)

    async def counts(self, _agent):
        return {(1, "running"): 2, (2, "running"): 3, (2, "failed"): 1}

    async def backlog(self, _agent, _run_id):
        return Backlog(partition=1, commands=2, tasks=3, workers=0)

    async def get(self, _agent, run_id):
        if self.away:
            raise Unavailable("SF3002", "secret-broker:9092 is away")
        return self.runs.get(run_id)

    async def list(self, _agent, *, status=None, limit=50):
        wanted = {status} if status else {run.status for run in self.runs.values()}
        return [run for run in self.runs.values() if run.status in wanted][:limit]

    async def page(self, agent, query):
        self.queries.append(query)
        runs = await self.list(agent, status=query.status, limit=query.limit)
        return RunPage(runs=runs, matches=len(runs), next=query.before)

    async def activity(self, _agent, now_ms, *, bucket_ms, buckets):
        return activity([], now_ms, bucket_ms, buckets)

    async def past(self, _agent, run_id, *, before, limit):
        told = [
            HistoryEntry(1, offset, "t/1/0", each) for offset, each in self.history.get(run_id, [])
        ]
        return HistoryPage(topic="events", events=told[:limit], before=before)

    async def effect(self, effect_id, _since_ms):
        return next((each for _, each in self.history.get(effect_id, [])), None)

    async def events(self, _agent, run_id, after):
        self.asked.append(after)
        try:
            for offset, event in self.history.get(run_id, []):
                if after is None or offset > after:
                    yield offset, event
            if run_id not in self.runs or self.runs[run_id].status != "completed":
                await self.gone.wait()
        finally:
            self.closed += 1

    async def watch(self, agent, run_id, after):
        async with aclosing(self.events(agent, run_id, after)) as events:
            async for offset, told in events:
                yield FeedMessage(str(offset), told["type"], strict_json(event_json(told)).decode())

    #: as an EventFeed
    partitions = 2

    async def follow(self, agents, start, choice, *, earliest):
        self.followed.append((list(agents), start, choice, earliest))
        try:
            if self.away:
                raise Unavailable("SF3002", "secret-broker:9092 is away")
            yield FeedMessage("triage_0_0", "begin", "{}")
            for told in self.told:
                yield told
            if not any(told.event == "slow" for told in self.told):
                await self.gone.wait()
        finally:
            self.closed += 1


class FakeViews:
    """Of one run, that is there; nothing is behind."""

    async def summary(self, agent: str) -> Any:
        return self._told(agent, statuses={})

    async def attention(self, agent: str, _: int) -> Any:
        return self._told(agent, runs=[], total=0)

    async def windows(self, agent: str, _: int) -> Any:
        return self._told(agent, windows=[], steps=[])

    async def run(self, agent: str, run_id: str) -> Any:
        return self._told(agent, run={"run_id": run_id} if run_id == RUN else None)

    def _told(self, agent: str, **told: Any) -> Any:
        return {"agent": agent, "lag": {"events": 0, "ms": 0}, **told}


@dataclass
class FakeReadiness:
    reasons: dict[str, str] = field(default_factory=dict)

    async def check(self, agent):
        if agent in self.reasons:
            raise Unavailable("SF3010", self.reasons[agent])


class FakeClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_s(self) -> float:
        return 0.0

    def random(self) -> float:
        return 0.5

    def unique(self) -> str:
        return "018f0000000070008000000000000000"


def triage_agent() -> Agent:
    agent = Agent("triage")

    @agent.step
    async def classify(ctx: Context, issue: Issue) -> Done:
        return Done()

    @agent.webhook("github", event="issues")
    def on_issue(delivery: Webhook) -> Issue | None:
        if delivery.json["action"] != "opened":
            return None
        return Issue(delivery.json["issue"]["number"], delivery.json["issue"]["title"])

    return agent


class Gateway:
    """A gateway over fakes, and an HTTP client in front of it."""

    secrets: Mapping[str, list[str]] = {"github": [SECRET]}
    #: who can sign in, and where is recorded what they do; None: everybody may do everything
    access: AccessControl | None = None

    def __init__(self, *agents: Agent, **limits):
        self.reader = self.effects = FakeReader()
        self.opens = 0
        self.archive: str | None = None
        self.commands = FakeCommands(self.reader)
        self.readiness = FakeReadiness()
        self.deliveries = FakeDeliveries()
        self.overview = FakeOverview()
        self.held: dict[str, str] = {}
        self.app = gateway_app(
            held=self.held,
            effects=self.opened,
            archive=self.archive_fault,
            agents=agents or [triage_agent()],
            commands=self.commands,
            feed=self.reader,
            reader=self.reader,
            readiness=self.readiness,
            secrets=self.secrets,
            deliveries=self.deliveries,
            overview=self.overview,
            clock=FakeClock(),
            limits=GatewayLimits(**({"mapping_s": 600.0} | limits)),
            views=FakeViews(),
            access=self.access,
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://gateway"
        )

    async def archive_fault(self) -> str | None:
        return self.archive

    @asynccontextmanager
    async def opened(self):
        self.opens += 1
        yield self.effects

    async def deliver(self, body=OPENED, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent: dict[str, Any] = {
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": DELIVERY,
            "X-Hub-Signature-256": sign(raw),
        }
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        sent = {name: value for name, value in sent.items() if value is not None}
        return await self.http.post("/webhooks/github", content=raw, headers=sent)

    async def operate(self, verb, body=None, *, run_id=RUN, **headers):
        """POST to a run; the body as it is, or as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        sent = {"Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(f"/runs/triage/{run_id}/{verb}", content=raw, headers=sent)

    async def start(self, body, content_type="application/json"):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(
            "/runs/triage", content=raw, headers={"Content-Type": content_type}
        )


def sign(raw: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()


@pytest.fixture
async def gateway():
    one = Gateway()
    async with one.http:
        yield one


def run(**fields) -> RunView:
    return RunView(
        **{
            "run_id": RUN,
            "agent": "triage",
            "version": 1,
            "status": "running",
            "seq": 1,
            "step": "classify",
            "attempt": 0,
            "created_ms": 1_700_000_000_000,
            "updated_ms": 1_700_000_000_001,
            "due_ms": None,
            "payload": b'{"n": 9007199254740993}',
            "result": None,
            "failure": None,
            **fields,
        }
    )


def event(kind: str, status: str = "running", **fields) -> Any:
    return {
        "type": kind,
        "run_id": RUN,
        "agent": "triage",
        "version": 1,
        "status": status,
        "seq": 0,
        "at_ms": 1_700_000_000_000,
        "step": "classify",
        "result": None,
        "id": None,
        "name": None,
        "failure": None,
        "payload": None,
        "carry": None,
        "wait": None,
        "memory": None,
        **fields,
    }


# Webhooks -----------------------------------------------------------------------------------


async def test_a_signed_delivery_starts_a_run_named_after_it(gateway):
    answer = await gateway.deliver()
    assert answer.status_code == 202
    assert answer.json() == {"runs": [{"agent": "triage", "run_id": RUN}]}
    [(agent, run_id, payload, _)] = gateway.commands.started
    assert (agent, run_id) == ("triage", RUN)
    assert json.loads(payload) == {"number": 1347, "title": "Crash on start ☕"}


async def test_the_same_delivery_again_has_the_same_run_whatever_a_proxy_adds(gateway):
    answers = [await gateway.deliver(X_Request_Id=f"proxy-{n}") for n in range(3)]
    assert {answer.status_code for answer in answers} == {202}
    assert {run_id for _, run_id, _, _ in gateway.commands.started} == {RUN}


@pytest.mark.parametrize(
    "signature",
    [
        None,
        b"",
        b"sha256=",
        b"v1,",
        b"sha256=00",
        b"sha1=" + b"0" * 40,
        b"sha256=\xff\xfe",
        b"sha256=" + b"0" * 64,
        sign(b"{}").encode(),
        sign(json.dumps(OPENED).encode(), secret="").encode(),
    ],
)
async def test_a_wrong_signature_is_one_constant_401_and_starts_nothing(gateway, signature):
    answer = await gateway.deliver(X_Hub_Signature_256=signature)
    assert answer.status_code == 401
    assert answer.json() == {"error": "SF5103: the signature is missing or wrong"}
    assert gateway.commands.started == []


async def test_a_body_that_was_parsed_and_dumped_again_is_refused(gateway):
    raw = b'{"action":  "opened"}'
    changed = json.dumps(json.loads(raw)).encode()
    answer = await gateway.deliver(changed, X_Hub_Signature_256=sign(raw))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "raw",
    [
        b'{ "action" :"opened", "issue": {"title": "\\u00e9", "number": 1e0}}\n',
        b'{"issue":{"number":1,"title":""},"action":"opened","x":1.0}',
    ],
)
async def test_odd_but_valid_json_is_taken_as_it_came(gateway, raw):
    answer = await gateway.deliver(raw)
    assert answer.status_code in (202, 422)  # 1e0 is a float, so not the declared int
    assert answer.json()["runs"] or "number" in answer.json()["errors"][0]["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"payload=%7B%7D",
        b'{"action": "closed", "action": "opened"}',
        b'{"action": NaN}',
        b"[" * 100_000 + b"]" * 100_000,
        b"1" * 10_000,
        b'"text"',
        b"null",
        b"\xff\xfe",
    ],
)
async def test_a_mapping_that_reads_json_where_there_is_none_starts_nothing(gateway, raw):
    answer = await gateway.deliver(raw)
    assert answer.status_code == 422
    [told] = answer.json()["errors"]
    assert ("the webhook mapping cannot read the delivery" in told["error"]) == (
        raw not in (b'"text"', b"null")
    )
    assert gateway.commands.started == []


async def test_a_bad_body_without_a_signature_is_never_parsed(gateway):
    assert (await gateway.deliver(b"[" * 100_000, X_Hub_Signature_256=None)).status_code == 401


@pytest.mark.parametrize(
    ("delivery", "text", "begins"),
    [
        ("a@b", "a@b", "github-a-b-"),
        ("sg/abc==", "sg/abc==", "github-sg-abc-"),
        ("arn:aws:t/7~1", "arn:aws:t/7~1", "github-arn:aws:t-7-1-"),
        ("x" * 300, "x" * 300, f"github-{'x' * 73}-"),
        (b"\xc3\xa9", "é", "github-"),
        (b"\xff", "ÿ", "github-"),
    ],
)
async def test_any_id_names_a_run_and_is_kept_with_the_delivery_and_the_run(
    gateway, delivery, text, begins
):
    answers = [await gateway.deliver(X_GitHub_Delivery=delivery) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    [(_, made, _, _), again] = gateway.commands.started
    assert check_run_id(made) == again[1]
    assert made == begins + hashlib.sha256(f"github-{text}".encode()).hexdigest()[:32]
    assert gateway.commands.asked_by == [f"github-{text}"] * 2
    assert gateway.deliveries.offered[0].delivery == text
    assert gateway.deliveries.offered[0].runs == (("triage", made),)


async def test_a_header_that_comes_twice_is_seen_whole(gateway):
    """Several signatures may be right; what two ids would name, nobody has to guess."""
    sent = [
        ("X-Hub-Signature-256", "sha256=" + "0" * 64),
        ("X-Hub-Signature-256", sign(RAW)),
        ("X-GitHub-Event", "issues"),
        ("X-GitHub-Delivery", "d-1"),
        ("X-GitHub-Delivery", "d-1"),
    ]
    answer = await gateway.http.post("/webhooks/github", content=RAW, headers=sent)
    assert answer.json()["runs"] == [{"agent": "triage", "run_id": "github-d-1"}]
    sent[-1] = ("X-GitHub-Delivery", "d-2")
    answer = await gateway.http.post("/webhooks/github", content=RAW, headers=sent)
    assert answer.json()["runs"][0]["run_id"].startswith("github-d-1-d-2-")


@pytest.mark.parametrize("delivery", [None, "", " "])
async def test_a_delivery_without_an_id_is_a_400_and_gets_no_made_up_one(gateway, delivery):
    answer = await gateway.deliver(X_GitHub_Delivery=delivery)
    assert answer.status_code == 400
    assert "x-github-delivery" in answer.json()["error"]
    assert gateway.commands.started == []


async def test_a_source_that_no_agent_listens_to_is_a_404(gateway):
    for path in ("/webhooks/stripe", "/webhooks/", "/webhooks/github%2Fx", "/webhooks/..%2Fgithub"):
        assert (await gateway.http.post(path, content=b"{}")).status_code == 404


async def test_an_encoded_body_is_not_unpacked(gateway):
    assert (await gateway.deliver(Content_Encoding="gzip")).status_code == 415


async def test_events_that_no_mapping_wants_are_acknowledged_and_ignored(gateway):
    for headers, body in (
        ({"X_GitHub_Event": "ping"}, {"zen": "Keep it logically awesome."}),
        ({}, OPENED | {"action": "closed"}),
    ):
        answer = await gateway.deliver(body, **headers)
        assert (answer.status_code, answer.json()) == (200, {"runs": [], "ignored": True})
    assert gateway.commands.started == []


async def test_no_answer_but_503_while_the_command_is_not_acknowledged(gateway):
    gateway.commands.fails["triage"] = Unavailable("SF3002", "secret-broker:9092 is away")
    answer = await gateway.deliver()
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "secret-broker" not in answer.text
    assert RUN not in answer.text
    assert gateway.commands.deadlines == [2.5]


async def test_a_payload_that_is_not_of_the_declared_type_is_a_422_with_its_path():
    agent = triage_agent()
    agent.webhooks.clear()
    agent.webhook("github")(lambda _: Issue(number="1347", title=""))  # type: ignore[arg-type]
    gateway = Gateway(agent)
    answer = await gateway.deliver()
    assert answer.status_code == 422
    assert "$.number" in answer.json()["errors"][0]["error"]
    assert gateway.commands.started == []


async def test_a_mapping_that_raises_costs_its_own_agent_only():
    broken = Agent("broken")
    broken.step(triage_agent().start_step.fn)

    @broken.webhook("github")
    def on_issue(delivery: Webhook) -> Issue:
        raise RuntimeError("secret detail")

    gateway = Gateway(broken, triage_agent())
    with structlog.testing.capture_logs() as logs:
        answer = await gateway.deliver()
    assert [(line["event"], line["agent"]) for line in logs] == [("mapping_failed", "broken")]
    assert answer.status_code == 422
    assert answer.json()["runs"] == [{"agent": "triage", "run_id": RUN}]
    assert [item["agent"] for item in answer.json()["errors"]] == ["broken"]
    assert "secret detail" not in answer.text
    assert [agent for agent, *_ in gateway.commands.started] == ["triage"]


async def test_one_agent_away_does_not_keep_the_command_from_the_other():
    other = Agent("other")
    other.step(triage_agent().start_step.fn)
    other.webhook("github")(lambda _: Issue(1, ""))
    gateway = Gateway(other, triage_agent())
    gateway.commands.fails["other"] = Unavailable("SF3002", "away")
    assert (await gateway.deliver()).status_code == 503
    assert [agent for agent, *_ in gateway.commands.started] == ["triage"]


async def test_one_delivery_is_one_run_of_an_agent_also_when_two_of_its_mappings_want_it():
    agent = triage_agent()
    agent.webhook("github")(lambda _: Issue(2, "second"))
    gateway = Gateway(agent)
    await gateway.deliver()
    [(_, _, payload, _)] = gateway.commands.started
    assert json.loads(payload)["number"] == 1347


async def test_a_mapping_sees_the_raw_body_and_no_credentials():
    seen: list[Webhook] = []
    agent = triage_agent()
    agent.webhooks.clear()
    agent.webhook("github")(seen.append)
    gateway = Gateway(agent)
    await gateway.deliver(b'{"a" : 1}', Authorization="Bearer x", Cookie="a=b", X_Other="y")
    [delivery] = seen
    assert delivery.body == b'{"a" : 1}'
    assert (delivery.source, delivery.id, delivery.event) == ("github", DELIVERY, "issues")
    assert delivery.headers["x-other"] == "y"
    assert not {"authorization", "cookie", "x-hub-signature-256"} & delivery.headers.keys()


async def test_a_mapping_that_takes_long_does_not_stop_the_loop():
    agent = triage_agent()
    agent.webhooks.clear()
    loop = asyncio.get_running_loop()

    @agent.webhook("github")
    def slow(delivery: Webhook) -> None:
        # would wait for ever on the loop's own thread
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=60)

    assert (await Gateway(agent).deliver()).status_code == 200


async def test_a_refused_delivery_is_one_log_line_without_body_or_secret(gateway):
    with structlog.testing.capture_logs() as logs:
        await gateway.deliver(X_Hub_Signature_256="sha256=" + "0" * 64)
    [line] = logs
    assert line["event"] == "delivery_refused"
    assert (line["source"], line["status"]) == ("github", 401)
    assert not any(word in repr(line) for word in (SECRET, "Crash on start", "0000"))


async def test_only_a_valid_trace_context_is_passed_on(gateway):
    for given, passed in (
        (TRACE, TRACE),
        (None, None),
        (TRACE.upper(), None),
        ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", None),
        (TRACE + "-extra", None),
        ("01" + TRACE[2:] + "-extra", "01" + TRACE[2:] + "-extra"),
        ("ff" + TRACE[2:], None),
    ):
        await gateway.deliver(traceparent=given)
        assert gateway.commands.started[-1][3] == passed, given


async def test_tracestate_and_baggage_go_on_with_it(gateway):
    context = {"tracestate": "rojo=1,congo=t61", "baggage": "userId=amelie"}
    await gateway.deliver(traceparent=TRACE, **context)
    assert gateway.commands.carried[-1] == context
    await gateway.deliver(**context)
    assert gateway.commands.carried[-1] == {"baggage": "userId=amelie"}


async def test_a_header_with_a_line_break_or_nul_is_never_passed_on(gateway):
    for bad in (b"\r\nsf-txn: x", b"\n", b"\0"):
        await asgi(
            gateway.app,
            [(b"traceparent", TRACE.encode() + bad), (b"x-github-delivery", DELIVERY.encode())],
        )
    assert all(trace is None for *_, trace in gateway.commands.started)
    assert len(gateway.commands.started) == 3


# Bodies -------------------------------------------------------------------------------------


async def asgi(app, headers=(), chunks=(RAW,), body_hangs=False):
    """Call the app below the HTTP client. Returns (status, how many chunks it asked for)."""
    taken = 0
    status = None

    async def receive():
        nonlocal taken
        if taken == len(chunks) and body_hangs:
            await asyncio.Event().wait()
        taken += 1
        return {
            "type": "http.request",
            "body": chunks[taken - 1],
            "more_body": taken < len(chunks) or body_hangs,
        }

    async def send(message):
        nonlocal status
        status = message.get("status", status)

    given = [
        (b"x-github-event", b"issues"),
        (b"x-hub-signature-256", sign(b"".join(chunks)).encode()),
        *headers,
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/webhooks/github",
        "raw_path": b"/webhooks/github",
        "query_string": b"",
        "headers": given,
        "server": ("gateway", 80),
        "client": ("client", 1),
        "root_path": "",
    }
    await app(scope, receive, send)
    return status, taken


async def test_a_body_declared_too_long_is_refused_before_it_is_read(gateway):
    status, taken = await asgi(gateway.app, [(b"content-length", b"1048577")])
    assert (status, taken) == (413, 0)


async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long():
    gateway = Gateway(body_bytes=1000)
    status, taken = await asgi(gateway.app, chunks=[b"x" * 400] * 1000)
    assert (status, taken) == (413, 3)


async def test_a_body_that_does_not_come_in_is_given_up():
    gateway = Gateway(body_s=0.05)
    assert (await asgi(gateway.app, chunks=[b"{"], body_hangs=True))[0] == 408


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"0x10", b"\xb2", b"9" * 5000])
async def test_an_odd_content_length_is_refused(gateway, length):
    assert (await asgi(gateway.app, [(b"content-length", length)]))[0] in (400, 413)


async def test_a_command_over_the_limit_of_its_topic_is_a_413(gateway):
    gateway.commands.fails["triage"] = RecordTooLarge("takes 2 bytes", size=2, limit=1)
    assert (await gateway.deliver()).status_code == 413


# Secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("secrets", [{}, {"github": []}, {"github": [""]}, {"github": ["short"]}])
def test_a_gateway_without_a_real_secret_does_not_come_up(secrets):
    with pytest.raises(ConfigError, match="SUREFOOT_WEBHOOK_GITHUB_SECRET"):
        gateway_app(
            agents=[triage_agent()],
            commands=FakeCommands(FakeReader()),
            reader=FakeReader(),
            feed=FakeReader(),
            readiness=FakeReadiness(),
            secrets=secrets,
            deliveries=FakeDeliveries(),
            overview=FakeOverview(),
            clock=FakeClock(),
        )


def test_two_agents_of_one_name_do_not_come_up():
    with pytest.raises(ConfigError, match="triage"):
        Gateway(triage_agent(), triage_agent())


# Starting runs ------------------------------------------------------------------------------


async def test_a_run_is_started_with_the_given_name_or_a_new_one(gateway):
    payload = {"number": 1, "title": "a"}
    answer = await gateway.start({"run_id": "mine", "payload": payload})
    assert (answer.status_code, answer.json()) == (202, {"agent": "triage", "run_id": "mine"})
    answer = await gateway.start({"payload": payload})
    assert answer.json()["run_id"] == FakeClock().unique()
    assert [run_id for _, run_id, *_ in gateway.commands.started] == ["mine", FakeClock().unique()]


@pytest.mark.parametrize(
    "run_id",
    ["", " ", None, 0, "x" * 10_000, "a\0", "a/b", "..", "é", " a", "@ready", "\uff41", []],
)
async def test_an_id_that_cannot_be_one_is_refused_and_never_replaced(gateway, run_id):
    answer = await gateway.start({"run_id": run_id, "payload": {"number": 1, "title": "a"}})
    assert answer.status_code == 422
    assert "run_id" in answer.json()["error"]
    assert gateway.commands.started == []


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"number": "x", "title": "a"}, "$.number"),
        ({"number": 1}, "$.title"),
        (None, "$"),
        ({"number": 1, "title": ["a"]}, "$.title"),
    ],
)
async def test_a_payload_that_does_not_fit_the_start_step_is_a_422_with_its_path(
    gateway, payload, path
):
    answer = await gateway.start({"payload": payload})
    assert answer.status_code == 422
    assert path in answer.json()["error"]
    assert gateway.commands.started == []


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"payload": 1, "payload": 2}', 400),
        (b'{"payload": NaN}', 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"payload": {}, "runid": "typo"}', 422),
    ],
)
async def test_a_body_that_is_not_what_was_asked_for_is_refused(gateway, raw, status):
    answer = await gateway.start(raw)
    assert answer.status_code == status
    assert "error" in answer.json()


async def test_a_form_or_text_cannot_start_a_run_as_a_foreign_web_page_could_send_it(gateway):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await gateway.start({"payload": {"number": 1, "title": "a"}}, content_type=kind)
        assert answer.status_code == 415
    assert gateway.commands.started == []


async def test_an_unknown_agent_is_a_404_everywhere(gateway):
    assert (await gateway.http.post("/runs/nobody", json={"payload": 1})).status_code == 404
    for path in ("/runs/nobody", "/runs/nobody/r", "/runs/nobody/r/events"):
        assert (await gateway.http.get(path)).status_code == 404


# Looking at runs ----------------------------------------------------------------------------


async def test_a_run_is_shown_with_exact_integers(gateway):
    gateway.reader.runs[RUN] = run()
    answer = await gateway.http.get(f"/runs/triage/{RUN}")
    assert answer.status_code == 200
    assert answer.json()["payload"] == {"n": 9_007_199_254_740_993}
    assert answer.json()["status"] == "running"


async def test_a_run_that_is_over_shows_its_result_and_has_no_payload(gateway):
    gateway.reader.runs[RUN] = run(status="completed", payload=b"", result=b'{"ok": true}')
    answer = (await gateway.http.get(f"/runs/triage/{RUN}")).json()
    assert (answer["payload"], answer["result"]) == (None, {"ok": True})


@pytest.mark.parametrize("run_id", ["nobody", "%20", "@ready", "a%00"])
async def test_an_unknown_run_is_a_404(gateway, run_id):
    assert (await gateway.http.get(f"/runs/triage/{run_id}")).status_code == 404


async def test_runs_are_listed_by_status_without_payloads(gateway):
    gateway.reader.runs = {"a": run(run_id="a"), "b": run(run_id="b", status="failed")}
    answer = await gateway.http.get("/runs/triage", params={"status": "failed", "limit": 5})
    assert [item["run_id"] for item in answer.json()["runs"]] == ["b"]
    assert "payload" not in answer.json()["runs"][0]


@pytest.mark.parametrize("query", ["status=nonsense", "limit=0", "limit=501", "limit=x"])
async def test_a_wrong_query_is_a_422_that_names_it(gateway, query):
    answer = await gateway.http.get(f"/runs/triage?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.json()["error"]


async def test_reading_while_the_log_is_away_is_a_503_that_tells_nothing(gateway):
    gateway.reader.away = True
    for path in (f"/runs/triage/{RUN}", f"/runs/triage/{RUN}/events"):
        answer = await gateway.http.get(path)
        assert answer.status_code == 503
        assert "secret-broker" not in answer.text


async def test_a_waiting_run_shows_what_it_waits_for_and_not_each_of_its_branches(gateway):
    wait = WaitState(kind="signal", since_ms=1, names=("go",), mode="one", need=1, then="classify")
    gateway.reader.runs[RUN] = run(status="waiting", wait=wait, epoch=2, carry=b'{"a": 1}')
    answer = (await gateway.http.get(f"/runs/triage/{RUN}")).json()
    assert (answer["wait"]["names"], answer["wait"]["branches"]) == (["go"], 0)
    assert (answer["epoch"], answer["carry"], answer["memory"]) == (2, {"a": 1}, None)
    assert "input_digest" not in answer


async def test_a_payload_that_is_no_json_is_shown_as_text(gateway):
    gateway.reader.runs[RUN] = run(payload=b"\xffno json")
    assert (await gateway.http.get(f"/runs/triage/{RUN}")).json()["payload"] == "\\xffno json"


async def test_why_a_run_does_not_move_is_told_with_what_to_type(gateway):
    wait = WaitState(kind="signal", since_ms=1_699_999_999_000, names=("go",), mode="one", need=1)
    gateway.reader.runs[RUN] = run(status="waiting", wait=wait)
    told = (await gateway.http.get(f"/runs/triage/{RUN}/why")).json()
    assert told["status"] == "waiting"
    assert "Waits for signal 'go' since 2023-11-14 22:13:19Z (1 s)" in told["because"]
    assert f"surefoot runs signal triage {RUN} go PAYLOAD" in told["do"]
    assert told["backlog"] == {"partition": 1, "commands": 2, "tasks": 3, "workers": 0}
    assert (await gateway.http.get("/runs/triage/nobody/why")).status_code == 404


async def test_runs_are_counted_by_status_and_by_version(gateway):
    answer = await gateway.http.get("/agents/triage")
    told = answer.json()
    del told["declared"]
    assert told == {
        "agent": "triage",
        "runs": 6,
        "statuses": {"running": 5, "failed": 1},
        "versions": {"1": {"running": 2}, "2": {"failed": 1, "running": 3}},
    }
    assert (await gateway.http.get("/agents/nobody")).status_code == 404


# Steering runs ------------------------------------------------------------------------------

#: a body that says enough
ENOUGH: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "cancel": {},
    "retry": {},
    "signal": {"name": "go", "payload": {"n": 9_007_199_254_740_993}},
    "approve": {"question": "q1", "approved": True, "note": "fine"},
    "resolve": {"choice": "happened", "result": [1]},
}


@pytest.mark.parametrize("verb", ENOUGH)
async def test_each_verb_is_one_command_answered_with_the_resulting_run(gateway, verb):
    gateway.reader.runs[RUN] = run(status="paused")
    answer = await gateway.operate(verb, {**ENOUGH[verb], "id": "c1", "by": "ann"})
    told = answer.json()
    assert (answer.status_code, told["id"], told["accepted"]) == (200, "c1", True)
    assert (told["event"], told["run"]["status"]) == ("run.paused", "paused")
    [(agent, run_id, kind, fields)] = gateway.commands.sent
    assert (agent, run_id, kind) == ("triage", RUN, verb)
    assert (fields["id"], fields["by"]) == ("c1", "ann")
    if verb == "signal":
        assert json.loads(fields["payload"]) == {"n": 9_007_199_254_740_993}
    if verb == "approve":
        assert json.loads(fields["payload"]) == {"approved": True, "note": "fine"}


async def test_all_that_failed_is_tried_again_by_one_request(gateway):
    gateway.reader.answers_with = ("run.retried", None, "")
    gateway.reader.runs |= {name: run(run_id=name, status="failed") for name in ("b1", "b2")}
    said = {"prefix": "b", "by": "ann", "before": "7~c1", "limit": 20}
    answer = await gateway.http.post("/runs/triage/retry-failed", json=said)
    told = answer.json()
    assert (answer.status_code, gateway.opens) == (200, 0)
    assert [told[name] for name in ("matches", "retried", "refused", "unanswered")] == [2, 2, 0, 0]
    assert {each["run_id"] for each in told["runs"]} == {"b1", "b2"}
    assert [(sent[:3], sent[3]["by"]) for sent in gateway.commands.sent] == [
        (("triage", "b1", "retry"), "ann"),
        (("triage", "b2", "retry"), "ann"),
    ]
    query = gateway.reader.queries[-1]
    assert (query.status, query.prefix, query.before, query.limit) == (
        "failed",
        "b",
        PageCursor(7, "c1"),
        20,
    )


async def test_failed_effects_are_tried_again_and_nothing_of_them_is_told(gateway):
    gateway.reader.answers_with = ("command.refused", "not_possible", "it is completed")
    secret = {"headers": {"Authorization": "Bearer secret"}}
    gateway.reader.runs["k"] = run(run_id="k", agent="outbox", status="failed", payload=secret)
    answer = await gateway.http.post("/runs/outbox/retry-failed", json={})
    assert gateway.opens == 1
    assert (answer.status_code, answer.json()["refused"]) == (200, 1)
    [told] = answer.json()["runs"]
    assert (told["code"], told["message"]) == ("not_possible", "it is completed")
    assert "secret" not in answer.text


async def test_effects_are_read_for_one_request_at_a_time(gateway):
    reading, done = asyncio.Event(), asyncio.Event()

    class Slow(FakeReader):
        async def page(self, agent, query):
            reading.set()
            await done.wait()
            return await super().page(agent, query)

    gateway.effects = Slow()
    first = asyncio.create_task(gateway.http.post("/runs/outbox/retry-failed", json={}))
    await reading.wait()
    second = await gateway.http.post("/runs/outbox/retry-failed", json={})
    assert (second.status_code, second.json()["error"][:6]) == (503, "SF5096")
    done.set()
    assert (await first).status_code == 200


async def test_retrying_ends_where_nobody_answers_and_names_the_place_to_go_on():
    gateway = Gateway(answer_s=0.01)
    gateway.reader.answers_with = None
    gateway.reader.runs |= {f"r{n}": run(run_id=f"r{n}", status="failed") for n in range(60)}
    told = (await gateway.http.post("/runs/triage/retry-failed", json={})).json()
    assert (told["matches"], told["unanswered"]) == (60, 50)
    assert told["next"].endswith("~r49")


@pytest.mark.parametrize(
    "said", [{"limit": 0}, {"limit": 501}, {"before": "x"}, {"who": "me"}, {"prefix": 1}, []]
)
async def test_retrying_refuses_what_it_does_not_know(gateway, said):
    answer = await gateway.http.post("/runs/triage/retry-failed", json=said)
    assert answer.status_code == 422
    assert gateway.commands.sent == []
    foreign = {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}
    answer = await gateway.http.post("/runs/triage/retry-failed", content=b"{}", headers=foreign)
    assert answer.status_code == 403


@pytest.mark.parametrize(("code", "status"), REFUSALS.items())
async def test_what_the_owner_refuses_has_a_code_a_message_and_a_status(gateway, code, status):
    gateway.reader.answers_with = ("command.refused", code, "because")
    answer = await gateway.operate("cancel", {"id": "c1"})
    assert answer.status_code == status
    assert answer.json() == {
        "id": "c1",
        "accepted": False,
        "event": "command.refused",
        "code": code,
        "number": number_of(code),
        "message": "because",
        "run": None,
    }


async def test_a_repeated_command_counts_as_accepted(gateway):
    gateway.reader.answers_with = ("command.repeated", None, "")
    answer = await gateway.operate("cancel", {"id": "c1"})
    assert (answer.status_code, answer.json()["accepted"]) == (200, True)


async def test_an_id_is_taken_from_the_header_or_the_body_or_made_and_told(gateway):
    header = await gateway.operate("pause", Idempotency_Key="from-header")
    body = await gateway.operate("pause", {"id": "from-body"})
    both = await gateway.operate("pause", {"id": "same"}, Idempotency_Key="same")
    none = await gateway.operate("pause", b"")
    told = [answer.json()["id"] for answer in (header, body, both, none)]
    assert told == ["from-header", "from-body", "same", FakeClock().unique()]
    assert [fields["id"] for *_, fields in gateway.commands.sent] == told
    differ = await gateway.operate("pause", {"id": "one"}, Idempotency_Key="other")
    assert differ.status_code == 422


KEYS = ["*", "x" * 129, "x" * 10_000, "a b", "a/b", '"8e03978e"', b"\xc3\xa9"]


@pytest.mark.parametrize("key", KEYS)
async def test_any_idempotency_key_is_the_id_of_a_command(gateway, key):
    for _ in range(2):
        assert (await gateway.operate("pause", Idempotency_Key=key)).status_code == 200
    [first, again] = [fields["id"] for *_, fields in gateway.commands.sent]
    assert check_run_id(first) == again
    assert len(first) <= 128


@pytest.mark.parametrize("key", [*KEYS, "k-1"])
async def test_the_same_idempotency_key_is_the_same_run(gateway, key):
    sent = {"Content-Type": "application/json", "Idempotency-Key": key}
    body = json.dumps({"payload": {"number": 1, "title": ""}})
    answers = [
        await gateway.http.post("/runs/triage", content=body, headers=sent) for _ in range(2)
    ]
    [one, again] = [answer.json()["run_id"] for answer in answers]
    assert check_run_id(one) == again
    assert [run_id for _, run_id, _, _ in gateway.commands.started] == [one] * 2
    text = key if isinstance(key, str) else key.decode()
    assert (one == key, gateway.commands.asked_by[0]) in ((True, None), (False, text[:500]))


async def test_a_run_id_goes_before_an_idempotency_key_and_two_keys_are_refused(gateway):
    sent = {"Content-Type": "application/json", "Idempotency-Key": "k-1"}
    body = {"run_id": "mine", "payload": {"number": 1, "title": ""}}
    answer = await gateway.http.post("/runs/triage", json=body, headers=sent)
    assert answer.json()["run_id"] == "mine"
    del body["run_id"]
    two = [*sent.items(), ("Idempotency-Key", "k-2")]
    refused = await gateway.http.post("/runs/triage", json=body, headers=two)
    assert (refused.status_code, refused.json()["error"][:6]) == (422, "SF5010")
    empty = [("Content-Type", "application/json"), ("Idempotency-Key", "")]
    refused = await gateway.http.post("/runs/triage", json=body, headers=empty)
    assert refused.status_code == 422


@pytest.mark.parametrize("command_id", ["", "*", "x" * 129, "x" * 10_000, "a b", "a/b"])
async def test_an_id_of_a_command_that_cannot_be_one_is_refused(gateway, command_id):
    answer = await gateway.operate("cancel", {"id": command_id})
    assert answer.status_code == 422
    assert "id" in answer.json()["error"]
    assert gateway.commands.sent == []


@pytest.mark.parametrize("run_id", ["%20", "*", "@ready", "a%00", "\uff41", "x" * 300, "null%0A"])
async def test_a_run_id_that_cannot_be_one_is_a_404_and_never_another_run(gateway, run_id):
    answer = await gateway.operate("cancel", run_id=run_id)
    assert answer.status_code == 404
    assert gateway.commands.sent == []


async def test_run_ids_reach_the_owner_exactly_as_they_were_sent(gateway):
    for run_id in ("null", "A", "a", "a~1~0", "a:b", "0"):
        await gateway.operate("cancel", run_id=run_id)
    assert [sent[1] for sent in gateway.commands.sent] == ["null", "A", "a", "a~1~0", "a:b", "0"]


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("pause", b"{", 400),
        ("pause", b'{"by": "a", "by": "b"}', 400),
        ("pause", b"[]", 422),
        ("pause", b"null", 422),
        ("pause", b'{"id": null}', 422),
        ("pause", b'{"idd": "typo"}', 422),
        ("signal", b"{}", 422),
        ("signal", b'{"name": "go", "payload": NaN}', 400),
        ("signal", b'{"name": "go\\u0000"}', 422),
        ("approve", b'{"approved": true}', 422),
        ("approve", b'{"question": "q", "approved": "true"}', 422),
        ("approve", b'{"question": null, "approved": true}', 422),
        ("resolve", b'{"choice": "maybe"}', 422),
        ("resolve", b'{"choice": "give_up", "result": 1}', 422),
    ],
)
async def test_a_command_that_says_something_else_than_it_can_is_refused(
    gateway, verb, body, status
):
    answer = await gateway.operate(verb, body)
    assert answer.status_code == status
    assert "error" in answer.json()
    assert gateway.commands.sent == []


async def test_a_form_or_no_content_type_steers_nothing_as_a_foreign_web_page_could_send_it(
    gateway,
):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert (await gateway.operate("cancel", b"", Content_Type=kind)).status_code == 415
    assert gateway.commands.sent == []


async def test_an_operation_that_there_is_not_is_a_404_with_those_that_there_are(gateway):
    answer = await gateway.operate("delete")
    assert answer.status_code == 404
    assert "cancel" in answer.json()["error"]
    assert (await gateway.http.post("/runs/nobody/r/cancel", json={})).status_code == 404
    assert (await gateway.http.get(f"/runs/triage/{RUN}/cancel")).status_code == 405


async def test_without_an_answer_in_time_a_202_says_how_to_go_on():
    gateway = Gateway(answer_s=0.05)
    gateway.reader.answers_with = None
    answer = await gateway.operate("cancel", {"id": "c1"})
    assert answer.status_code == 202
    assert (answer.json()["id"], answer.json()["accepted"]) == ("c1", None)
    assert "same id" in answer.json()["hint"]


@pytest.mark.parametrize("part", ["reader", "commands"])
async def test_a_command_while_the_log_is_away_is_a_503_with_the_id_to_repeat_it_with(
    gateway, part
):
    if part == "reader":
        gateway.reader.away = True
    else:
        gateway.commands.fails["triage"] = Unavailable("SF3002", "secret-broker:9092 is away")
    answer = await gateway.operate("cancel")
    assert answer.status_code == 503
    assert answer.json()["id"] == FakeClock().unique()
    assert int(answer.headers["Retry-After"]) > 0
    assert "secret-broker" not in answer.text


async def test_a_signal_over_the_limit_of_its_topic_is_a_413(gateway):
    gateway.commands.fails["triage"] = RecordTooLarge("takes 2 bytes", size=2, limit=1)
    assert (await gateway.operate("signal", {"name": "go"})).status_code == 413


# Events -------------------------------------------------------------------------------------


def finished(gateway: Gateway) -> None:
    gateway.reader.runs[RUN] = run(status="completed")
    gateway.reader.history[RUN] = [
        (7, event("run.started")),
        (9, event("step.completed")),
        (12, event("run.completed", "completed", result=b'{"text": "a\\nb"}')),
    ]


def parsed(text: str) -> list[dict[str, str]]:
    return [
        dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        for block in text.split("\n\n")
        if block.strip() and not block.startswith(":")
    ]


async def test_the_history_is_served_as_events_whose_ids_are_offsets(gateway):
    finished(gateway)
    answer = await gateway.http.get(f"/runs/triage/{RUN}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = parsed(answer.text)
    assert [(frame["id"], frame["event"]) for frame in frames] == [
        ("7", "run.started"),
        ("9", "step.completed"),
        ("12", "run.completed"),
    ]
    assert json.loads(frames[2]["data"])["result"] == {"text": "a\nb"}
    assert gateway.reader.closed == 1


async def test_what_a_run_waits_for_and_remembers_is_part_of_its_history(gateway):
    finished(gateway)
    branch = {"agent": "writer", "step": None, "payload": b"\x00not for JSON"}
    wait = jsonable(WaitState(kind="children", since_ms=1)) | {"branches": [branch, branch]}
    memory = Memory(thread=2, spent=(Amount("ms", 1500),), granted=(Amount("money", 2_000_000),))
    told = event("step.completed", wait=wait, memory=jsonable(memory), payload=b"[1]", carry=b"2")
    gateway.reader.history[RUN].insert(1, (8, told))
    answer = await gateway.http.get(f"/runs/triage/{RUN}/events")
    data = json.loads(parsed(answer.text)[1]["data"])
    assert (data["payload"], data["carry"], data["wait"]["branches"]) == ([1], 2, 2)
    assert data["memory"]["thread"] == 2
    assert (data["memory"]["spent"], data["memory"]["granted"]) == ({"seconds": 1.5}, {"money": 2})


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"Last-Event-ID": "7"}),
        ("?last_event_id=7", {}),
        ("?last_event_id=1", {"Last-Event-ID": "7"}),
    ],
)
async def test_a_stream_goes_on_after_the_event_that_was_seen_last(gateway, query, headers):
    finished(gateway)
    answer = await gateway.http.get(f"/runs/triage/{RUN}/events{query}", headers=headers)
    assert [frame["id"] for frame in parsed(answer.text)] == ["9", "12"]


async def test_a_watcher_that_has_seen_the_end_is_told_to_stop_coming_back(gateway):
    finished(gateway)
    answer = await gateway.http.get(f"/runs/triage/{RUN}/events", headers={"Last-Event-ID": "12"})
    assert answer.status_code == 204


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 19, "1" * 30, "p0:1", "\u0661"])
async def test_a_cursor_that_is_no_event_id_is_a_400(gateway, cursor):
    finished(gateway)
    answer = await gateway.http.get(f"/runs/triage/{RUN}/events", params={"last_event_id": cursor})
    assert answer.status_code == 400


class Watching:
    """One event stream of the app, frame by frame, without an HTTP client that would buffer it."""

    def __init__(self, app, path: str):
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.status = asyncio.get_running_loop().create_future()
        self.leave = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self._asked = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "server": ("gateway", 80),
            "client": ("client", 1),
            "root_path": "",
        }
        self.done = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
        else:
            await self.takes.wait()
            self.frames.put_nowait(message["body"])

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.frames.get(), 60)


async def test_heartbeats_are_comments_without_ids():
    gateway = Gateway(heartbeat_s=0.01)
    watching = Watching(gateway.app, f"/runs/triage/{RUN}/events")
    assert await watching.next() == b": heartbeat\n\n"
    watching.leave.set()
    await watching.done


async def test_an_unknown_run_is_waited_for(gateway):
    gateway.reader.history[RUN] = [(3, event("run.started"))]
    watching = Watching(gateway.app, f"/runs/triage/{RUN}/events")
    assert b"id: 3\n" in await watching.next()
    assert not watching.done.done()
    gateway.reader.gone.set()
    await asyncio.wait_for(watching.done, 60)


async def test_a_watcher_that_leaves_is_let_go(gateway):
    gateway.reader.history[RUN] = [(3, event("run.started"))]
    watching = Watching(gateway.app, f"/runs/triage/{RUN}/events")
    await watching.next()
    watching.leave.set()
    await asyncio.wait_for(watching.done, 60)
    assert gateway.reader.closed == 1


async def test_a_watcher_that_takes_no_data_is_cut_off():
    gateway = Gateway(send_s=0.05)
    gateway.reader.history[RUN] = [(3, event("run.started"))]
    watching = Watching(gateway.app, f"/runs/triage/{RUN}/events")
    watching.takes.clear()
    await asyncio.wait_for(watching.done, 60)
    assert gateway.reader.closed == 1


async def test_streams_are_limited_and_a_place_is_free_again_when_one_ends():
    gateway = Gateway(streams=1)
    path = f"/runs/triage/{RUN}/events"
    gateway.reader.history[RUN] = [(3, event("run.started"))]
    first = Watching(gateway.app, path)
    await first.next()
    refused = Watching(gateway.app, path)
    assert await refused.status == 429
    first.leave.set()
    await first.done
    again = Watching(gateway.app, path)
    assert await again.status == 200
    again.leave.set()
    await asyncio.gather(again.done, refused.done)


# Health -------------------------------------------------------------------------------------


async def test_health_does_not_ask_kafka_and_readiness_does(gateway):
    gateway.readiness.reasons["triage"] = "no transaction could be committed in 3 s"
    assert (await gateway.http.get("/health")).status_code == 200
    answer = await gateway.http.get("/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "reasons": {"triage": "SF3010: no transaction could be committed in 3 s"},
    }
    gateway.readiness.reasons.clear()
    answer = await gateway.http.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True})


async def test_an_archive_that_cannot_be_read_is_told_and_takes_nothing_away(gateway):
    gateway.archive = "SF3066: s3://bucket/ refuses: AccessDenied"
    answer = await gateway.http.get("/ready")
    told = {"ready": True, "archive": "SF3066: s3://bucket/ refuses: AccessDenied"}
    assert (answer.status_code, answer.json()) == (200, told)
    assert (await gateway.http.get("/ready/triage")).json() == {"ready": True}


def another_agent() -> Agent:
    agent = Agent("other")

    @agent.step
    async def look(ctx: Context, payload: int) -> Done:
        return Done()

    return agent


async def test_an_agent_that_is_not_ready_takes_no_other_away() -> None:
    gateway = Gateway(triage_agent(), another_agent())
    gateway.readiness.reasons["other"] = "why"
    answer = await gateway.http.get("/ready")
    reasons = {"other": "SF3010: why"}
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": reasons})
    answer = await gateway.http.get("/ready/other")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reasons": reasons})
    assert (await gateway.http.get("/ready/triage")).json() == {"ready": True}
    assert (await gateway.http.get("/ready/nobody")).status_code == 404
    gateway.readiness.reasons["triage"] = "why"
    answer = await gateway.http.get("/ready")
    assert (answer.status_code, sorted(answer.json()["reasons"])) == (503, ["other", "triage"])


@pytest.mark.parametrize("path", ["/health", "/ready", "/ready/triage"])
async def test_probes_may_ask_without_the_answers_body(gateway: Gateway, path: str) -> None:
    assert (await gateway.http.head(path)).status_code == 200
    gateway.readiness.reasons["triage"] = "why"
    assert (await gateway.http.head(path)).status_code == (200 if path == "/health" else 503)


async def test_an_agent_that_is_held_is_not_touched_and_the_others_are_served() -> None:
    gateway = Gateway(triage_agent(), another_agent())
    gateway.held["triage"] = "topic surefoot.triage.state does not exist"
    for method, path in (
        ("GET", "/runs/triage"),
        ("GET", f"/runs/triage/{RUN}"),
        ("GET", "/agents/triage"),
        ("POST", f"/runs/triage/{RUN}/cancel"),
        ("GET", "/events/triage"),
        ("POST", "/runs/triage"),
    ):
        answer = await gateway.http.request(method, path)
        assert (answer.status_code, answer.json()["error"][:7]) == (503, "SF5075:"), path
        assert answer.headers["retry-after"] == "5"
    assert (await gateway.deliver()).status_code == 503
    assert gateway.commands.started == []
    told = (await gateway.http.get("/agents")).json()["agents"]
    assert [agent["name"] for agent in told] == ["other"]
    ready = await gateway.http.get("/ready")
    assert (ready.status_code, list(ready.json()["reasons"])) == (200, ["triage"])
    assert (await gateway.http.get("/ready/triage")).status_code == 503
    assert (await gateway.http.post("/runs/other", json={"payload": 1})).status_code == 202
    gateway.held.clear()
    assert (await gateway.deliver()).status_code == 202
    assert (await gateway.http.get("/agents/triage")).status_code == 200


# The edge -----------------------------------------------------------------------------------


async def test_every_answer_forbids_sniffing_and_caching(gateway):
    finished(gateway)
    gateway.commands.fails["triage"] = RuntimeError("secret detail")
    with structlog.testing.capture_logs():
        answers = [
            await gateway.http.get("/health"),
            await gateway.http.get("/nowhere"),
            await gateway.http.get(f"/runs/triage/{RUN}/events"),
            await gateway.deliver(),
            await gateway.deliver(X_Hub_Signature_256=None),
        ]
    assert [answer.status_code for answer in answers] == [200, 404, 200, 500, 401]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_only_a_post_to_a_source_is_a_delivery(gateway):
    told = await gateway.http.get("/webhooks/github")
    assert (told.status_code, told.json()) == (405, {"error": "SF5012: Method Not Allowed"})
    for path in ("/webhooks/github/more", "/webhooks/github%2Fmore", "/webhooks/", "/webhooks"):
        answer = await gateway.http.post(path, content=RAW)
        assert (answer.status_code, answer.json()) == (404, {"error": "SF5012: Not Found"}), path
    assert gateway.deliveries.offered == []


async def test_what_nobody_foresaw_is_a_constant_500(gateway):
    gateway.commands.fails["triage"] = RuntimeError("secret detail")
    with structlog.testing.capture_logs() as logs:
        answer = await gateway.deliver()
    assert (answer.status_code, answer.json()) == (500, {"error": "SF5014: internal error"})
    assert [(line["event"], line["exc_info"]) for line in logs] == [("request_failed", True)]


async def test_no_interactive_pages_that_load_scripts_from_elsewhere(gateway):
    for path in ("/docs", "/redoc"):
        assert (await gateway.http.get(path)).status_code == 404
