"""Go through a stretch of an agent's partitions again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import typer

from surefoot.commands.readers import resolve, table
from surefoot.commands.runs.operate import EXIT_DONE, EXIT_NO_ANSWER, EXIT_REFUSED, operator
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import plain_console
from surefoot.producers.commands.operations import CommandReply
from surefoot.producers.commands.replay import Replay, ReplayRow, Touched, bounds
from surefoot.state.errors import ConfigError, RecordTooLarge
from surefoot.state.errors.catalogue import numbered
from surefoot.state.ports.log import InputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was typed."""

    agent: str
    start: str
    end: str | None
    partition: int | None
    topic: InputKind
    mode: Literal["skip-completed", "rerun"]
    step: str | None
    effects: Literal["suppress", "re-emit"]
    #: names of actions that may be done again
    repeat: Sequence[str]
    dry_run: bool
    replay_id: str | None
    #: how long the owner of a run may take to answer, in seconds
    wait_s: float


def replay(wanted: Wanted) -> int:
    """Go through the stretch; returns the exit status: 1 when a run refused, 3 when one gave no
    answer, and then the same replay can be repeated.

    Raises: ConfigError — nothing was written; Unavailable — Kafka did not answer: repeat it.
    """
    logging.configure(level="CRITICAL")  # what matters is raised
    stretch = bounds(wanted.start, wanted.end)
    settings = load_settings()
    if wanted.partition is None and stretch.unit == "offset" and settings.partitions > 1:
        raise ConfigError("SF6001", "an offset is one of a partition; say which with --partition")
    if wanted.partition is not None and not 0 <= wanted.partition < settings.partitions:
        raise ConfigError("SF6001", f"--partition is 0 to {settings.partitions - 1}")
    told = wanted.step is not None or wanted.effects != "suppress" or wanted.repeat
    if wanted.mode != "rerun" and told:
        raise ConfigError("SF6001", "--step, --repeat and --effects re-emit are for --mode rerun")
    name, declared = resolve(wanted.agent)
    if declared is not None and wanted.step is not None and wanted.step not in declared.steps:
        raise ConfigError(
            "SF6001", f"agent {name} has no step {wanted.step!r}; it has {list(declared.steps)}"
        )
    chosen = wanted.replay_id or SystemClock().unique()
    partitions = range(settings.partitions) if wanted.partition is None else [wanted.partition]

    async def go() -> int:
        async with operator(name, None, wanted.wait_s) as (one, reader, source):
            pieces = await source.pieces(stretch, partitions, wanted.topic)
            for piece in pieces:
                if piece.cut:
                    typer.echo(
                        f"surefoot: partition {piece.partition} of {piece.kind} begins at "
                        f"offset {piece.start}; what was before has expired",
                        err=True,
                    )
            made = Replay(id=chosen, agent=name, stretch=source, versions=reader, pieces=pieces)
            touched = await made.touched()
            if wanted.mode == "skip-completed":
                return await _append(made, touched, dry_run=wanted.dry_run)
            rows, back = await made.plan(touched, wanted.step)
            if wanted.dry_run:
                _show(rows)
                typer.echo(f"dry run: {_counted(rows, 'sent back')}; nothing was written")
                return EXIT_DONE
            emit = wanted.effects == "re-emit"
            replies = await made.rerun(one, back, emit=emit, repeat=wanted.repeat)
            return _tell(chosen, rows, replies)

    try:
        return asyncio.run(go())
    except RecordTooLarge as error:
        raise ConfigError(error.number, error.message) from None


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
        typer.echo(f"surefoot: {run_id}: {numbered(reply.code or '')}: {reply.message}", err=True)
    for run_id in silent:
        typer.echo(f"surefoot: {run_id}: no answer; repeat with --id {replay_id}", err=True)
    typer.echo(
        f"replay {replay_id}: {len(rows)} runs: {len(replies) - len(refused) - len(silent)} sent "
        f"back, {len(rows) - len(replies)} skipped, {len(refused)} refused, {len(silent)} without "
        "an answer"
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
