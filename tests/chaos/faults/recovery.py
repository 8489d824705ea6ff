"""How long a partition went without commits after a fault, and how much of that was the cluster's.

When something was committed stands in the log: a marker has the time at which the broker wrote it.
Whether the cluster serves is asked of every broker, some times a second and with short deadlines.
Times are epoch seconds; the brokers' clock is this machine's.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.checker.segments import batches
from tests.support.three_brokers import (
    GROUPS,
    NODES,
    TRANSACTIONS,
    Replicas,
    ThreeBrokers,
    View,
)

#: partitions of a topic of the brokers' own (infra.broker.config.ONE_NODE)
INTERNAL = 8
#: of which replicas must be in sync
IN_SYNC = 2
#: how often the cluster is asked
PROBE_S = 0.1


class Commits:
    """When something was committed in a partition, read from the brokers' files as they grow."""

    def __init__(self, brokers: ThreeBrokers, topic: str, partitions: int) -> None:
        self._brokers = brokers
        self._topic = topic
        #: by partition: time by the offset of the marker
        self._at_s: dict[int, dict[int, float]] = {p: {} for p in range(partitions)}
        self._read: dict[Path, int] = defaultdict(int)

    def times(self) -> dict[int, list[float]]:
        """By partition, in ascending order."""
        self._look()
        return {partition: sorted(at_s.values()) for partition, at_s in self._at_s.items()}

    def again(self, since_s: float) -> bool:
        """Whether there was a commit in every partition since then."""
        self._look()
        return all(max(at_s.values(), default=0.0) > since_s for at_s in self._at_s.values())

    def reread(self) -> None:
        """Begin again: a broker that is started cuts off what nobody else has."""
        self._read.clear()

    def _look(self) -> None:
        for partition, at_s in self._at_s.items():
            for node in NODES:
                folder = self._brokers.data(node) / f"{self._topic}-{partition}"
                for segment in folder.glob("*.log"):
                    self._take(segment, at_s)

    def _take(self, segment: Path, at_s: dict[int, float]) -> None:
        with segment.open("rb") as file:
            begin = self._read[segment]
            file.seek(begin)
            for batch in batches(file.read()):
                self._read[segment] = begin + batch.end
                if batch.commit:
                    at_s[batch.base] = batch.at_ms / 1000


@dataclass(slots=True)
class Serving:
    """Looks, one after the other, at which partitions of an agent the cluster serves.

    It serves a partition if everything that its transactions write to has a leader and two replicas
    in sync, by the leader's own account, and each of the replicas in sync answers."""

    brokers: ThreeBrokers
    app: str
    agent: str
    partitions: int
    #: (begin of the look, partitions served)
    looks: list[tuple[float, frozenset[int]]] = field(default_factory=list)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            began_s = time.time()
            views = await asyncio.gather(*map(self.brokers.view, NODES))
            answering = {n: v for n, v in zip(NODES, views, strict=True) if v is not None}
            self.looks.append((began_s, self._served(answering)))
            await asyncio.sleep(PROBE_S)

    def unserved_until(self, partition: int, begin_s: float, end_s: float) -> float:
        """The last time between the two at which the partition was not served; else `begin_s`."""
        times = (at_s for at_s, served in self.looks if partition not in served)
        return max((at_s for at_s in times if begin_s <= at_s <= end_s), default=begin_s)

    def _served(self, views: Mapping[int, View]) -> frozenset[int]:
        good = {
            (each.topic, each.partition)
            for node, view in views.items()
            for each in view.partitions
            if each.leader == node and _takes_writes(each, views)
        }
        group = f"{self.app}.{self.agent}"
        shared = {(GROUPS, _slot(group))} | {
            (f"{self.app}.outbox.commands", partition) for partition in range(self.partitions)
        }
        return frozenset(
            partition
            for partition in range(self.partitions)
            if shared
            | {(TRANSACTIONS, _slot(f"{group}.{partition}"))}
            | {(f"{group}.{kind}", partition) for kind in ("commands", "tasks", "state", "events")}
            <= good
        )


def _takes_writes(each: Replicas, answering: Iterable[int]) -> bool:
    return len(each.in_sync) >= IN_SYNC and each.in_sync <= set(answering)


def _slot(name: str) -> int:
    """Which partition of a topic of the brokers' own a group or a transactional id has."""
    code = 0
    for char in name:
        code = (31 * code + ord(char)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % INTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a fault, and whatever was done until it was over, has cost; in seconds."""

    #: until something was committed, anywhere
    first_s: float
    #: the longest that a partition stood still
    all_s: float
    #: of that, until the cluster served the partition
    cluster_s: float
    #: the longest that a partition stood still though the cluster served it
    ours_s: float


def recovery(
    commits: Mapping[int, Sequence[float]], serving: Serving, fault_s: float, end_s: float
) -> Recovery:
    """Of a fault at `fault_s` that was over at `end_s`.

    A partition stands still from one commit to the next."""
    first: list[float] = []
    stands: list[tuple[float, float]] = []  # (how long, how long of it not served)
    for partition, times in commits.items():
        during = [fault_s, *(t for t in times if fault_s < t <= end_s)]
        first.append(during[1] if len(during) > 1 else end_s)
        for begin, end in pairwise(during if len(during) > 1 else [fault_s, end_s]):
            served = serving.unserved_until(partition, begin, end)
            stands.append((end - begin, served - begin))
    longest = max(stands)
    return Recovery(
        first_s=min(first) - fault_s,
        all_s=longest[0],
        cluster_s=longest[1],
        ours_s=max(still - unserved for still, unserved in stands),
    )
