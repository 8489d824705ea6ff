"""Signals that a step takes without waiting for them."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.schemas.payload import parse_json
from surefoot.state.machine.model import Entry
from surefoot.state.steps.results import Signal


class Inbox:
    """The signals that arrived before the attempt began and that no step has taken."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._taken: dict[str, None] = {}

    def take(self, name: str) -> list[Signal]:
        """Take the signals of that name, in order of arrival; the step's commit removes them.
        Those that arrive while the step runs are left to the next one."""
        found = [
            Signal(entry.id or "", name, parse_json(entry.value or b"null"), entry.by, entry.at_ms)
            for entry in self._entries
            if entry.name == name
        ]
        self._taken |= dict.fromkeys(signal.id for signal in found)
        return found

    def taken(self) -> tuple[str, ...]:
        """Return the ids of the signals that this attempt took."""
        return tuple(self._taken)
