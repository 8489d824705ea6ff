"""Sends commands to the owner of a run, and prints the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import typer

from surefoot.commands.readers import checked_run_id, reader_on
from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.replay_range import ReplayRange
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.commands.operations import CommandReply, Operator
from surefoot.state.errors import ConfigError, RecordTooLarge, StateError, Unavailable
from surefoot.state.errors.catalogue import numbered

EXIT_DONE, EXIT_REFUSED, EXIT_NO_ANSWER = 0, 1, 3

#: what happens to an action that a rewound run has done
_HOLDS = "does not run again; its outcome is kept (to run it again, rewind with --repeat NAME)"
#: the same of one in doubt; for a copy of a run, all of its actions are
_ASKS = "the run asks its probe first, or a person (to run it again: --repeat NAME)"

AskOwner = Callable[[Operator, LogRunReader, str], Awaitable[CommandReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a command is sent: the options --id, --by, --wait and --json."""

    command_id: str | None
    by: str | None
    wait_s: float
    as_json: bool


def ask_owner(
    name: str,
    run_id: str,
    ask: AskOwner,
    asked: Asked,
    *,
    option: str = "--id",
    others: list[str] | None = None,
) -> int:
    """Send a command and print the answer; returns the exit status.

    Args: option: the option that repeats the command.
    Raises: ConfigError — nothing was sent; Unavailable — Kafka did not answer, and the message has
        the id to repeat it with.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    checked_run_id(run_id)
    chosen = SystemClock().unique() if asked.command_id is None else asked.command_id

    async def go() -> CommandReply:
        async with operator(name, [run_id, *(others or [])], asked.wait_s) as (one, reader, _):
            return await ask(one, reader, chosen)

    try:
        reply = asyncio.run(go())
    except Unavailable as error:
        error.message += f"; repeat it with {option} {chosen}"
        raise
    except (RecordTooLarge, StateError) as error:
        raise ConfigError(error.number, error.message) from None
    if asked.as_json:
        typer.echo(json.dumps(reply.json()))
    else:
        tell(name, run_id, reply, option, asked.wait_s)
    return exit_status(reply)


@asynccontextmanager
async def operator(
    name: str, run_ids: list[str] | None, wait_s: float
) -> AsyncIterator[tuple[Operator, LogRunReader, ReplayRange]]:
    """Yield an operator of that agent's runs, with its reader and the agent's log range."""
    clock, settings = SystemClock(), load_settings()
    async with (
        open_backend(settings, clock) as backend,
        reader_on(backend, settings, name, run_ids) as reader,
    ):
        appender = backend.appender()
        stretch = ReplayRange(settings, backend, name, appender)
        commands = LogCommands(settings, appender, clock)
        try:
            one = Operator(
                commands=commands,
                reader=reader,
                clock=clock,
                send_s=settings.deadlines.send_s,
                answer_s=wait_s,
            )
            yield one, reader, stretch
        finally:
            await stop_all(stretch, appender)


def exit_status(reply: CommandReply) -> int:
    """Return the exit status: 0 done, 1 refused, 3 no answer."""
    if reply.accepted is None:
        return EXIT_NO_ANSWER
    return EXIT_DONE if reply.accepted else EXIT_REFUSED


def tell(name: str, run_id: str, reply: CommandReply, option: str, wait_s: float) -> None:
    """Print an answer for people."""
    if reply.accepted is None:
        typer.echo(
            f"surefoot: SF4151: no answer in {wait_s:g} s, but the command was sent. "
            f"Look with `surefoot runs show {name} {run_id}`, or repeat it with "
            f"{option} {reply.id}",
            err=True,
        )
        return
    if not reply.accepted:
        typer.echo(
            f"surefoot: {numbered(reply.code or '')}: {printable(reply.message or '')}", err=True
        )
        return
    run = reply.run
    now = f"{run.run_id} is {run.status} at step {run.step!r} (seq {run.seq})" if run else run_id
    typer.echo(f"{reply.event}: {printable(now)}")
    for action in reply.kept:
        asks = action.in_doubt or option == "--run-id"
        typer.echo(f"{printable(str(action))}: {_ASKS if asks else _HOLDS}")
    if option == "--id":
        typer.echo(f"command {reply.id}")
