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
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the gateway.")] = 8787,
    processes: Processes = 1,
) -> None:
    """Run everything for one agent: broker, gateway, worker, relay.

    Shows what its runs do, and restarts when AGENT.py, or what it imports, changes. Ctrl-C stops
    everything, and deletes the data of a broker that was started here. Without a broker, or with
    SUREFOOT_LOG, everything is one process on the embedded log.
    """
    raise typer.Exit(run_dev(agent_file, port=port, processes=processes))
