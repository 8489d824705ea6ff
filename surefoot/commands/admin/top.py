"""What agents are doing: runs by status, steps per second, owners of partitions, lag."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypedDict, get_args

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from surefoot.commands.admin.lag import lag_rows, lag_table
from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFile, Json
from surefoot.commands.output import table
from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.admin import LogOverview
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.readers.throughput import WINDOW_S, Throughput
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import Unavailable
from surefoot.state.machine.model import Status
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.explain import clock_time
from surefoot.state.reading.lag import AgentStanding, AgentStandingJson, agent_standing_json
from surefoot.state.reading.query import Waiting
from surefoot.state.reading.runs import counts_json

#: refresh interval, in seconds
_EVERY_S = 1.0
#: statuses of which the run that has not moved for the longest time is shown
_WAITS: tuple[Status, ...] = ("pending", "waiting", "attention")
#: events of a committed step, and of a failed attempt; the last of each end the run
_STEPS = ("step.completed", "run.completed")
_FAILURES = ("step.retrying", "run.failing", "run.failed")
#: most partitions shown on a screen; those left out have less lag
_PARTITIONS_SHOWN = 16
_STATUSES: tuple[str, ...] = get_args(Status)

app = commands()


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """The present activity of one agent."""

    agent: str
    statuses: Mapping[str, int]
    versions: Mapping[str, Mapping[str, int]]
    steps_per_s: float
    #: failed attempts per second
    failures_per_s: float
    oldest: Mapping[Status, Waiting]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    at_ms: int
    log: str
    agents: Sequence[Working]
    standings: Sequence[AgentStanding]


class Looking(Protocol):
    async def look(self) -> Snapshot:
        """Take a snapshot.

        Raises: Unavailable — the log cannot be read now.
        """


class Top:
    """Takes snapshots of agents, their pools and their schedules."""

    def __init__(
        self, settings: Settings, backend: Backend, agents: Sequence[Agent], clock: Clock
    ) -> None:
        self._names = names_of(agents)
        self._log = backend.name
        self._clock = clock
        self._reader = LogRunReader(settings, backend, self._names)
        self._overview = LogOverview(settings, backend, agents)
        self._pulse = Throughput(settings, backend, self._names, clock)

    async def start(self) -> None:
        await self._reader.start()
        await self._pulse.start()

    async def look(self) -> Snapshot:
        standings = await self._overview.standings()
        return Snapshot(
            at_ms=self._clock.now_ms(),
            log=self._log,
            agents=[await self._working(name) for name in self._names],
            standings=standings,
        )

    async def _working(self, name: str) -> Working:
        counted = counts_json(await self._reader.counts(name))
        events = self._pulse.counts(name)
        now_ms = self._clock.now_ms()
        lately = await self._reader.activity(name, now_ms, bucket_ms=1000, buckets=1)
        oldest = {status: run for status, run in lately.oldest.items() if status in _WAITS}
        steps = sum(events.get(kind, 0) for kind in _STEPS)
        failures = sum(events.get(kind, 0) for kind in _FAILURES)
        return Working(
            agent=name,
            statuses=counted["statuses"],
            versions=counted["versions"],
            steps_per_s=steps / WINDOW_S,
            failures_per_s=failures / WINDOW_S,
            oldest=oldest,
        )

    @never_cut_short
    async def stop(self) -> None:
        await self._pulse.stop()
        await self._overview.stop()
        await self._reader.stop()


@app.command()
def top(agent_file: AgentFile, as_json: Json = False) -> None:
    """Show what agents do: runs, steps per second, waits, lag.

    Refreshes each second until Ctrl-C; shown once without a terminal or with --json.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents = load_agents([agent_file])
    console = plain_console()
    asyncio.run(_show(agents, console, as_json=as_json))


async def _show(agents: Sequence[Agent], console: Console, *, as_json: bool) -> None:
    async with opened(agents) as looking:
        if as_json:
            typer.echo(json.dumps(snapshot_json(await looking.look())))
        elif not console.is_terminal:
            console.print(screen(await looking.look()))
        else:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(await shown_next(looking), refresh=True)
                    await asyncio.sleep(_EVERY_S)


