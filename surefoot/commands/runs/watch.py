"""Follows one run until it is over: a line per event, and on a terminal what it is doing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from typing import Any, Protocol

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from surefoot.commands.groups import commands
from surefoot.commands.options import AgentName, Json, RunId
from surefoot.commands.readers import checked_run_id, resolve_agent, run_reader
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.machine.model import TERMINAL
from surefoot.state.reading.explain import clock_time
from surefoot.state.reading.ports import RunView
from surefoot.state.reading.runs import EventJson, event_json, failure_text, run_json

Show = Callable[[EventJson], None]
#: most characters of a result or a payload in one line
_SHOWN = 120

app = commands()


class Reader(Protocol):
    """The part of `ports.RunReader` that following needs."""

    def events(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[tuple[int, AvroEvent], None]: ...

    async def get(self, agent: str, run_id: str) -> RunView | None: ...

    async def latest(self, agent: str, run_id: str) -> RunView | None: ...


@app.command("watch")
def watch_run(agent: AgentName, run_id: RunId, as_json: Json = False) -> None:
    """Follow a run until it ends. Exit status 1 when it failed or was cancelled.

    Ctrl-C stops watching, not the run.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    name, _ = resolve_agent(agent)
    checked_run_id(run_id)
    with json_lines() if as_json else lines(plain_console()) as show:
        run = asyncio.run(_followed(run_reader(name, [run_id]), name, run_id, show))
    if not as_json:
        typer.echo(ending(run))
    raise typer.Exit(0 if run.status == "completed" else 1)


async def _followed(
    opened: AbstractAsyncContextManager[Reader], name: str, run_id: str, show: Show
) -> RunView:
    async with opened as reader:
        return await follow(reader, name, run_id, show)


async def follow(reader: Reader, name: str, run_id: str, show: Show) -> RunView:
    """Pass each event to `show`, once and in order; returns the run when it is over.

    A stream that ends earlier, because this process was too slow for it, is resumed.
    """
    after: int | None = None
    while True:
        async with aclosing(reader.events(name, run_id, after)) as events:
            async for number, event in events:
                after = number
                show(event_json(event))
        run = await reader.latest(name, run_id) or await reader.get(name, run_id)
        if run is not None and run.status in TERMINAL:
            return run


@contextmanager
def json_lines() -> Iterator[Show]:
    yield lambda event: typer.echo(json.dumps(event))


@contextmanager
def lines(console: Console) -> Iterator[Show]:
    """Print a line per event; on a terminal, with one more below: what the run does and since
    when."""
    if not console.is_terminal:
        yield lambda event: console.print(line(event), soft_wrap=True)
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("waiting for its first event", total=None)

        def show(event: EventJson) -> None:
            console.print(line(event), soft_wrap=True)
            progress.reset(task, description=doing(event))

        yield show


def line(event: EventJson) -> str:
    """Format one event for people."""
    told = [clock_time(event["at_ms"]), event["type"].ljust(17)]
    if event["step"]:
        told.append(event["step"])
    if event["next_step"]:
        told.append(f"-> {event['next_step']}")
    if event["type"] == "step.retrying":
        told.append(f"(attempt {event['attempt']})")
    if event["name"]:
        told.append(event["name"])
    if event["by"]:
        told.append(f"by {event['by']}")
    told += [_short(event[name]) for name in ("result", "failure") if event[name] is not None]
    if event["wait"] is not None and event["status"] == "waiting":
        told.append(f"waits for {event['wait']['kind']}")
    return printable(" ".join(told))


def doing(event: EventJson) -> str:
    """Say what the run does after that event."""
    step = event["next_step"] or event["step"]
    return printable(f"{event['status']} at {step}" if step else event["status"])


def ending(run: RunView) -> str:
    told = run_json(run)
    came = told["failure"] if run.status != "completed" else told["result"]
    return printable(f"{run.run_id} is {run.status}" + (f": {_short(came)}" if came else ""))


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and {"code", "message"} <= value.keys():
        text = failure_text(value)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
