"""What commands read the log with."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from surefoot.infra.archive.reader import open_run_reader
from surefoot.infra.kafka_client.topics import check_partitions
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import BadArgument, ConfigError
from surefoot.state.names.agents import SCHEDULES
from surefoot.state.names.ids import check_run_id
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics

#: name of an agent, or of the built-in one that keeps its schedules; a module is given with its
#: package, or as its file
_IS_NAME = re.compile(rf"[^./]+(\.{SCHEDULES})?")


def resolve_agent(agent: str) -> tuple[str, Agent | None]:
    """Return the agent's name, and the agent itself if its file or module is given."""
    if _IS_NAME.fullmatch(agent):
        return agent, None
    agents = load_agents([Path(agent)])
    if len(agents) > 1:
        names = ", ".join(each.name for each in agents)
        raise ConfigError("SF1010", f"{agent} defines several agents; name one of them: {names}")
    return agents[0].name, agents[0]


def checked_run_id(run_id: str) -> str:
    """Return the run_id.

    Raises: ConfigError — it is not a valid run_id.
    """
    try:
        return check_run_id(run_id)
    except BadArgument as error:
        raise ConfigError(error.number, error.message) from None


def no_run(name: str, run_id: str) -> typer.Exit:
    """Print that the agent has no such run, and return the exit."""
    typer.echo(f"surefoot: SF4101: agent {name!r} has no run {printable(run_id)!r}", err=True)
    return typer.Exit(1)


@asynccontextmanager
async def run_reader(
    name: str, run_ids: Collection[str] | None = None
) -> AsyncIterator[LogRunReader]:
    """Yield a reader of that agent's runs; with `run_ids`, only of the partitions of these runs.

    Raises: ConfigError — there is no such agent.
    """
    settings = load_settings()
    async with (
        open_backend(settings, SystemClock(), access="read") as backend,
        reader_on(backend, settings, name, run_ids) as reader,
    ):
        yield reader


@asynccontextmanager
async def reader_on(
    backend: Backend, settings: Settings, name: str, run_ids: Collection[str] | None
) -> AsyncIterator[LogRunReader]:
    """Yield a reader as `run_reader` does, on an open backend."""
    await require_agent(name, settings, backend)
    partitions = (
        None
        if run_ids is None
        else {partition_of(run_id, settings.partitions) for run_id in run_ids}
    )
    reader = open_run_reader(settings, backend, [name], partitions)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


async def existing(
    runs: Collection[tuple[str, str]], backend: Backend, settings: Settings
) -> set[tuple[str, str]]:
    """Return those of the runs, by (agent, run_id), that exist."""
    found: set[tuple[str, str]] = set()
    for agent in dict.fromkeys(agent for agent, _ in runs):
        run_ids = [run_id for name, run_id in runs if name == agent]
        async with reader_on(backend, settings, agent, run_ids) as reader:
            for run_id in run_ids:
                if await reader.latest(agent, run_id) is not None:
                    found.add((agent, run_id))
    return found


async def require_agent(name: str, settings: Settings, backend: Backend) -> None:
    """Check that the agent's topics exist and have the configured number of partitions.

    With another number, its runs would be looked for, and new ones written, in the wrong
    partitions.

    Raises: ConfigError.
    """
    topic = AgentTopics(settings.app, name).state
    partitions = await require_topic(topic, backend, check="the agent's name and SUREFOOT_APP")
    require_partitions(topic, partitions, settings)


async def require_topic(topic: str, backend: Backend, *, check: str = "SUREFOOT_APP") -> int:
    """Return the topic's partition count.

    Raises: ConfigError — there is no such topic; the message says what to check.
    """
    async with backend.topics() as topics:
        found = await topics.partitions([topic])
    if topic not in found:
        raise ConfigError(
            "SF3004",
            f"there is no topic {topic} ({backend.name}): check {check}, or run "
            "`surefoot topics apply`",
        )
    return found[topic]


def require_partitions(topic: str, partitions: int, settings: Settings) -> None:
    """Check the topic's partition count.

    Raises: ConfigError — it is not the configured one.
    """
    if wrong := check_partitions(topic, partitions, settings.partitions):
        raise ConfigError("SF3005", "\n".join(wrong))
