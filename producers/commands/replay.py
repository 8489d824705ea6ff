"""Going through a stretch of an agent's partitions again, after an incident.

    skip-completed   the start commands and tasks of the stretch are appended again: their owners
                     recognise finished work and skip it, what was lost is done
    rerun            every run that the stretch touches is sent back to the version before its first
                     execution of a step, and goes on from there

Either can be repeated: a rewind's id is a function of the replay's id and the run, and a copy of a
record that is not needed changes nothing. Nothing is held in memory but the names of the runs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from surefoot.producers.commands.operations import CommandReply, Operator, rewind_to, thread_of
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.state.errors import ConfigError, RecordTooLarge, StateError, Unavailable
from surefoot.state.machine.model import TERMINAL
from surefoot.state.ports.log import ConsumerRecord, InputKind, ProducerRecord
from surefoot.state.reading.runs import RunSummary
from surefoot.state.reading.versions import Version, Versions
from surefoot.state.records.encoding import decode_command, decode_task

Unit = Literal["time", "offset"]

#: records appended, and runs rewound, at a time
_AT_ONCE = 64
_OFFSET_DIGITS = 18
#: of a step's version that a run cannot go back to, as its children or its pool cannot
_NO_WAY_BACK = frozenset({"children", "pool", "budget"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """From (included) and to (excluded; None: what is the end now), both offsets or both epoch
    milliseconds."""

    unit: Unit
    start: int
    end: int | None


def bounds(start: str, end: str | None) -> Bounds:
    """What --from and --to say: offsets, or ISO 8601 times with a zone. Pure.

    Raises: ConfigError — with what is wrong.
    """
    unit, first = _moment("--from", start)
    if end is None:
        return Bounds(unit, first, None)
    last_unit, last = _moment("--to", end)
    if last_unit != unit:
        raise ConfigError("SF6001", "--from and --to must both be times, or both offsets")
    if last <= first:
        raise ConfigError("SF6001", f"--to ({end}) must be after --from ({start})")
    return Bounds(unit, first, last)


def _moment(option: str, text: str) -> tuple[Unit, int]:
    if text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS:
        return "offset", int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ConfigError(
            "SF6001",
            f"{option} is an offset such as 4711, or a time with its zone such as "
            f"2026-01-31T12:00:00Z; got {text[:80]!r}",
        )
    return "time", int(time.timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSlice:
    """A part of one input topic's partition."""

    kind: InputKind
    partition: int
    #: offsets: the first, and the one after the last
    start: int
    end: int
    #: it begins where the topic does now, and earlier records have expired
    cut: bool = False


class Stretch(Protocol):
    """The input topics of an agent, to be read and appended to."""

    def read(self, piece: OffsetSlice) -> AsyncIterator[ConsumerRecord]:
        """Committed records, in order. Raises Unavailable."""

    async def append(self, record: ProducerRecord) -> None:
        """Write one record. Raises Unavailable: it may or may not have been written."""


