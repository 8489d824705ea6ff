"""`surefoot archive`: long-term store of events and finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFile
from surefoot.infra.processes.archive import run_archive
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def archive(
    agent_file: AgentFile,
    once: Annotated[
        bool, typer.Option("--once", help="Exit once everything present is archived.")
    ] = False,
) -> None:
    """Archive an agent's events and finished runs, until SIGTERM.

    Writes Avro files by date, each event once. `surefoot runs show` reads there what Kafka has
    deleted.
    """
    logging.configure()
    agents, settings = load_agents([agent_file]), load_settings()
    start_telemetry(settings)
    status, archivers = run_archive(agents, settings, once=once)
    if once:
        for each in archivers:
            typer.echo(f"{each.agent}: {each.events} events in {each.files} files")
    raise typer.Exit(status)
