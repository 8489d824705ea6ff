"""The HTTP front: signed webhooks and an API that start runs, and the runs to look at and to steer.

    POST /webhooks/{source}              a signed delivery; 202 with its runs
    POST /runs/{agent}                   {"run_id"?: str, "payload": ...}; 202
    GET  /runs/{agent}?status=&limit=    most recently updated first
    GET  /runs/{agent}/{run_id}          one run
    GET  /runs/{agent}/{run_id}/why      why it does not move, and what to do
    GET  /runs/{agent}/{run_id}/events   its history, live (server-sent events)
    POST /runs/{agent}/{run_id}/{verb}   pause, resume, cancel, retry, signal, approve, resolve
    GET  /agents/{agent}                 how many runs there are, by status and by version
    GET  /health                         this process is alive
    GET  /ready                          a transaction to every agent's state topic commits

Nothing is decided here: a start is a command on the run's partition, as is every other request,
and that partition's owner alone decides that the same run_id is one run. What is answered with 202
is acknowledged by all in-sync replicas; 503 means that it may or may not have been written, and
that sending it again is safe, as the same delivery has the same run_id, and the same request to a
run the same id.

Numbers in answers are exact JSON integers, also beyond 2**53; a JavaScript client has to parse
those with care.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from surefoot.producers.edge import RETRY_AFTER_S, Refused, guard, read_body, traceparent
from surefoot.producers.event_stream import EventStreams, Item, cursor
from surefoot.producers.openapi import document
from surefoot.producers.operations import BODIES, Operator, Verb, command
from surefoot.producers.webhooks import Door, doors
from surefoot.schemas.payload import BadPayload, Unserialisable, dump, load, parse_json, strict_json
from surefoot.state.agent import Agent, Webhook, WebhookTrigger, check_run_id
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.explain import explain
from surefoot.state.model import TERMINAL, Status
from surefoot.state.ports import Clock, Commands, Readiness, RunReader, RunView
from surefoot.state.views import counts_json, run_json, run_list_json

log = structlog.get_logger(__name__)

#: never shown to an author's mapping, besides the signature
_PRIVATE_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may use."""

    body_bytes: int = 1_048_576
    body_s: float = 10.0
    #: webhook senders give up after 3 to 10 s, and then send again
    start_s: float = 2.5
    #: how long the owner of a run may take to answer a command
    answer_s: float = 5.0
    #: live event streams at a time
    streams: int = 1_000
    #: a comment on idle event streams, so that both sides notice a dead connection
    heartbeat_s: float = 15.0
    #: how long a watcher may take no data before it is cut off
    send_s: float = 30.0


def gateway_app(
    *,
    agents: Sequence[Agent],
    commands: Commands,
    reader: RunReader,
    readiness: Readiness,
    secrets: Mapping[str, Sequence[str]],
    clock: Clock,
    limits: Limits | None = None,
) -> FastAPI:
    """The ASGI application. The ports are started and stopped by the caller.

    Args:    secrets: live secrets by webhook source
    Raises:  ConfigError — two agents of one name, an agent without steps, or a webhook source
             whose secret is missing, empty, a placeholder or too short
    """
    limits = limits or Limits()
    gateway = _Gateway(
        agents=_by_name(agents),
        triggers=_by_source(agents),
        doors=doors({trigger.source for agent in agents for trigger in agent.webhooks}, secrets),
        commands=commands,
        reader=reader,
        readiness=readiness,
        clock=clock,
        limits=limits,
        operator=Operator(
            commands=commands,
            reader=reader,
            clock=clock,
            send_s=limits.start_s,
            answer_s=limits.answer_s,
        ),
        streams=EventStreams(
            limit=limits.streams, heartbeat_s=limits.heartbeat_s, send_s=limits.send_s
        ),
    )
    app = FastAPI(title="Surefoot gateway", docs_url=None, redoc_url=None)
    described = document(gateway.agents, gateway.triggers)
    app.openapi = lambda: described  # type: ignore[method-assign]
    guard(app)
    app.post("/webhooks/{source}", status_code=202)(gateway.webhook)
    app.post("/runs/{agent}", status_code=202)(gateway.start_run)
    app.get("/runs/{agent}")(gateway.list_runs)
    app.get("/runs/{agent}/{run_id}")(gateway.show_run)
    app.get("/runs/{agent}/{run_id}/events")(gateway.watch_run)
    app.get("/runs/{agent}/{run_id}/why")(gateway.explain_run)
    app.post("/runs/{agent}/{run_id}/{verb}")(gateway.operate)
    app.get("/agents/{agent}")(gateway.count_runs)
    app.get("/health")(gateway.health)
    app.get("/ready")(gateway.ready)
    return app


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    named: dict[str, Agent] = {}
    for agent in agents:
        if agent.name in named:
            raise ConfigError(f"two agents are called {agent.name!r}; rename one of them")
        _ = agent.start_step
        named[agent.name] = agent
    return named


