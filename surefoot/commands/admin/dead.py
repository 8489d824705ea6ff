"""Dead letters: list them, and redrive those of topic events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import typer

from surefoot.commands.groups import group
from surefoot.commands.options import AgentFiles, Json, Limit
from surefoot.commands.output import format_field, print_each
from surefoot.commands.readers import existing, require_topic
from surefoot.consumers.topic_triggers.mapping import EventMapping, FramedEvent, Mapped, NotYet
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.trigger import event_mapping
from surefoot.infra.readers.dead_letters import DeadReader
from surefoot.infra.registry.schema_source import open_schemas
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.state.declare.agent import Agent
from surefoot.state.errors.catalogue import numbered
from surefoot.state.machine.model import Failure
from surefoot.state.names.topics import dead_topic
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.reading.dead_letters import DeadLetter, dead_letter, dead_letter_json, event_of
from surefoot.state.reading.explain import clock_time

Code = Annotated[str | None, typer.Option(help="Only those with this code.")]

app = group("Show dead letters, and redrive events of topics.")


@app.command("list")
def list_dead(
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    code: Code = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """Show unusable inputs and runs out of attempts, newest first."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged

    def wanted(each: DeadLetter) -> bool:
        return agent in (None, each.agent) and code in (None, each.code)

    async def read() -> list[DeadLetter]:
        async with _opened() as (_, _, reader):
            return await reader.latest(wanted, limit)

    titles = ("OFFSET", "TIME", "AGENT", "OF", "WHY")
    print_each(asyncio.run(read()), dead_letter_json, titles, _cells, wraps="WHY", as_json=as_json)


def _cells(each: DeadLetter) -> tuple[str, ...]:
    return (
        str(each.offset),
        clock_time(each.at_ms),
        each.agent or "",
        _of(each),
        f"{numbered(each.code)}: {each.message}",
    )


def _of(letter: DeadLetter) -> str:
    if letter.run_id is not None:
        return f"run {letter.run_id}"
    source = letter.source
    return "" if source is None else f"{source.topic}/{source.partition}/{source.offset}"


@app.command("show")
def show_dead(
    offset: Annotated[int, typer.Argument(min=0, help="As `surefoot dead list` shows it.")],
    as_json: Json = False,
) -> None:
    """Show one dead letter. Exit status 1 when it does not exist."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged

    async def read() -> ConsumerRecord | None:
        async with _opened() as (_, _, reader):
            return await reader.find(offset)

    record = asyncio.run(read())
    if record is None:
        typer.echo(f"surefoot: there is no dead letter at offset {offset}", err=True)
        raise typer.Exit(1)
    fields = dead_letter_json(dead_letter(record))
    texts = {
        "key": _text(record.key),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "value": _text(record.value),
    }
    if as_json:
        typer.echo(json.dumps(fields | texts))
        return
    for field, value in fields.items():
        if value is not None and field != "do":
            typer.echo(f"{field:<13}{format_field(field, value)}")
    for line in fields["do"]:
        typer.echo(f"{'do':<13}{printable(line)}")
    for name, header in record.headers:
        typer.echo(f"{'header':<13}{printable(f'{name}: {_text(header)}')}")
    for field in ("key", "value"):
        typer.echo(f"{field:<13}{printable(str(texts[field]))}")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Selects the dead letters to redrive; None: any."""

    offsets: Collection[int] = ()
    code: str | None = None
    topic: str | None = None

    def takes(self, letter: DeadLetter) -> bool:
        if self.offsets and letter.offset not in self.offsets:
            return False
        topic = None if letter.source is None else letter.source.topic
        return self.code in (None, letter.code) and self.topic in (None, topic)


class PutBack(NamedTuple):
    """The outcome of redriving one dead letter, for one agent."""

    offset: int
    agent: str
    did: Literal["started", "is there", "would start", "not wanted", "still dead", "too old"]
    run_id: str | None = None
    why: str | None = None


