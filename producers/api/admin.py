"""Admin endpoints besides runs: agents, deliveries, schedules, dead letters, topics.

    GET  /agents                              the agents of this gateway, with their declarations
    GET  /agents/{agent}                      one agent: its steps, its runs by version
    GET  /deliveries?source=&outcome=&limit=  deliveries to the webhook sources, newest first
    GET  /schedules?agent=                    schedules, with their next five ticks
    POST /schedules/{agent}/{schedule}/{do}   pause, resume, trigger
    GET  /dead-letters?before=&limit=         dead letters, newest first, with what to do about each
    GET  /topics?agent=                       each partition: offsets, lag, and its owner

All but the schedules are read-only: what to do about a dead letter is a command to its run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from surefoot.producers.access.signed_in import sees
from surefoot.producers.commands.operations import Operator
from surefoot.producers.commands.schedules import DOES, steer
from surefoot.producers.guards import RequestRefused, check_agent
from surefoot.state.declare.agent import Agent
from surefoot.state.inspect.description import AgentJson
from surefoot.state.machine.model import Operation, State
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.admin import Overview
from surefoot.state.reading.dead_letters import DeadLetter, dead_letter_json
from surefoot.state.reading.deliveries import Delivery, DeliveryOutcome, delivery_json
from surefoot.state.reading.lag import agent_standing_json
from surefoot.state.reading.ports import RunReader
from surefoot.state.reading.runs import counts_json
from surefoot.state.scheduling.book import Due, book_of, tick_run_id
from surefoot.state.scheduling.view import ScheduleJson, schedule_json, unknown_json

#: number of ticks shown per schedule
_TICKS = 5
#: fields left out of a list of deliveries
_NOT_LISTED = ("headers", "body")


class AgentScheduleJson(ScheduleJson):
    """A schedule, and the agent whose runs it starts."""

    agent: str


@dataclass(slots=True, kw_only=True)
class AdminApi:
    agents: Mapping[str, Agent]
    #: the declarations of each agent, as JSON values
    declared: Mapping[str, AgentJson]
    overview: Overview
    reader: RunReader
    operator: Operator
    clock: Clock
    #: reads the command of a request: its `id` and `by`
    asked: Callable[[Request], Awaitable[Operation]]

    def serve(self, app: FastAPI) -> None:
        app.get("/agents")(self.list_agents)
        app.get("/agents/{agent}")(self.show_agent)
        app.get("/deliveries")(self.list_deliveries)
        app.get("/schedules")(self.list_schedules)
        app.post("/schedules/{agent}/{schedule}/{do}")(self.tell_schedule)
        app.get("/dead-letters")(self.list_dead_letters)
        app.get("/topics")(self.list_topics)

    # Agents ---------------------------------------------------------------------------------

    async def list_agents(self) -> Response:
        """List the agents of this gateway with their declarations."""
        told = [
            {"name": name, "version": agent.version, "declared": self.declared[name]}
            for name, agent in self.agents.items()
        ]
        return JSONResponse({"agents": told})

    async def show_agent(self, agent: str) -> Response:
        """Show an agent's declarations, and count its runs by status and by version."""
        counts = await self.reader.counts(check_agent(agent, self.agents))
        declared = self.declared[agent]
        return JSONResponse({"agent": agent, **counts_json(counts), "declared": declared})

    # Triggers -------------------------------------------------------------------------------

    async def list_deliveries(
        self,
        source: Annotated[str | None, Query()] = None,
        outcome: Annotated[DeliveryOutcome | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> Response:
        """List deliveries to the webhook sources, newest first: verified or why not, and their
        runs.

        Headers and bodies are left out.
        """
        found = await self.overview.deliveries(source=source, outcome=outcome, limit=limit)
        told = [
            {name: value for name, value in delivery_json(each).items() if name not in _NOT_LISTED}
            for each in found
            if all(map(sees, _agents_of(each)))
        ]
        return JSONResponse({"deliveries": told})

    async def list_schedules(self, agent: Annotated[str | None, Query()] = None) -> Response:
        """List the schedules of all agents, or of one, with their next five ticks."""
        names = self.agents if agent is None else [check_agent(agent, self.agents)]
        found = await asyncio.gather(*(self._schedules(name) for name in names))
        return JSONResponse({"schedules": [each for told in found for each in told]})

    async def _schedules(self, name: str) -> list[AgentScheduleJson]:
        known = await self.overview.schedules(name)
        now_ms = self.clock.now_ms()
        told = [
            schedule_json(run, book_of(state), now_ms, ticks=_TICKS)
            for state in known.values()
            if (run := state.run)
        ]
        told += [
            unknown_json(new, schedule.spec, "not begun: no worker has taken it yet")
            for new, schedule in self.agents[name].schedules.items()
            if new not in known
        ]
        return [{"agent": name, **each} for each in told]

    async def tell_schedule(self, agent: str, schedule: str, do: str, request: Request) -> Response:
        """Pause a schedule, resume it, or have it start a run now.

        The answer is that of a command to a run. For a trigger it also names the run that it
        starts.
        """
        known = next((each for each in DOES if each == do), None)
        if known is None:
            raise RequestRefused("SF5009", 404, f"unknown operation; use one of: {', '.join(DOES)}")
        states = await self.overview.schedules(check_agent(agent, self.agents))
        run = states.get(schedule, State(None)).run
        if run is None:
            raise RequestRefused(
                "SF5036",
                404,
                "there is no such schedule, or no worker has begun it; begun schedules: "
                f"{', '.join(states) or 'none'}",
            )
        asked = await self.asked(request)
        reply = await steer(self.operator, run, known, command_id=asked.id, by=asked.by)
        told = reply.json()
        if known == "trigger":
            begun = tick_run_id(schedule, Due(at_ms=0, kind="trigger", id=asked.id))
            return JSONResponse({**told, "run_id": begun}, reply.status)
        return JSONResponse(told, reply.status)

    # Dead letters, topics -------------------------------------------------------------------

    async def list_dead_letters(
        self,
        before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> Response:
        """List unusable inputs and runs out of attempts, newest first."""
        page = await self.overview.dead_letters(before=before, limit=limit)
        letters = await asyncio.gather(*(self._of_agent(letter) for letter in page.letters))
        told = [dead_letter_json(letter) for letter in letters if sees(letter.agent)]
        return JSONResponse({"dead_letters": told, "older": page.older})

    async def _of_agent(self, letter: DeadLetter) -> DeadLetter:
        """Add the agent to a letter that no input caused: such a letter does not name it."""
        if letter.agent is None and letter.run_id is not None:
            for name in self.agents:
                if await self.reader.get(name, letter.run_id) is not None:
                    return replace(letter, agent=name)
        return letter

    async def list_topics(self, agent: Annotated[str | None, Query()] = None) -> Response:
        """Show each partition of each topic: its offsets, lag and owner.

        For one agent with its pools and schedules, or for all agents and the outbox.
        """
        if agent is not None:
            check_agent(agent, self.agents)
        found = [
            agent_standing_json(each)
            for each in await self.overview.standings()
            if (agent is None or each.agent == agent or each.agent.startswith(f"{agent}."))
            and sees(each.agent.partition(".")[0])
        ]
        return JSONResponse({"agents": found})


def _agents_of(delivery: Delivery) -> Collection[str | None]:
    """Return the agents that a delivery concerns; [None] if it may concern any."""
    failed = {error.partition(":")[0] for error in delivery.errors}
    return {agent for agent, _ in delivery.runs} | failed or {None}
