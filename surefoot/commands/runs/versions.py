"""`surefoot runs count`, of an agent, and `versions`, of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentName, Json, RunId
from surefoot.commands.output import print_each, table
from surefoot.commands.readers import no_run, resolve_agent, run_reader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.terminal import plain_console
from surefoot.state.machine.model import Status, WaitKind
from surefoot.state.reading.explain import clock_time
from surefoot.state.reading.runs import counts_json
from surefoot.state.reading.versions import Version

app = commands()


@app.command("count")
def count_runs(agent: AgentName, as_json: Json = False) -> None:
    """Count the runs of an agent by version and status."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, _ = resolve_agent(agent)

    async def read() -> Mapping[tuple[int, Status], int]:
        async with run_reader(name) as reader:
            return await reader.counts(name)

    counts = asyncio.run(read())
    if as_json:
        typer.echo(json.dumps(counts_json(counts)))
        return
    rows = [(str(version), status, str(n)) for (version, status), n in sorted(counts.items())]
    plain_console().print(table(("VERSION", "STATUS", "RUNS"), rows, wraps=""))


@app.command("versions")
def list_versions(agent: AgentName, run_id: RunId, as_json: Json = False) -> None:
    """List the versions of a run that it can be rewound to: one after each step."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, _ = resolve_agent(agent)

    async def read() -> Sequence[Version] | None:
        async with run_reader(name, [run_id]) as reader:
            lines = await reader.lines(name, [run_id], lambda _seq, _step: True)
            if run_id not in lines:
                return None
            return sorted(lines[run_id].versions.values(), key=lambda version: version.seq)

    found = asyncio.run(read())
    if found is None:
        raise no_run(name, run_id)
    titles = ("SEQ", "STEP", "COMMITTED", "EPOCH", "WAITS FOR")
    print_each(found, _fields, titles, _cells, wraps="", as_json=as_json)


class VersionJson(TypedDict):
    seq: int
    step: str
    at_ms: int
    epoch: int
    due_ms: int | None
    waits_for: WaitKind | None


def _fields(version: Version) -> VersionJson:
    return {
        "seq": version.seq,
        "step": version.step,
        "at_ms": version.at_ms,
        "epoch": version.epoch,
        "due_ms": version.due_ms,
        "waits_for": None if version.wait is None else version.wait.kind,
    }


def _cells(version: Version) -> tuple[str, ...]:
    return (
        str(version.seq),
        version.step,
        clock_time(version.at_ms),
        str(version.epoch),
        version.wait.kind if version.wait is not None else "",
    )
