"""Where an agent's topics stand: what is in them, what is done, and who has which partition. Pure.

The log of a transaction ends with a marker, which is no record but takes an offset. So the
difference of two offsets is not the backlog: `lag` is counted in records, where that is cheap, and
is otherwise an upper bound that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker, as its consumer group has it."""

    #: as the worker calls itself: its machine and its slot
    name: str
    host: str
    #: of the agent; empty while the group shares them out anew
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    """One partition of one topic."""

    topic: str
    partition: int
    #: of the first record that retention has left
    start: int
    #: high watermark
    end: int
    #: last stable offset: what lies behind it is in a transaction that is open
    stable: int
    #: next to read, as the group has it; None: never, or nobody reads the topic in a group
    committed: int | None = None
    #: committed records that are not done; None: nobody reads the topic in a group
    lag: int | None = None
    #: False: `lag` is offsets, of which some are markers
    exact: bool = True
    #: name of the member that has the partition
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStanding:
    """One agent: its own topics, or those of a pool, of its schedules, of the outbox."""

    agent: str
    group: str
    members: tuple[Member, ...] = ()
    partitions: tuple[PartitionStanding, ...] = field(default=())

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.partitions)


def owner_of(members: Iterable[Member], partition: int) -> str | None:
    """Who has the partition; None: nobody, or the group shares them out just now."""
    return next((each.name for each in members if partition in each.partitions), None)


def behind(committed: int | None, start: int, stable: int) -> tuple[int, int]:
    """The stretch of offsets of what is not done. Without a committed offset it is all there is;
    what retention has deleted is no backlog."""
    first = start if committed is None else max(committed, start)
    return first, max(stable, first)


def standing_json(standing: AgentStanding) -> dict[str, Any]:
    return {
        "agent": standing.agent,
        "group": standing.group,
        "lag": standing.lag,
        "exact": standing.exact,
        "workers": [
            {"name": each.name, "host": each.host, "partitions": sorted(each.partitions)}
            for each in standing.members
        ],
        "topics": [
            {name: getattr(each, name) for name in PartitionStanding.__slots__}
            for each in standing.partitions
        ],
    }
