"""The events of agents as they are told to somebody outside: the port, and what is chosen. Pure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class FeedMessage(NamedTuple):
    """One message to a watcher."""

    #: where the watcher stands behind it; None: where it stood before
    id: str | None
    #: type of an event, or what else is told: `begin`, `gap`, `slow`, `output`
    event: str
    #: strict JSON
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events are told; an empty set chooses all."""

    types: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """A step is one that the event ends, or that the run goes on with."""
        return (
            (not self.types or event["type"] in self.types)
            and (not self.statuses or event["status"] in self.statuses)
            and (not self.steps or bool(self.steps & {event["step"], event["next_step"]}))
        )


class EventFeed(Protocol):
    #: of every agent's topics
    partitions: int

    def follow(
        self,
        agents: Sequence[str],
        start: Mapping[str, Sequence[int]] | None,
        choice: EventFilter,
        *,
        earliest: bool,
    ) -> AsyncGenerator[FeedMessage, None]:
        """The chosen events of these agents from a position on, then live: no gap, no repeat, those
        of one run in order. Without a position: from now, or from the first one that is kept.

        `begin` comes first and has the position. `gap` says that events behind the position are
        not kept any more. `slow` is last, for a watcher for which too much was waiting; it names
        the position to go on from. It also ends when the reader stops.

        Raises: Unavailable — the log cannot be read just now; nothing has been left out so far.
        """

    def watch(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[FeedMessage, None]:
        """The history of one run behind the offset `after`, then live until the run is over, with
        `output`: pieces of what the step in work has written so far (state/feeds/live_output.py).

        Raises: Unavailable — the log cannot be read just now; nothing has been left out so far.
        """
