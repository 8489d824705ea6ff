"""`surefoot serve`."""

from __future__ import annotations

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFiles
from surefoot.infra.processes.serve import run_serve
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def serve(agent_files: AgentFiles) -> None:
    """Run gateway, workers and relay in one process, until SIGTERM.

    On the embedded log that SUREFOOT_LOG names, or on Kafka. Missing topics are created.
    """
    logging.configure()
    agents, settings = load_agents(agent_files), load_settings()
    start_telemetry(settings)
    raise typer.Exit(run_serve(agents, settings))
