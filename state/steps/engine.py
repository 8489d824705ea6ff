"""What an attempt of a step needs of the engine that runs it."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Sequence,
)
from typing import Any, Protocol

from surefoot.state.machine.model import EntryRecorded, OutputPiece


class Engine(Protocol):
    """What an attempt of a step needs of the engine that runs it. Used on the loop of the steps."""

    async def record(self, note: EntryRecorded) -> None:
        """Return once the note is committed. Never returns when the attempt no longer counts."""

    async def invoke(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a function of the author's: awaited when it is async, in a thread otherwise."""

    def publish(self, piece: OutputPiece) -> None:
        """Write a piece of partial output to the stream topic, soon and at best effort."""

    def lease_left_s(self) -> float:
        """See Log.lease_left_s."""

    async def alone(self) -> None:
        """Return once no former owner of the run can believe any more that the run is its own."""

    def monotonic_s(self) -> float:
        """See Clock.monotonic_s."""
