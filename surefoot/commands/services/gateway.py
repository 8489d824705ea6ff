"""`surefoot gateway`."""

from __future__ import annotations

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentFiles
from surefoot.infra.open_log import require_many_processes
from surefoot.infra.processes.gateway import run_gateway
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def gateway(agent_files: AgentFiles) -> None:
    """Serve webhooks, the HTTP API and the dashboard, until SIGTERM.

    Listens on SUREFOOT_GATEWAY_HOST and SUREFOOT_GATEWAY_PORT.
    """
    logging.configure()
    settings = load_settings()
    require_many_processes(settings, "gateway")
    agents = load_agents(agent_files)
    start_telemetry(settings)
    run_gateway(agents, settings)
