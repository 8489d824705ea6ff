"""The HTTP API: webhooks and requests that start runs, reads of runs, commands to them.

    POST /webhooks/{source}              a signed delivery; 202 with its runs (webhooks.intake)
    POST /runs/{agent}                   start a run: {"run_id"?: str, "payload": ...}; 202
    POST /runs/{agent}/retry-failed      retry failed runs; agent outbox: failed effects
    GET  /runs/{agent}/{run_id}          one run
    GET  /runs/{agent}/{run_id}/why      why it does not advance, and what to do
    GET  /runs/{agent}/{run_id}/events   its history, live (server-sent events; api.events)
    GET  /events, /events/{agent}        events of all runs, live; /ws/... the same on a WebSocket
    POST /runs/{agent}/{run_id}/{verb}   a command to it (state.machine.commands)
    GET  /views/{agent}/...              views, if SUREFOOT_VIEWS_URL is set (producers.api.views)
    ...                                  agents, schedules, deliveries, topics (producers.api.admin)
    GET  /health                         this process is alive
    GET  /ready                          a transaction to some agent's state topic commits
    GET  /ready/{agent}                  a transaction to that agent's state topic commits
    GET  /ui/                            the dashboard (producers.dashboard)

Lists and histories are in producers.api.run_lists.

Nothing is decided here: a start, like every other request, is a command on the run's partition, and
only the partition's owner decides that the same run_id is one run. 202 means that all in-sync
replicas have the command. 503 means that it may or may not have been written. Repeating it is safe:
the same delivery has the same run_id, and the same request to a run the same id.

Numbers in answers are exact JSON integers, also beyond 2**53; a JavaScript client must parse those
with care.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NotRequired, TypedDict, TypeVar

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection
from starlette.routing import Route

from surefoot.producers import dashboard
from surefoot.producers.access.gate import AccessControl, Gate, GateKeeping
from surefoot.producers.access.session import serve_sessions
from surefoot.producers.access.signed_in import VisibleAgents, sign
from surefoot.producers.api.admin import AdminApi
from surefoot.producers.api.events import Feeds
from surefoot.producers.api.openapi import OpenApiSchema, document
from surefoot.producers.api.run_lists import RunLists
from surefoot.producers.api.views import add_views, paths
from surefoot.producers.commands.operations import (
    Operator,
    RetryFailed,
    command,
    retry_failed,
)
from surefoot.producers.event_stream import EventStreams
from surefoot.producers.guards import (
    AWAY,
    RETRY_AFTER_S,
    RequestRefused,
    check_agent,
    check_json,
    check_origin,
    direct,
    guard,
    parse_body,
    read_body,
    trace_context,
    utf8,
)
from surefoot.producers.webhooks.intake import Intake, start_all
from surefoot.producers.webhooks.mapping import MappedStart, by_source
from surefoot.producers.webhooks.mapping_threads import MappingThreads
from surefoot.producers.webhooks.recorder import Recorder
from surefoot.producers.webhooks.verification import doors
from surefoot.schemas.payload import BadPayload, Unserialisable, dump, load, parse_json, strict_json
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import BadArgument, ConfigError, Unavailable
from surefoot.state.feeds.feed import EventFeed
from surefoot.state.inspect.description import agent_json
from surefoot.state.machine.commands import BODIES, COMMAND_ID_MAX
from surefoot.state.machine.model import Operation
from surefoot.state.names.ids import check_run_id, run_id_for, told_by
from surefoot.state.names.topics import OUTBOX
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import Position
from surefoot.state.reading.admin import Overview
from surefoot.state.reading.deliveries import DeliveryLog
from surefoot.state.reading.explain import explain
from surefoot.state.reading.ports import Commands, Readiness, RunBrowser, RunView, Views
from surefoot.state.reading.runs import run_json

log = structlog.get_logger(__name__)

T = TypeVar("T")

Effects = Callable[[], AbstractAsyncContextManager[RunBrowser]]
#: returns why something cannot be used, or None
Fault = Callable[[], Awaitable[str | None]]

#: one account may have this part of all event streams: nobody keeps the others out
_STREAMS_SHARE = 4
_ONE_ID = "give the id once: as Idempotency-Key or in the body"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of one request."""

    body_bytes: int = 1_048_576
    #: whether webhooks may be sent gzip-compressed
    gzip: bool = False
    body_s: float = 10.0
    #: how long the mappings of a delivery may take, and how many threads run those of a source
    mapping_s: float = 5.0
    mapping_threads: int = 16
    #: webhook senders give up after 3 to 10 s, and then send again
    start_s: float = 2.5
    #: how long the owner of a run may take to answer a command
    answer_s: float = 5.0
    #: live event streams at the same time
    streams: int = 5_000
    #: interval of comments on idle event streams, which reveal a dead connection to both sides
    heartbeat_s: float = 15.0
    #: how long a watcher may read nothing before it is disconnected
    send_s: float = 30.0


