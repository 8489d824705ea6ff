"""`surefoot dev`."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFile, Processes
from surefoot.infra.dev.command import run_dev

app = commands()


@app.command()
def dev(
    agent_file: AgentFile,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Of the gateway.")] = 8787,
    processes: Processes = 1,
) -> None:
    """Run everything for one agent: broker, gateway, worker, relay.

    Shows what its runs do, and starts anew when AGENT.py, or what it imports, is changed. Ctrl-C
    stops it all; a broker that was started here goes with its data. Where none can be had, or
    SUREFOOT_LOG says so, everything is one process on the embedded log.
    """
    raise typer.Exit(run_dev(agent_file, port=port, processes=processes))
