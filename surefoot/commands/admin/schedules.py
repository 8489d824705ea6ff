"""List and control schedules. Each is a run of the built-in agent `AGENT.schedules`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import typer

from surefoot.commands.asking import Asked, exit_status
from surefoot.commands.groups import group
from surefoot.commands.options import AgentName, By, CommandIdOption, Json, WaitOption
from surefoot.commands.output import print_each
from surefoot.commands.readers import require_agent, resolve_agent
from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.readers.schedules import read_schedules
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.commands.operations import CommandReply, Operator
from surefoot.producers.commands.schedules import signal_schedule, steer
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.machine.model import Run, State
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.names.partitioner import partition_of
from surefoot.state.scheduling.book import (
    QUEUE_MAX,
    Book,
    Due,
    book_of,
    instant,
    next_ticks,
    starts_ms,
    tick_run_id,
    ticks_between,
)
from surefoot.state.scheduling.view import ScheduleJson, schedule_json, unknown_json

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]

app = group("List, pause, resume, trigger and backfill schedules.")


@app.command("list")
def list_schedules(agent: AgentName, as_json: Json = False) -> None:
    """Show an agent's schedules: state, last and next ticks, runs, skipped ticks."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, declared = resolve_agent(agent)
    known = asyncio.run(_read(name))
    now_ms = SystemClock().now_ms()
    told = [
        schedule_json(run, book_of(state), now_ms) for state in known.values() if (run := state.run)
    ]
    for new in sorted(set(declared.schedules if declared else ()) - known.keys()):
        assert declared is not None
        spec = declared.schedules[new].spec
        told.append(unknown_json(new, spec, "not begun: no worker has taken it yet"))
    titles = ("SCHEDULE", "CRON", "ZONE", "STATE", "LAST TICK", "NEXT TICK", "RUNS", "SKIPPED")
    print_each(told, dict, titles, _cells, wraps="STATE", as_json=as_json)


def _cells(line: ScheduleJson) -> tuple[str, ...]:
    return (
        line["schedule"],
        line["cron"],
        line["tz"],
        line["state"],
        _local(line["last"]),
        _local(line["next"]),
        str(line["runs"]),
        str(line["skipped"]),
    )


def _local(iso: str | None) -> str:
    return "" if iso is None else f"{datetime.fromisoformat(iso):%a %Y-%m-%d %H:%M:%S%z}"


@app.command("next")
def show_next(
    agent: AgentName,
    schedule: ScheduleName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000)] = 5,
    as_json: Json = False,
) -> None:
    """Show the next ticks of a schedule, in its time zone and in UTC.

    Given the agent's file or module, shows what it declares; nothing has to be running.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, declared = resolve_agent(agent)
    now_ms = SystemClock().now_ms()
    if declared is not None and schedule in declared.schedules:
        spec = declared.schedules[schedule].spec
        book = Book(name=schedule, spec=spec, until_ms=now_ms)
    else:
        _, book = _known(name, declared, schedule, asyncio.run(_read(name)))
    for at_ms in next_ticks(book.spec, now_ms, count):
        at = instant(at_ms)
        local = at.astimezone(book.spec.times.zone)
        starts = instant(starts_ms(book, at_ms))
        run_id = tick_run_id(schedule, Due(at_ms=at_ms))
        if as_json:
            told = {"tick": local.isoformat(), "starts": starts.isoformat(), "run_id": run_id}
            typer.echo(json.dumps(told))
        else:
            late = f", starts {starts:%H:%M:%S}Z" if starts != at else ""
            typer.echo(f"{local:%a %Y-%m-%d %H:%M:%S %Z}  ({at:%Y-%m-%d %H:%M:%S}Z{late})")


_VERBS: dict[Literal["pause", "resume"], str] = {
    "pause": "Pause a schedule: ticks are skipped, and queued runs are dropped.",
    "resume": "Resume a paused schedule from now on, or retry one that has failed.",
}


def _verb_command(verb: Literal["pause", "resume"], told: str) -> None:
    @app.command(verb, help=told)
    def tell(
        agent: AgentName,
        schedule: ScheduleName,
        command_id: CommandIdOption = None,
        by: By = None,
        wait_s: WaitOption = 10.0,
        as_json: Json = False,
    ) -> None:
        async def ask(way: _Way) -> CommandReply:
            return await steer(way.operator, way.run, verb, command_id=way.id, by=way.by)

        asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
        raise typer.Exit(_asked(agent, schedule, ask, asked, verb))


for _verb, _told in _VERBS.items():
    _verb_command(_verb, _told)


@app.command()
def trigger(
    agent: AgentName,
    schedule: ScheduleName,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Start a run of a schedule now, after the one in progress; also of a paused schedule."""

    async def ask(way: _Way) -> CommandReply:
        run_id = tick_run_id(schedule, Due(at_ms=0, kind="trigger", id=way.id))
        typer.echo(f"run {run_id}", err=as_json)
        return await steer(way.operator, way.run, "trigger", command_id=way.id, by=way.by)

    asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(_asked(agent, schedule, ask, asked, "trigger"))


