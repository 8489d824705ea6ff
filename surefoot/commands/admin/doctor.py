"""`surefoot doctor`: what is wrong, and what to type."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFiles, Json
from surefoot.infra.doctor.checks import Doctor
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.state.declare.durations import duration_s
from surefoot.state.diagnosis.findings import RUNBOOKS, Examination, examination_json

app = commands()


@app.command()
def doctor(
    agent_files: AgentFiles,
    since: Annotated[str, typer.Option(help="How far back failures count: 15m, 1d.")] = "1h",
    as_json: Json = False,
) -> None:
    """Look for what is wrong, and name the command for it.

    Looks at brokers, disks, transactions, groups, runs, effects, dead letters and accounts. Exit
    status: 0 all is well; 1 something is found; 2 not everything could be looked at, and nothing is
    found.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents, settings, clock = load_agents(agent_files), load_settings(), SystemClock()
    now_ms = clock.now_ms()
    since_ms = now_ms - int((duration_s(since) or 0) * 1000)

    async def look() -> Examination:
        async with open_backend(settings, clock, access="read") as backend:
            one = Doctor(settings, backend, agents)
            try:
                return await one.examine(now_ms, since_ms)
            finally:
                await one.stop()

    found = asyncio.run(look())
    if as_json:
        typer.echo(json.dumps(examination_json(found)))
    else:
        for line in report(found):
            typer.echo(printable(line))
    raise typer.Exit(found.status)


def report(examination: Examination) -> list[str]:
    """Return the lines for people: findings first."""
    lines = []
    for each in examination.findings:
        lines += [f"{each.code}: {each.what}", *(f"    {line}" for line in each.do)]
        lines.append(f"    see docs/how-to/runbooks.md#{RUNBOOKS[each.code]}")
    lines += (f"cannot look at {check}: {why}" for check, why in examination.blind)
    if not examination.findings and examination.looked:
        lines.append(f"nothing is wrong with {', '.join(examination.looked)}")
    return lines
