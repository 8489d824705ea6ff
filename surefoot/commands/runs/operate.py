"""Steer runs: one command each, answered by the owner of the run's partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import typer

from surefoot.commands.readers import reader_on, resolve, run_reader
from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.replay_range import ReplayRange
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.commands.operations import CommandReply, Operator, Verb, command
from surefoot.producers.commands.operations import retry_failed as retrying
from surefoot.state.errors import BadArgument, ConfigError, RecordTooLarge, StateError, Unavailable
from surefoot.state.errors.catalogue import numbered
from surefoot.state.names.ids import check_run_id

#: how many runs are asked before it is told how many are left
_PAGE = 500
EXIT_DONE, EXIT_REFUSED, EXIT_NO_ANSWER = 0, 1, 3

#: what becomes of the actions that a rewound run (its command has an --id) and a copy find done
_NOT_AGAIN = {
    "--id": "not done again; its outcome holds (to do it again, rewind with --repeat NAME)",
    "--run-id": "the new run asks its probe first, or a person (to do it again: --repeat NAME)",
}

AskOwner = Callable[[Operator, LogRunReader, str], Awaitable[CommandReply]]


def operate(
    verb: Verb,
    agent: str,
    run_id: str,
    said: Mapping[str, Any],
    *,
    command_id: str | None,
    wait_s: float,
    as_json: bool,
) -> int:
    """Send the command and print what came of it; returns the exit status.

    Raises: ConfigError — nothing was sent; Unavailable — Kafka did not answer, and the message has
    the id to repeat it with.
    """
    identity, fields = _command(verb, _given(said, command_id))

    async def ask(operator: Operator, _: LogRunReader, chosen: str) -> CommandReply:
        return await operator.ask(name, run_id, verb, command_id=chosen, **fields)

    name, _ = resolve(agent)
    return _asked(name, run_id, ask, command_id=identity, wait_s=wait_s, as_json=as_json)


def retry_failed(agent: str, prefix: str, *, by: str | None, wait_s: float, as_json: bool) -> int:
    """Try again every run that has failed and whose id begins so, effects of the outbox included,
    and print what came of each; returns the exit status: the highest of all."""
    logging.configure(level="CRITICAL")  # what matters is raised
    name, _ = resolve(agent)
    try:
        asked = retrying({"prefix": prefix, "by": by, "limit": _PAGE})
    except BadArgument as error:
        raise ConfigError(error.number, error.message) from None

    async def go() -> dict[str, CommandReply]:
        replies: dict[str, CommandReply] = {}
        async with operator(name, None, wait_s) as (one, reader, _):
            while True:
                told = await one.retry_failed(reader, name, asked)
                replies |= told.replies
                if told.next is None:
                    return replies
                asked.before = str(told.next)
                if not as_json:
                    typer.echo(f"{len(replies)} of {told.matches} asked", err=True)

    told = asyncio.run(go())
    for run_id, reply in sorted(told.items()):
        if as_json:
            typer.echo(json.dumps({"run_id": run_id} | reply.json()))
        else:
            _tell(name, run_id, reply, "--id", wait_s)
    if not as_json:
        retried = sum(reply.accepted is True for reply in told.values())
        typer.echo(f"{retried} of {len(told)} retried")
    return max(map(exit_status, told.values()), default=EXIT_DONE)


def approve(
    agent: str,
    run_id: str,
    said: Mapping[str, Any],
    *,
    command_id: str | None,
    wait_s: float,
    as_json: bool,
) -> int:
    """Answer the question that is named, or the one that the run asks now, which is printed."""
    if said["question"] is None:
        question = _question(agent, run_id)
        if question is None:
            return EXIT_REFUSED
        typer.echo(f"question {question}", err=True)
        said = {**said, "question": question}
    return operate(
        "approve", agent, run_id, said, command_id=command_id, wait_s=wait_s, as_json=as_json
    )


def _question(agent: str, run_id: str) -> str | None:
    logging.configure(level="CRITICAL")  # what matters is raised
    name, _ = resolve(agent)
    _check(run_id)

    async def read() -> str | None:
        async with run_reader(name, [run_id]) as reader:
            run = await reader.latest(name, run_id)
            if run is None:
                typer.echo(f"surefoot: SF4101: agent {name!r} has no run {run_id!r}", err=True)
            elif run.wait is None or run.wait.question is None:
                typer.echo(
                    f"surefoot: SF4111: run {run_id} asks nothing; it is {run.status}", err=True
                )
            else:
                return run.wait.question
            return None

    return asyncio.run(read())


def rewind(
    agent: str,
    run_id: str,
    seq: int,
    *,
    emit: bool,
    repeat: Sequence[str],
    by: str | None,
    command_id: str | None,
    wait_s: float,
    as_json: bool,
) -> int:
    """Send the run back to an earlier version of itself."""
    identity, fields = _command("pause", _given({"by": by}, command_id))  # has an id and `by` too
    name, _ = resolve(agent)

    async def ask(operator: Operator, reader: LogRunReader, chosen: str) -> CommandReply:
        return await operator.rewind(
            reader, name, run_id, seq, command_id=chosen, emit=emit, repeat=repeat, **fields
        )

    return _asked(name, run_id, ask, command_id=identity, wait_s=wait_s, as_json=as_json)


def fork(
    agent: str,
    run_id: str,
    seq: int,
    *,
    new_id: str | None,
    repeat: Sequence[str],
    wait_s: float,
    as_json: bool,
) -> int:
    """Start another run from a version of this one."""
    new = _check(SystemClock().unique() if new_id is None else new_id)
    name, _ = resolve(agent)

    async def ask(operator: Operator, reader: LogRunReader, chosen: str) -> CommandReply:
        return await operator.fork(reader, name, run_id, seq, new_id=chosen, repeat=repeat)

    return _asked(
        name,
        run_id,
        ask,
        command_id=new,
        option="--run-id",
        others=[new],
        wait_s=wait_s,
        as_json=as_json,
    )


def _given(said: Mapping[str, Any], command_id: str | None) -> dict[str, Any]:
    given = {key: value for key, value in said.items() if value is not None}
    return given if command_id is None else given | {"id": command_id}


def _command(verb: Verb, given: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    try:
        return command(verb, given)
    except BadArgument as error:
        raise ConfigError(error.number, error.message) from None


def _check(run_id: str) -> str:
    try:
        return check_run_id(run_id)
    except BadArgument as error:
        raise ConfigError(error.number, error.message) from None


def _asked(
    name: str,
    run_id: str,
    ask: AskOwner,
    *,
    command_id: str | None,
    wait_s: float,
    as_json: bool,
    option: str = "--id",
    others: list[str] | None = None,
) -> int:
    logging.configure(level="CRITICAL")  # what matters is raised
    _check(run_id)
    chosen = SystemClock().unique() if command_id is None else command_id

    async def go() -> CommandReply:
        async with operator(name, [run_id, *(others or [])], wait_s) as (one, reader, _):
            return await ask(one, reader, chosen)

    try:
        reply = asyncio.run(go())
    except Unavailable as error:
        error.message += f"; repeat it with {option} {chosen}"
        raise
    except (RecordTooLarge, StateError) as error:
        raise ConfigError(error.number, error.message) from None
    if as_json:
        typer.echo(json.dumps(reply.json()))
    else:
        _tell(name, run_id, reply, option, wait_s)
    return exit_status(reply)


@asynccontextmanager
async def operator(
    name: str, run_ids: list[str] | None, wait_s: float
) -> AsyncIterator[tuple[Operator, LogRunReader, ReplayRange]]:
    """An operator of that agent's runs, and what it reads and writes with."""
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
    """0 done, 1 refused, 3 no answer."""
    if reply.accepted is None:
        return EXIT_NO_ANSWER
    return EXIT_DONE if reply.accepted else EXIT_REFUSED


def _tell(name: str, run_id: str, reply: CommandReply, option: str, wait_s: float) -> None:
    if reply.accepted is None:
        typer.echo(
            f"surefoot: SF4151: no answer in {wait_s:g} s; the command is on its way. "
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
        typer.echo(f"{printable(action)}: {_NOT_AGAIN[option]}")
    if option == "--id":
        typer.echo(f"command {reply.id}")
