"""Signals that a step takes as they come, without waiting for them."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.schemas.payload import parse_json
from surefoot.state.machine.model import Entry
from surefoot.state.steps.results import Signal


class Inbox:
    """The signals that had come when the attempt began, and that nobody has taken."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._taken: dict[str, None] = {}

    def take(self, name: str) -> list[Signal]:
        """The signals of that name, in the order in which they came; gone with the step's commit.
        What comes while the step runs is there for the next one."""
        found = [
            Signal(entry.id or "", name, parse_json(entry.value or b"null"), entry.by, entry.at_ms)
            for entry in self._entries
            if entry.name == name
        ]
        self._taken |= dict.fromkeys(signal.id for signal in found)
        return found

    def taken(self) -> tuple[str, ...]:
        """Ids of what this attempt has taken."""
        return tuple(self._taken)
