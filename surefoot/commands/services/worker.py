"""`surefoot worker`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFile, Processes, Slot
from surefoot.commands.services.supervised import supervise
from surefoot.infra.kafka_client.topics import names_of
from surefoot.infra.open_log import require_many_processes
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents, pool_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def worker(
    agent_file: AgentFile,
    processes: Processes = 1,
    slot: Slot = None,
    pool: Annotated[
        str | None, typer.Option(help="Run the steps of this pool instead of the agent's own.")
    ] = None,
) -> None:
    """Run an agent's steps, until SIGTERM.

    Each process is supervised, and restarted when it dies. A second SIGTERM gives up the running
    steps; the next owner runs them again.
    """
    logging.configure()
    agents = load_agents([agent_file])
    args = ["worker", str(agent_file)]
    names = names_of(agents)
    if pool is not None:
        agents = pool_agents(agents, pool)
        args += ["--pool", pool]
    settings = load_settings()
    require_many_processes(settings, "worker")
    if slot is None:
        raise typer.Exit(asyncio.run(supervise(args, names, processes, settings)))
    # the supervisor does not need the engine
    from surefoot.infra.processes.worker import run_worker  # noqa: PLC0415

    start_telemetry(settings)
    raise typer.Exit(run_worker(agents, settings, slot=slot))
