"""List, show and start runs, from the log itself: no gateway is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import typer
from rich.table import Table

from surefoot.infra import logging
from surefoot.infra.clock import SystemClock
from surefoot.infra.kafka_client import KafkaCommands
from surefoot.infra.kafka_reader import KafkaRunReader
from surefoot.infra.loader import load_agents
from surefoot.infra.settings import Settings, load_settings
from surefoot.infra.terminal import plain_console, printable
from surefoot.infra.topics import Topics
from surefoot.schemas.payload import BadPayload, Unserialisable, dump, load, parse_json, strict_json
from surefoot.state.agent import Agent, check_run_id
from surefoot.state.errors import ConfigError, RecordTooLarge
from surefoot.state.model import Status
from surefoot.state.ports import RunView
from surefoot.state.topics import AgentTopics
from surefoot.state.views import run_json, run_list_json

#: how long a start may wait for Kafka's acknowledgement
START_S = 10.0
_STATUSES: tuple[Status, ...] = get_args(Status)


def list_runs(agent: str, status: str | None, limit: int, *, as_json: bool) -> None:
    """Raises ConfigError for a status or an agent that there is not."""
    logging.configure(level="CRITICAL")  # what matters is raised
    wanted = _status(status)
    name, _ = _resolve(agent)

    async def read() -> Sequence[RunView]:
        async with _reader(name) as reader:
            return await reader.list(name, status=wanted, limit=limit)

    found = asyncio.run(read())
    if as_json:
        for run in found:
            typer.echo(json.dumps(run_list_json(run)))
    else:
        plain_console().print(_table(found))


def show_run(agent: str, run_id: str, *, as_json: bool) -> bool:
    """Print the run; False when there is none."""
    logging.configure(level="CRITICAL")  # what matters is raised
    name, _ = _resolve(agent)

    async def read() -> RunView | None:
        async with _reader(name) as reader:
            return await reader.get(name, run_id)

    run = asyncio.run(read())
    if run is None:
        typer.echo(f"surefoot: agent {name!r} has no run {printable(run_id)!r}", err=True)
        return False
    fields = run_json(run)
    if as_json:
        typer.echo(json.dumps(fields))
        return True
    for field, value in fields.items():
        if value is not None:
            typer.echo(f"{field:<12}{_told(field, value)}")
    return True


def start_run(agent: str, payload: str, run_id: str | None) -> None:
    """Raises ConfigError for a payload or a run_id that cannot be; Unavailable when Kafka does not
    answer, and then the same run_id can be started again."""
    logging.configure(level="CRITICAL")  # what matters is raised
    name, declared = _resolve(agent)
    clock = SystemClock()
    try:
        named = check_run_id(clock.unique() if run_id is None else run_id)
        data = _payload(payload, declared)
    except (BadPayload, Unserialisable, ValueError) as error:
        raise ConfigError(str(error)) from None

    async def start() -> None:
        settings = load_settings()
        await _require(name, settings)
        commands = KafkaCommands(settings, clock.now_ms)
        try:
            await commands.start(name, named, data, deadline_s=START_S)
        finally:
            await commands.stop()

    try:
        asyncio.run(start())
    except RecordTooLarge as error:
        raise ConfigError(str(error)) from None
    typer.echo(named)


def _payload(text: str, agent: Agent | None) -> bytes:
    value = parse_json(text.encode("utf-8", "surrogateescape"))
    if agent is None:
        return strict_json(value)
    adapter = agent.start_step.adapter
    return dump(adapter, load(adapter, strict_json(value)))


def _status(text: str | None) -> Status | None:
    for status in _STATUSES:
        if text == status:
            return status
    if text is not None:
        raise ConfigError(f"--status is one of {', '.join(_STATUSES)}; got {text!r}")
    return None


def _resolve(agent: str) -> tuple[str, Agent | None]:
    """The name of the agent, and the agent itself when its file is given."""
    if not agent.endswith(".py"):
        return agent, None
    agents = load_agents([Path(agent)])
    if len(agents) > 1:
        names = ", ".join(each.name for each in agents)
        raise ConfigError(f"{agent} defines several agents; name one of them: {names}")
    return agents[0].name, agents[0]


@asynccontextmanager
async def _reader(name: str) -> AsyncIterator[KafkaRunReader]:
    settings = load_settings()
    await _require(name, settings)
    reader = KafkaRunReader(settings, [name])
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


async def _require(name: str, settings: Settings) -> None:
    """Raises ConfigError when no agent of that name has ever had its topics made."""
    topic = AgentTopics(settings.app, name).state
    async with Topics(settings) as topics:
        if not await topics.describe([topic]):
            raise ConfigError(
                f"there is no topic {topic}: check the agent's name and SUREFOOT_APP, or run "
                "`surefoot topics apply`"
            )


def _table(found: Sequence[RunView]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("RUN", "STATUS", "STEP", "SEQ", "ATTEMPT", "UPDATED", "FAILURE"):
        table.add_column(title, no_wrap=title != "FAILURE")
    for run in found:
        failure = run.failure["code"] if run.failure else ""
        counts = (str(run.seq), str(run.attempt), _time(run.updated_ms))
        cells: tuple[str, ...] = (run.run_id, run.status, run.step, *counts, failure)
        table.add_row(*(printable(cell) for cell in cells))
    return table


def _told(field: str, value: Any) -> str:
    if field.endswith("_ms"):
        return _time(value)
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _time(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
