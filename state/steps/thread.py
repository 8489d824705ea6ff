"""What a run remembers besides its payload: its thread of messages, and its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from surefoot.schemas.payload import parse_json, strict_json, text_of
from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import PlanItem


class Thread:
    """The run's messages, oldest first.

    Appended messages are committed with the step. Each message is stored once, so the hundredth
    costs no more than the first.
    """

    def __init__(self, stored: Sequence[bytes]) -> None:
        self._stored = stored
        self._parsed: list[Any] | None = None
        self._new: list[bytes] = []

    @property
    def messages(self) -> list[Any]:
        """All messages, including those appended by this attempt. A copy."""
        if self._parsed is None:
            self._parsed = [parse_json(message) for message in self._stored]
        return [*self._parsed, *(parse_json(message) for message in self._new)]

    def __len__(self) -> int:
        return len(self._stored) + len(self._new)

    def append(self, *messages: Any) -> None:
        """Append messages made of plain JSON types.

        Raises: Unserialisable - with the path of the value that is not JSON
        """
        self._new += [strict_json(message) for message in messages]

    def appended(self) -> tuple[bytes, ...]:
        """Return the messages that this attempt appended."""
        return tuple(self._new)


class Plan:
    """A to-do list that lasts as long as the run. Changes are committed with the step."""

    def __init__(self, items: tuple[PlanItem, ...], seq: int) -> None:
        self._before = items
        self._items = {item.id: item for item in items}
        self._seq = seq
        self._added = 0

    @property
    def items(self) -> list[PlanItem]:
        """All items, in the order added; an item's `state` is open, done or dropped."""
        return list(self._items.values())

    @property
    def open(self) -> list[PlanItem]:
        """The items still to do."""
        return [item for item in self._items.values() if item.state == "open"]

    def add(self, text: str) -> str:
        """Add an item. Returns its id, which is the same on every attempt of this step.

        Raises: Unserialisable - not text
        """
        told = text_of(text)
        made = f"{self._seq}.{self._added}"
        self._added += 1
        self._items[made] = PlanItem(id=made, text=told)
        return made

    def tick(self, item_id: str) -> None:
        """Mark an item as done. Raises BadArgument, a ValueError, for an unknown id."""
        self._move(item_id, "done")

    def drop(self, item_id: str) -> None:
        """Mark an item as no longer needed. Raises BadArgument, a ValueError, for an unknown id."""
        self._move(item_id, "dropped")

    def _move(self, item_id: str, state: str) -> None:
        if item_id not in self._items:
            raise BadArgument(
                "SF1206", f"the plan has no item {item_id!r}; it has {sorted(self._items)}"
            )
        self._items[item_id] = replace(self._items[item_id], state=state)

    def changed(self) -> tuple[PlanItem, ...] | None:
        """Return the current items; None when nothing has changed."""
        now = tuple(self._items.values())
        return None if now == self._before else now
