"""Offsets and lag of agents' topics on Kafka, and which member owns which partition.

Implements `Standings`. Keeps its clients and counts for later calls: a partition whose offsets have
not moved is not read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaConnectionError, KafkaError

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.clients import Shared
from surefoot.infra.kafka_client.errors import told
from surefoot.infra.kafka_client.tail import (
    KafkaLookups,
    KafkaOffsets,
    admin_client,
    coordinator_of,
)
from surefoot.infra.runtime.settings import Settings
from surefoot.state.names.topics import AgentTopics
from surefoot.state.reading.lag import AgentStanding, Member, PartitionStanding, behind, owner_of

#: longest range of offsets that is read in order to tell records from markers
COUNTED_OFFSETS = 1_000

OffsetsByPartition = dict[TopicPartition, int]


class KafkaStandings:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = Shared(lambda: admin_client(settings), settings.deadlines.connect_s)
        self._offsets = KafkaOffsets(settings)
        self._lookups: dict[str, KafkaLookups] = {}
        #: (range of offsets, records in it)
        self._counted: dict[TopicPartition, tuple[tuple[int, int], int]] = {}

    async def look(self, agents: Sequence[str]) -> list[AgentStanding]:
        return list(await asyncio.gather(*(self._look(agent) for agent in agents)))

    async def _look(self, agent: str) -> AgentStanding:
        topics = AgentTopics(self._settings.app, agent)
        inputs = (topics.commands, topics.tasks)
        every = (*inputs, topics.state, topics.events, topics.stream)
        places = [
            TopicPartition(topic, partition)
            for topic in every
            for partition in range(self._settings.partitions)
        ]
        # Read the end offsets first: what is committed after that no longer counts as backlog.
        starts, ends, stables = await asyncio.gather(
            self._asked(self._offsets.begins, every),
            self._asked(self._offsets.ends, every),
            self._asked(self._offsets.stables, every),
        )
        members, committed = await self._group(
            topics.group, [place for place in places if place.topic in inputs]
        )

        async def stand(place: TopicPartition) -> PartitionStanding:
            lag: int | None = None
            exact = True
            if place.topic in inputs:
                stretch = behind(committed.get(place), starts[place], stables[place])
                lag, exact = await self._records(place, *stretch)
            return PartitionStanding(
                topic=place.topic,
                partition=place.partition,
                start=starts[place],
                end=ends[place],
                stable=stables[place],
                committed=committed.get(place),
                lag=lag,
                exact=exact,
                owner=owner_of(members, place.partition),
            )

        standing = await asyncio.gather(*(stand(place) for place in places))
        return AgentStanding(
            agent=agent, group=topics.group, members=members, partitions=tuple(standing)
        )

    async def _asked(
        self, ask: Callable[[str, Iterable[int]], Awaitable[dict[int, int]]], topics: Sequence[str]
    ) -> OffsetsByPartition:
        partitions = range(self._settings.partitions)
        found = await asyncio.gather(*(ask(topic, partitions) for topic in topics))
        return {
            TopicPartition(topic, partition): offset
            for topic, offsets in zip(topics, found, strict=True)
            for partition, offset in offsets.items()
        }

    async def _group(
        self, group: str, places: Sequence[TopicPartition]
    ) -> tuple[tuple[Member, ...], OffsetsByPartition]:
        """Return the members of the group, and its committed offsets for these partitions."""
        async with told(f"looking at group {group}", self._settings):
            try:
                answer, found = await self._described(group, places)
            except KafkaConnectionError:
                # A broker ends a connection once it has been idle, or its sign-in is over; aiokafka
                # sends the requests of an administrator once.
                answer, found = await self._described(group, places)
        members = [
            Member(
                name=client_id.removeprefix(f"{group}."),
                host=host.lstrip("/"),
                partitions=_partitions(assignment),
            )
            for described in answer.groups
            for _, client_id, host, _, assignment in described[5]
        ]
        committed = {place: kept.offset for place, kept in found.items() if kept.offset >= 0}
        return tuple(sorted(members, key=lambda each: each.name)), committed

    async def _described(self, group: str, places: Sequence[TopicPartition]) -> tuple[Any, Any]:
        admin = await self._admin.get()
        try:
            coordinator = await coordinator_of(admin, group)
            (answer,) = await admin.describe_consumer_groups([group], coordinator)
            return answer, await admin.list_consumer_group_offsets(group, coordinator, places)
        except (KafkaError, OSError):
            self._admin.retire(admin)
            raise

    async def _records(self, place: TopicPartition, first: int, until: int) -> tuple[int, bool]:
        """Count the committed records of a range. Returns (count, whether it is exact).

        The count of a range longer than COUNTED_OFFSETS includes markers."""
        if until - first > COUNTED_OFFSETS:
            return until - first, False
        if first == until:
            return 0, True
        stretch, found = self._counted.get(place, (None, 0))
        if stretch != (first, until):
            found = await self._count(place, first, until)
            self._counted[place] = ((first, until), found)
        return found, True

    async def _count(self, place: TopicPartition, first: int, until: int) -> int:
        lookups = self._lookups.setdefault(place.topic, KafkaLookups(self._settings, place.topic))
        found = 0

        def counted(_key: bytes | None) -> bool:
            nonlocal found
            found += 1
            return False

        position = first
        while position < until:
            _, position = await lookups.page(place.partition, position, until, counted)
        return found

    @never_cut_short
    async def stop(self) -> None:
        await self._offsets.stop()
        await self._admin.stop()
        for lookups in self._lookups.values():
            await lookups.stop()


def _partitions(assignment: bytes) -> frozenset[int]:
    """Return a member's partitions; none until the group has assigned them."""
    if not assignment:
        return frozenset()
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return frozenset(number for _, numbers in decoded.assignment for number in numbers)