def gateway_app(
    *,
    agents: Sequence[Agent],
    commands: Commands,
    reader: RunBrowser,
    feed: EventFeed,
    readiness: Readiness,
    secrets: Mapping[str, Sequence[str]],
    deliveries: DeliveryLog,
    overview: Overview,
    clock: Clock,
    limits: GatewayLimits | None = None,
    views: Views | None = None,
    crash: Callable[[], None] | None = None,
    held: Mapping[str, str] | None = None,
    effects: Effects | None = None,
    archive: Fault | None = None,
    access: AccessControl | None = None,
) -> FastAPI:
    """Build the ASGI application. The caller starts and stops the ports.

    Args:    secrets: live secrets by webhook source; deliveries: records the outcome of each;
             crash: crashes a worker, in the demo; held: agents that are not served now, by name,
             with the reason: nothing of theirs is touched while they are in it; effects: opens the
             failed effects, as runs of the agent `outbox`; archive: returns why it cannot be read;
             access: who can sign in; None: everybody may send everything
    Raises:  ConfigError — two agents of one name, an agent without steps, or a webhook source
             with two providers, or whose secret is missing, empty, a placeholder or too short
    """
    limits = limits or GatewayLimits()
    held = {} if held is None else held
    commands = _Holding(commands, held)
    everyone = _by_name(agents)
    gateway = _Gateway(
        agents=VisibleAgents(everyone, {}),
        held=held,
        commands=commands,
        reader=reader,
        readiness=readiness,
        clock=clock,
        limits=limits,
        effects=effects,
        archive=archive,
        tells_why=access is None,
        operator=Operator(
            commands=commands,
            reader=reader,
            clock=clock,
            send_s=limits.start_s,
            answer_s=limits.answer_s,
        ),
    )
    served = VisibleAgents(everyone, held)
    feeds = Feeds(
        agents=served,
        reader=reader,
        feed=feed,
        streams=EventStreams(
            limit=limits.streams, heartbeat_s=limits.heartbeat_s, send_s=limits.send_s
        ),
    )
    triggers = by_source(agents)
    intake = Intake(
        doors=doors((trigger for agent in agents for trigger in agent.webhooks), secrets),
        triggers=triggers,
        threads={
            source: MappingThreads(source, size=limits.mapping_threads, within_s=limits.mapping_s)
            for source in triggers
        },
        commands=commands,
        recorder=Recorder(deliveries, clock),
        clock=clock,
        body_bytes=limits.body_bytes,
        gzip=limits.gzip,
        body_s=limits.body_s,
        start_s=limits.start_s,
    )
    desk = AdminApi(
        agents=served,
        declared={name: agent_json(agent) for name, agent in everyone.items()},
        overview=overview,
        reader=reader,
        operator=gateway.operator,
        clock=clock,
        asked=gateway.asked,
    )
    app = FastAPI(
        title="Surefoot gateway",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(gateway.not_held)],
    )
    app.openapi = partial(_described, gateway.agents, with_views=views is not None)  # type: ignore[method-assign]
    webhooks = Route("/webhooks/{source}", intake.take, methods=["POST"])
    app.router.routes.append(webhooks)
    if access is not None:
        each = max(1, limits.streams // _STREAMS_SHARE)
        keeping = GateKeeping(access=access, clock=clock, agents=gateway.agents, streams_each=each)
        app.add_middleware(Gate, routes=app.router.routes, keeping=keeping)
        serve_sessions(app)
    direct(app, webhooks)
    guard(app)
    app.post("/runs/{agent}", status_code=202)(gateway.start_run)
    app.post("/runs/{agent}/retry-failed")(gateway.retry_failed)
    RunLists(agents=served, reader=reader, clock=clock).mount(app)
    app.get("/runs/{agent}/{run_id}")(gateway.show_run)
    feeds.serve_on(app)
    app.get("/runs/{agent}/{run_id}/why")(gateway.explain_run)
    app.post("/runs/{agent}/{run_id}/{verb}")(gateway.operate)
    if views is not None:
        add_views(app, gateway.agents, views)
    desk.serve(app)
    for path, answer in (
        ("/health", gateway.health),
        ("/ready", gateway.ready),
        ("/ready/{agent}", gateway.agent_ready),
    ):
        app.add_api_route(path, answer, methods=["GET", "HEAD"])
    dashboard.mount(app, crash, accounts=access is not None)
    return app


def _described(agents: Mapping[str, Agent], *, with_views: bool) -> OpenApiSchema:
    """Describe the API, as far as who is signed in may see the agents."""
    described = document(agents, by_source(agents.values()))
    if with_views:
        described["paths"] |= paths(agents)
    return described


class _Holding:
    """Implements ports.Commands: refuses commands to agents that are held."""

    def __init__(self, commands: Commands, held: Mapping[str, str]) -> None:
        self._commands, self._held = commands, held

    async def start(self, agent: str, run_id: str, payload: bytes, **how: Any) -> Position:
        self._check(agent)
        return await self._commands.start(agent, run_id, payload, **how)

    async def send(self, agent: str, run_id: str, kind: str, **fields: Any) -> Position:
        self._check(agent)
        return await self._commands.send(agent, run_id, kind, **fields)

    def _check(self, agent: str) -> None:
        if agent in self._held:
            raise Unavailable("SF5075", self._held[agent])


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    named: dict[str, Agent] = {}
    for agent in agents:
        if agent.name in named:
            raise ConfigError("SF1104", f"two agents are named {agent.name!r}; rename one of them")
        _ = agent.start_step
        named[agent.name] = agent
    return named


@dataclass(slots=True, kw_only=True)
class _Gateway:
    agents: Mapping[str, Agent]
    held: Mapping[str, str]
    commands: Commands
    reader: RunBrowser
    readiness: Readiness
    clock: Clock
    limits: GatewayLimits
    operator: Operator
    effects: Effects | None
    archive: Fault | None
    #: whether a probe is told why: the answer has names and addresses, and anybody may ask
    tells_why: bool
    #: one reader of effects at a time, since each reads a lot
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def not_held(self, asked: HTTPConnection) -> None:
        """Check that the request concerns no agent that is held.

        Raises: RequestRefused (503).
        """
        agent = asked.path_params.get("agent", "")
        about_it = asked.url.path.startswith("/ready/")
        if asked.scope["type"] == "http" and agent in self.held and not about_it:
            message = f"agent {agent} is not served at the moment: {self.held[agent]}"
            raise RequestRefused("SF5075", 503, message, {"Retry-After": str(RETRY_AFTER_S)})

    # Runs -----------------------------------------------------------------------------------

    async def start_run(self, agent: str, request: Request) -> Response:
        """Start a run from {"run_id"?, "payload"}.

        The same run_id gives the same answer, and one run. Without one, any Idempotency-Key is
        converted to a run_id; without either, a new run_id is made.
        """
        keys = request.headers.getlist("idempotency-key")
        declared = self.agents[check_agent(agent, self.agents)]
        made = partial(_start, declared, keys, self.clock.unique())
        start = await self._json(request, made)
        await start_all(
            self.commands, [start], trace=trace_context(request), deadline_s=self.limits.start_s
        )
        request.state.run_id = start.run_id
        return JSONResponse({"agent": agent, "run_id": start.run_id}, 202)

    async def show_run(self, agent: str, run_id: str) -> Response:
        """Show one run, as of its latest commit."""
        run = await self._run(agent, run_id)
        if run is None:
            raise RequestRefused("SF4101", 404, "there is no such run")
        return JSONResponse(run_json(run))

    async def explain_run(self, agent: str, run_id: str) -> Response:
        """Explain why a run does not advance, with the commands to type."""
        run = await self._run(agent, run_id)
        if run is None:
            raise RequestRefused("SF4101", 404, "there is no such run")
        backlog = await self.reader.backlog(agent, run_id)
        told = explain(run, self.clock.now_ms(), backlog, self.agents[agent].version)
        return JSONResponse(
            {
                "status": run.status,
                "because": list(told.because),
                "do": list(told.do),
                "backlog": {
                    name: getattr(backlog, name)
                    for name in ("partition", "commands", "tasks", "workers")
                },
            }
        )

    async def operate(self, agent: str, run_id: str, verb: str, request: Request) -> Response:
        """Send a command to a run, and answer with its outcome.

        The command's id is the Idempotency-Key header or "id" in the body; otherwise a new one is
        made. 200: {"id", "accepted": true, "event", "run"}. A refusal of the run's owner has "code"
        and "message" instead, and a matching status. 202 with "accepted": null: no answer in time;
        the command may still be carried out, and can be repeated with the same id.
        """
        if verb not in BODIES:
            raise RequestRefused(
                "SF5009", 404, f"unknown operation; use one of: {', '.join(BODIES)}"
            )
        check_agent(agent, self.agents)
        try:
            check_run_id(run_id)
        except BadArgument as error:
            raise RequestRefused(error.number, 404, error.message) from None
        asked = await self._command(verb, run_id, request)
        try:
            reply = await self.operator.ask(agent, run_id, asked)
        except Unavailable as error:
            log.warning("log_unavailable", path=request.scope["path"], reason=str(error))
            message = f"{AWAY}: the log is not available; send it again with the same id"
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return JSONResponse({"id": asked.id, "error": message}, 503, headers)
        return JSONResponse(reply.json(), reply.status)

    async def retry_failed(self, agent: str, request: Request) -> Response:
        """Retry up to `limit` failed runs, and report the outcome of each.

        `next` is the `before` of the next page. The agent `outbox` has the effects of the app.
        """
        effects = self.effects if agent == OUTBOX else None
        if effects is None:
            check_agent(agent, self.agents)
        asked = await self._json(request, lambda body: _failed(sign(body)), empty=b"{}")
        if effects is None:
            told = await self.operator.retry_failed(self.reader, agent, asked)
        elif self.reading.locked():
            message = "another request is retrying effects; try again when it is done"
            raise RequestRefused("SF5096", 503, message, {"Retry-After": str(RETRY_AFTER_S)})
        else:
            async with self.reading, effects() as reader:
                operator = replace(self.operator, reader=reader)
                told = await operator.retry_failed(reader, agent, asked)
        return JSONResponse({"agent": agent, **told.json()})

    async def asked(self, request: Request) -> Operation:
        """Read a command that has no fields besides `id` and `by`."""
        return await self._command("pause", "", request)

    async def _command(self, word: str, run_id: str, request: Request) -> Operation:
        keys = request.headers.getlist("idempotency-key")
        made = partial(_command, word, run_id, keys, self.clock.unique())
        return await self._json(request, lambda body: made(sign(body)), empty=b"{}")

    async def _run(self, agent: str, run_id: str) -> RunView | None:
        check_agent(agent, self.agents)
        try:
            check_run_id(run_id)
        except BadArgument as error:
            raise RequestRefused(error.number, 404, error.message) from None
        return await self.reader.get(agent, run_id)

    async def _json(
        self, request: Request, make: Callable[[Any], T], *, empty: bytes | None = None
    ) -> T:
        """Read a JSON body with `make`.

        `empty` stands for a body of no bytes, where that is allowed.
        """
        check_json(request)
        check_origin(request)
        raw = await self._body(request)
        if not raw and empty is not None:
            raw = empty
        return await parse_body(len(raw), lambda: make(_values(raw)))

    async def _body(self, request: Request) -> bytes:
        limits = self.limits
        return await read_body(request, bytes_max=limits.body_bytes, timeout_s=limits.body_s)

    # Health ---------------------------------------------------------------------------------

    async def health(self) -> Response:
        """Report that this process serves requests. Says nothing about Kafka."""
        return JSONResponse({"healthy": True})

    async def ready(self) -> Response:
        """Report whether agents are served.

        200 if a real transaction commits for at least one agent, with the reasons of the others;
        else 503 with all reasons. An archive that cannot be read is reported beside them: what is
        in the log is served without it. Where accounts sign in, reasons are only logged.
        """
        outcomes = await asyncio.gather(*(self._why_not(agent) for agent in self.agents))
        reasons = {a: why for a, why in zip(self.agents, outcomes, strict=True) if why is not None}
        fault = None if self.archive is None else await self.archive()
        ready = len(reasons) < len(self.agents) or not self.agents
        return self._ready(reasons, ready=ready, archive=fault)

    async def agent_ready(self, agent: str) -> Response:
        """Report whether an agent is served: 200 if a real transaction commits, else 503 and
        why."""
        if agent not in self.agents and not self.tells_why:
            raise RequestRefused("SF5011", 404, "unknown agent")
        check_agent(agent, self.agents)
        why = await self._why_not(agent)
        return self._ready({} if why is None else {agent: why}, ready=why is None)

    def _ready(
        self, reasons: Mapping[str, str], *, ready: bool, archive: str | None = None
    ) -> Response:
        told: ReadyJson = {"ready": ready}
        if reasons and self.tells_why:
            told["reasons"] = dict(reasons)
        if archive is not None and self.tells_why:
            told["archive"] = archive
        if not self.tells_why and (reasons or archive):
            log.warning("not_ready", reasons=dict(reasons), archive=archive)
        return JSONResponse(told, 200 if ready else 503)

    async def _why_not(self, agent: str) -> str | None:
        if agent in self.held:
            return f"SF5075: {self.held[agent]}"
        try:
            await self.readiness.check(agent)
        except Unavailable as error:
            return str(error)
        return None


def _values(raw: bytes) -> Any:
    try:
        return parse_json(raw)
    except BadPayload as error:
        raise RequestRefused("SF5007", 400, f"the body is not strict JSON: {error}") from None


def _start(agent: Agent, keys: Sequence[str], new_id: str, body: Any) -> MappedStart:
    """Read a start from JSON values; `keys` are the request's Idempotency-Key headers.

    Raises: RequestRefused.
    """
    step = agent.start_step
    if not isinstance(body, dict) or not {"payload"} <= body.keys() <= {"payload", "run_id"}:
        raise RequestRefused("SF5008", 422, 'send {"payload": ...}, and optionally "run_id"')
    given, told = "run_id" in body or bool(keys), None
    try:
        if "run_id" in body:
            run_id = check_run_id(body["run_id"])
        elif keys:
            key = utf8(_only(keys))
            run_id = run_id_for(key)
            told = told_by(key, run_id)
        else:
            run_id = new_id
        payload = dump(step.adapter, load(step.adapter, strict_json(body["payload"])))
        named = agent.name_run(run_id, payload, given=given)
        return MappedStart(agent.name, named, payload, told)
    except (BadPayload, Unserialisable) as error:
        raise RequestRefused(error.number, 422, f"payload of {step.name}: {error}") from None
    except BadArgument as error:
        raise RequestRefused(error.number, 422, error.message) from None


def _command(word: str, run_id: str, keys: Sequence[str], new_id: str, body: Any) -> Operation:
    """Read a command from JSON values; `keys` are the request's Idempotency-Key headers.

    Raises: RequestRefused.
    """
    try:
        if isinstance(body, dict) and keys:
            if body.get("id", keys[0]) != _only(keys):
                raise RequestRefused("SF5010", 422, _ONE_ID)
            body["id"] = run_id_for(utf8(keys[0]), most=COMMAND_ID_MAX)
        return command(word, body, run_id=run_id, new_id=new_id)
    except BadArgument as error:
        raise RequestRefused(error.number, 422, error.message) from None


def _failed(body: Any) -> RetryFailed:
    try:
        return retry_failed(body)
    except BadArgument as error:
        raise RequestRefused(error.number, 422, error.message) from None


def _only(keys: Sequence[str]) -> str:
    if len(set(keys)) > 1:
        raise RequestRefused("SF5010", 422, _ONE_ID)
    return keys[0]


class ReadyJson(TypedDict):
    ready: bool
    #: why not, by agent
    reasons: NotRequired[dict[str, str]]
    #: why the archive cannot be read
    archive: NotRequired[str]
