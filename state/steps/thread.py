"""What a run remembers beside its payload: its thread of messages, and its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from surefoot.schemas.payload import parse_json, strict_json, text_of
from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import PlanItem


class Thread:
    """The run's messages, oldest first. What is appended is committed with the step; each message
    is stored once, so the hundredth costs no more than the first."""

    def __init__(self, stored: Sequence[bytes]) -> None:
        self._stored = stored
        self._parsed: list[Any] | None = None
        self._new: list[bytes] = []

    @property
    def messages(self) -> list[Any]:
        """All of them, those appended by this attempt included. A copy."""
        if self._parsed is None:
            self._parsed = [parse_json(message) for message in self._stored]
        return [*self._parsed, *(parse_json(message) for message in self._new)]

    def __len__(self) -> int:
        return len(self._stored) + len(self._new)

    def append(self, *messages: Any) -> None:
        """Add messages made of plain JSON types.

        Raises: Unserialisable, with the path of what is not.
        """
        self._new += [strict_json(message) for message in messages]

    def appended(self) -> tuple[bytes, ...]:
        """What this attempt has added."""
        return tuple(self._new)


class Plan:
    """A to-do list that lasts as long as the run; changes are committed with the step."""

    def __init__(self, items: tuple[PlanItem, ...], seq: int) -> None:
        self._before = items
        self._items = {item.id: item for item in items}
        self._seq = seq
        self._added = 0

    @property
    def items(self) -> list[PlanItem]:
        """In the order in which they were added; `state` is open, done or dropped."""
        return list(self._items.values())

    @property
    def open(self) -> list[PlanItem]:
        """What is still to be done."""
        return [item for item in self._items.values() if item.state == "open"]

    def add(self, text: str) -> str:
        """Add an item; returns its id, which is the same on every attempt of this step.

        Raises: Unserialisable for what is no text.
        """
        told = text_of(text)
        made = f"{self._seq}.{self._added}"
        self._added += 1
        self._items[made] = PlanItem(id=made, text=told)
        return made

    def tick(self, item_id: str) -> None:
        """It is done. ValueError for an id that there is not."""
        self._move(item_id, "done")

    def drop(self, item_id: str) -> None:
        """It need not be done any more. ValueError for an id that there is not."""
        self._move(item_id, "dropped")

    def _move(self, item_id: str, state: str) -> None:
        if item_id not in self._items:
            raise BadArgument(
                "SF1206", f"the plan has no item {item_id!r}; it has {sorted(self._items)}"
            )
        self._items[item_id] = replace(self._items[item_id], state=state)

    def changed(self) -> tuple[PlanItem, ...] | None:
        """The items as they are now; None when nothing has changed."""
        now = tuple(self._items.values())
        return None if now == self._before else now
