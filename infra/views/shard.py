"""One process's part of one agent's views: some partitions of its events, folded.

The stored views contain the offset up to which they go, and only that counts. Events may arrive
again, late, or with gaps after a rebalance: known ones are skipped, and a gap in the offsets is
read from the log before what follows it. A gap of one offset is the marker of a transaction.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.schemas.codec.payload_fields import readable_without_key
from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.statistics import LagJson, PartitionStatistics, Values

log = structlog.get_logger(__name__)

#: markers between two transactions of one owner
_MARKERS = 1
#: time limit for reading what a view does not have yet, in seconds
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the views are behind the end of their log."""

    #: events not folded yet; beyond one page, markers are counted too
    events: int
    #: how long ago the oldest of them was written
    ms: int

    def json(self) -> LagJson:
        return {"events": self.events, "ms": self.ms}


class Shard(ABC):
    """One agent's views in this process. Lives on one event loop."""

    def __init__(self, agent: str, settings: Settings, backend: Backend, clock: Clock) -> None:
        self.agent = agent
        #: the agent's number of partitions
        self.partitions = settings.partitions
        self.topics = AgentTopics(settings.app, agent)
        self._bounded = partial(bounded, settings.deadlines.read_s)
        self._clock = clock
        self._lookups = backend.lookups(self.topics.events)
        self._offsets = backend.offsets()
        self._opened: dict[int, PartitionStatistics] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: by partition: offset up to which only markers follow what is folded
        self._empty_to: dict[int, int] = {}

    @abstractmethod
    def values(self, partition: int) -> Values:
        """Return what is stored of a partition here."""

    @abstractmethod
    async def keep(self, partition: int, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Store the changes, in order; a crash may leave any prefix of them.

        After an error, and under cancellation: some prefix is stored."""

    @abstractmethod
    def owners(self) -> Mapping[str | None, Iterable[int]]:
        """Return the partitions by the URL of the instance that owns them; None: this one.

        Raises: Unavailable — they are being assigned.
        """

    async def opened(self) -> Mapping[int, PartitionStatistics]:
        """Return the views of this instance's partitions.

        Raises: Unavailable — they are being assigned, or read.
        """
        mine = list(self.owners().get(None, ()))
        if missing := [each for each in mine if each not in self._opened]:
            raise Unavailable("SF3015", f"views of partitions {missing} are being restored")
        return {each: self._opened[each] for each in mine}

    def holds(self, partition: int) -> bool:  # noqa: ARG002  (where all are, there is no question)
        """Whether the partition belongs to this instance, as far as it knows."""
        return True

    async def forget(self) -> None:
        """Prepare for moving partitions: finish what is being stored, and drop all open views."""
        for lock in list(self._locks.values()):
            async with lock:
                pass
        self._opened.clear()
        self._empty_to.clear()

    async def catch_up(self, partition: int) -> None:
        """Fold the events up to the log's present end; fewer, if the partition moves meanwhile.

        Raises: Unavailable — the log cannot be read now.
        """
        async with self._bounded():
            end = (await self._offsets.ends(self.topics.events, [partition]))[partition]
            begin = await self._begin(partition)
        seen: PartitionStatistics | None = None
        while True:
            async with self._locks[partition]:
                if not self.holds(partition):
                    return
                view = await self._view(partition)
                if view is not seen:
                    seen, position = view, begin
                position = max(position, view.applied + 1)
                if position >= end:
                    return
                position = await self._read(partition, view, position, end)

    async def take(self, partition: int, records: Sequence[ConsumerRecord]) -> None:
        """Fold events of one partition, in the order of their offsets; none, if it has moved."""
        async with self._locks[partition]:
            if not self.holds(partition):
                return
            view = await self._view(partition)
            fit: list[ConsumerRecord] = []
            at = view.applied
            for record in records:
                if record.offset <= at:
                    continue
                if record.offset > at + 1 + _MARKERS:
                    await self._fold(partition, view, fit)
                    fit.clear()
                    await self._fill(partition, view, record.offset)
                fit.append(record)
                at = record.offset
            await self._fold(partition, view, fit)

    async def _view(self, partition: int) -> PartitionStatistics:
        if (view := self._opened.get(partition)) is None:
            view = PartitionStatistics(self.values(partition))
            for _ in view.open():
                await asyncio.sleep(0)
            self._opened[partition] = view
        return view

    async def _fill(self, partition: int, view: PartitionStatistics, until: int) -> None:
        async with self._bounded():
            position = max(view.applied + 1, await self._begin(partition))
        while position < until:
            position = await self._read(partition, view, position, until)

    async def _begin(self, partition: int) -> int:
        return (await self._offsets.begins(self.topics.events, [partition]))[partition]

    async def _read(
        self, partition: int, view: PartitionStatistics, position: int, until: int
    ) -> int:
        """Fold a page of the log. Returns where the next one begins."""
        async with self._bounded():
            page, after = await self._lookups.page(partition, position, until, _all)
        await self._fold(partition, view, page)
        return after

    async def _fold(
        self, partition: int, view: PartitionStatistics, records: Sequence[ConsumerRecord]
    ) -> None:
        changes = view.fold((record.offset, _event(record)) for record in records)
        if not changes:
            return
        try:
            await self.keep(partition, changes)
        except BaseException:
            self._opened.pop(partition, None)
            raise

    async def lag(self) -> Lag:
        """Return the lag of this instance's partitions.

        Raises: Unavailable — the log cannot be read now.
        """
        mine = list(self.owners().get(None, ()))
        async with self._bounded():
            ends = await self._offsets.ends(self.topics.events, mine)
        lags = await asyncio.gather(*(self._lag(each, end) for each, end in ends.items()))
        return Lag(sum(lag.events for lag in lags), max((lag.ms for lag in lags), default=0))

    async def _lag(self, partition: int, end: int) -> Lag:
        view = self._opened.get(partition)
        start = max(view.applied + 1 if view else 0, self._empty_to.get(partition, 0))
        if start >= end:
            return Lag(0, 0)
        try:
            async with asyncio.timeout(_LOOK_S):
                page, after = await self._lookups.page(partition, start, end, _all)
        except TimeoutError:  # a transaction is open there: count the offsets
            return Lag(end - start, int(_LOOK_S * 1_000))
        if not page:
            self._empty_to[partition] = after
            return Lag(0, 0)
        events = len(page) + max(end - after, 0)
        return Lag(events, max(self._clock.now_ms() - page[0].timestamp_ms, 0))

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await self._lookups.stop()
        await self._offsets.stop()


def _all(_key: bytes | None) -> bool:
    return True


def _event(record: ConsumerRecord) -> AvroEvent | None:
    """Return the event, perhaps without payload: views keep none."""
    try:
        return decode(readable_without_key(record.value), "Event")[1]
    except UndecodableError as error:
        log.warning(
            "event_undecodable",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=str(error),
        )
        return None
