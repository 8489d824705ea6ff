"""Views between processes: merges the answers of several instances, and asks from a gateway.

An instance is asked at `/parts/{agent}/...` for its part of a view; it answers only for itself, so
no request is passed on in circles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypedDict

import httpx
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from surefoot.infra.views.shard import Shard
from surefoot.producers.access.gate import AccessControl, Gate, GateKeeping
from surefoot.producers.access.signed_in import VisibleAgents
from surefoot.producers.api.views import add_views
from surefoot.producers.guards import check_agent, guard
from surefoot.state.errors import Unavailable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.ports.clock import Clock
from surefoot.state.reading import statistics as projections
from surefoot.state.reading.statistics import (
    AttentionJson,
    LagJson,
    RunStandingJson,
    SummaryJson,
    WindowsJson,
)

_NOT_FOUND, _UNAVAILABLE = 404, 503


class _Asker:
    """Gets JSON from other processes; connections are kept."""

    def __init__(self, answer_s: float, headers: Mapping[str, str]) -> None:
        self._answer_s, self._headers = answer_s, headers
        self._client: httpx.AsyncClient | None = None

    async def get(self, url: str, **query: Any) -> Any:
        """Return the JSON; None for 404.

        Raises: Unavailable — no answer, or 503.
        """
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=self._answer_s,
                headers=self._headers,
                follow_redirects=False,
                trust_env=False,
            )
        try:
            answer = await self._client.get(url, params=query)
            if answer.status_code == _NOT_FOUND:
                return None
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable("SF3016", f"views at {url} do not answer: {error!r}") from error

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class HttpViews:
    """Implements ports.Views by a service elsewhere. `headers` sign in to it."""

    def __init__(self, url: str, answer_s: float, headers: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        self._asker = _Asker(answer_s, headers)

    async def summary(self, agent: str) -> SummaryJson:
        found: SummaryJson = await self._get(agent, "summary")
        return found

    async def attention(self, agent: str, limit: int) -> AttentionJson:
        found: AttentionJson = await self._get(agent, "attention", limit=limit)
        return found

    async def windows(self, agent: str, minutes: int) -> WindowsJson:
        found: WindowsJson = await self._get(agent, "windows", minutes=minutes)
        return found

    async def run(self, agent: str, run_id: str) -> RunStandingJson:
        found = await self._asker.get(f"{self._url}/views/{agent}/runs/{run_id}")
        return found if found is not None else {"agent": agent, "run": None}

    async def _get(self, agent: str, view: str, **query: Any) -> Any:
        found = await self._asker.get(f"{self._url}/views/{agent}/{view}", **query)
        if found is None:
            raise Unavailable("SF3016", f"{self._url} has no views of {agent}")
        return found

    async def stop(self) -> None:
        await self._asker.stop()


class PartJson(TypedDict):
    """One instance's part of a view."""

    partitions: list[int]
    lag: LagJson
    #: depends on the view
    part: Any


