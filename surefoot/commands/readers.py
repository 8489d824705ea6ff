"""What the commands that look at runs and steer them have in common."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from surefoot.infra.archive.reader import open_run_reader
from surefoot.infra.kafka_client.topics import check_partitions
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.agents import SCHEDULES
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.reading.explain import clock_time

#: of an agent, or of the built-in one that keeps its schedules; a module is given with the package
#: that it is in, or as its file
_IS_NAME = re.compile(rf"[^./]+(\.{SCHEDULES})?")


def resolve(agent: str) -> tuple[str, Agent | None]:
    """The name of the agent, and the agent itself when its file or module is given."""
    if _IS_NAME.fullmatch(agent):
        return agent, None
    agents = load_agents([Path(agent)])
    if len(agents) > 1:
        names = ", ".join(each.name for each in agents)
        raise ConfigError("SF1010", f"{agent} defines several agents; name one of them: {names}")
    return agents[0].name, agents[0]


@asynccontextmanager
async def run_reader(
    name: str, run_ids: Collection[str] | None = None
) -> AsyncIterator[LogRunReader]:
    """A reader of that agent's runs; of the partitions of these runs only, when they are given.

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
    """As `run_reader`, on a backend that is open."""
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


async def require_agent(name: str, settings: Settings, backend: Backend) -> None:
    """Raises ConfigError when no agent of that name has ever had its topics made, or when its runs
    would be looked for, and new ones put, in the wrong partitions."""
    topic = AgentTopics(settings.app, name).state
    async with backend.topics() as topics:
        found = await topics.partitions([topic])
    if topic not in found:
        raise ConfigError(
            "SF3004",
            f"there is no topic {topic} ({backend.name}): check the agent's name and SUREFOOT_APP, "
            "or run `surefoot topics apply`",
        )
    if wrong := check_partitions(topic, found[topic], settings.partitions):
        raise ConfigError("SF3005", "\n".join(wrong))


def from_json(option: str, text: str) -> Any:
    """The values of JSON that was typed. Raises ConfigError."""
    try:
        return parse_json(text.encode("utf-8", "surrogateescape"))
    except BadPayload as error:
        raise ConfigError("SF1007", f"{option}: {error}") from None


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, wraps: str) -> Table:
    """Rows of text from outside; the column `wraps` may take more than one line."""
    made = Table(box=None, pad_edge=False)
    for title in titles:
        made.add_column(title, no_wrap=title != wraps)
    for row in rows:
        made.add_row(*(printable(cell) for cell in row))
    return made


def told(field: str, value: Any) -> str:
    """One value as a person reads it, by the name of its field."""
    if field.endswith("_ms"):
        return clock_time(value)
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
