"""The partition assignor: sticky, and commands and tasks of one agent together.

A member keeps its partitions as long as no member has two more than another. Each member sends its
partitions in the subscription's user data, with the generation that assigned them: where two claim
the same partition, the newer generation wins (as in KIP-54).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

Claim = tuple[int, frozenset[int]]


class CopartitionedSticky(AbstractPartitionAssignor):
    """Assigns partition p of every input topic to the same member."""

    name = "surefoot-copartitioned-sticky"

    def __init__(self, topics: tuple[str, ...], partitions: int) -> None:
        self._topics = topics
        self._partitions = partitions
        #: this member's partitions, and the generation that assigned them
        self.owned: Claim = (-1, frozenset())

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        generation, partitions = self.owned
        data = json.dumps({"generation": generation, "partitions": sorted(partitions)})
        return ConsumerProtocolMemberMetadata(0, list(topics), data.encode())

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        del cluster  # partition counts are verified before anything subscribes
        claims = {member: claim(metadata.user_data) for member, metadata in members.items()}
        return {
            member: ConsumerProtocolMemberAssignment(
                0, [(topic, sorted(partitions)) for topic in self._topics], b""
            )
            for member, partitions in share_out(claims, self._partitions).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Do nothing: KafkaLog notes the new partitions once it has applied them."""


def claim(user_data: bytes) -> Claim:
    """Decode a member's claim. Unreadable user data counts as no claim."""
    try:
        told = json.loads(user_data)
        return int(told["generation"]), frozenset(int(p) for p in told["partitions"])
    except (ValueError, KeyError, TypeError):
        return -1, frozenset()


def share_out(claims: Mapping[str, Claim], partitions: int) -> dict[str, set[int]]:
    """Assign each of `partitions` to one member: balanced to within one, moving as few as possible.

    Deterministic: the same claims always give the same result."""
    shares: dict[str, set[int]] = {member: set() for member in sorted(claims)}
    free = set(range(partitions))
    for member in sorted(claims, key=lambda m: (-claims[m][0], m)):
        shares[member] = set(claims[member][1] & free)
        free -= shares[member]
    least, extra = divmod(partitions, len(shares))
    by_size = sorted(shares, key=lambda m: (-len(shares[m]), m))
    for rank, member in enumerate(by_size):
        quota = least + (rank < extra)
        for partition in sorted(shares[member])[quota:]:
            shares[member].discard(partition)
            free.add(partition)
    for rank, member in enumerate(by_size):
        quota = least + (rank < extra)
        while len(shares[member]) < quota:
            partition = min(free)
            free.discard(partition)
            shares[member].add(partition)
    return shares
