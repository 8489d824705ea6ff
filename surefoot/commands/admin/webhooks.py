"""Deliveries to the webhook sources: show them, and map them again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from surefoot.commands.groups import group
from surefoot.commands.options import AgentFiles, Json, Limit
from surefoot.commands.output import format_field, print_each
from surefoot.commands.readers import existing, require_partitions, require_topic
from surefoot.infra.embedded.file import Access
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.delivery_log import DeliveryReader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.guards import RequestRefused
from surefoot.producers.webhooks.intake import read_webhook, start_all
from surefoot.producers.webhooks.mapping import Planned, by_source, planned
from surefoot.producers.webhooks.verification import sender
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import deliveries_topic
from surefoot.state.reading.deliveries import Delivery, delivery_json
from surefoot.state.reading.explain import clock_time

DeliveryId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of the record, or the sender's own id for its latest delivery."
    ),
]

app = group("Show deliveries to webhook sources, and map them again.")


@app.command("deliveries")
def list_deliveries(
    source: Annotated[str | None, typer.Option(help="Only deliveries to this source.")] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Only those that were refused.")
    ] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """Show deliveries, newest first: verified or why not, and the runs they became."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged

    def wanted(each: Delivery) -> bool:
        return source in (None, each.source) and (not refused or each.outcome == "refused")

    async def read() -> list[Delivery]:
        async with _opened("read") as (_, _, reader):
            return await reader.latest(wanted, limit)

    titles = ("ID", "TIME", "SOURCE", "EVENT", "OUTCOME", "ANSWER", "RESULT")
    print_each(
        asyncio.run(read()), delivery_json, titles, _cells, wraps=titles[-1], as_json=as_json
    )


def _cells(each: Delivery) -> tuple[str, ...]:
    return (
        each.id,
        clock_time(each.at_ms),
        each.source,
        each.event or "",
        each.outcome,
        str(each.status),
        _became(each),
    )


def _became(each: Delivery) -> str:
    said = [*(f"{agent}/{run_id}" for agent, run_id in each.runs[:3]), *each.errors]
    if len(each.runs) > 3:  # noqa: PLR2004  (a line should stay one)
        said.insert(3, f"and {len(each.runs) - 3} more")
    if each.reason:
        said.append(each.reason)
    if each.unrecorded:
        said.append(f"({each.unrecorded} more were refused before)")
    return "; ".join(said)


@app.command("show")
def show_delivery(id_: DeliveryId, as_json: Json = False) -> None:
    """Show one delivery. Exit status 1 when it does not exist."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged

    async def read() -> Delivery | None:
        async with _opened("read") as (_, _, reader):
            return await reader.find(id_)

    found = asyncio.run(read())
    if found is None:
        raise _no_delivery(id_)
    fields = delivery_json(found)
    if as_json:
        typer.echo(json.dumps(fields))
        return
    for field, value in fields.items():
        if field in ("headers", "body"):
            continue
        if value not in (None, [], 0) or field == "verified":
            typer.echo(f"{field:<12}{format_field(field, value)}")
    for name, text in fields["headers"].items():
        typer.echo(f"{'header':<12}{printable(f'{name}: {text}')}")
    if fields["body"] is not None:
        typer.echo(f"{'body':<12}{printable(fields['body'])}")


@app.command()
def redeliver(id_: DeliveryId, agent_files: AgentFiles, as_json: Json = False) -> None:
    """Map a delivery again with these files, and start the runs that do not exist yet."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents = load_agents(agent_files)

    async def again() -> tuple[Planned, set[tuple[str, str]]] | None:
        async with _opened("write") as (settings, backend, reader):
            found = await reader.find(id_)
            if found is None:
                return None
            plan = _mapped_again(found, agents, settings)
            asked = [(start.agent, start.run_id) for start in plan.starts]
            there = await existing(asked, backend, settings)
            commands = LogCommands(settings, backend.appender(), SystemClock())
            try:
                missing = [
                    start for start in plan.starts if (start.agent, start.run_id) not in there
                ]
                await start_all(commands, missing, trace={}, deadline_s=settings.deadlines.send_s)
            finally:
                await commands.stop()
            return plan, there

    done = asyncio.run(again())
    if done is None:
        raise _no_delivery(id_)
    plan, there = done
    for start in plan.starts:
        is_there = (start.agent, start.run_id) in there
        if as_json:
            line = {"agent": start.agent, "run_id": start.run_id, "started": not is_there}
            typer.echo(json.dumps(line))
        else:
            did = "is there" if is_there else "started"
            typer.echo(f"{did:<10}{start.agent} {start.run_id}")
    if not plan.starts and not plan.errors:
        typer.echo("no agent starts a run for it", err=True)
    for agent, error in plan.errors.items():
        typer.echo(f"surefoot: {agent}: {printable(error)}", err=True)
    raise typer.Exit(1 if plan.errors else 0)


def _mapped_again(found: Delivery, agents: Sequence[Agent], settings: Settings) -> Planned:
    triggers = by_source(agents).get(found.source)
    if not triggers:
        raise ConfigError("SF1029", f"no agent in these files listens to {found.source!r}")
    if not found.verified:
        raise ConfigError(
            "SF1029",
            f"delivery {found.id} was not verified ({found.reason}), so it cannot be mapped; "
            "have the sender send it again",
        )
    if found.body is None:
        raise ConfigError(
            "SF1029",
            f"the body of delivery {found.id} was too large to be kept, or is encrypted and this "
            "process does not have the key; have the sender send it again",
        )
    provider = triggers[0][1].provider
    try:
        delivery = read_webhook(
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


@asynccontextmanager
async def _opened(access: Access) -> AsyncIterator[tuple[Settings, Backend, DeliveryReader]]:
    settings = load_settings()
    topic = deliveries_topic(settings.app)
    async with open_backend(settings, SystemClock(), access=access) as backend:
        require_partitions(topic, await require_topic(topic, backend), settings)
        reader = DeliveryReader(settings, backend)
        try:
            yield settings, backend, reader
        finally:
            await reader.stop()


def _no_delivery(id_: str) -> typer.Exit:
    typer.echo(f"surefoot: no delivery {printable(id_)} is recorded", err=True)
    return typer.Exit(1)
