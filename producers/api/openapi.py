"""The HTTP API's description of itself, as OpenAPI 3.1, served at /openapi.json. Pure.

A test sends the real application what the description allows, and what it does not, and compares
the answers with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from surefoot.producers.commands.operations import RetryFailed
from surefoot.producers.commands.schedules import DOES
from surefoot.schemas import trace
from surefoot.state.feeds.event_id import PATTERN as POSITION_PATTERN
from surefoot.state.machine.commands import BODIES
from surefoot.state.machine.model import EventType, Status
from surefoot.state.names.ids import RUN_ID_PATTERN
from surefoot.state.names.topics import OUTBOX
from surefoot.state.reading.deliveries import OUTCOMES

OpenApiSchema = dict[str, Any]

_TEXT: OpenApiSchema = {"type": "string"}
_NUMBER: OpenApiSchema = {"type": "integer"}
_TYPE: OpenApiSchema = {"type": "string", "enum": list(get_args(EventType))}
_STATUS: OpenApiSchema = {"type": "string", "enum": list(get_args(Status))}
_MAYBE_OBJECT: OpenApiSchema = {"type": ["object", "null"]}

_ERROR: OpenApiSchema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "what to change"}},
}
_RUN: OpenApiSchema = {
    "type": "object",
    "required": ["run_id", "agent", "version", "status", "seq", "step", "attempt"],
    "properties": {
        "run_id": _TEXT,
        "agent": _TEXT,
        "version": _NUMBER,
        "status": _STATUS,
        "seq": {**_NUMBER, "description": "committed steps so far"},
        "step": {**_TEXT, "description": "the next step to run; the last one if the run is over"},
        "attempt": {**_NUMBER, "description": "ended attempts of that step"},
        "created_ms": _NUMBER,
        "updated_ms": _NUMBER,
        "due_ms": {"type": ["integer", "null"]},
        "failure": _MAYBE_OBJECT,
    },
}
_REPLY: OpenApiSchema = {
    "type": "object",
    "required": ["id", "accepted"],
    "properties": {
        "id": {**_TEXT, "description": "id of the command; repeating it is safe"},
        "accepted": {"type": ["boolean", "null"], "description": "null: no answer came in time"},
        "code": {**_TEXT, "description": "why it was refused, as a stable code"},
        "number": {**_TEXT, "description": "the number of that code in docs/errors.md"},
        "message": _TEXT,
        "event": {"type": ["string", "null"]},
        "run": _MAYBE_OBJECT,
    },
}
_REFUSED: OpenApiSchema = {"anyOf": [_REPLY, _ERROR]}
_WHY: OpenApiSchema = {
    "type": "object",
    "required": ["status", "because", "do", "backlog"],
    "properties": {
        "status": _STATUS,
        "because": {"type": "array", "items": _TEXT},
        "do": {"type": "array", "items": _TEXT, "description": "commands to type"},
        "backlog": {"type": "object"},
    },
}
_STARTED: OpenApiSchema = {
    "type": "object",
    "required": ["agent", "run_id"],
    "properties": {"agent": _TEXT, "run_id": _TEXT},
}
_DELIVERED: OpenApiSchema = {
    "type": "object",
    "required": ["runs"],
    "properties": {"runs": {"type": "array", "items": _STARTED}, "ignored": {"type": "boolean"}},
}


def document(agents: Iterable[str], sources: Iterable[str]) -> OpenApiSchema:
    """Return the description of a gateway with these agents and webhook sources."""
    agent = path("agent", {"type": "string", "enum": sorted(agents)})
    run_id = path("run_id", {"type": "string", "pattern": RUN_ID_PATTERN})
    run = [agent, run_id]
    paths: dict[str, OpenApiSchema] = {
        "/runs/{agent}": {
            "get": operation(
                "The runs of an agent, the most recently updated first",
                [agent, *_FILTERS, query("before", _BEFORE), query("limit", _LIMIT)],
                {200: _object(runs={"type": "array", "items": _RUN}, matches=_NUMBER, next={})},
                (404, 422, 503),
            ),
            "post": operation(
                "Start a run; repeating the run_id or the Idempotency-Key makes no second run",
                [agent, *_TRACE, _IDEMPOTENCY],
                {202: _STARTED},
                (400, 404, 408, 413, 415, 422, 503),
                body={
                    "type": "object",
                    "required": ["payload"],
                    "properties": {
                        "payload": {"description": "the input of the agent's first step"},
                        "run_id": {"type": "string", "pattern": RUN_ID_PATTERN},
                    },
                    "additionalProperties": False,
                },
            ),
        },
        "/runs/{agent}/retry-failed": {
            "post": operation(
                "Retry failed runs; those of the agent outbox are effects",
                [path("agent", {"type": "string", "enum": [*sorted(agents), OUTBOX]})],
                {200: _RETRIED},
                (400, 404, 408, 413, 415, 422, 503),
                body=RetryFailed.model_json_schema(),
                needs_body=False,
            )
        },
        "/runs/{agent}/{run_id}": {
            "get": operation("One run, as of its latest commit", run, {200: _RUN}, (404, 503))
        },
        "/runs/{agent}/{run_id}/why": {
            "get": operation(
                "Why a run does not advance, and what to do", run, {200: _WHY}, (404, 503)
            )
        },
        "/runs/{agent}/{run_id}/events": {"get": _run_events(run)},
        "/events": {"get": _events("The events of all agents, live", [])},
        "/events/{agent}": {"get": _events("The events of an agent, live", [agent])},
        **_desk(agent, sorted(agents)),
        "/runs/{agent}/{run_id}/history": {
            "get": operation(
                "A page of the run's events, the latest first",
                [*run, query("before", _OFFSET), query("limit", _LIMIT)],
                {200: _object(topic=_TEXT, events={"type": "array"}, before={})},
                (404, 422, 503),
            )
        },
        "/effects/{effect_id}": {
            "get": operation(
                "The outcome of an effect",
                [
                    path("effect_id", {"type": "string", "pattern": RUN_ID_PATTERN}),
                    query("since_ms", {"type": "integer", "minimum": 0, "maximum": 2**53}),
                ],
                {200: _object(id=_TEXT, status=_STATUS, receipt={}, failure=_MAYBE_OBJECT)},
                (404, 422, 503),
            )
        },
        "/agents/{agent}/activity": {
            "get": operation(
                "Runs that began and ended lately, and the one that waits longest",
                [
                    agent,
                    query("bucket_s", {"type": "integer", "minimum": 1, "maximum": 86_400}),
                    query("buckets", _LIMIT),
                ],
                {200: _object(buckets={"type": "array"}, oldest={}, needs_person=_NUMBER)},
                (404, 422, 503),
            )
        },
        "/health": {"get": operation("This process serves requests", [], {200: {}}, ())},
        "/ready": {
            "get": operation(
                "Whether a transaction commits for an agent, and for which it does not",
                [],
                {200: {}, 503: {}},
                (),
            )
        },
        "/ready/{agent}": {
            "get": operation(
                "Whether a transaction commits for that agent", [agent], {200: {}, 503: {}}, (404,)
            )
        },
    }
    for verb, body in BODIES.items():
        paths[f"/runs/{{agent}}/{{run_id}}/{verb}"] = {
            "post": operation(
                f"Ask a run to {verb}; answered by its owner",
                [*run, _IDEMPOTENCY],
                {
                    200: _REPLY,
                    202: _REPLY,
                    403: _REPLY,
                    404: _REFUSED,
                    409: _REPLY,
                    422: _REFUSED,
                    429: _REPLY,
                },
                (400, 408, 413, 415, 503),
                body=body.model_json_schema(ref_template="#/components/schemas/{model}"),
                needs_body=False,
            )
        }
    if known := sorted(sources):
        source = path("source", {"type": "string", "enum": known})
        paths["/webhooks/{source}"] = {
            "post": operation(
                "Take a delivery of any type, signed by the source's sender; starts the runs that "
                "its mappings ask for",
                [source],
                {200: _DELIVERED, 202: _DELIVERED},
                (400, 401, 404, 408, 413, 415, 422, 503),
                body={"type": "string", "format": "binary"},
                media="*/*",
            )
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Surefoot gateway", "version": "1"},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


_DECLARED: OpenApiSchema = {
    "type": "object",
    "required": ["version", "start", "steps", "edges", "flow", "budget", "triggers"],
}
_AGENT: OpenApiSchema = {
    "type": "object",
    "required": ["agent", "runs", "statuses", "versions", "declared"],
    "properties": {
        "agent": _TEXT,
        "runs": _NUMBER,
        "statuses": {"type": "object"},
        "versions": {"type": "object"},
        "declared": _DECLARED,
    },
}
_MAYBE_TEXT: OpenApiSchema = {"type": ["string", "null"]}
_MAYBE_NUMBER: OpenApiSchema = {"type": ["integer", "null"]}


def _desk(agent: OpenApiSchema, agents: list[str]) -> dict[str, OpenApiSchema]:
    """Describe the routes of producers.api.admin."""
    one = query("agent", {"type": "string", "enum": agents})
    schedule = path("schedule", {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,62}$"})
    do = path("do", {"type": "string", "enum": list(DOES)})
    before = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    return {
        "/agents": {
            "get": operation(
                "The agents of this gateway, and what they declare",
                [],
                {
                    200: _object(
                        agents=_list(_object(name=_TEXT, version=_NUMBER, declared=_DECLARED))
                    )
                },
                (),
            )
        },
        "/agents/{agent}": {
            "get": operation(
                "What an agent declares, and how many runs there are, by status and version",
                [agent],
                {200: _AGENT},
                (404, 503),
            )
        },
        "/deliveries": {
            "get": operation(
                "Deliveries to the webhook sources, the newest first",
                [
                    query("source", _TEXT),
                    query("outcome", {"type": "string", "enum": list(OUTCOMES)}),
                    query("limit", _LIMIT),
                ],
                {200: _object(deliveries=_list(_DELIVERY))},
                (422, 503),
            )
        },
        "/schedules": {
            "get": operation(
                "Schedules, with their next five ticks",
                [one],
                {200: _object(schedules=_list(_SCHEDULE))},
                (404, 503),
            )
        },
        "/schedules/{agent}/{schedule}/{do}": {
            "post": operation(
                "Pause a schedule, resume it, or have it start a run now",
                [agent, schedule, do, _IDEMPOTENCY],
                {200: _REPLY, 202: _REPLY, 404: _REFUSED, 409: _REPLY, 422: _REFUSED, 429: _REPLY},
                (400, 408, 413, 415, 503),
                body=BODIES["pause"].model_json_schema(ref_template="#/components/schemas/{model}"),
                needs_body=False,
            )
        },
        "/dead-letters": {
            "get": operation(
                "Dead letters: unusable inputs, and runs out of attempts, the newest first",
                [query("before", before), query("limit", _LIMIT)],
                {200: _object(dead_letters=_list(_DEAD_LETTER), older=_MAYBE_NUMBER)},
                (422, 503),
            )
        },
        "/topics": {
            "get": operation(
                "Offsets, lag and owner of each partition of each topic",
                [one],
                {200: _object(agents=_list(_STANDING))},
                (404, 503),
            )
        },
    }


_LIMIT: OpenApiSchema = {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
_TRACE: Sequence[OpenApiSchema] = [
    {"name": name, "in": "header", "schema": _TEXT} for name in trace.HEADERS
]
_IDEMPOTENCY: OpenApiSchema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "id of the command, in any form; repeating it is safe",
    "schema": {"type": "string", "minLength": 1},
}


def path(name: str, schema: OpenApiSchema) -> OpenApiSchema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def query(name: str, schema: OpenApiSchema) -> OpenApiSchema:
    return {"name": name, "in": "query", "schema": schema}


_OFFSET: OpenApiSchema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_BEFORE: OpenApiSchema = {
    "type": "string",
    "pattern": "^[0-9]{1,18}~[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,255}$",
}
_FILTERS = (
    query("status", _STATUS),
    query("needs", {"type": "string", "enum": ["person"]}),
    query("version", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}),
    query("step", {"type": "string", "maxLength": 256}),
    query("prefix", {"type": "string", "maxLength": 256}),
)


def _object(**properties: OpenApiSchema) -> OpenApiSchema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: OpenApiSchema) -> OpenApiSchema:
    return {"type": "array", "items": items}


#: schemas that `_desk` uses; they need the helpers above
_DELIVERY = _object(
    id=_TEXT,
    source=_TEXT,
    at_ms=_NUMBER,
    outcome=_TEXT,
    status=_NUMBER,
    reason=_MAYBE_TEXT,
    verified={"type": "boolean"},
    runs=_list(_STARTED),
    errors=_list(_TEXT),
)
_SCHEDULE = _object(
    agent=_TEXT,
    schedule=_TEXT,
    cron=_TEXT,
    tz=_TEXT,
    state=_TEXT,
    paused={"type": "boolean"},
    last=_MAYBE_TEXT,
    next=_MAYBE_TEXT,
    coming=_list(_TEXT),
    runs=_NUMBER,
    skipped=_NUMBER,
    waiting=_NUMBER,
    under_way=_MAYBE_TEXT,
)
_DEAD_LETTER = _object(
    offset=_NUMBER,
    at_ms=_NUMBER,
    code=_TEXT,
    number=_MAYBE_TEXT,
    message=_TEXT,
    attempts=_NUMBER,
    agent=_MAYBE_TEXT,
    run_id=_MAYBE_TEXT,
    step=_MAYBE_TEXT,
    source=_MAYBE_OBJECT,
    value_bytes=_NUMBER,
    do=_list(_TEXT),
)
_RETRIED = _object(
    agent=_TEXT,
    matches={**_NUMBER, "description": "failed runs whose id has the prefix"},
    retried=_NUMBER,
    refused=_NUMBER,
    unanswered={**_NUMBER, "description": "commands that no owner has answered yet"},
    runs=_list(_object(run_id=_TEXT, id=_TEXT, accepted={"type": ["boolean", "null"]})),
    next={**_MAYBE_TEXT, "description": "the `before` of the next page"},
)
_STANDING = _object(
    agent=_TEXT,
    group=_TEXT,
    lag={**_NUMBER, "description": "committed records that are not done"},
    exact={"type": "boolean", "description": "false: the lag includes markers of transactions"},
    workers=_list(_object(name=_TEXT, host=_TEXT, partitions=_list(_NUMBER))),
    topics=_list(
        _object(
            topic=_TEXT,
            partition=_NUMBER,
            start=_NUMBER,
            end=_NUMBER,
            stable=_NUMBER,
            committed=_MAYBE_NUMBER,
            lag=_MAYBE_NUMBER,
            exact={"type": "boolean"},
            owner=_MAYBE_TEXT,
        )
    ),
)


def operation(
    summary: str,
    parameters: list[OpenApiSchema],
    answers: Mapping[int, OpenApiSchema],
    errors: Iterable[int],
    *,
    body: OpenApiSchema | None = None,
    needs_body: bool = True,
    media: str = "application/json",
) -> OpenApiSchema:
    responses: dict[str, OpenApiSchema] = {
        str(status): {"description": "", "content": {"application/json": {"schema": schema}}}
        for status, schema in answers.items()
    }
    for status in errors:
        responses[str(status)] = {
            "description": "",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    made: OpenApiSchema = {"summary": summary, "parameters": parameters, "responses": responses}
    if body is not None:
        content = {media: {"schema": body}}
        made["requestBody"] = {"required": needs_body, "content": content}
    return made


def _run_events(run: list[OpenApiSchema]) -> OpenApiSchema:
    offset = {"type": "string", "pattern": "^[0-9]{0,18}$"}
    made = _streamed(
        "The run's history as server-sent events, live until it is over; `output` is what the step "
        "in progress has written so far",
        [*run, query("last_event_id", _TEXT), _last_event_id(offset)],
    )
    made["responses"]["204"] = {"description": "the run is over, and nothing more will come"}
    return made


def _events(summary: str, agent: list[OpenApiSchema]) -> OpenApiSchema:
    position = {"type": "string", "pattern": f"^$|{POSITION_PATTERN}"}
    filters = {"type": _TYPE, "status": _STATUS}
    return _streamed(
        f"{summary}, as server-sent events; repeat a filter to select several values",
        [
            *agent,
            *(query(name, {"type": "array", "items": of}) for name, of in filters.items()),
            query("step", _TEXT),
            query("from", {"type": "string", "enum": ["earliest"]}),
            query("last_event_id", position),
            _last_event_id(position),
        ],
    )


def _last_event_id(schema: OpenApiSchema) -> OpenApiSchema:
    return {"name": "Last-Event-ID", "in": "header", "schema": schema}


def _streamed(summary: str, parameters: list[OpenApiSchema]) -> OpenApiSchema:
    made = operation(summary, parameters, {}, (400, 404, 429, 503))
    content = {"text/event-stream": {"schema": {"type": "object"}}}
    made["responses"]["200"] = {"description": "events", "content": content}
    return made
