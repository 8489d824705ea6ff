"""`surefoot views`."""

from __future__ import annotations

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFiles
from surefoot.infra.processes.views import run_views
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def views(agent_files: AgentFiles) -> None:
    """Serve views: runs by status and age, approvals, rates.

    On Kafka, one Faust app for each agent; several processes share the work. Listens on
    SUREFOOT_VIEWS_HOST and SUREFOOT_VIEWS_PORT, until SIGTERM.
    """
    logging.configure()
    agents, settings = load_agents(agent_files), load_settings()
    start_telemetry(settings)
    run_views([agent.name for agent in agents], settings)
