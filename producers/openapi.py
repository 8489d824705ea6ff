"""The HTTP API described by itself, as OpenAPI 3.1: what is served at /openapi.json. Pure.

A test sends what the description allows, and what it does not, to the real application, and holds
its answers against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from surefoot.producers.operations import BODIES
from surefoot.state.agent import RUN_ID_PATTERN
from surefoot.state.model import Status

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_STATUS: Schema = {"type": "string", "enum": list(get_args(Status))}
_MAYBE_OBJECT: Schema = {"type": ["object", "null"]}

_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "what to change"}},
}
_RUN: Schema = {
    "type": "object",
    "required": ["run_id", "agent", "version", "status", "seq", "step", "attempt"],
    "properties": {
        "run_id": _TEXT,
        "agent": _TEXT,
        "version": _NUMBER,
        "status": _STATUS,
        "seq": {**_NUMBER, "description": "committed steps so far"},
        "step": {**_TEXT, "description": "the step to run next; of a run that is over, its last"},
        "attempt": {**_NUMBER, "description": "attempts of that step that are over"},
        "created_ms": _NUMBER,
        "updated_ms": _NUMBER,
        "due_ms": {"type": ["integer", "null"]},
        "failure": _MAYBE_OBJECT,
    },
}
_REPLY: Schema = {
    "type": "object",
    "required": ["id", "accepted"],
    "properties": {
        "id": {**_TEXT, "description": "of the command; repeating it is safe"},
        "accepted": {"type": ["boolean", "null"], "description": "null: no answer came in time"},
        "code": {**_TEXT, "description": "why it was refused, as a stable word"},
        "message": _TEXT,
        "event": {"type": ["string", "null"]},
        "run": _MAYBE_OBJECT,
    },
}
_REFUSED: Schema = {"anyOf": [_REPLY, _ERROR]}
_WHY: Schema = {
    "type": "object",
    "required": ["status", "because", "do", "backlog"],
    "properties": {
        "status": _STATUS,
        "because": {"type": "array", "items": _TEXT},
        "do": {"type": "array", "items": _TEXT, "description": "commands to type"},
        "backlog": {"type": "object"},
    },
}
_STARTED: Schema = {
    "type": "object",
    "required": ["agent", "run_id"],
    "properties": {"agent": _TEXT, "run_id": _TEXT},
}
_DELIVERED: Schema = {
    "type": "object",
    "required": ["runs"],
    "properties": {"runs": {"type": "array", "items": _STARTED}, "ignored": {"type": "boolean"}},
}


def document(agents: Iterable[str], sources: Iterable[str]) -> Schema:
    """The description of a gateway for these agents and webhook sources."""
    agent = _path("agent", {"type": "string", "enum": sorted(agents)})
    run_id = _path("run_id", {"type": "string", "pattern": RUN_ID_PATTERN})
    run = [agent, run_id]
    paths: dict[str, dict[str, Any]] = {
        "/runs/{agent}": {
            "get": _operation(
                "The runs of an agent, the most recently updated first",
                [agent, _query("status", _STATUS), _query("limit", _LIMIT)],
                {200: _object(runs={"type": "array", "items": _RUN})},
                (404, 422, 503),
            ),
            "post": _operation(
                "Start a run; the same run_id makes one run",
                [agent, _TRACE],
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
        "/runs/{agent}/{run_id}": {
            "get": _operation("One run, as of its latest commit", run, {200: _RUN}, (404, 503))
        },
        "/runs/{agent}/{run_id}/why": {
            "get": _operation("Why a run stands where it stands", run, {200: _WHY}, (404, 503))
        },
        "/runs/{agent}/{run_id}/events": {"get": _events(run)},
        "/agents/{agent}": {
            "get": _operation(
                "How many runs there are, by status and version",
                [agent],
                {200: _object(agent=_TEXT, runs=_NUMBER, statuses={}, versions={})},
                (404, 503),
            )
        },
        "/health": {"get": _operation("This process serves requests", [], {200: {}}, ())},
        "/ready": {
            "get": _operation(
                "Whether a transaction commits for every agent", [], {200: {}, 503: {}}, ()
            )
        },
    }
    for verb, body in BODIES.items():
        paths[f"/runs/{{agent}}/{{run_id}}/{verb}"] = {
            "post": _operation(
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
        source = _path("source", {"type": "string", "enum": known})
        paths["/webhooks/{source}"] = {
            "post": _operation(
                "A signed delivery; starts the runs that it asks for",
                [source],
                {200: _DELIVERED, 202: _DELIVERED},
                (400, 401, 404, 408, 413, 415, 422, 503),
                body={"type": ["object", "array"]},
            )
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Surefoot gateway", "version": "1"},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
_TRACE: Schema = {"name": "traceparent", "in": "header", "schema": _TEXT}
_IDEMPOTENCY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "id of the command; repeating it is safe",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,127}$"},
}


def _path(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "schema": schema}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _operation(
    summary: str,
    parameters: list[Schema],
    answers: Mapping[int, Schema],
    errors: Iterable[int],
    *,
    body: Schema | None = None,
    needs_body: bool = True,
) -> Schema:
    responses: dict[str, Any] = {
        str(status): {"description": "", "content": {"application/json": {"schema": schema}}}
        for status, schema in answers.items()
    }
    for status in errors:
        responses[str(status)] = {
            "description": "",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    made: Schema = {"summary": summary, "parameters": parameters, "responses": responses}
    if body is not None:
        content = {"application/json": {"schema": body}}
        made["requestBody"] = {"required": needs_body, "content": content}
    return made


def _events(run: list[Schema]) -> Schema:
    offset = {"type": "string", "pattern": "^[0-9]{0,18}$"}
    seen = {"name": "Last-Event-ID", "in": "header", "schema": offset}
    made = _operation(
        "The run's history as server-sent events, live until it is over",
        [*run, _query("last_event_id", _TEXT), seen],
        {},
        (400, 404, 503),
    )
    made["responses"] |= {
        "200": {"description": "events", "content": {"text/event-stream": {"schema": _TEXT}}},
        "204": {"description": "the run is over, and nothing more will come"},
    }
    return made
