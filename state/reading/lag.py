"""Where an agent's topics stand: what they hold, what is done, and who owns which partition. Pure.

A transaction ends with a marker in the log, which takes an offset but is not a record. A difference
of offsets is therefore not the backlog: `lag` counts records where that is cheap; elsewhere it is
an upper bound, and marked as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker, as its consumer group knows it."""

    #: the worker's own name: its machine and its slot
    name: str
    host: str
    #: partitions of the agent; empty during a rebalance
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    """One partition of one topic."""

    topic: str
    partition: int
    #: first offset that retention has kept
    start: int
    #: high watermark
    end: int
    #: last stable offset: where committed reads end, because a transaction is open
    stable: int
    #: the group's committed offset; None: none yet, or no group reads the topic
    committed: int | None = None
    #: committed records that are not done; None: no group reads the topic
    lag: int | None = None
    #: False: `lag` counts offsets, some of which are markers
    exact: bool = True
    #: name of the member that owns the partition
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStanding:
    """The topics of one agent, one pool, one agent's schedules, or the outbox."""

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
    """Return the member that owns the partition; None: nobody, or a rebalance is in progress."""
    return next((each.name for each in members if partition in each.partitions), None)


def behind(committed: int | None, start: int, stable: int) -> tuple[int, int]:
    """Return the range of offsets that are not done. Without a committed offset, it is everything
    in the log; records that retention has deleted are not backlog."""
    first = start if committed is None else max(committed, start)
    return first, max(stable, first)


class WorkerJson(TypedDict):
    name: str
    host: str
    partitions: list[int]


class PartitionStandingJson(TypedDict):
    """The fields of PartitionStanding."""

    topic: str
    partition: int
    start: int
    end: int
    stable: int
    committed: int | None
    lag: int | None
    exact: bool
    owner: str | None


class AgentStandingJson(TypedDict):
    agent: str
    group: str
    lag: int
    exact: bool
    workers: list[WorkerJson]
    topics: list[PartitionStandingJson]


def agent_standing_json(standing: AgentStanding) -> AgentStandingJson:
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
            {
                "topic": each.topic,
                "partition": each.partition,
                "start": each.start,
                "end": each.end,
                "stable": each.stable,
                "committed": each.committed,
                "lag": each.lag,
                "exact": each.exact,
                "owner": each.owner,
            }
            for each in standing.partitions
        ],
    }
