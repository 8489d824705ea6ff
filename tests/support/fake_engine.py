"""Attempts of steps without a worker: an engine that keeps in memory what is recorded.

What is recorded goes through the machine and the codec, as it does on its way to the log.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot import Context
from surefoot.schemas.codec.codec import encode
from surefoot.state.declare.callables import is_async
from surefoot.state.machine.decide import decide
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import (
    NO_MEMORY,
    Entry,
    EntryRecorded,
    Forget,
    Memory,
    OutputPiece,
    Run,
    State,
    Work,
    jsonable,
)
from surefoot.state.records.encoding import decode_entry


def a_run(**fields: Any) -> Run:
    """A run at the first attempt of its first step."""
    made: dict[str, Any] = {
        "run_id": "r",
        "agent": "a",
        "version": 1,
        "status": "running",
        "seq": 0,
        "step": "s",
        "attempt": 0,
        "payload": b"null",
        "created_ms": 0,
        "updated_ms": 0,
        "input_digest": b"",
    }
    return Run(**made | fields)


@dataclass
class FakeEngine:
    """`ports.Engine` of one step of one run, for all its attempts."""

    run: Run = field(default_factory=a_run)
    entries: dict[str, Entry] = field(default_factory=dict)
    #: what was recorded, in order
    notes: list[EntryRecorded] = field(default_factory=list)
    pieces: list[OutputPiece] = field(default_factory=list)
    lease_s: float = 1.0
    #: how often an attempt has waited until it is alone
    waits: int = 0
    #: raised by `record` before anything is kept: the worker dies there
    dies: BaseException | None = None

    async def record(self, note: EntryRecorded) -> None:
        await asyncio.sleep(0)
        if self.dies is not None:
            raise self.dies
        # In a pool the attempt is at the step of another run, and recorded for this one.
        here = Work(seq=self.run.seq, attempt=self.run.attempt, epoch=self.run.epoch)
        state = State(self.run, self.entries)
        decision = decide(Rules(agent="a"), state, replace(note, work=here), 0)
        assert decision.refused is None
        self.notes.append(note)
        for record in decision.records:
            if isinstance(record, Entry):
                self.entries[record.slot] = decode_entry(encode("Entry", jsonable(record)))
            elif isinstance(record, Forget):
                del self.entries[record.slot]

    async def invoke(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        if is_async(fn):
            return await fn(*args)
        value = await asyncio.to_thread(fn, *args)
        return await value if inspect.isawaitable(value) else value

    def publish(self, piece: OutputPiece) -> None:
        self.pieces.append(piece)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def lease_left_s(self) -> float:
        return self.lease_s

    async def alone(self) -> None:
        self.waits += 1

    def attempt(self, memory: Memory = NO_MEMORY, signals: Sequence[Entry] = ()) -> Context:
        """What the next attempt is given: whatever is recorded by now."""
        run = self.run
        return Context(
            agent=run.agent,
            run_id=run.run_id,
            seq=run.seq,
            step=run.step,
            attempt=run.attempt,
            engine=self,
            epoch=run.epoch,
            emit=run.emit,
            journal=dict(self.entries),
            memory=memory,
            signals=signals,
        )

    def kinds(self) -> list[tuple[str, str]]:
        """(slot, kind) of what is kept."""
        return [(entry.slot, entry.kind) for entry in self.entries.values()]
