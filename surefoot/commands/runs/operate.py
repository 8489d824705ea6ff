"""Control runs: one command each, answered by the owner of the run's partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from surefoot.commands.asking import (
    EXIT_DONE,
    EXIT_REFUSED,
    Asked,
    ask_owner,
    exit_status,
    operator,
    tell,
)
from surefoot.commands.groups import commands
from surefoot.commands.options import (
    AgentName,
    By,
    CommandIdOption,
    EffectsOption,
    Json,
    NameArgument,
    Repeat,
    RunId,
    WaitOption,
)
from surefoot.commands.readers import checked_run_id, no_run, resolve_agent, run_reader
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.producers.commands.operations import CommandReply, Operator, command
from surefoot.producers.commands.operations import retry_failed as retrying
from surefoot.schemas.payload import BadPayload, JsonObject, parse_json
from surefoot.state.errors import BadArgument, ConfigError
from surefoot.state.machine.commands import COMMANDS, RunCommand
from surefoot.state.machine.model import Operation
from surefoot.state.reading.ports import RunView

#: number of runs asked before the number of those left is printed
_PAGE = 500

app = commands()


def _plain(row: RunCommand) -> None:
    @app.command(row.word, help=row.help)
    def plain(
        agent: AgentName,
        run_id: RunId,
        command_id: CommandIdOption = None,
        by: By = None,
        wait_s: WaitOption = 10.0,
        as_json: Json = False,
    ) -> None:
        asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
        raise typer.Exit(_operate(row.word, agent, run_id, {}, asked))


for _row in COMMANDS.values():
    if _row.plain:
        _plain(_row)


@app.command("retry-failed")
def retry_failed(
    agent: AgentName,
    prefix: Annotated[
        str,
        typer.Option("--prefix", help="Only runs whose id has this prefix; for effects: AGENT:"),
    ] = "",
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Retry every failed run. For failed effects: `retry-failed outbox`."""
    # Each outcome is printed; the exit status is the highest of all.
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, _ = resolve_agent(agent)
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
            tell(name, run_id, reply, "--id", wait_s)
    if not as_json:
        retried = sum(reply.accepted is True for reply in told.values())
        typer.echo(f"{retried} of {len(told)} retried")
    raise typer.Exit(max(map(exit_status, told.values()), default=EXIT_DONE))