@app.command()
def redrive(
    agent_files: AgentFiles,
    offset: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this one; repeat the option for several.")
    ] = None,
    code: Code = None,
    topic: Annotated[str | None, typer.Option(help="Only events of this topic.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Redrive events of topics: map each again with these files, and start the runs
    that do not exist yet. Retry a run that is out of attempts with `surefoot runs retry`. Exit
    status 1 when some still cannot be used, or there was none."""
    chosen = Chosen(offsets=frozenset(offset or ()), code=code, topic=topic)
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents = load_agents(agent_files)

    async def go() -> bool:
        clean, some = True, False
        async with _opened() as (settings, backend, reader), open_schemas(settings) as schemas:
            clock = SystemClock()
            mappings = {
                (agent.name, topic): event_mapping(agent, topic, settings, clock, schemas)
                for agent in agents
                for topic in agent.event_triggers
            }
            one = _Redrive(settings, backend, mappings, chosen, clock, dry_run=dry_run)
            try:
                async for page in reader.everything():
                    for each in await one.put_back(page):
                        _tell(each, as_json=as_json)
                        some = True
                        clean = clean and each.did not in ("still dead", "too old")
            finally:
                await one.stop()
        if not some:
            typer.echo(
                "surefoot: no dead letter of a topic that these agents listen to matches",
                err=True,
            )
        return clean and some

    raise typer.Exit(0 if asyncio.run(go()) else 1)


def _tell(each: PutBack, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(each._asdict()))
        return
    of = " ".join(filter(None, (each.agent, each.run_id, each.why)))
    typer.echo(f"{each.did:<12}{each.offset:>8}  {printable(of)}")


class _Redrive:
    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        mappings: Mapping[tuple[str, str], EventMapping],
        chosen: Chosen,
        clock: SystemClock,
        *,
        dry_run: bool,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._mappings = mappings
        self._chosen = chosen
        self._clock = clock
        self._dry_run = dry_run
        self._appender = backend.appender()

    async def put_back(self, page: Sequence[ConsumerRecord]) -> list[PutBack]:
        """Redrive a page of dead letters.

        Raises: Unavailable — some runs may have been started; repeating it starts no second one.
        """
        done: list[PutBack] = []
        starts: list[tuple[PutBack, Mapped, EventMapping]] = []
        for record in page:
            letter, event = dead_letter(record), event_of(record)
            if event is None or not self._chosen.takes(letter):
                continue
            for mapping in self._of(letter, event.topic):
                told = PutBack(letter.offset, mapping.agent.name, "started")
                if not self._chosen.offsets and self._is_old(letter, mapping.agent):
                    why = "its run may have ended and been forgotten; name it with --offset"
                    done.append(told._replace(did="too old", why=why))
                    continue
                mapped = await self._mapped(mapping, event)
                if mapped.failure is not None:
                    why = f"{numbered(mapped.failure.code)}: {mapped.failure.message}"
                    done.append(told._replace(did="still dead", why=why))
                elif mapped.out is None:
                    done.append(told._replace(did="not wanted"))
                else:
                    run_id = (mapped.out.key or b"").decode()
                    starts.append((told._replace(run_id=run_id), mapped, mapping))
        asked = [(told.agent, told.run_id or "") for told, _, _ in starts]
        there = await existing(asked, self._backend, self._settings)
        for told, mapped, mapping in starts:
            done.append(await self._start(told, mapped, mapping, there))
        return sorted(done)

    def _of(self, letter: DeadLetter, topic: str) -> list[EventMapping]:
        """Return the mappings of the letter's agent; if it names none, of every agent that
        listens."""
        return [
            mapping
            for (name, listened), mapping in self._mappings.items()
            if listened == topic and letter.agent in (None, name)
        ]

    def _is_old(self, letter: DeadLetter, agent: Agent) -> bool:
        own = agent.flow.dedup_ms if agent.flow is not None else None
        window_ms = self._settings.dedup_window_s * 1000 if own is None else own
        return self._clock.now_ms() - letter.at_ms > window_ms

    async def _mapped(self, mapping: EventMapping, event: ConsumerRecord) -> Mapped:
        mapping.schemas.ask_again()
        try:
            prepared = await mapping.prepare(event)
        except NotYet as missing:
            return Mapped(None, Failure(code="schema_missing", message=str(missing)))
        if not isinstance(prepared, FramedEvent):
            return prepared
        return await asyncio.to_thread(mapping.map, prepared, self._clock.now_ms())

    async def _start(
        self,
        told: PutBack,
        mapped: Mapped,
        mapping: EventMapping,
        there: Collection[tuple[str, str | None]],
    ) -> PutBack:
        if (told.agent, told.run_id) in there:
            return told._replace(did="is there")
        if self._dry_run:
            return told._replace(did="would start")
        assert mapped.out is not None
        await mapping.store(mapped)
        await self._append(mapped.out, told)
        return told

    async def _append(self, out: ProducerRecord, told: PutBack) -> None:
        what = f"the start command of {told.run_id}"
        await self._appender.append(out, what, deadline_s=self._settings.deadlines.send_s)

    async def stop(self) -> None:
        await self._appender.stop()


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Settings, Backend, DeadReader]]:
    settings = load_settings()
    topic = dead_topic(settings.app)
    async with open_backend(settings, SystemClock()) as backend:
        await require_topic(topic, backend)
        reader = DeadReader(settings, backend)
        try:
            yield settings, backend, reader
        finally:
            await reader.stop()
