"""`surefoot relay`."""

from __future__ import annotations

import asyncio

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import Processes, Slot
from surefoot.commands.services.supervised import supervise
from surefoot.infra.open_log import require_many_processes
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.setup import start_telemetry

app = commands()


@app.command()
def relay(processes: Processes = 1, slot: Slot = None) -> None:
    """Deliver committed effects of all agents, until SIGTERM."""
    logging.configure()
    settings = load_settings()
    require_many_processes(settings, "relay")
    if slot is None:
        raise typer.Exit(asyncio.run(supervise(["relay"], [], processes, settings)))
    # the supervisor does not need the engine
    from surefoot.infra.processes.relay import run_relay  # noqa: PLC0415

    start_telemetry(settings)
    raise typer.Exit(run_relay(settings, slot=slot))
