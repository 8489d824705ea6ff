"""Readers of an embedded log without a consumer group; see infra/log/ports.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog

from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.file import has_owner
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import NoSuchTopic
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.lag import AgentStanding, Member, PartitionStanding, behind

log = structlog.get_logger(__name__)

#: records read before other tasks of the loop get their turn
_BATCH = 500
#: limits of a page: matching records, their bytes, and records scanned
_PAGE_RECORDS = 200
_PAGE_BYTES = 1_048_576
_PAGE_SCANNED = 5_000
_RETRY_S = 1.0


class EmbeddedTail:
    """Implements Tail."""

    def __init__(
        self,
        broker: SqliteBroker,
        topic: str,
        apply: Callable[[ConsumerRecord], None],
        *,
        from_end: bool,
        partitions: Sequence[int],
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._apply = apply
        self._from_end = from_end
        self._partitions = partitions
        self._moved = asyncio.Condition()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.positions: dict[int, int] = {}

    def start(self) -> None:
        if self._task is None:
            self._broker.listeners[self._news.set] = None
            self._task = asyncio.create_task(self._run())

    async def started(self) -> None:
        await self._until(lambda: len(self.positions) == len(self._partitions))

    async def reach(self, partition: int, offset: int) -> None:
        await self._until(lambda: self.positions.get(partition, -1) >= offset)

    async def _until(self, true: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(true)

    async def stop(self) -> None:
        self._broker.listeners.pop(self._news.set, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except Exception:
                log.exception("tail_failed", topic=self._topic)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> None:
        where = self._broker.end_offset if self._from_end else self._broker.begin_offset
        for partition in self._partitions:
            self.positions.setdefault(partition, where((self._topic, partition)))
        while True:
            self._news.clear()
            for partition in self._partitions:
                await self._read(partition)
            async with self._moved:
                self._moved.notify_all()
            await self._news.wait()

    async def _read(self, partition: int) -> None:
        place = (self._topic, partition)
        while self.positions[partition] < self._broker.stable_end(place):
            records, after = self._broker.read(place, self.positions[partition], _BATCH)
            for record in records:
                self._apply(record)
                self.positions[partition] = record.offset + 1
            self.positions[partition] = after
            await asyncio.sleep(0)


class EmbeddedLookups:
    """Implements Lookups."""

    def __init__(self, broker: SqliteBroker, topic: str) -> None:
        self.topic = topic
        self._broker = broker

    async def one(self, partition: int, offset: int) -> ConsumerRecord:
        news = asyncio.Event()
        self._broker.listeners[news.set] = None
        try:
            while True:
                news.clear()
                records, _ = self._broker.read((self.topic, partition), offset, 1)
                if records:
                    return records[0]
                await news.wait()
        finally:
            self._broker.listeners.pop(news.set, None)

    async def page(
        self, partition: int, start: int, until: int, wanted: Callable[[bytes | None], bool]
    ) -> tuple[list[ConsumerRecord], int]:
        found: list[ConsumerRecord] = []
        size, position, scanned = 0, start, 0
        while position < until and scanned < _PAGE_SCANNED:
            records, after = self._broker.read((self.topic, partition), position, _BATCH)
            for record in records:
                if record.offset >= until:
                    return found, until
                scanned += 1
                if wanted(record.key):
                    found.append(record)
                    size += len(record.value or b"")
                if len(found) >= _PAGE_RECORDS or size >= _PAGE_BYTES:
                    return found, record.offset + 1
            if after <= position:
                break
            position = after
            await asyncio.sleep(0)
        return found, position

    async def stop(self) -> None:
        """Do nothing: holds no open resources."""


class EmbeddedOffsets:
    """Implements Offsets."""

    def __init__(self, broker: SqliteBroker) -> None:
        self._broker = broker

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        self._broker.refresh()
        return {number: self._broker.end_offset((topic, number)) for number in partitions}

    async def stables(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return await self.ends(topic, partitions)

    async def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {number: self._broker.begin_offset((topic, number)) for number in partitions}

    async def at(self, topic: str, partition: int, time_ms: int) -> int | None:
        return self._broker.offset_at((topic, partition), time_ms)

    async def stop(self) -> None:
        """Do nothing: holds no open resources."""


class EmbeddedGroups:
    """Implements Groups: the process that runs agents is the only member of every group."""

    start_worker = "surefoot serve AGENT.py"

    def __init__(self, broker: SqliteBroker) -> None:
        self._broker = broker

    async def look(
        self, group: str, topics: Sequence[str], partition: int
    ) -> tuple[int, dict[str, int | None]]:
        offsets: dict[str, int | None] = {}
        for topic in topics:
            try:
                offsets[topic] = self._broker.committed(group, (topic, partition))
            except NoSuchTopic:
                offsets[topic] = None
        return int(has_owner(self._broker.path)), offsets


class EmbeddedStandings:
    """Implements Standings. There are no markers, and open transactions are never visible."""

    def __init__(self, broker: SqliteBroker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings

    async def look(self, agents: Sequence[str]) -> list[AgentStanding]:
        self._broker.refresh()
        owned = has_owner(self._broker.path)
        return [self._look(agent, owned=owned) for agent in agents]

    def _look(self, agent: str, *, owned: bool) -> AgentStanding:
        topics = AgentTopics(self._settings.app, agent)
        partitions = range(self._settings.partitions)
        inputs = (topics.commands, topics.tasks)
        owner = Member(name="serve", host="localhost", partitions=frozenset(partitions))
        return AgentStanding(
            agent=agent,
            group=topics.group,
            members=(owner,) if owned else (),
            partitions=tuple(
                self._stand(
                    topic,
                    number,
                    group=topics.group if topic in inputs else None,
                    owner=owner.name if owned else None,
                )
                for topic in (*inputs, topics.state, topics.events, topics.stream)
                for number in partitions
            ),
        )

    def _stand(
        self, topic: str, partition: int, *, group: str | None, owner: str | None
    ) -> PartitionStanding:
        place = (topic, partition)
        start, end = self._broker.begin_offset(place), self._broker.end_offset(place)
        committed = None if group is None else self._broker.committed(group, place)
        first, until = behind(committed, start, end)
        return PartitionStanding(
            topic=topic,
            partition=partition,
            start=start,
            end=end,
            stable=end,
            committed=committed,
            lag=None if group is None else until - first,
            owner=owner,
        )

    async def stop(self) -> None:
        """Do nothing: holds no open resources."""