@app.command()
def backfill(
    agent: AgentName,
    schedule: ScheduleName,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Included.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Excluded.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs, and write nothing.")
    ] = False,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Start the runs of past ticks. A tick that had its run gets no second one."""

    async def ask(way: _Way) -> CommandReply | None:
        book = way.book
        from_ms, to_ms = _moment("--from", start, book), _moment("--to", end, book)
        if to_ms <= from_ms or to_ms > way.now_ms:
            raise ConfigError("SF1028", "--to must be after --from, and not in the future")
        room = QUEUE_MAX - len(book.queue)
        found = ticks_between(book.spec, from_ms, to_ms, room + 1)
        if len(found) > room:
            first = instant(found[-1]).astimezone(book.spec.times.zone).isoformat()
            raise ConfigError(
                "SF1028",
                f"the queue has room for {room} ticks and the interval has more; end it with "
                f"--to {first}, and continue from there when these are done",
            )
        for at_ms in found:
            typer.echo(tick_run_id(schedule, Due(at_ms=at_ms, kind="backfill")), err=not dry_run)
        if dry_run or not found:
            typer.echo(f"{len(found)} ticks", err=True)
            return None
        said = {"do": "backfill", "from_ms": from_ms, "to_ms": to_ms}
        return await signal_schedule(way.operator, way.run, said, command_id=way.id, by=way.by)

    asked = Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(_asked(agent, schedule, ask, asked, "backfill"))


def _moment(option: str, text: str, book: Book) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            "SF1028",
            f"{option} must be a time such as 2026-01-31T12:00, in the schedule's zone unless it "
            f"names another; got {text[:80]!r}",
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=book.spec.times.zone)
    return round(at.timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One schedule as it is now, and what is needed to send it a command."""

    id: str
    run: Run
    book: Book
    now_ms: int
    operator: Operator
    by: str | None


def _asked(
    agent: str,
    schedule: str,
    ask: Callable[[_Way], Awaitable[CommandReply | None]],
    asked: Asked,
    verb: str,
) -> int:
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, declared = resolve_agent(agent)
    clock = SystemClock()
    chosen = asked.command_id or clock.unique()

    async def go() -> CommandReply | None:
        settings, keeper = load_settings(), schedules_agent_name(name)
        async with open_backend(settings, clock) as backend:
            await require_agent(keeper, settings, backend)
            known = await read_schedules(settings, backend, name)
            run, book = _known(name, declared, schedule, known)
            place = {partition_of(schedule, settings.partitions)}
            reader = LogRunReader(settings, backend, [keeper], place)
            await reader.start()
            appender = backend.appender()
            try:
                operator = Operator(
                    commands=LogCommands(settings, appender, clock),
                    reader=reader,
                    clock=clock,
                    send_s=settings.deadlines.send_s,
                    answer_s=asked.wait_s,
                )
                way = _Way(
                    id=chosen,
                    run=run,
                    book=book,
                    now_ms=clock.now_ms(),
                    operator=operator,
                    by=asked.by,
                )
                return await ask(way)
            finally:
                await stop_all(appender, reader)

    try:
        reply = asyncio.run(go())
    except Unavailable as error:
        error.message += f"; repeat it with --id {chosen}"
        raise
    if reply is None:
        return 0
    if asked.as_json:
        typer.echo(json.dumps(reply.json()))
    elif reply.accepted is None:
        typer.echo(
            f"surefoot: no answer in {asked.wait_s:g} s, but the command was sent. Repeat it with "
            f"--id {chosen}, or look with `surefoot schedules list {agent}`",
            err=True,
        )
    elif not reply.accepted:
        typer.echo(f"surefoot: {reply.code}: {printable(reply.message or '')}", err=True)
    else:
        typer.echo(f"{verb}: accepted by schedule {schedule} (command {chosen})")
    return exit_status(reply)


async def _read(name: str) -> dict[str, State]:
    settings = load_settings()
    async with open_backend(settings, SystemClock(), access="read") as backend:
        await require_agent(schedules_agent_name(name), settings, backend)
        return await read_schedules(settings, backend, name)


def _known(
    name: str, declared: Agent | None, schedule: str, known: Mapping[str, State]
) -> tuple[Run, Book]:
    """Return the schedule's run and its book.

    Raises: ConfigError — there is no such schedule.
    """
    state = known.get(schedule, State(None))
    book = book_of(state)
    if state.run is not None and book is not None:
        return state.run, book
    if declared is not None and schedule in declared.schedules:
        raise ConfigError(
            "SF1027", f"schedule {schedule!r} has not begun; start a worker of {name!r}"
        )
    raise ConfigError(
        "SF1027",
        f"agent {name!r} has no schedule {schedule!r}; its schedules: {', '.join(known) or 'none'}",
    )
