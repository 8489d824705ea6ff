"""Events of agents as an outside watcher receives them: the port and its filter. Pure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from surefoot.schemas.codec.records import AvroEvent


class FeedMessage(NamedTuple):
    """One message to a watcher."""

    #: the watcher's position after this message; None: unchanged
    id: str | None
    #: type of the event, or one of `begin`, `gap`, `slow`, `output`
    event: str
    #: strict JSON
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Selects events; an empty set selects all."""

    types: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()

    def __call__(self, event: AvroEvent) -> bool:
        """Whether an event is selected. A step matches if the event ends it, or if it is next."""
        return (
            (not self.types or event["type"] in self.types)
            and (not self.statuses or event["status"] in self.statuses)
            and (not self.steps or bool(self.steps & {event["step"], event["next_step"]}))
        )


class EventFeed(Protocol):
    #: number of partitions of every agent's topics
    partitions: int

    def follow(
        self,
        agents: Sequence[str],
        start: Mapping[str, Sequence[int]] | None,
        choice: EventFilter,
        *,
        earliest: bool,
    ) -> AsyncGenerator[FeedMessage, None]:
        """Yield the selected events of these agents from a position on, then live: without a gap
        or a repetition, those of one run in order. Without a position: from now, or, if `earliest`,
        from the first event that is kept.

        `begin` comes first and has the position. `gap` says that events after the position are no
        longer kept. `slow` comes last, if too much was queued for this watcher, and has the
        position to continue from. The stream also ends when the reader stops.

        Raises: Unavailable - the log cannot be read; nothing has been left out so far
        """

    def watch(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[FeedMessage, None]:
        """Yield the history of one run after the offset `after`, then live until the run is over,
        with `output`: pieces of what the current attempt has written (state/feeds/live_output.py).

        Raises: Unavailable - the log cannot be read; nothing has been left out so far
        """
