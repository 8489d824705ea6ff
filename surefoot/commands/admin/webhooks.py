"""What came to the webhook sources, and mapping it again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import typer

from surefoot.commands.readers import reader_on, table, told
from surefoot.infra.embedded.file import Access
from surefoot.infra.kafka_client.topics import check_partitions
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.delivery_log import DeliveryReader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.guards import RequestRefused
from surefoot.producers.webhooks.intake import read_delivery, start_all
from surefoot.producers.webhooks.mapping import MappedStart, Planned, by_source, planned
from surefoot.producers.webhooks.verification import sender
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import deliveries_topic
from surefoot.state.reading.deliveries import Delivery, delivery_json
from surefoot.state.reading.explain import clock_time


def list_deliveries(source: str | None, limit: int, *, refused: bool, as_json: bool) -> None:
    """The newest first."""
    logging.configure(level="CRITICAL")  # what matters is raised

    def wanted(each: Delivery) -> bool:
        return source in (None, each.source) and (not refused or each.outcome == "refused")

    async def read() -> list[Delivery]:
        async with _opened("read") as (_, _, reader):
            return await reader.latest(wanted, limit)

    found = asyncio.run(read())
    if as_json:
        for each in found:
            typer.echo(json.dumps(delivery_json(each)))
        return
    titles = ("ID", "TIME", "SOURCE", "EVENT", "OUTCOME", "ANSWER", "WHAT CAME OF IT")
    rows = [
        (
            each.id,
            clock_time(each.at_ms),
            each.source,
            each.event or "",
            each.outcome,
            str(each.status),
            _became(each),
        )
        for each in found
    ]
    plain_console().print(table(titles, rows, wraps="WHAT CAME OF IT"))


def _became(each: Delivery) -> str:
    said = [*(f"{agent}/{run_id}" for agent, run_id in each.runs[:3]), *each.errors]
    if len(each.runs) > 3:  # noqa: PLR2004  (a line should stay one)
        said.insert(3, f"and {len(each.runs) - 3} more")
    if each.reason:
        said.append(each.reason)
    if each.unrecorded:
        said.append(f"({each.unrecorded} more were refused before)")
    return "; ".join(said)


def show_delivery(id_: str, *, as_json: bool) -> bool:
    """Everything that is kept of one; False when there is none."""
    logging.configure(level="CRITICAL")  # what matters is raised

    async def read() -> Delivery | None:
        async with _opened("read") as (_, _, reader):
            return await reader.find(id_)

    found = asyncio.run(read())
    if found is None:
        return _no_delivery(id_)
    fields = delivery_json(found)
    if as_json:
        typer.echo(json.dumps(fields))
        return True
    headers, body = fields.pop("headers"), fields.pop("body")
    for field, value in fields.items():
        if value not in (None, [], 0) or field == "verified":
            typer.echo(f"{field:<12}{told(field, value)}")
    for name, value in headers.items():
        typer.echo(f"{'header':<12}{printable(f'{name}: {value}')}")
    if body is not None:
        typer.echo(f"{'body':<12}{printable(body)}")
    return True


def redeliver(id_: str, agent_files: Sequence[Path], *, as_json: bool) -> int:
    """Map a delivery again, and start the runs of it that are not there. Returns the exit status.

    Raises: ConfigError — it was not verified, its body was not kept, or no agent listens to it.
    """
    logging.configure(level="CRITICAL")  # what matters is raised
    agents = load_agents(agent_files)

    async def again() -> tuple[Planned, set[MappedStart]] | None:
        async with _opened("write") as (settings, backend, reader):
            found = await reader.find(id_)
            if found is None:
                return None
            plan = _mapped_again(found, agents, settings)
            there = await _there(plan.starts, settings, backend)
            commands = LogCommands(settings, backend.appender(), SystemClock())
            try:
                missing = [start for start in plan.starts if start not in there]
                await start_all(commands, missing, trace={}, deadline_s=settings.deadlines.send_s)
            finally:
                await commands.stop()
            return plan, there

    done = asyncio.run(again())
    if done is None:
        _no_delivery(id_)
        return 1
    plan, there = done
    for start in plan.starts:
        if as_json:
            line = {"agent": start.agent, "run_id": start.run_id, "started": start not in there}
            typer.echo(json.dumps(line))
        else:
            did = "is there" if start in there else "started"
            typer.echo(f"{did:<10}{start.agent} {start.run_id}")
    if not plan.starts and not plan.errors:
        typer.echo("no agent wants it", err=True)
    for agent, error in plan.errors.items():
        typer.echo(f"surefoot: {agent}: {printable(error)}", err=True)
    return 1 if plan.errors else 0


def _mapped_again(found: Delivery, agents: Sequence[Agent], settings: Settings) -> Planned:
    triggers = by_source(agents).get(found.source)
    if not triggers:
        raise ConfigError("SF1029", f"no agent in these files listens to {found.source!r}")
    if not found.verified:
        raise ConfigError(
            "SF1029",
            f"delivery {found.id} was not verified ({found.reason}), so nothing of it is mapped; "
            "have the sender send it again",
        )
    if found.body is None:
        raise ConfigError(
            "SF1029",
            f"the body of delivery {found.id} was too large to be kept; have the sender send it "
            "again",
        )
    provider = triggers[0][1].provider
    try:
        delivery = read_delivery(
            found.source,
            sender(provider),
            dict(found.headers),
            found.body,
            bytes_max=settings.gateway_body_max_bytes,
            gzip=True,
        )
    except RequestRefused as refused:
        raise ConfigError(
            "SF1029", f"delivery {found.id} cannot be read: {refused.message}"
        ) from None
    return planned(triggers, delivery)


async def _there(
    starts: Sequence[MappedStart], settings: Settings, backend: Backend
) -> set[MappedStart]:
    """Those whose runs exist."""
    there: set[MappedStart] = set()
    for agent in dict.fromkeys(start.agent for start in starts):
        wanted = [start for start in starts if start.agent == agent]
        run_ids = [start.run_id for start in wanted]
        async with reader_on(backend, settings, agent, run_ids) as reader:
            for start in wanted:
                if await reader.latest(agent, start.run_id) is not None:
                    there.add(start)
    return there


@asynccontextmanager
async def _opened(access: Access) -> AsyncIterator[tuple[Settings, Backend, DeliveryReader]]:
    settings = load_settings()
    topic = deliveries_topic(settings.app)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(
            open_backend(settings, SystemClock(), access=access)
        )
        async with backend.topics() as topics:
            found = await topics.partitions([topic])
        if topic not in found:
            raise ConfigError(
                "SF3004",
                f"there is no topic {topic} ({backend.name}): check SUREFOOT_APP, or run "
                "`surefoot topics apply`",
            )
        if wrong := check_partitions(topic, found[topic], settings.partitions):
            raise ConfigError("SF3005", "\n".join(wrong))
        reader = DeliveryReader(settings, backend)
        stack.push_async_callback(reader.stop)
        yield settings, backend, reader


def _no_delivery(id_: str) -> bool:
    typer.echo(f"surefoot: no delivery {printable(id_)} is kept", err=True)
    return False
