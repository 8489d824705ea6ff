"""The SourceLog port on the embedded log: one process reads all partitions of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from surefoot.infra.embedded.log import READ_MOST, EmbeddedBroker, TopicPartition
from surefoot.state.names.topics import fence_id
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.ports.sources import SourceOffsets, StartPosition


class EmbeddedSourceLog:
    """Implements SourceLog.

    Checks retention when a partition is taken over; later reads skip what retention deletes
    meanwhile."""

    def __init__(self, broker: EmbeddedBroker, topic: str, group: str, partitions: int) -> None:
        self._broker = broker
        self._group = group
        self._places: list[TopicPartition] = [(topic, partition) for partition in range(partitions)]
        self._news = asyncio.Event()
        #: next offset to read, by partition being read
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()

    async def settle_start(self, start: StartPosition) -> None:
        standings = {place: _standing(self._broker, self._group, place) for place in self._places}
        if any(each.committed is not None for each in standings.values()):
            return
        offsets = {
            place: each.first if start == "earliest" else each.end
            for place, each in standings.items()
        }
        identity = f"{self._group}.start"
        epoch = await self._broker.take(identity)
        await self._broker.commit(self._broker.begin(identity, epoch, []), self._group, offsets)

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        del on_revoked  # there is no other member to give partitions to
        self._broker.listeners[self._news.set] = None
        partitions = frozenset(partition for _, partition in self._places)
        self._paused = set(partitions)
        on_assigned(partitions)

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        await asyncio.sleep(0)
        self._news.clear()
        if not (found := self._fetch()):
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            found = self._fetch()
        return found

    def _fetch(self) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        after = dict(self._positions)
        for place in self._places:
            partition = place[1]
            if partition in self._positions and partition not in self._paused:
                position = self._positions[partition]
                records, after[partition] = self._broker.read(place, position, READ_MOST)
                found += records
        self._positions = after  # only once all partitions were read, so that no record is skipped
        return found

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int, position: int | None = None) -> None:
        if position is not None:
            self._positions[partition] = position
        self._paused.discard(partition)
        self._news.set()

    def position(self, partition: int) -> int | None:
        position = self._positions.get(partition)
        if position is None or partition in self._paused:
            return None
        return position if position >= self._broker.stable_end(self._places[partition]) else None

    async def own(self, partition: int) -> EmbeddedSourceOwnership:
        identity = fence_id(self._group, partition)
        epoch = await self._broker.take(identity)
        return EmbeddedSourceOwnership(
            self._broker, self._group, self._places[partition], identity, epoch
        )

    async def stop(self) -> None:
        self._broker.listeners.pop(self._news.set, None)
        self._positions.clear()


class EmbeddedSourceOwnership:
    """Implements SourceOwnership: one partition under one epoch."""

    def __init__(
        self, broker: EmbeddedBroker, group: str, place: TopicPartition, identity: str, epoch: int
    ) -> None:
        self._broker = broker
        self._group = group
        self._place = place
        self._id = identity
        self._epoch = epoch

    async def standing(self) -> SourceOffsets:
        return _standing(self._broker, self._group, self._place)

    async def commit(self, records: Sequence[ProducerRecord], offset: int) -> None:
        transaction = self._broker.begin(self._id, self._epoch, records)
        await self._broker.commit(transaction, self._group, {self._place: offset})

    async def close(self) -> None:
        """Do nothing: holds no open resources."""


def _standing(broker: EmbeddedBroker, group: str, place: TopicPartition) -> SourceOffsets:
    return SourceOffsets(
        broker.committed(group, place),
        broker.begin_offset(place),
        broker.end_offset(place),
    )
