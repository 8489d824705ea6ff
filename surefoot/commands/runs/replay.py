"""Replays a range of an agent's partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import typer

from surefoot.commands.asking import EXIT_DONE, EXIT_NO_ANSWER, EXIT_REFUSED, operator
from surefoot.commands.groups import commands
from surefoot.commands.options import AgentName, EffectsOption, Repeat, WaitOption
from surefoot.commands.output import table
from surefoot.commands.readers import resolve_agent
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.producers.commands.operations import CommandReply
from surefoot.producers.commands.replay import Replay, ReplayRow, Touched, bounds
from surefoot.state.errors import ConfigError, RecordTooLarge
from surefoot.state.errors.catalogue import numbered
from surefoot.state.ports.log import InputKind

app = commands()


@app.command()
def replay(
    agent: AgentName,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME|OFFSET", help="First, included: 2026-01-31T12:00:00Z."
        ),
    ],
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME|OFFSET", help="Last, excluded; default: now."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Partition; default: all, by time.")
    ] = None,
    topic: Annotated[
        InputKind, typer.Option(help="Topic of the offsets in --from and --to.")
    ] = "tasks",
    mode: Annotated[
        Literal["skip-completed", "rerun"],
        typer.Option(help="Do only what was lost, or rewind every run of the range."),
    ] = "skip-completed",
    step: Annotated[
        str | None, typer.Option(help="rerun: rewind to before this step; default: the start.")
    ] = None,
    effects: EffectsOption = "suppress",
    repeat: Repeat = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would happen, and write nothing.")
    ] = False,
    replay_id: Annotated[
        str | None, typer.Option("--id", help="Repeating a rerun with the same id is safe.")
    ] = None,
    wait_s: WaitOption = 30.0,
) -> None:
    """Replay a range of an agent's log after an incident.

    The last line says what was done. Child runs are left to their parents.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    stretch = bounds(start, end)
    settings = load_settings()
    if partition is None and stretch.unit == "offset" and settings.partitions > 1:
        raise ConfigError("SF6001", "an offset needs its partition; give it with --partition")
    if partition is not None and not 0 <= partition < settings.partitions:
        raise ConfigError("SF6001", f"--partition must be 0 to {settings.partitions - 1}")
    told = step is not None or effects != "suppress" or repeat
    if mode != "rerun" and told:
        raise ConfigError("SF6001", "--step, --repeat and --effects re-emit need --mode rerun")
    name, declared = resolve_agent(agent)
    if declared is not None and step is not None and step not in declared.steps:
        raise ConfigError(
            "SF6001",
            f"agent {name} has no step {step!r}; its steps are {', '.join(declared.steps)}",
        )
    chosen = replay_id or SystemClock().unique()
    partitions = range(settings.partitions) if partition is None else [partition]

    async def go() -> int:
        async with operator(name, None, wait_s) as (one, reader, source):
            pieces = await source.pieces(stretch, partitions, topic)
            for piece in pieces:
                if piece.cut:
                    typer.echo(
                        f"surefoot: partition {piece.partition} of {piece.kind} begins at "
                        f"offset {piece.start}; earlier records have expired",
                        err=True,
                    )
            made = Replay(id=chosen, agent=name, stretch=source, versions=reader, pieces=pieces)
            touched = await made.touched()
            if mode == "skip-completed":
                return await _append(made, touched, dry_run=dry_run)
            rows, back = await made.plan(touched, step)
            if dry_run:
                _show(rows)
                typer.echo(f"dry run: {_counted(rows, 'rewound')}; nothing was written")
                return EXIT_DONE
            emit = effects == "re-emit"
            replies = await made.rerun(one, back, emit=emit, repeat=repeat or ())
            return _tell(chosen, rows, replies)

    try:
        status = asyncio.run(go())
    except RecordTooLarge as error:
        raise ConfigError(error.number, error.message) from None
    raise typer.Exit(status)


async def _append(made: Replay, touched: Mapping[str, Touched], *, dry_run: bool) -> int:
    rows = await made.foresee(touched)
    records = sum(run.records for run in touched.values())
    if dry_run:
        _show(rows)
        said = f"{records} records of {_counted(rows, 'done')}"
        typer.echo(f"dry run: {said}; nothing was written")
        return EXIT_DONE
    count = await made.append()
    typer.echo(f"replay {made.id}: {count} records appended, of {_counted(rows, 'done')}")
    return EXIT_DONE


def _tell(replay_id: str, rows: Sequence[ReplayRow], replies: Mapping[str, CommandReply]) -> int:
    refused = {run_id: reply for run_id, reply in replies.items() if reply.accepted is False}
    silent = [run_id for run_id, reply in replies.items() if reply.accepted is None]
    for run_id, reply in refused.items():
        why = f"{numbered(reply.code or '')}: {printable(reply.message or '')}"
        typer.echo(f"surefoot: {run_id}: {why}", err=True)
    for run_id in silent:
        typer.echo(f"surefoot: {run_id}: no answer; repeat with --id {replay_id}", err=True)
    typer.echo(
        f"replay {replay_id}: {len(rows)} runs: {len(replies) - len(refused) - len(silent)} "
        f"rewound, {len(rows) - len(replies)} skipped, {len(refused)} refused, "
        f"{len(silent)} without an answer"
    )
    if silent:
        return EXIT_NO_ANSWER
    return EXIT_REFUSED if refused else EXIT_DONE


def _show(rows: Sequence[ReplayRow]) -> None:
    cells = [(row.run_id, row.status, row.what) for row in rows]
    plain_console().print(table(("RUN", "STATUS", "WHAT"), cells, wraps="WHAT"))


def _counted(rows: Sequence[ReplayRow], done: str) -> str:
    acts = sum(row.acts for row in rows)
    return f"{len(rows)} runs: {acts} {done}, {len(rows) - acts} skipped"