@app.command(help=COMMANDS["signal"].help)
def signal(
    agent: AgentName,
    run_id: RunId,
    name: NameArgument,
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Payload of the signal.")] = "null",
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    said = {"name": name, "payload": _value("JSON", payload)}
    asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(_operate("signal", agent, run_id, said, asked))


@app.command(help=COMMANDS["approve"].help)
def approve(
    agent: AgentName,
    run_id: RunId,
    approved: Annotated[bool, typer.Option("--yes/--no", help="The answer.")],
    question: Annotated[
        str | None, typer.Option(help="The question's id; default: the run's current question.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="Note to the reader of the answer.")] = None,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    if question is None:
        question = _question(agent, run_id)
        typer.echo(f"question {question}", err=True)
    said = {"question": question, "approved": approved, "note": note}
    asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(_operate("approve", agent, run_id, said, asked))


def _question(agent: str, run_id: str) -> str:
    """Return the run's present question. Exits with status 1 if there is none."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, _ = resolve_agent(agent)
    checked_run_id(run_id)

    async def read() -> RunView | None:
        async with run_reader(name, [run_id]) as reader:
            return await reader.latest(name, run_id)

    run = asyncio.run(read())
    if run is None:
        raise no_run(name, run_id)
    if run.wait is None or run.wait.question is None:
        typer.echo(
            f"surefoot: SF4111: run {run_id} has no open question; it is {run.status}", err=True
        )
        raise typer.Exit(EXIT_REFUSED)
    return run.wait.question


@app.command("resolve", help=COMMANDS["resolve"].help)
def resolve_call(
    agent: AgentName,
    run_id: RunId,
    happened: Annotated[
        str | None, typer.Option(metavar="JSON", help="It happened, with this result.")
    ] = None,
    did_not: Annotated[
        bool, typer.Option("--did-not", help="It did not happen; do it now.")
    ] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Let the run fail.")] = False,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    choices = {"happened": happened is not None, "did_not": did_not, "give_up": give_up}
    chosen = [choice for choice, given in choices.items() if given]
    if len(chosen) != 1:
        raise ConfigError("SF1007", "give exactly one of --happened JSON, --did-not and --give-up")
    said: JsonObject = {"choice": chosen[0]}
    if happened is not None:
        said["result"] = _value("--happened", happened)
    asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(_operate("resolve", agent, run_id, said, asked))


@app.command(help=COMMANDS["rewind"].help)
def rewind(
    agent: AgentName,
    run_id: RunId,
    seq: Annotated[
        int, typer.Option("--to", min=0, metavar="SEQ", help="Version; see `runs versions`.")
    ],
    effects: EffectsOption = "suppress",
    repeat: Repeat = None,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    _command("pause", run_id, {}, asked)  # checks its id and `by`
    name, _ = resolve_agent(agent)

    async def ask(operator: Operator, reader: LogRunReader, chosen: str) -> CommandReply:
        return await operator.rewind(
            reader,
            name,
            run_id,
            seq,
            command_id=chosen,
            emit=effects == "re-emit",
            repeat=repeat or (),
            by=by,
        )

    raise typer.Exit(ask_owner(name, run_id, ask, asked))


@app.command()
def fork(
    agent: AgentName,
    run_id: RunId,
    seq: Annotated[
        int, typer.Option("--at", min=0, metavar="SEQ", help="Version; see `runs versions`.")
    ],
    new_id: Annotated[
        str | None, typer.Option("--run-id", help="Id of the new run; default: a generated one.")
    ] = None,
    repeat: Repeat = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Start a copy of a run from its state after one of its steps.

    A ctx.once that this run has made since then is in doubt for the copy: the copy asks the call's
    probe first, or waits for a person.
    """
    new = checked_run_id(SystemClock().unique() if new_id is None else new_id)
    name, _ = resolve_agent(agent)

    async def ask(operator: Operator, reader: LogRunReader, chosen: str) -> CommandReply:
        return await operator.fork(reader, name, run_id, seq, new_id=chosen, repeat=repeat or ())

    asked = Asked(command_id=new, by=None, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(ask_owner(name, run_id, ask, asked, option="--run-id", others=[new]))


def _operate(word: str, agent: str, run_id: str, said: Mapping[str, Any], asked: Asked) -> int:
    """Send the command and print its outcome; returns the exit status."""
    wanted = _command(word, run_id, said, asked)
    name, _ = resolve_agent(agent)

    async def ask(operator: Operator, _: LogRunReader, _id: str) -> CommandReply:
        return await operator.ask(name, run_id, wanted)

    return ask_owner(name, run_id, ask, replace(asked, command_id=wanted.id))


def _command(word: str, run_id: str, said: Mapping[str, Any], asked: Asked) -> Operation:
    """Build the command, with a new id unless one is given.

    Raises: ConfigError — a field or the id is invalid.
    """
    everything = {**said, "by": asked.by, "id": asked.command_id}
    given = {key: value for key, value in everything.items() if value is not None}
    try:
        return command(word, given, run_id=run_id, new_id=SystemClock().unique())
    except BadArgument as error:
        raise ConfigError(error.number, error.message) from None


def _value(option: str, text: str) -> Any:
    """Parse JSON that was typed.

    Raises: ConfigError — it is not strict JSON.
    """
    try:
        return parse_json(text.encode("utf-8", "surrogateescape"))
    except BadPayload as error:
        raise ConfigError("SF1007", f"{option}: {error}") from None