class MergedViews:
    """Implements ports.Views, merging the parts of this instance and the others.

    `headers` sign in to the others."""

    def __init__(
        self,
        shards: Mapping[str, Shard],
        clock: Clock,
        answer_s: float,
        headers: Mapping[str, str],
    ) -> None:
        self._shards = shards
        self._clock = clock
        self._asker = _Asker(answer_s, headers)

    async def summary(self, agent: str) -> SummaryJson:
        lag, parts = await self._parts(agent, "summary")
        return {"agent": agent, "lag": lag, "statuses": projections.add_summaries(parts)}

    async def attention(self, agent: str, limit: int) -> AttentionJson:
        lag, parts = await self._parts(agent, "attention", limit=limit)
        runs = projections.oldest_first(run for part in parts for run in part["runs"])
        total = sum(part["total"] for part in parts)
        return {"agent": agent, "lag": lag, "total": total, "runs": runs[:limit]}

    async def windows(self, agent: str, minutes: int) -> WindowsJson:
        since = self._clock.now_ms() // projections.MINUTE_MS - minutes + 1
        lag, parts = await self._parts(agent, "windows", since=since)
        found = projections.add_windows(projections.unpack_windows(part) for part in parts)
        return {
            "agent": agent,
            "lag": lag,
            "windows": projections.windows_json(found),
            "steps": projections.steps_json(found, minutes),
        }

    async def run(self, agent: str, run_id: str) -> RunStandingJson:
        shard = self._shards[agent]
        partition = partition_of(run_id, shard.partitions)
        url = next((url for url, theirs in shard.owners().items() if partition in theirs), _NOBODY)
        if url is _NOBODY:
            raise Unavailable(
                "SF3015", f"views of partition {partition} have no owner at the moment"
            )
        if url is None:
            part = await self.part(agent, "run", run_id=run_id)
        else:
            part = await self._asker.get(f"{url}/parts/{agent}/run", run_id=run_id)
        return {"agent": agent, "lag": part["lag"], "run": part["part"]}

    async def part(self, agent: str, view: str, **query: Any) -> PartJson:
        """Return this instance's part of a view, with its partitions and its lag.

        Raises: Unavailable — its partitions are being assigned or read.
        """
        shard = self._shards[agent]
        lag = await shard.lag()
        opened = await shard.opened()
        part: Any
        match view:
            case "summary":
                part = projections.summary(opened.values(), self._clock.now_ms())
            case "attention":
                total = sum(len(each.people) for each in opened.values())
                runs = projections.attention(opened.values(), int(query["limit"]))
                part = {"total": total, "runs": runs}
            case "windows":
                part = projections.pack_windows(
                    projections.windows(opened.values(), int(query["since"]))
                )
            case "digest":
                part = {p: projections.digest_values(shard.values(p)) for p in opened}
            case _:
                run_id = query["run_id"]
                home = opened.get(partition_of(run_id, shard.partitions))
                if home is None:
                    raise Unavailable(
                        "SF3015", f"the view of {run_id} has moved to another process"
                    )
                run = home.run(run_id)
                part = projections.run_standing_json(run_id, run) if run is not None else None
        return {"partitions": sorted(opened), "lag": lag.json(), "part": part}

    async def _parts(self, agent: str, view: str, **query: Any) -> tuple[LagJson, list[Any]]:
        shard = self._shards[agent]
        answers = await asyncio.gather(
            *(
                self.part(agent, view, **query)
                if url is None
                else self._asker.get(f"{url}/parts/{agent}/{view}", **query)
                for url, theirs in shard.owners().items()
                if theirs
            )
        )
        answers = [each for each in answers if each is not None]
        found = sorted(p for answer in answers for p in answer["partitions"])
        if found != list(range(shard.partitions)):
            raise Unavailable(
                "SF3015",
                f"views of {agent}: only partitions {found} of {shard.partitions} answered",
            )
        lag: LagJson = {
            "events": sum(answer["lag"]["events"] for answer in answers),
            "ms": max(answer["lag"]["ms"] for answer in answers),
        }
        return lag, [answer["part"] for answer in answers]

    async def stop(self) -> None:
        await self._asker.stop()


#: in place of the URL of an owner
_NOBODY = ""


def views_app(
    shards: Mapping[str, Shard],
    views: MergedViews,
    clock: Clock,
    access: AccessControl | None = None,
) -> FastAPI:
    """Return the app that one instance serves.

    Args: access: who can sign in; None: everybody may ask
    """
    app = FastAPI(title="Surefoot views", openapi_url=None, docs_url=None, redoc_url=None)
    visible = VisibleAgents(shards, {})
    if access is not None:
        keeping = GateKeeping(access=access, clock=clock, agents=visible)
        app.add_middleware(Gate, routes=app.router.routes, keeping=keeping)
    guard(app)

    async def summary(agent: str) -> Response:
        return await part(agent, "summary")

    async def attention(agent: str, limit: int) -> Response:
        return await part(agent, "attention", limit=limit)

    async def windows(agent: str, since: int) -> Response:
        return await part(agent, "windows", since=since)

    async def run(agent: str, run_id: str) -> Response:
        return await part(agent, "run", run_id=run_id)

    async def digest(agent: str) -> Response:
        return await part(agent, "digest")

    async def part(agent: str, view: str, **query: Any) -> Response:
        check_agent(agent, visible)
        return JSONResponse(await views.part(agent, view, **query))

    async def health() -> Response:
        return JSONResponse({"healthy": True})

    add_views(app, visible, views)
    for name, handler in (
        ("summary", summary),
        ("attention", attention),
        ("windows", windows),
        ("run", run),
        ("digest", digest),
    ):
        app.get(f"/parts/{{agent}}/{name}")(handler)
    app.add_api_route("/health", health, methods=["GET", "HEAD"])
    return app
