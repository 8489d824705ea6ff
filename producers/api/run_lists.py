"""Endpoints about many runs: lists, long histories, activity.

    GET /agents/{agent}/activity               runs begun and ended lately, and the longest waits
    GET /runs/{agent}?status=&step=&before=    a page of runs, most recently updated first
    GET /runs/{agent}/{run_id}/history         a page of a run's events, latest first
    GET /effects/{effect_id}                   the outcome of an effect

Each page names the next one. Answers are read from memory, or from the end of one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse

from surefoot.producers.access.signed_in import sees
from surefoot.producers.guards import RequestRefused, check_agent
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import Status
from surefoot.state.names.ids import check_run_id
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.ports import RunBrowser
from surefoot.state.reading.query import PageCursor, RunQuery
from surefoot.state.reading.runs import event_json, run_list_json


@dataclass(slots=True, kw_only=True)
class RunLists:
    """Lists of runs and of events. `mount` adds the routes."""

    agents: Mapping[str, Agent]
    reader: RunBrowser
    clock: Clock

    def mount(self, app: FastAPI) -> None:
        app.get("/agents/{agent}/activity")(self.show_activity)
        app.get("/runs/{agent}")(self.list_runs)
        app.get("/runs/{agent}/{run_id}/history")(self.show_history)
        app.get("/effects/{effect_id}")(self.show_effect)

    async def list_runs(
        self,
        agent: str,
        status: Annotated[Status | None, Query()] = None,
        needs: Annotated[Literal["person"] | None, Query()] = None,
        version: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
        step: Annotated[str | None, Query(max_length=256)] = None,
        prefix: Annotated[str, Query(max_length=256)] = "",
        before: Annotated[str | None, Query(max_length=300)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> Response:
        """List runs, most recently updated first, without payloads and results.

        `next` is the `before` of the next page; `matches` counts the runs of all pages.
        """
        check_agent(agent, self.agents)
        try:
            place = None if before is None else PageCursor.parse(before)
        except BadArgument as error:
            raise RequestRefused(error.number, 422, error.message) from None
        query = RunQuery(
            status=status,
            needs_person=needs is not None,
            version=version,
            step=step,
            prefix=prefix,
            before=place,
            limit=limit,
        )
        page = await self.reader.page(agent, query)
        return JSONResponse(
            {
                "runs": [run_list_json(run) for run in page.runs],
                "matches": page.matches,
                "next": None if page.next is None else str(page.next),
            }
        )

    async def show_history(
        self,
        agent: str,
        run_id: str,
        before: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> Response:
        """Show a page of the run's events, latest first, each with its position and the input it
        answers.

        `before` is that of the next page. A page can be short or empty without being the last one.
        """
        check_agent(agent, self.agents)
        try:
            check_run_id(run_id)
        except BadArgument as error:
            raise RequestRefused(error.number, 404, error.message) from None
        page = await self.reader.past(agent, run_id, before=before, limit=limit)
        return JSONResponse(
            {
                "topic": page.topic,
                "events": [
                    {
                        "partition": told.partition,
                        "offset": told.offset,
                        "source": told.source,
                        "event": event_json(told.event),
                    }
                    for told in page.events
                ],
                "before": page.before,
            }
        )

    async def show_effect(
        self, effect_id: str, since_ms: Annotated[int, Query(ge=0, le=2**53)] = 0
    ) -> Response:
        """Show the outcome of an effect, by its idempotency key; `since_ms` is when it was
        requested."""
        try:
            check_run_id(effect_id)
        except BadArgument as error:
            raise RequestRefused(error.number, 404, error.message) from None
        # it begins with the agent that asked for it, or with one of its pools
        seen = sees(effect_id.partition(":")[0].partition(".")[0])
        event = await self.reader.effect(effect_id, since_ms) if seen else None
        if event is None:
            raise RequestRefused("SF4101", 404, "its delivery has not begun, or has expired")
        told = event_json(event)
        return JSONResponse(
            {
                "id": effect_id,
                "receipt": told["result"],
                **{
                    name: told[name] for name in ("status", "attempt", "at_ms", "due_ms", "failure")
                },
            }
        )

    async def show_activity(
        self,
        agent: str,
        bucket_s: Annotated[int, Query(ge=1, le=86_400)] = 10,
        buckets: Annotated[int, Query(ge=1, le=500)] = 60,
    ) -> Response:
        """Count runs begun and ended per time bucket, and show the longest wait by status.

        The latter is, of the runs that are not over, the one that has not moved for the longest
        time.
        """
        check_agent(agent, self.agents)
        now_ms = self.clock.now_ms()
        found = await self.reader.activity(
            agent, now_ms, bucket_ms=bucket_s * 1000, buckets=buckets
        )
        return JSONResponse(
            {
                "agent": agent,
                "now_ms": now_ms,
                "bucket_ms": found.bucket_ms,
                "buckets": [bucket._asdict() for bucket in found.buckets],
                "oldest": {
                    status: {
                        "run_id": run.run_id,
                        "step": run.step,
                        "since_ms": run.since_ms,
                        "runs": run.runs,
                    }
                    for status, run in found.oldest.items()
                },
                "needs_person": found.needs_person,
            }
        )
