"""List, show and start runs, from the log itself: no gateway is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import get_args

import typer

from surefoot.commands.readers import require_agent, resolve, run_reader, table, told
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.infra.writers.commands import LogCommands
from surefoot.schemas.payload import BadPayload, Unserialisable, dump, load, parse_json, strict_json
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import BadArgument, ConfigError, RecordTooLarge
from surefoot.state.errors.catalogue import numbered
from surefoot.state.machine.model import Status
from surefoot.state.names.ids import check_run_id
from surefoot.state.reading.explain import Explanation, clock_time, explain
from surefoot.state.reading.ports import RunView
from surefoot.state.reading.runs import counts_json, run_json, run_list_json
from surefoot.state.reading.versions import Version

_STATUSES: tuple[Status, ...] = get_args(Status)


def list_runs(agent: str, status: str | None, limit: int, *, as_json: bool) -> None:
    """Raises ConfigError for a status or an agent that there is not."""
    logging.configure(level="CRITICAL")  # what matters is raised
    wanted = _status(status)
    name, _ = resolve(agent)

    async def read() -> Sequence[RunView]:
        async with run_reader(name) as reader:
            return await reader.list(name, status=wanted, limit=limit)

    found = asyncio.run(read())
    if as_json:
        for run in found:
            typer.echo(json.dumps(run_list_json(run)))
        return
    titles = ("RUN", "STATUS", "STEP", "SEQ", "ATTEMPT", "UPDATED", "FAILURE")
    rows = [
        (
            run.run_id,
            run.status,
            run.step,
            str(run.seq),
            str(run.attempt),
            clock_time(run.updated_ms),
            numbered(run.failure["code"]) if run.failure else "",
        )
        for run in found
    ]
    plain_console().print(table(titles, rows, wraps="FAILURE"))


def count_runs(agent: str, *, as_json: bool) -> None:
    """How many runs there are, by version of the agent and status."""
    logging.configure(level="CRITICAL")  # what matters is raised
    name, _ = resolve(agent)

    async def read() -> Mapping[tuple[int, Status], int]:
        async with run_reader(name) as reader:
            return await reader.counts(name)

    counts = asyncio.run(read())
    if as_json:
        typer.echo(json.dumps(counts_json(counts)))
        return
    rows = [(str(version), status, str(n)) for (version, status), n in sorted(counts.items())]
    plain_console().print(table(("VERSION", "STATUS", "RUNS"), rows, wraps=""))


def show_run(agent: str, run_id: str, *, as_json: bool) -> bool:
    """Print the run, and why it does not move; False when there is none."""
    logging.configure(level="CRITICAL")  # what matters is raised
    name, declared = resolve(agent)
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
        return _no_run(name, run_id)
    run, why = found
    fields = run_json(run)
    if as_json:
        typer.echo(json.dumps({**fields, "why": {"because": why.because, "do": why.do}}))
        return True
    frames = fields["failure"].pop("frames", ()) if fields["failure"] else ()
    for field, value in fields.items():
        if value is not None:
            typer.echo(f"{field:<12}{told(field, value)}")
    for frame in frames:
        typer.echo(f"{'at':<12}{printable(frame)}")
    for sentence in why.because:
        typer.echo(f"{'why':<12}{printable(sentence)}")
    for command in why.do:
        typer.echo(f"{'do':<12}{printable(command)}")
    return True


def list_versions(agent: str, run_id: str, *, as_json: bool) -> bool:
    """The versions that the run can be sent back to; False when there is no such run."""
    logging.configure(level="CRITICAL")  # what matters is raised
    name, _ = resolve(agent)

    async def read() -> Sequence[Version] | None:
        async with run_reader(name, [run_id]) as reader:
            lines = await reader.lines(name, [run_id], lambda _seq, _step: True)
            if run_id not in lines:
                return None
            return sorted(lines[run_id].versions.values(), key=lambda version: version.seq)

    found = asyncio.run(read())
    if found is None:
        return _no_run(name, run_id)
    if as_json:
        for version in found:
            waits = version.wait.kind if version.wait is not None else None
            fields = {name: getattr(version, name) for name in ("seq", "step", "at_ms", "epoch")}
            typer.echo(json.dumps({**fields, "due_ms": version.due_ms, "waits_for": waits}))
        return True
    rows = [
        (
            str(version.seq),
            version.step,
            clock_time(version.at_ms),
            str(version.epoch),
            version.wait.kind if version.wait is not None else "",
        )
        for version in found
    ]
    titles = ("SEQ", "STEP", "COMMITTED", "EPOCH", "WAITS FOR")
    plain_console().print(table(titles, rows, wraps=""))
    return True


def _no_run(name: str, run_id: str) -> bool:
    typer.echo(f"surefoot: SF4101: agent {name!r} has no run {printable(run_id)!r}", err=True)
    return False


def start_run(agent: str, payload: str, run_id: str | None) -> str:
    """Start a run; prints and returns its id.

    Raises: ConfigError — a payload or a run_id that cannot be; Unavailable — Kafka does not answer,
    and then the same run_id can be started again.
    """
    logging.configure(level="CRITICAL")  # what matters is raised
    name, declared = resolve(agent)
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


def _status(text: str | None) -> Status | None:
    for status in _STATUSES:
        if text == status:
            return status
    if text is not None:
        raise ConfigError("SF1007", f"--status is one of {', '.join(_STATUSES)}; got {text!r}")
    return None