@dataclass(slots=True)
class Touched:
    """What the stretch has of one run."""

    #: it is started here
    starts: int = 0
    #: numbers of the steps that are asked for here
    tasks: set[int] = field(default_factory=set)
    records: int = 0


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What is to be done with one run, for people."""

    run_id: str
    status: str
    what: str
    #: False: it is left as it is
    acts: bool = False


@dataclass(slots=True, kw_only=True)
class Replay:
    """One replay of one agent. `id` makes it safe to repeat."""

    id: str
    agent: str
    stretch: Stretch
    versions: Versions
    pieces: Sequence[OffsetSlice]

    async def touched(self) -> dict[str, Touched]:
        """The runs of the stretch, in the order in which they come."""
        runs: dict[str, Touched] = {}
        for piece in self.pieces:
            async for record in self.stretch.read(piece):
                if (said := _said(piece.kind, record)) is None:
                    continue
                run_id, seq = said
                run = runs.setdefault(run_id, Touched())
                run.records += 1
                if seq is None:
                    run.starts += 1
                else:
                    run.tasks.add(seq)
        return runs

    # Appending again ---------------------------------------------------------------------------

    async def foresee(self, touched: Mapping[str, Touched]) -> list[ReplayRow]:
        """What appending the stretch again would do."""
        found = await self.versions.summaries(self.agent, touched)
        return [_foreseen(run_id, found.get(run_id), run) for run_id, run in touched.items()]

    async def append(self) -> int:
        """Append the start commands and tasks of the stretch again; returns how many.

        Key and value are copied byte for byte. Headers that tell which transaction wrote a record
        are true of that one only: the copy says which replay it comes from.

        Raises: Unavailable — some may have been appended; repeat it.
        """
        count = 0
        for piece in self.pieces:
            batch: list[ProducerRecord] = []
            async for record in self.stretch.read(piece):
                if _said(piece.kind, record) is None:
                    continue
                batch.append(self._copy(record))
                if len(batch) == _AT_ONCE:
                    count += await self._append(batch)
                    batch = []
            count += await self._append(batch)
        return count

    def _copy(self, record: ConsumerRecord) -> ProducerRecord:
        kept = [header for header in record.headers if not header[0].startswith("sf-")]
        headers = (*kept, ("sf-replay", self.id.encode()))
        return ProducerRecord(record.topic, record.partition, record.key, record.value, headers)

    async def _append(self, batch: Sequence[ProducerRecord]) -> int:
        appends = (self.stretch.append(record) for record in batch)
        for outcome in await asyncio.gather(*appends, return_exceptions=True):
            if outcome is not None:
                raise outcome
        return len(batch)

    # Running again -----------------------------------------------------------------------------

    async def plan(
        self, touched: Mapping[str, Touched], step: str | None
    ) -> tuple[list[ReplayRow], dict[str, Return]]:
        """What running again would do, and the runs that are to be sent back."""
        rows: list[ReplayRow] = []
        back: dict[str, Return] = {}
        found = await self.versions.summaries(self.agent, touched)
        whole = [run_id for run_id, run in found.items() if not run.child and run.broken is None]
        lines = await self.versions.lines(
            self.agent, whole, lambda seq, name: seq == 0 if step is None else name == step
        )
        for run_id in touched:
            run = found.get(run_id)
            line = lines.get(run_id)
            if run is None or line is None:
                rows.append(ReplayRow(run_id, run.status if run else "unknown", _left_out(run)))
                continue
            if self.command_id(run_id) in line.rewinds:
                rows.append(
                    ReplayRow(run_id, run.status, "skipped: this replay has sent it back before")
                )
                continue
            version = min(line.versions.values(), key=lambda each: each.seq, default=None)
            why = _no_return(version, step)
            if version is not None and why is None:
                back[run_id] = Return(version, run.epoch, run.created_ms)
                why = (
                    f"sent back from version {run.seq} to {version.seq}, before step "
                    f"{version.step!r}, in epoch {run.epoch + 1}"
                )
            rows.append(ReplayRow(run_id, run.status, why or "", acts=run_id in back))
        return rows, back

    async def rerun(
        self,
        operator: Operator,
        back: Mapping[str, Return],
        *,
        emit: bool,
        repeat: Collection[str] = (),
    ) -> dict[str, CommandReply]:
        """Send the runs back; returns what their owners have answered. Actions that `repeat` names
        may be done again."""
        replies: dict[str, CommandReply] = {}
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(run_id: str, to: Return) -> None:
            async with turn:
                replies[run_id] = await self._send_back(
                    operator, run_id, to, emit=emit, repeat=repeat
                )

        async with asyncio.TaskGroup() as group:
            for run_id, to in back.items():
                group.create_task(one(run_id, to))
        return replies

    async def _send_back(
        self, operator: Operator, run_id: str, to: Return, *, emit: bool, repeat: Collection[str]
    ) -> CommandReply:
        command_id = self.command_id(run_id)
        try:
            messages = await self.versions.messages(self.agent, run_id, thread_of(to.version))
            return await operator.ask(
                self.agent,
                run_id,
                rewind_to(
                    to.version,
                    messages,
                    command_id=command_id,
                    by=f"replay {self.id}",
                    epoch=to.epoch,
                    emit=emit,
                    repeat=repeat,
                    created_ms=to.created_ms,
                    now_ms=operator.clock.now_ms(),
                ),
            )
        except (StateError, RecordTooLarge) as error:
            return CommandReply(
                id=command_id, accepted=False, code="not_possible", message=str(error)
            )
        except Unavailable as error:
            return CommandReply(id=command_id, accepted=None, message=str(error))

    def command_id(self, run_id: str) -> str:
        """Id of the command that this replay sends to that run."""
        return f"replay-{hashlib.sha256(f'{self.id}/{run_id}'.encode()).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Return:
    """Where a run is to be sent back to, if it still is in that epoch."""

    version: Version
    epoch: int
    created_ms: int


def _said(kind: InputKind, record: ConsumerRecord) -> tuple[str, int | None] | None:
    """(run_id, number of the step that is asked for; None: a start); None for anything else."""
    try:
        if kind == "tasks":
            task = decode_task(record)
            return task["run_id"], task["seq"]
        command = decode_command(record)
    except UndecodableError:
        return None
    return (command.run_id, None) if command.kind == "start" else None


def _foreseen(run_id: str, run: RunSummary | None, told: Touched) -> ReplayRow:
    if run is None and told.starts:
        return ReplayRow(run_id, "unknown", "started: nothing is known of it", acts=True)
    if run is None:
        return ReplayRow(
            run_id, "unknown", "skipped: nothing is known of it, and it is not started here"
        )
    if run.status in TERMINAL:
        return ReplayRow(run_id, run.status, "skipped: it is finished")
    if run.status == "running" and run.seq in told.tasks:
        what = f"step {run.step!r} (number {run.seq}) is run, unless it is in work"
        return ReplayRow(run_id, run.status, what, acts=True)
    return ReplayRow(run_id, run.status, "skipped: it is further on")


def _left_out(run: RunSummary | None) -> str:
    if run is None:
        return "skipped: nothing is known of it"
    if run.child:
        return "skipped: a child run; it is run anew when its parent comes to it"
    return f"skipped: its checkpoint cannot be read ({run.broken})"


def _no_return(version: Version | None, step: str | None) -> str | None:
    """Why a run cannot be sent back to that version."""
    if version is None:
        return (
            "skipped: how it started has expired"
            if step is None
            else f"skipped: it has no step {step!r} behind it, or that has expired"
        )
    if version.wait is not None and version.wait.kind in _NO_WAY_BACK:
        return f"skipped: version {version.seq} waits for {version.wait.kind}"
    return None