def _by_source(agents: Sequence[Agent]) -> dict[str, list[tuple[Agent, WebhookTrigger]]]:
    found: dict[str, list[tuple[Agent, WebhookTrigger]]] = {}
    for agent in agents:
        for trigger in agent.webhooks:
            found.setdefault(trigger.source, []).append((agent, trigger))
    return found


@dataclass(slots=True, kw_only=True)
class _Gateway:
    agents: Mapping[str, Agent]
    triggers: Mapping[str, Sequence[tuple[Agent, WebhookTrigger]]]
    doors: Mapping[str, Door]
    commands: Commands
    reader: RunReader
    readiness: Readiness
    clock: Clock
    limits: Limits
    operator: Operator
    streams: EventStreams

    # Webhooks -------------------------------------------------------------------------------

    async def webhook(self, source: str, request: Request) -> Response:
        """Start the runs that a signed delivery asks for.

        202 {"runs": [{"agent", "run_id"}]} once Kafka has them all; 200 with "ignored" when no
        agent wants it. 422 names each agent whose mapping failed; the others' runs have been
        started, and sending the delivery again starts the missing ones only.
        """
        try:
            delivery = await self._verified(source, request)
        except Refused as refused:
            known = source if source in self.doors else "unknown"
            log.warning(
                "delivery_refused", source=known, status=refused.status, reason=refused.message
            )
            raise
        payloads, errors = await self._mapped(delivery)
        run_id = f"{source}-{delivery.id}"
        await self._start(run_id, payloads, traceparent(request))
        runs = [{"agent": name, "run_id": run_id} for name in payloads]
        if errors:
            told = [{"agent": name, "error": error} for name, error in errors.items()]
            message = "the delivery does not fit every agent that it is for"
            return JSONResponse({"error": message, "runs": runs, "errors": told}, 422)
        if not runs:
            return JSONResponse({"runs": [], "ignored": True}, 200)
        return JSONResponse({"runs": runs}, 202)

    async def _verified(self, source: str, request: Request) -> Webhook:
        """The signature first, over the raw bytes; only then is anything parsed."""
        door = self.doors.get(source)
        if door is None:
            raise Refused(404, "no agent listens to this webhook source")
        body = await self._body(request)
        headers = dict(request.headers)
        if not door.opens(headers, body):
            raise Refused(401, "the signature is missing or wrong")
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "send the body without a Content-Encoding")
        provider = door.provider
        delivery_id = headers.get(provider.id_header, "")
        try:
            check_run_id(f"{source}-{delivery_id}" if delivery_id else "")
        except ValueError:
            raise Refused(400, f"{provider.id_header} is missing or cannot name a run") from None
        try:
            value = parse_json(body)
        except BadPayload as error:
            raise Refused(400, f"the body is not strict JSON: {error}") from None
        if not isinstance(value, dict | list):
            raise Refused(400, "the body is neither a JSON object nor an array")
        hidden = _PRIVATE_HEADERS | provider.signature_headers
        return Webhook(
            source=source,
            id=delivery_id,
            event=headers.get(provider.event_header, ""),
            headers={name: text for name, text in headers.items() if name not in hidden},
            body=body,
            json=value,
        )

    async def _mapped(self, delivery: Webhook) -> tuple[dict[str, bytes], dict[str, str]]:
        """(start payloads, what went wrong), both by agent. Of an agent's triggers the first one
        that wants the delivery wins, as one delivery is one run."""
        payloads: dict[str, bytes] = {}
        errors: dict[str, str] = {}
        for agent, trigger in self.triggers[delivery.source]:
            if trigger.event not in (None, delivery.event) or agent.name in payloads | errors:
                continue
            try:
                value = await run_in_threadpool(trigger.fn, delivery)
                if value is not None:
                    payloads[agent.name] = dump(agent.start_step.adapter, value)
            except Unserialisable as error:
                errors[agent.name] = f"payload of {agent.start_step.name}: {error}"
            except Exception as error:
                errors[agent.name] = f"the webhook mapping raised {type(error).__name__}"
                log.exception("mapping_failed", agent=agent.name, delivery=delivery.id)
        return payloads, errors

    # Runs -----------------------------------------------------------------------------------

    async def start_run(self, agent: str, request: Request) -> Response:
        """Start a run from {"run_id"?, "payload"}. The same run_id gives the same answer, and one
        run; without one a new id is made."""
        step = self._agent(agent).start_step
        body = await self._json(request)
        if not isinstance(body, dict) or not {"payload"} <= body.keys() <= {"payload", "run_id"}:
            raise Refused(422, 'send {"payload": ...}, and "run_id" if it is to have a name')
        try:
            run_id = check_run_id(body["run_id"] if "run_id" in body else self.clock.unique())
            payload = dump(step.adapter, load(step.adapter, strict_json(body["payload"])))
        except (BadPayload, Unserialisable) as error:
            raise Refused(422, f"payload of {step.name}: {error}") from None
        except ValueError as error:
            raise Refused(422, str(error)) from None
        await self._start(run_id, {agent: payload}, traceparent(request))
        return JSONResponse({"agent": agent, "run_id": run_id}, 202)

    async def _start(self, run_id: str, payloads: Mapping[str, bytes], trace: str | None) -> None:
        """Returns once Kafka has every command. All are tried, so that one that fails takes no
        other with it."""
        starts = (
            self.commands.start(
                agent, run_id, payload, traceparent=trace, deadline_s=self.limits.start_s
            )
            for agent, payload in payloads.items()
        )
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def list_runs(
        self,
        agent: str,
        status: Annotated[Status | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> Response:
        """Most recently updated first; payloads and results are left out."""
        self._agent(agent)
        runs = await self.reader.list(agent, status=status, limit=limit)
        return JSONResponse({"runs": [run_list_json(run) for run in runs]})

    async def show_run(self, agent: str, run_id: str) -> Response:
        """One run, as of its latest commit."""
        run = await self._run(agent, run_id)
        if run is None:
            raise Refused(404, "there is no such run")
        return JSONResponse(run_json(run))

    async def explain_run(self, agent: str, run_id: str) -> Response:
        """Why a run stands where it stands, and the commands to type."""
        run = await self._run(agent, run_id)
        if run is None:
            raise Refused(404, "there is no such run")
        backlog = await self.reader.backlog(agent, run_id)
        told = explain(run, self.clock.now_ms(), backlog)
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

    async def count_runs(self, agent: str) -> Response:
        """How many runs there are, by status and by version of the agent."""
        self._agent(agent)
        counts = await self.reader.counts(agent)
        return JSONResponse({"agent": agent, **counts_json(counts)})

    async def operate(self, agent: str, run_id: str, verb: str, request: Request) -> Response:
        """Ask something of a run, and answer with what came of it.

        The command's id is the Idempotency-Key header or "id" in the body; a new one is made
        otherwise. 200 {"id", "accepted": true, "event", "run"}; what the run's owner refuses has
        "code" and "message" instead and a status that fits; 202 with "accepted": null says that no
        answer came in time: the command is on its way, and can be repeated with the same id.
        """
        known = next((each for each in BODIES if each == verb), None)
        if known is None:
            raise Refused(404, f"there is no such operation; there are: {', '.join(BODIES)}")
        self._agent(agent)
        try:
            check_run_id(run_id)
        except ValueError as error:
            raise Refused(404, str(error)) from None
        command_id, fields = await self._command(known, request)
        try:
            reply = await self.operator.ask(agent, run_id, known, command_id=command_id, **fields)
        except Unavailable as error:
            log.warning("log_unavailable", path=request.scope["path"], reason=str(error))
            message = "the log is not available; send it again with the same id"
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return JSONResponse({"id": command_id, "error": message}, 503, headers)
        return JSONResponse(reply.json(), reply.status)

    async def _command(self, verb: Verb, request: Request) -> tuple[str, dict[str, Any]]:
        body = await self._json(request, empty={})
        if isinstance(body, dict) and (keys := request.headers.getlist("idempotency-key")):
            if len(keys) > 1 or body.get("id", keys[0]) != keys[0]:
                raise Refused(422, "give one id: as Idempotency-Key or in the body")
            body["id"] = keys[0]
        try:
            command_id, fields = command(verb, body)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return command_id or self.clock.unique(), fields

    async def watch_run(self, agent: str, run_id: str, request: Request) -> Response:
        """The run's history as server-sent events, live until the run is over.

        The id of an event is its offset; heartbeats are comments and have none. Last-Event-ID, or
        `?last_event_id=`, goes on with the event after that one. A run that is not known yet is
        waited for, as its start may be on its way. 204 tells an EventSource to stop: the run is
        over and there is nothing more to come.
        """
        after = cursor(request)
        run = await self._run(agent, run_id)
        self.streams.check_room()
        events = self.reader.events(agent, run_id, after)
        first: list[Item] = []
        if run is not None and run.status in TERMINAL:
            async for item in events:
                first.append(item)
                break
            if not first:
                return Response(status_code=204)
        return self.streams.respond(first, events)

    async def _run(self, agent: str, run_id: str) -> RunView | None:
        self._agent(agent)
        try:
            check_run_id(run_id)
        except ValueError as error:
            raise Refused(404, str(error)) from None
        return await self.reader.get(agent, run_id)

    def _agent(self, name: str) -> Agent:
        if name not in self.agents:
            raise Refused(404, f"there is no such agent; there are: {', '.join(self.agents)}")
        return self.agents[name]

    async def _json(self, request: Request, *, empty: Any = None) -> Any:
        """The values of a JSON body; `empty` for a body without a byte, if that may be. A page of
        somebody else's site can make a browser send anything but this content type."""
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise Refused(415, "send application/json")
        raw = await self._body(request)
        if not raw and empty is not None:
            return empty
        try:
            return parse_json(raw)
        except BadPayload as error:
            raise Refused(400, f"the body is not strict JSON: {error}") from None

    async def _body(self, request: Request) -> bytes:
        limits = self.limits
        return await read_body(request, bytes_max=limits.body_bytes, timeout_s=limits.body_s)

    # Health ---------------------------------------------------------------------------------

    async def health(self) -> Response:
        """This process serves requests. Says nothing of Kafka."""
        return JSONResponse({"healthy": True})

    async def ready(self) -> Response:
        """200 when a real transaction commits for every agent; else 503 with the reasons."""
        checks = (self.readiness.check(agent) for agent in self.agents)
        reasons: dict[str, str] = {}
        outcomes = await asyncio.gather(*checks, return_exceptions=True)
        for agent, outcome in zip(self.agents, outcomes, strict=True):
            if isinstance(outcome, Unavailable):
                reasons[agent] = str(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        if reasons:
            return JSONResponse({"ready": False, "reasons": reasons}, 503)
        return JSONResponse({"ready": True})
