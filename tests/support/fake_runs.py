"""Runs and their owners in memory, behind the ports that an operator uses: commands go through the
wire format and the real state machine, and are answered as on Kafka."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.schemas.codec.codec import decode
from surefoot.schemas.codec.records import AvroEvent
from surefoot.schemas.pointer import escaped
from surefoot.state.errors import StateError, Unavailable
from surefoot.state.machine.commands import WireCommand
from surefoot.state.machine.model import Entry, EventRecord, Run, Status
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord, Position, ProducerRecord
from surefoot.state.reading.ports import Backlog, RunView
from surefoot.state.reading.runs import RunSummary, shown
from surefoot.state.reading.versions import Line
from surefoot.state.records.encoding import (
    Wire,
    command_out,
    decode_command,
    input_of,
    start_of,
)
from tests.support.run_driver import START, Life

AGENT = "x"


@dataclass
class World:
    """Implements Commands, RunReader and Versions for the agent `x` of tests.support.run_driver."""

    lives: dict[str, Life] = field(default_factory=dict)
    #: decoded events of all runs
    history: list[AvroEvent] = field(default_factory=list)
    #: decoded commands
    sent: list[WireCommand] = field(default_factory=list)
    #: nobody owns the partitions: commands are written and not answered
    asleep: bool = False
    #: raised instead of writing a command
    away: Exception | None = None
    watching: Counter[str] = field(default_factory=Counter)
    _queues: dict[str, list[asyncio.Queue[AvroEvent]]] = field(default_factory=dict)
    _wire: Wire = field(default_factory=lambda: Wire("app", AgentTopics("app", AGENT), 1))

    def life(self, run_id: str) -> Life:
        return self.lives.setdefault(run_id, Life())

    def started(self, run_id: str = "r", **changes: Any) -> Life:
        life = self.life(run_id)
        self.lead(run_id, lambda: life.legal(replace(START, run_id=run_id, **changes)))
        return life

    def lead(self, run_id: str, act: Callable[[], object]) -> None:
        """Have something happen to a run, and tell whoever watches."""
        life = self.life(run_id)
        act()
        for record in life.records:
            if isinstance(record, EventRecord):
                self._tell(run_id, record._replace(run_id=run_id))

    def _tell(self, run_id: str, record: EventRecord) -> None:
        value = self._wire.out(record, run_id, 0, (), 0).value
        event = decode(value, "Event")[1]
        self.history.append(event)
        for queue in self._queues.get(run_id, []):
            queue.put_nowait(event)

    def run(self, run_id: str = "r") -> Run:
        return self.life(run_id).run

    # Commands ---------------------------------------------------------------------------------

    async def start(self, agent: str, run_id: str, payload: bytes, **more: Any) -> Position:
        return await self.send(agent, run_id, "start", payload=payload, **more)

    async def send(
        self,
        agent: str,
        run_id: str,
        kind: str,
        *,
        stored: bool = False,
        payload: bytes = b"null",
        deadline_s: float,
        **fields: Any,
    ) -> Position:
        assert agent == AGENT
        assert deadline_s > 0
        assert self.watching[run_id], "the answer would be missed"
        if self.away is not None:
            raise self.away
        await asyncio.sleep(0)
        payload = payload if stored else escaped(payload)
        out = command_out(
            "app", 1, agent, run_id=run_id, kind=kind, sent_ms=1, payload=payload, **fields
        )
        command = decode_command(ConsumerRecord("commands", 0, 0, 1, out.key, out.value))
        self.sent.append(command)
        if not self.asleep:
            self._obey(command)
        return Position(0, len(self.sent) - 1)

    def _obey(self, command: WireCommand) -> None:
        life = self.life(command.run_id)
        if command.kind != "start":
            event = input_of(command)
        elif life.maybe is not None:
            return  # a repeated start says nothing
        else:
            event = start_of(command, AGENT, 3, "a")
        self.lead(command.run_id, lambda: life.do(event))

    # RunReader --------------------------------------------------------------------------------

    async def get(self, _agent: str, run_id: str) -> RunView | None:
        life = self.lives.get(run_id)
        return None if life is None or life.maybe is None else shown(life.run)

    async def latest(self, agent: str, run_id: str) -> RunView | None:
        return await self.get(agent, run_id)

    async def list(
        self, _agent: str, *, status: Status | None = None, limit: int = 50
    ) -> list[RunView]:
        runs = [shown(life.run) for life in self.lives.values() if life.maybe is not None]
        return [run for run in runs if status in (None, run.status)][:limit]

    async def counts(self, _agent: str) -> dict[tuple[int, Status], int]:
        runs = [life.run for life in self.lives.values() if life.maybe is not None]
        return dict(Counter((run.version, run.status) for run in runs))

    async def backlog(self, _agent: str, _run_id: str) -> Backlog:
        return Backlog(partition=0, commands=1, tasks=2, workers=0 if self.asleep else 1)

    async def events(
        self, _agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[tuple[int, AvroEvent], None]:
        for offset, event in enumerate(self.history):
            if event["run_id"] == run_id and offset > (-1 if after is None else after):
                yield offset, event

    @asynccontextmanager
    async def answers(self, _agent: str, run_id: str) -> AsyncIterator[AsyncIterator[AvroEvent]]:
        queue: asyncio.Queue[AvroEvent] = asyncio.Queue()
        self._queues.setdefault(run_id, []).append(queue)
        self.watching[run_id] += 1

        async def taken() -> AsyncIterator[AvroEvent]:
            while True:
                yield await queue.get()

        try:
            yield taken()
        finally:
            self.watching[run_id] -= 1
            self._queues[run_id].remove(queue)

    # Versions ---------------------------------------------------------------------------------

    async def summaries(self, _agent: str, run_ids: Collection[str]) -> dict[str, RunSummary]:
        return {
            run_id: RunSummary(
                run_id=run_id,
                version=run.version,
                status=run.status,
                seq=run.seq,
                step=run.step,
                attempt=run.attempt,
                created_ms=run.created_ms,
                updated_ms=run.updated_ms,
                due_ms=run.due_ms,
                failure=None,
                epoch=run.epoch,
                child=run.parent is not None,
                waits=None,
                offset=0,
            )
            for run_id in run_ids
            if run_id in self.lives and (run := self.lives[run_id].maybe) is not None
        }

    async def lines(
        self, agent: str, run_ids: Collection[str], keep: Callable[[int, str], bool]
    ) -> dict[str, Line]:
        lines = {run_id: Line(keep) for run_id in await self.summaries(agent, run_ids)}
        for event in self.history:
            if event["run_id"] in lines:
                lines[event["run_id"]].apply(event)
        return lines

    async def messages(self, _agent: str, run_id: str, count: int) -> tuple[bytes, ...]:
        slots = self.life(run_id).entries
        found = [entry.value for n in range(count) if (entry := slots.get(f"m:{n}"))]
        if len(found) < count:
            told = f"of {count} messages of {run_id} only {len(found)} are left"
            raise StateError("SF2007", told)
        return tuple(value or b"null" for value in found)

    async def calls(self, _agent: str, run_id: str) -> tuple[Entry, ...]:
        entries = self.life(run_id).entries.values()
        return tuple(entry for entry in entries if entry.slot.startswith(("c:", "o:", "a:")))


def copied(record: ProducerRecord, offset: int) -> ConsumerRecord:
    """The record as it is read."""
    return ConsumerRecord(
        record.topic, record.partition, offset, 1, record.key, record.value, record.headers
    )


AWAY = Unavailable("SF3002", "secret-broker:9092 is away")
