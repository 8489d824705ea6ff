"""The group coordinator of a simulated broker: members, their eager rebalances, and offsets.

Offsets of a transaction are pending until its marker is written (KIP-98). They are taken of nobody
but a member of the present generation (KIP-447).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import IllegalGenerationError, KafkaError, UnknownMemberIdError

from surefoot.infra.kafka.assignor import share_out
from surefoot.infra.kafka_client.protocol import FencedInstanceId, UnstableOffsetCommit
from surefoot.infra.kafka_client.transactions import CommittedOffset, Membership
from surefoot.infra.simulation.time import VirtualClock


@dataclass(slots=True)
class Member:
    """One static member of a group."""

    id: str
    #: the consumer that is it now
    consumer: Any
    seen_s: float
    joined: bool = False
    partitions: frozenset[int] = frozenset()


class Offset(NamedTuple):
    """An offset as it came: the next to read."""

    #: number of its commit; of two, the later one counts, whenever their markers are written
    number: int
    offset: int
    metadata: str


_NEVER = Offset(-1, -1, "")


@dataclass(slots=True)
class Group:
    """One consumer group."""

    name: str
    partitions: int
    generation: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    rebalancing_until_s: float | None = None
    made: int = 0
    rebalances: int = 0
    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)
    #: by transactional id, of transactions whose marker is not written yet
    pending: dict[str, dict[TopicPartition, Offset]] = field(default_factory=dict)
    #: members refused, and offsets not told, so far
    refused: int = 0
    unstable: int = 0

    def awaits(self, member: Member) -> bool:
        """Whether a member has joined, and waits for the others to do so."""
        return self.rebalancing_until_s is not None and member.joined

    def admit(self, member: Membership) -> None:
        """Raise what a member is refused with that the group has put out. One that does not name
        itself is not."""
        error = None if member == Membership(self.name) else self._refusal(member)
        if error is not None:
            self.refused += 1
            raise error

    def _refusal(self, member: Membership) -> type[KafkaError] | None:
        known = self.members.get(member.instance_id or "")
        refusal: type[KafkaError] | None = None
        if known is None:
            refusal = UnknownMemberIdError
        elif known.id != member.member_id:
            refusal = FencedInstanceId
        elif self.generation != member.generation:
            refusal = IllegalGenerationError
        return refusal

    def fetch(
        self, places: Iterable[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """OffsetFetch.

        Raises: UnstableOffsetCommit."""
        found: dict[TopicPartition, CommittedOffset] = {}
        for place in places:
            if stable and any(place in pending for pending in self.pending.values()):
                self.unstable += 1
                raise UnstableOffsetCommit
            known = self.offsets.get(place, _NEVER)
            found[place] = CommittedOffset(
                None if known is _NEVER else known.offset, known.metadata
            )
        return found


class Groups:
    """All consumer groups."""

    def __init__(self, clock: VirtualClock, tell: Callable[[], None]) -> None:
        """`tell` is called when a group's state has changed."""
        self.by_name: dict[str, Group] = {}
        self._clock = clock
        self._tell = tell
        self._commits = 0

    def group(self, name: str, partitions: int) -> Group:
        return self.by_name.setdefault(name, Group(name, partitions))

    # Offsets ---------------------------------------------------------------------------------

    def commit(
        self,
        transactional_id: str,
        member: Membership,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """TxnOffsetCommit; their metadata names the member.

        Raises: UnknownMemberIdError, FencedInstanceId, IllegalGenerationError."""
        arrived = self._arrived(member, offsets)
        self.by_name[member.group].pending.setdefault(transactional_id, {}).update(arrived)

    def name(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        """OffsetCommit; their metadata names the member.

        Raises: UnknownMemberIdError, FencedInstanceId, IllegalGenerationError."""
        self.by_name[member.group].offsets.update(self._arrived(member, offsets))

    def _arrived(
        self, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Offset]:
        self.by_name[member.group].admit(member)
        self._commits += 1
        return {
            place: Offset(self._commits, offset, member.instance_id or "")
            for place, offset in offsets.items()
        }

    def end(
        self, group: str, transactional_id: str, *, committed: bool
    ) -> dict[TopicPartition, int]:
        """Write the marker of a transaction. Returns the offsets that count from now on."""
        settled = self.by_name[group].pending.pop(transactional_id, {})
        known = self.by_name[group].offsets
        newer = {
            place: offset
            for place, offset in settled.items()
            if committed and offset.number > known.get(place, _NEVER).number
        }
        known.update(newer)
        return {place: offset.offset for place, offset in newer.items()}

    # Members ---------------------------------------------------------------------------------

    def join(self, group: Group, instance: str, consumer: Any, wait_s: float) -> str:
        """JoinGroup of a static member. One that takes an instance over in a stable group gets what
        that had, and nobody else notices (KIP-345). Returns the member id."""
        member = group.members.get(instance)
        group.made += 1
        name, now_s = f"{instance}-{group.made}", self._clock.monotonic_s()
        if member is not None and member.consumer is not consumer:
            member.id, member.consumer, member.seen_s = name, consumer, now_s
            if group.rebalancing_until_s is None:
                member.joined = True
                return member.id
        elif member is None:
            member = group.members[instance] = Member(name, consumer, now_s)
        member.seen_s = now_s
        if group.rebalancing_until_s is None:
            self._rebalance(group, wait_s)
        member.joined = True
        self.settle(group)
        return member.id

    def _rebalance(self, group: Group, wait_s: float) -> None:
        group.rebalancing_until_s = self._clock.monotonic_s() + wait_s
        for member in group.members.values():
            member.joined = False
        self._tell()

    def settle(self, group: Group) -> None:
        """End the rebalance if everybody is here, or whoever is not has had the time."""
        until_s = group.rebalancing_until_s
        if until_s is None:
            return
        here = [member for member in group.members.values() if member.joined]
        if len(here) < len(group.members) and self._clock.monotonic_s() < until_s:
            return
        group.members = {name: m for name, m in group.members.items() if m.joined}
        group.rebalancing_until_s = None
        group.generation += 1
        group.rebalances += 1
        for member in here:
            member.seen_s = self._clock.monotonic_s()
        claims = {name: member.consumer.claim for name, member in group.members.items()}
        if claims:
            for name, shares in share_out(claims, group.partitions).items():
                group.members[name].partitions = frozenset(shares)
        self._tell()

    def leave(self, group: Group, instance: str, member_id: str, wait_s: float) -> None:
        member = group.members.get(instance)
        if member is not None and member.id == member_id:
            del group.members[instance]
            self._rebalance(group, wait_s)
            self.settle(group)

    def expire(self, session_s: float, wait_s: float) -> None:
        """Throw out the members that have not been heard of."""
        now_s = self._clock.monotonic_s()
        for group in self.by_name.values():
            gone = [
                name
                for name, member in group.members.items()
                if now_s - member.seen_s > session_s and not group.awaits(member)
            ]
            for name in gone:
                del group.members[name]
            if gone and group.rebalancing_until_s is None:
                self._rebalance(group, wait_s)
            self.settle(group)
