"""`surefoot trigger`."""

from __future__ import annotations

import asyncio

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFile, Processes, Slot
from surefoot.commands.services.supervised import supervise
from surefoot.infra.kafka_client.topics import names_of
from surefoot.infra.open_log import capabilities
from surefoot.infra.processes.trigger import require_sources, run_trigger
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def trigger(agent_file: AgentFile, processes: Processes = 1, slot: Slot = None) -> None:
    """Start runs from topics, queues and folders, until SIGTERM.

    Each event starts one run, even if processes die; and each event of the agent's runs that a
    subscription selects is one webhook. More processes share the topics' partitions.
    """
    logging.configure()
    agents, settings = load_agents([agent_file]), load_settings()
    require_sources(agents)
    if slot is not None or not capabilities(settings).many_processes:
        start_telemetry(settings)
        raise typer.Exit(run_trigger(agents, settings, slot=slot or 0))
    args = ["trigger", str(agent_file)]
    raise typer.Exit(asyncio.run(supervise(args, names_of(agents), processes, settings)))
