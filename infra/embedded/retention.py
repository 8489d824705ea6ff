"""Keeps the embedded log's file small, as Kafka's cleaner and retention do.

A compacted topic keeps the latest record of each key, except tombstones old enough that every
reader has seen them. Other topics lose records past their retention time and, where bytes are
bounded, the oldest beyond the limit. Works in small pieces, so that no commit waits for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.file import EmbeddedFile
from surefoot.infra.embedded.log import TopicPartition
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import DAY_MS, TopicSpec
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: interval between two passes, in seconds
EVERY_S = 10.0
#: how long a tombstone is kept, like Kafka's delete.retention.ms
TOMBSTONE_MS = DAY_MS
#: a partition with fewer new records is not compacted
_WORTH_IT = 1_000
_KEYS, _DELETES = 5_000, 500


class Upkeep:
    """Compacts and expires every topic of one broker."""

    def __init__(self, broker: SqliteBroker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        #: by partition: the end offset of the latest compaction, and how many records it left
        self._compacted: dict[TopicPartition, tuple[int, int]] = {}
        #: by partition: its end offset when it was last measured
        self._measured: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.once()
            except Unavailable as error:
                log.warning("upkeep_failed", error=str(error))
            await asyncio.sleep(EVERY_S)

    async def once(self) -> None:
        """Do everything that is due. Raises Unavailable."""
        topics: dict[str, TopicSpec] = await self._broker.maintain(EmbeddedFile.topics)
        for spec in topics.values():
            for partition in range(spec.partitions):
                place = (spec.name, partition)
                if spec.config["cleanup.policy"] == "compact":
                    await self._compact(place)
                else:
                    await self._expire(place, int(spec.config["retention.ms"]))
                    if (most := spec.config.get("retention.bytes")) is not None:
                        await self._shrink(place, int(most))

    async def _compact(self, place: TopicPartition) -> None:
        until, kept = self._compacted.get(place, (0, 0))
        end = self._broker.end_offset(place)
        if end - until < max(_WORTH_IT, kept):
            return
        old_ms = self._clock.now_ms() - TOMBSTONE_MS
        latest: dict[bytes, tuple[int, bool]] = {}
        stale: list[int] = []
        position = self._broker.begin_offset(place)
        while position < end:
            found = await self._broker.maintain(
                partial(EmbeddedFile.keys, place=place, position=position, most=_KEYS)
            )
            for offset, timestamp_ms, key, tombstone in found:
                if key is None:
                    continue
                if key in latest:
                    stale.append(latest[key][0])
                latest[key] = (offset, tombstone and timestamp_ms < old_ms)
            if len(found) < _KEYS:
                break
            position = found[-1][0] + 1
        stale += (offset for offset, over in latest.values() if over)
        await self._delete(place, stale)
        self._compacted[place] = (end, len(latest))
        log.debug("compacted", topic=place[0], partition=place[1], deleted=len(stale))

    async def _expire(self, place: TopicPartition, retention_ms: int) -> None:
        old_ms = self._clock.now_ms() - retention_ms
        while True:
            begin = self._broker.begin_offset(place)
            found = await self._broker.maintain(
                partial(EmbeddedFile.keys, place=place, position=begin, most=_DELETES)
            )
            over: list[int] = []
            for offset, timestamp_ms, _, _ in found:
                if timestamp_ms >= old_ms:
                    break
                over.append(offset)
            if over:
                await self._delete(place, over, begin=over[-1] + 1)
            if len(over) < _DELETES:
                return

    async def _shrink(self, place: TopicPartition, most: int) -> None:
        end = self._broker.end_offset(place)
        if self._measured.get(place) == end:
            return
        begin = self._broker.begin_offset(place)
        keep = await self._broker.maintain(
            partial(EmbeddedFile.begin_within, place=place, most=most)
        )
        if keep > begin:
            await self._delete(place, range(begin, keep), begin=keep)
        self._measured[place] = end

    async def _delete(
        self, place: TopicPartition, offsets: Sequence[int], *, begin: int | None = None
    ) -> None:
        for at in range(0, len(offsets), _DELETES):
            piece = offsets[at : at + _DELETES]
            await self._broker.maintain(
                partial(EmbeddedFile.delete, place=place, offsets=piece, begin=begin)
            )
