"""The ArchiveLog port on an embedded log: one process at a time archives an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.state.errors import ConfigError, FencedError, OutcomeUnknown, Unavailable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.ports.sources import OffsetGone, SourceOffsets

#: most records read from one partition at a time
_READ_MOST = 1_000


class EmbeddedArchiveLog:
    """Implements ArchiveLog."""

    def __init__(self, broker: SqliteBroker, topics: AgentTopics, partitions: int) -> None:
        self._broker = broker
        self._topic = topics.events
        self._group = topics.archive_group
        self._partitions = partitions
        self._epoch = -1
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()
        self._news = asyncio.Event()

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        del on_revoked  # no other member shares the partitions
        self._epoch = await self._broker.take(self._group)
        self._broker.listeners[self._news.set] = None
        self._paused = set(range(self._partitions))
        on_assigned(frozenset(self._paused))

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        self._news.clear()
        found: list[ConsumerRecord] = []
        for partition, position in self._positions.items():
            if partition in self._paused:
                continue
            place = (self._topic, partition)
            if not self._broker.begin_offset(place) <= position <= self._broker.end_offset(place):
                raise OffsetGone(partition)
            records, after = self._broker.read(place, position, _READ_MOST)
            found += records
            self._positions[partition] = after
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        return found

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int, position: int | None = None) -> None:
        if position is not None:
            self._positions[partition] = position
        self._paused.discard(partition)
        self._news.set()

    def reached(self, partition: int) -> int:
        return self._positions.get(partition, -1)

    async def standing(self, partition: int) -> SourceOffsets:
        place = (self._topic, partition)
        self._broker.refresh()
        return SourceOffsets(
            self._broker.bookmark(self._group, place),
            self._broker.begin_offset(place),
            self._broker.end_offset(place),
        )

    async def commit(self, partition: int, offset: int) -> None:
        try:
            transaction = self._broker.begin(self._group, self._epoch, [])
            await self._broker.commit(transaction, self._group, {(self._topic, partition): offset})
        except FencedError as error:
            raise ConfigError(
                "SF3104", f"another process archives {self._topic} of this file; stop one of them"
            ) from error
        except OutcomeUnknown as error:
            raise Unavailable("SF3105", f"offset {offset}: {error}") from error

    async def stop(self) -> None:
        self._broker.listeners.pop(self._news.set, None)