async def shown_next(looking: Looking) -> RenderableType:
    """Return the next screen, or a message if the log cannot be read."""
    try:
        return screen(await looking.look())
    except Unavailable as error:
        return Text(printable(f"surefoot: {error}; trying again"))


@asynccontextmanager
async def opened(agents: Sequence[Agent]) -> AsyncIterator[Top]:
    settings, clock = load_settings(), SystemClock()
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(open_backend(settings, clock, access="read"))
        async with backend.topics() as topics:
            await topics.verify(specs_for(names_of(agents), settings))
        looking = Top(settings, backend, agents, clock)
        stack.push_async_callback(looking.stop)
        await looking.start()
        yield looking


# How it is shown ----------------------------------------------------------------------------


class WaitingJson(TypedDict):
    run_id: str
    step: str
    since_ms: int


class WorkingJson(TypedDict):
    """The fields of Working."""

    agent: str
    statuses: dict[str, int]
    versions: dict[str, Mapping[str, int]]
    steps_per_s: float
    failures_per_s: float
    #: by status
    oldest: dict[Status, WaitingJson]


class SnapshotJson(TypedDict):
    at_ms: int
    log: str
    agents: list[WorkingJson]
    topics: list[AgentStandingJson]


def snapshot_json(snapshot: Snapshot) -> SnapshotJson:
    return {
        "at_ms": snapshot.at_ms,
        "log": snapshot.log,
        "agents": [
            {
                "agent": each.agent,
                "statuses": dict(each.statuses),
                "versions": dict(each.versions),
                "steps_per_s": each.steps_per_s,
                "failures_per_s": each.failures_per_s,
                "oldest": {
                    status: {"run_id": run.run_id, "step": run.step, "since_ms": run.since_ms}
                    for status, run in each.oldest.items()
                },
            }
            for each in snapshot.agents
        ],
        "topics": [agent_standing_json(each) for each in snapshot.standings],
    }


def screen(snapshot: Snapshot) -> Group:
    """Render a snapshot for people. A terminal executes nothing in it."""
    shown = [status for status in _STATUSES if any(status in a.statuses for a in snapshot.agents)]
    titles = ("AGENT", *(status.upper() for status in shown), "STEPS/S", "FAILURES/S")
    runs = [
        (
            each.agent,
            *(str(each.statuses.get(status, 0)) for status in shown),
            f"{each.steps_per_s:.1f}",
            f"{each.failures_per_s:.1f}",
        )
        for each in snapshot.agents
    ]
    oldest = [
        (each.agent, status, run.run_id, run.step, _since(snapshot.at_ms, run.since_ms))
        for each in snapshot.agents
        for status, run in each.oldest.items()
    ]
    parts: list[RenderableType] = [
        Text(printable(f"{clock_time(snapshot.at_ms)}  {snapshot.log}")),
        table(titles, runs, wraps="AGENT"),
    ]
    if oldest:
        titles = ("OLDEST OF", "STATUS", "RUN", "STEP", "SINCE")
        parts += [Text(), table(titles, oldest, wraps="RUN")]
    return Group(*parts, Text(), *_partitions(snapshot.standings), Text(), _workers(snapshot))


def _since(now_ms: int, then_ms: int) -> str:
    seconds = max(0, now_ms - then_ms) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _partitions(standings: Sequence[AgentStanding]) -> list[RenderableType]:
    rows = lag_rows(standings)
    parts: list[RenderableType] = [lag_table(rows[:_PARTITIONS_SHOWN])]
    if (more := len(rows) - _PARTITIONS_SHOWN) > 0:
        parts.append(Text(f"and {more} more partitions, with no more lag than these"))
    return parts


def _workers(snapshot: Snapshot) -> RenderableType:
    rows = [
        (each.agent, member.name, member.host, str(len(member.partitions)))
        for each in snapshot.standings
        for member in each.members
    ]
    if not rows:
        return Text("no worker is running; start one with `surefoot worker AGENT.py`")
    return table(("AGENT", "WORKER", "HOST", "PARTITIONS"), rows, wraps="WORKER")
