"""`surefoot runs start`: writes directly to the log."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentName
from surefoot.commands.readers import require_agent, resolve_agent
from surefoot.commands.runs.watch import watch_run
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.writers.commands import LogCommands
from surefoot.schemas.payload import BadPayload, Unserialisable, dump, load, parse_json, strict_json
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import BadArgument, ConfigError, RecordTooLarge
from surefoot.state.names.ids import check_run_id

app = commands()


@app.command()
def start(
    agent: AgentName,
    payload: Annotated[
        str | None, typer.Argument(metavar="JSON", help="Input of the first step.")
    ] = None,
    option: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON", help="Input of the first step, as an option."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Id of the run; repeating it starts no second run.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run until it ends.")] = False,
) -> None:
    """Start a run and print its id once Kafka has acknowledged it.

    Given the agent's file or module, the payload is checked first, and the agent's flow names the
    run. Given only its name, the run is outside of the flow's limits, unless --run-id is KEY=NAME.
    """
    given = [each for each in (payload, option) if each is not None]
    if len(given) != 1:
        raise ConfigError("SF1007", "give the input of the first step once, as JSON")
    named = start_run(agent, given[0], run_id)
    if watch:
        watch_run(agent, named)


def start_run(agent: str, payload: str, run_id: str | None) -> str:
    """Start a run; prints and returns its run_id.

    Raises: ConfigError — an invalid payload or run_id; Unavailable — Kafka does not answer: the
        same run_id can be started again.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, declared = resolve_agent(agent)
    clock = SystemClock()
    try:
        named = check_run_id(clock.unique() if run_id is None else run_id)
        data = _payload(payload, declared)
        if declared is not None:
            named = declared.name_run(named, data, given=run_id is not None)
    except (BadPayload, Unserialisable, BadArgument) as error:
        raise ConfigError(error.number, error.message) from None

    async def start() -> None:
        settings = load_settings()
        async with open_backend(settings, clock) as backend:
            await require_agent(name, settings, backend)
            commands = LogCommands(settings, backend.appender(), clock)
            try:
                await commands.start(name, named, data, deadline_s=settings.deadlines.send_s)
            finally:
                await commands.stop()

    try:
        asyncio.run(start())
    except RecordTooLarge as error:
        raise ConfigError(error.number, error.message) from None
    typer.echo(named)
    return named


def _payload(text: str, agent: Agent | None) -> bytes:
    value = parse_json(text.encode("utf-8", "surrogateescape"))
    if agent is None:
        return strict_json(value)
    adapter = agent.start_step.adapter
    return dump(adapter, load(adapter, strict_json(value)))
