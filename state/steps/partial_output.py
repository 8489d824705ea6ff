"""Partial output of a step: shown live, and kept so that the step can continue after a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from surefoot.schemas.payload import parse_json, strict_json, text_of
from surefoot.schemas.text import joined
from surefoot.state.machine.model import Entry, EntryRecorded, OutputPiece, Work
from surefoot.state.steps.engine import Engine

#: a crash loses at most this much output, in seconds
KEEP_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Partial:
    """What an unfinished attempt had written; up to a second of it may be lost."""

    text: str
    complete: bool = False


class Stream:
    """One named output of one attempt: `async with ctx.stream("draft") as draft`."""

    def __init__(
        self, run_id: str, name: str, work: Work, entries: Mapping[str, Entry], engine: Engine
    ) -> None:
        self._run_id = run_id
        self._name = text_of(name)
        self._work = work
        self._engine = engine
        self._slot = f"p:{self._name}"
        entry = entries.get(self._slot)
        #: what an earlier attempt had written; None: nothing
        self.partial = None if entry is None else Partial(str(parse_json(entry.value or b'""')))
        self._pieces: list[str] = []
        #: first half of a surrogate pair, until the second half arrives
        self._half = ""
        self._length = 0
        self._kept = 0
        self._kept_s = 0.0

    @property
    def text(self) -> str:
        """Everything that this attempt has written."""
        return "".join(self._pieces)

    async def __aenter__(self) -> Self:
        self._kept_s = self._engine.monotonic_s()
        self._tell("begin")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            half, self._half = self._half, ""
            await self._append(half)
            self._tell("end")
        elif isinstance(error, Exception) and self._kept < self._length:
            await self._keep()

    async def go_on(self) -> str:
        """Continue from what the earlier attempt had written, as if this one had; returns it."""
        text = self.partial.text if self.partial is not None else ""
        await self.write(text)
        return text

    async def write(self, text: str) -> None:
        """Append text. Watchers see it at once; after a crash the next attempt gets it. A surrogate
        pair that is split over two pieces is joined.

        Raises: Unserialisable - not text
        """
        if isinstance(text, str):
            text, self._half = joined(self._half + text), ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self._half = text[:-1], text[-1:]
        await self._append(text)

    async def _append(self, text: str) -> None:
        text = text_of(text)
        if not text:
            return
        self._tell("text", text)
        self._pieces.append(text)
        self._length += len(text)
        if self._engine.monotonic_s() - self._kept_s >= KEEP_EVERY_S:
            await self._keep()

    def _tell(self, kind: str, text: str = "") -> None:
        work = self._work
        self._engine.publish(
            OutputPiece(self._run_id, self._name, work.seq, work.attempt, kind, self._length, text)
        )

    async def _keep(self) -> None:
        self._kept_s = self._engine.monotonic_s()
        self._kept = self._length
        note = EntryRecorded(
            work=self._work, slot=self._slot, kind="partial", value=strict_json(self.text)
        )
        await self._engine.record(note)
