"""What an attempt of a step needs from the engine that runs it."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Sequence,
)
from typing import Any, Protocol

from surefoot.state.machine.model import EntryRecorded, OutputPiece


class Engine(Protocol):
    """What an attempt of a step needs from the engine. Use it only on the steps' event loop."""

    async def record(self, note: EntryRecorded) -> None:
        """Return once the note is committed. Never returns if the attempt no longer counts."""

    async def invoke(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a function of the author's: await it if it is async, else run it in a thread."""

    def publish(self, piece: OutputPiece) -> None:
        """Write a piece of partial output to the stream topic, soon and best effort."""

    def lease_left_s(self) -> float:
        """See Log.lease_left_s."""

    async def alone(self) -> None:
        """Return once no former owner of the run can still believe that it owns the run."""

    def monotonic_s(self) -> float:
        """See Clock.monotonic_s."""
