"""Replays a range of an agent's partitions after an incident.

    skip-completed   appends the start commands and tasks of the range again; their owners skip
                     finished work and do what was lost
    rerun            rewinds every run in the range to the version before its first execution of a
                     step; it continues from there

Both can be repeated: a rewind's id is a function of the replay's id and the run, and an unneeded
copy of a record changes nothing. Memory holds one summary per run, and no records.
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

#: number of records appended, or runs rewound, at the same time
_AT_ONCE = 64
_OFFSET_DIGITS = 18
#: kinds of waits that a run cannot be rewound into: its children or its pool cannot go back
_NO_WAY_BACK = frozenset({"children", "pool", "budget"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `start` (included) to `end` (excluded; None: the present end).

    Both are offsets, or both are epoch milliseconds.
    """

    unit: Unit
    start: int
    end: int | None


def bounds(start: str, end: str | None) -> Bounds:
    """Parse --from and --to: offsets, or ISO 8601 times with a zone. Pure.

    Raises: ConfigError — with what is wrong.
    """
    unit, first = _moment("--from", start)
    if end is None:
        return Bounds(unit, first, None)
    last_unit, last = _moment("--to", end)
    if last_unit != unit:
        raise ConfigError("SF6001", "--from and --to must both be times or both be offsets")
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
            f"{option} must be an offset such as 4711, or a time with its zone such as "
            f"2026-01-31T12:00:00Z; got {text[:80]!r}",
        )
    return "time", int(time.timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSlice:
    """A part of one partition of an input topic."""

    kind: InputKind
    partition: int
    #: the first offset, and the one after the last
    start: int
    end: int
    #: whether earlier records of the range have expired
    cut: bool = False


class Stretch(Protocol):
    """Reads and appends to the input topics of an agent."""

    def read(self, piece: OffsetSlice) -> AsyncIterator[ConsumerRecord]:
        """Yield committed records, in order.

        Raises: Unavailable.
        """

    async def append(self, record: ProducerRecord) -> None:
        """Write one record.

        Raises: Unavailable — it may or may not have been written.
        """


@dataclass(slots=True)
class Touched:
    """The records of one run in the range."""

    #: number of its start commands
    starts: int = 0
    #: numbers of the steps that tasks in the range request
    tasks: set[int] = field(default_factory=set)
    records: int = 0


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What will be done with one run, for people."""

    run_id: str
    status: str
    what: str
    #: whether the run will change
    acts: bool = False


@dataclass(slots=True, kw_only=True)
class Replay:
    """One replay of one agent. Its `id` makes it safe to repeat."""

    id: str
    agent: str
    stretch: Stretch
    versions: Versions
    pieces: Sequence[OffsetSlice]

    async def touched(self) -> dict[str, Touched]:
        """Return the runs in the range, in order of appearance."""
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
        """Predict what appending the range again would do."""
        found = await self.versions.summaries(self.agent, touched)
        return [_foreseen(run_id, found.get(run_id), run) for run_id, run in touched.items()]

    async def append(self) -> int:
        """Append the start commands and tasks of the range again. Returns their number.

        Key and value are copied byte for byte. Headers that name the writing transaction apply to
        the original only; the copy names the replay instead.

        Raises: Unavailable — some may have been appended; repeat the call.
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
        """Return what a rerun would do, and the runs that it would rewind."""
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
                    ReplayRow(run_id, run.status, "skipped: this replay has already rewound it")
                )
                continue
            version = min(line.versions.values(), key=lambda each: each.seq, default=None)
            why = _no_return(version, step)
            if version is not None and why is None:
                back[run_id] = Return(version, run.epoch, run.created_ms)
                why = (
                    f"rewound from version {run.seq} to {version.seq}, before step "
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
        """Rewind the runs. Returns their owners' answers.

        Actions named in `repeat` may run again.
        """
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
        """Return the id of the command that this replay sends to that run."""
        return f"replay-{hashlib.sha256(f'{self.id}/{run_id}'.encode()).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Return:
    """The version to rewind a run to, if it is still in that epoch."""

    version: Version
    epoch: int
    created_ms: int


def _said(kind: InputKind, record: ConsumerRecord) -> tuple[str, int | None] | None:
    """Return (run_id, number of the requested step or None for a start); None: other records."""
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
        return ReplayRow(run_id, "unknown", "started: the run does not exist yet", acts=True)
    if run is None:
        return ReplayRow(
            run_id, "unknown", "skipped: there is no such run, and its start is not in the range"
        )
    if run.status in TERMINAL:
        return ReplayRow(run_id, run.status, "skipped: the run is over")
    if run.status == "running" and run.seq in told.tasks:
        what = f"step {run.step!r} (seq {run.seq}) runs again, unless it is in progress"
        return ReplayRow(run_id, run.status, what, acts=True)
    return ReplayRow(run_id, run.status, "skipped: the run has advanced since")


def _left_out(run: RunSummary | None) -> str:
    if run is None:
        return "skipped: there is no such run"
    if run.child:
        return "skipped: a child run; its parent starts it again"
    return f"skipped: its checkpoint cannot be read ({run.broken})"


def _no_return(version: Version | None, step: str | None) -> str | None:
    """Return why a run cannot be rewound to that version, or None."""
    if version is None:
        return (
            "skipped: its start has expired"
            if step is None
            else f"skipped: it has not done step {step!r}, or that has expired"
        )
    if version.wait is not None and version.wait.kind in _NO_WAY_BACK:
        return f"skipped: version {version.seq} waits for {version.wait.kind}"
    return None
