"""`surefoot runs list` and `show`: read from the log itself, without a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentName, Json, Limit, RunId
from surefoot.commands.output import format_field, print_each
from surefoot.commands.readers import no_run, resolve_agent, run_reader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.terminal import printable
from surefoot.state.errors import ConfigError
from surefoot.state.errors.catalogue import numbered
from surefoot.state.machine.model import Status
from surefoot.state.reading.explain import Explanation, clock_time, explain
from surefoot.state.reading.ports import RunView
from surefoot.state.reading.runs import run_json, run_list_json

_STATUSES: tuple[Status, ...] = get_args(Status)

app = commands()


@app.command("list")
def list_runs(
    agent: AgentName,
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """Show the runs of an agent, most recently updated first."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    wanted = _status(status)
    name, _ = resolve_agent(agent)

    async def read() -> Sequence[RunView]:
        async with run_reader(name) as reader:
            return await reader.list(name, status=wanted, limit=limit)

    titles = ("RUN", "STATUS", "STEP", "SEQ", "ATTEMPT", "UPDATED", "FAILURE")
    print_each(asyncio.run(read()), run_list_json, titles, _cells, wraps="FAILURE", as_json=as_json)


def _cells(run: RunView) -> tuple[str, ...]:
    return (
        run.run_id,
        run.status,
        run.step,
        str(run.seq),
        str(run.attempt),
        clock_time(run.updated_ms),
        numbered(run.failure["code"]) if run.failure else "",
    )


@app.command("show")
def show_run(agent: AgentName, run_id: RunId, as_json: Json = False) -> None:
    """Show one run, why it waits, and what to type. Exit status 1 when it does not exist."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, declared = resolve_agent(agent)
    version = None if declared is None else declared.version

    async def read() -> tuple[RunView, Explanation] | None:
        async with run_reader(name, [run_id]) as reader:
            run = await reader.get(name, run_id)
            if run is None:
                return None
            backlog = await reader.backlog(name, run_id)
            return run, explain(run, SystemClock().now_ms(), backlog, version)

    found = asyncio.run(read())
    if found is None:
        raise no_run(name, run_id)
    run, why = found
    fields = run_json(run)
    if as_json:
        typer.echo(json.dumps({**fields, "why": {"because": why.because, "do": why.do}}))
        return
    frames = fields["failure"].pop("frames", ()) if fields["failure"] else ()
    for field, value in fields.items():
        if value is not None:
            typer.echo(f"{field:<12}{format_field(field, value)}")
    for frame in frames:
        typer.echo(f"{'at':<12}{printable(frame)}")
    for sentence in why.because:
        typer.echo(f"{'why':<12}{printable(sentence)}")
    for command in why.do:
        typer.echo(f"{'do':<12}{printable(command)}")


def _status(text: str | None) -> Status | None:
    for status in _STATUSES:
        if text == status:
            return status
    if text is not None:
        raise ConfigError("SF1007", f"--status must be one of {', '.join(_STATUSES)}; got {text!r}")
    return None
