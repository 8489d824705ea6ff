"""The lag of each partition, and its owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.table import Table

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFiles, Json
from surefoot.commands.output import table
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.admin import LogOverview
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import plain_console
from surefoot.state.reading.lag import AgentStanding, PartitionStanding, agent_standing_json

app = commands()


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """One partition of an agent, with the lag of both inputs."""

    agent: str
    partition: int
    owner: str | None
    inputs: tuple[PartitionStanding, ...]

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.inputs)


@app.command("lag")
def show_lag(agent_files: AgentFiles, as_json: Json = False) -> None:
    """Show the lag by partition, and which worker owns it. Transaction markers do not count."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents, settings = load_agents(agent_files), load_settings()

    async def look() -> Sequence[AgentStanding]:
        async with open_backend(settings, SystemClock(), access="read") as backend:
            async with backend.topics() as topics:
                await topics.verify(specs_for(names_of(agents), settings))
            overview = LogOverview(settings, backend, agents)
            try:
                return await overview.standings()
            finally:
                await overview.stop()

    found = asyncio.run(look())
    if as_json:
        for each in found:
            typer.echo(json.dumps(agent_standing_json(each)))
        return
    plain_console().print(lag_table(lag_rows(found)))


def lag_rows(standings: Sequence[AgentStanding]) -> list[LagRow]:
    """Return one row per partition, most lag first."""
    rows = []
    for each in standings:
        found: dict[int, list[PartitionStanding]] = {}
        for place in each.partitions:
            if place.lag is not None:
                found.setdefault(place.partition, []).append(place)
        rows += [
            LagRow(
                agent=each.agent, partition=partition, owner=inputs[0].owner, inputs=tuple(inputs)
            )
            for partition, inputs in found.items()
        ]
    return sorted(rows, key=lambda row: (-row.lag, row.agent, row.partition))


def lag_table(rows: Sequence[LagRow]) -> Table:
    """Build the table. A "~" marks a lag that includes transaction markers."""
    titles = ("AGENT", "PARTITION", "OWNER", "COMMANDS BEHIND", "TASKS BEHIND")
    lines = [
        (row.agent, str(row.partition), row.owner or "nobody", *map(_behind, row.inputs))
        for row in rows
    ]
    return table(titles, lines, wraps="OWNER")


def _behind(place: PartitionStanding) -> str:
    return f"{'' if place.exact else '~'}{place.lag}"
