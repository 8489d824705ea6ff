"""Views over HTTP: an overview of an agent's runs, and how far it lags behind.

    GET /views/{agent}/summary             runs by status and age
    GET /views/{agent}/attention?limit=    runs that need a person, longest wait first
    GET /views/{agent}/windows?minutes=    outcomes of steps, by minute and in total
    GET /views/{agent}/runs/{run_id}       the state of one run

`surefoot views` serves them; a gateway that knows its address passes them on. 503 while partitions
are being assigned or restored: a view covers all runs of the agent, or does not answer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse

from surefoot.producers.api.openapi import OpenApiSchema, operation, path, query
from surefoot.producers.guards import RequestRefused, check_agent
from surefoot.state.errors import BadArgument
from surefoot.state.names.ids import RUN_ID_PATTERN, check_run_id
from surefoot.state.reading.ports import Views

_LIMIT_MOST = 500
_MINUTES_MOST = 24 * 60


def add_views(app: FastAPI, agents: Collection[str], views: Views) -> None:
    """Serve the views of these agents."""

    async def summary(agent: str) -> Response:
        return JSONResponse(await views.summary(check_agent(agent, agents)))

    async def attention(
        agent: str, limit: Annotated[int, Query(ge=1, le=_LIMIT_MOST)] = 50
    ) -> Response:
        return JSONResponse(await views.attention(check_agent(agent, agents), limit))

    async def windows(
        agent: str, minutes: Annotated[int, Query(ge=1, le=_MINUTES_MOST)] = 60
    ) -> Response:
        return JSONResponse(await views.windows(check_agent(agent, agents), minutes))

    async def run(agent: str, run_id: str) -> Response:
        try:
            found = await views.run(check_agent(agent, agents), check_run_id(run_id))
        except BadArgument as error:
            raise RequestRefused(error.number, 404, error.message) from None
        if found["run"] is None:
            raise RequestRefused("SF4101", 404, "there is no such run")
        return JSONResponse(found)

    app.get("/views/{agent}/summary")(summary)
    app.get("/views/{agent}/attention")(attention)
    app.get("/views/{agent}/windows")(windows)
    app.get("/views/{agent}/runs/{run_id}")(run)


def paths(agents: Collection[str]) -> dict[str, OpenApiSchema]:
    """Return the same routes as OpenAPI paths."""
    agent = path("agent", {"type": "string", "enum": sorted(agents)})
    run_id = path("run_id", {"type": "string", "pattern": RUN_ID_PATTERN})
    number: OpenApiSchema = {"type": "integer"}
    lag: OpenApiSchema = {
        "type": "object",
        "required": ["events", "ms"],
        "properties": {"events": number, "ms": number},
    }

    def answer(**told: OpenApiSchema) -> dict[int, OpenApiSchema]:
        properties: OpenApiSchema = {"agent": {"type": "string"}, "lag": lag} | told
        return {200: {"type": "object", "required": list(properties), "properties": properties}}

    rows: OpenApiSchema = {"type": "array", "items": {"type": "object"}}
    limit = query("limit", {**number, "minimum": 1, "maximum": _LIMIT_MOST, "default": 50})
    minutes = query("minutes", {**number, "minimum": 1, "maximum": _MINUTES_MOST, "default": 60})
    told = {
        "summary": ("Runs by status and age", [agent], answer(statuses={"type": "object"})),
        "attention": ("Runs that need a person", [agent, limit], answer(runs=rows)),
        "windows": (
            "What steps came to, by minute and in all",
            [agent, minutes],
            answer(windows=rows, steps=rows),
        ),
        "runs/{run_id}": ("Where one run stands", [agent, run_id], answer(run={"type": "object"})),
    }
    return {
        f"/views/{{agent}}/{name}": {"get": operation(*described, (404, 422, 503))}
        for name, described in told.items()
    }
