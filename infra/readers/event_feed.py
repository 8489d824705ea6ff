"""The events of whole agents, from any position, then live.

Each agent has one live tail, shared by all watchers (event_hub.py). Earlier events are looked up;
watchers that come back at the same time, as after a restart of the gateway, share the lookups too.
A watcher far behind is registered for live events only once it is near, so that the log holds what
waits for it, and not memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import structlog

from surefoot.infra.readers.event_hub import WAITING_RECORDS, LiveEvent, Watcher
from surefoot.infra.readers.runs import AgentReader, LogRunReader
from surefoot.schemas.payload import strict_json
from surefoot.state.feeds import event_id
from surefoot.state.feeds.feed import EventFilter, FeedMessage
from surefoot.state.ports.log import ConsumerRecord

log = structlog.get_logger(__name__)


class LogEventFeed:
    """Implements EventFeed with the tails and clients of a reader, whose owner stops them."""

    def __init__(self, reader: LogRunReader) -> None:
        self._reader = reader
        self.partitions = reader.partitions
        self._sources = {name: _Source(name, each) for name, each in reader.agents.items()}

    async def follow(
        self,
        agents: Sequence[str],
        start: Mapping[str, Sequence[int]] | None,
        choice: EventFilter,
        *,
        earliest: bool,
    ) -> AsyncGenerator[FeedMessage, None]:
        sources = [self._sources[name] for name in agents]
        for source in sources:
            async with self._reader.bounded():
                await source.hub.started()
        stand = FeedPosition()
        gaps: list[FeedMessage] = []
        for source in sources:
            if start is not None or earliest:
                gaps += await source.begin(stand, (start or {}).get(source.agent))
            else:
                stand.at[source.agent] = source.hub.offsets
        yield FeedMessage(stand.token(), "begin", _json({"agents": list(agents)}))
        for gap in gaps:
            yield gap
        while True:
            async for told in _catch_up(sources, stand, choice):
                yield told
            watcher: Watcher[LiveEvent] = Watcher()
            with ExitStack() as joined:
                for source in sources:
                    joined.enter_context(source.hub.join_all(watcher, choice))
                ends = {source.agent: source.hub.offsets for source in sources}
                async for told in _read_up_to(sources, stand, choice, ends):
                    yield told
                if watcher.too_slow():
                    continue  # more arrived meanwhile than may wait: nearer by now, so try again
                async for happened in watcher:
                    if stand.takes(happened) and happened.event is not None:
                        yield FeedMessage(stand.token(), happened.event["type"], happened.data)
                if watcher.too_slow():
                    yield FeedMessage(None, "slow", _json({"resume": stand.token()}))
                return

    def watch(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[FeedMessage, None]:
        """See LogRunReader.watch."""
        return self._reader.watch(agent, run_id, after)


class FeedPosition:
    """A watcher's position: next offset of every partition, by agent."""

    def __init__(self) -> None:
        self.at: dict[str, list[int]] = {}
        self._parts: dict[str, str] = {}

    def token(self) -> str:
        for agent, offsets in self.at.items():
            if agent not in self._parts:
                self._parts[agent] = event_id.part(agent, offsets)
        return event_id.join({agent: self._parts[agent] for agent in self.at})

    def move(self, agent: str, partition: int, offset: int) -> None:
        self.at[agent][partition] = offset
        self._parts.pop(agent, None)

    def takes(self, happened: LiveEvent) -> bool:
        """Move past a live event, and past all that the tail handed out before it.

        False: it was already sent; another gateway was ahead of this one."""
        agent, record = happened.agent, happened.record
        mine = self.at[agent]
        is_new = record.offset >= mine[record.partition]
        theirs = happened.offsets
        if all(here <= there for here, there in zip(mine, theirs, strict=True)):
            self.at[agent] = theirs
            self._parts[agent] = happened.part
        else:
            self.at[agent] = [max(pair) for pair in zip(mine, theirs, strict=True)]
            self._parts.pop(agent, None)
        return is_new


class _Source:
    """One agent's events topic."""

    def __init__(self, agent: str, reader: AgentReader) -> None:
        self.agent = agent
        self.hub = reader.hub
        self._bounded = reader.bounded
        self._history = reader.history
        self._offsets = reader.offsets
        self._looks: dict[
            tuple[int, int, int], asyncio.Task[tuple[list[ConsumerRecord], int, int]]
        ] = {}

    async def begin(self, stand: FeedPosition, start: Sequence[int] | None) -> list[FeedMessage]:
        """Set the watcher to its position, or where that no longer exists, to the first event kept.

        Returns: the gaps to report."""
        partitions = range(len(self.hub.offsets))
        async with self._bounded():
            begins = await self._offsets.begins(self._history.topic, partitions)
            ends = await self._offsets.ends(self._history.topic, partitions)
        stand.at[self.agent] = [begins[p] for p in partitions]
        gaps = []
        for p in partitions if start is not None else ():
            assert start is not None
            # beyond the end: the topic has been created again
            if not begins[p] <= start[p] <= ends[p]:
                gaps.append(self._gap(p, start[p], begins[p]))
            else:
                stand.move(self.agent, p, start[p])
        return gaps

    async def page(
        self, p: int, start: int, until: int
    ) -> tuple[list[ConsumerRecord], int, list[FeedMessage]]:
        """Return records from `start` on, where the next page begins, and a gap to report."""
        key = (p, start, until)
        look = self._looks.get(key)
        if look is None:
            look = self._looks[key] = asyncio.create_task(self._look(*key))
            look.add_done_callback(lambda done: self._over(key, done))
        records, after, begin = await asyncio.shield(look)
        if begin > start and not (records and records[0].offset < begin):
            return records, max(after, begin), [self._gap(p, start, begin)]
        return records, after, []

    async def _look(self, p: int, start: int, until: int) -> tuple[list[ConsumerRecord], int, int]:
        """Return a page, and the first offset kept after reading it.

        A client whose offset has expired is moved on without an error."""
        async with self._bounded():
            records, after = await self._history.page(p, start, until, _everything)
            begin = (await self._offsets.begins(self._history.topic, [p]))[p]
        return records, after, begin

    def _over(self, key: tuple[int, int, int], done: asyncio.Task[Any]) -> None:
        del self._looks[key]
        if not done.cancelled():
            done.exception()  # retrieve it; perhaps nobody waits any more

    def _gap(self, partition: int, wanted: int, begins: int) -> FeedMessage:
        told = {"agent": self.agent, "partition": partition, "from": wanted, "to": begins}
        log.info("event_feed_gap", **told)
        return FeedMessage(None, "gap", _json(told))


async def _catch_up(
    sources: Sequence[_Source], stand: FeedPosition, choice: EventFilter
) -> AsyncIterator[FeedMessage]:
    """Read on until the rest would fit into a watcher's queue."""
    while True:
        ends = {source.agent: source.hub.offsets for source in sources}
        behind = sum(
            max(0, end - at)
            for agent, offsets in ends.items()
            for at, end in zip(stand.at[agent], offsets, strict=True)
        )
        if behind <= WAITING_RECORDS:
            return
        async for told in _read_up_to(sources, stand, choice, ends):
            yield told


async def _read_up_to(
    sources: Sequence[_Source],
    stand: FeedPosition,
    choice: EventFilter,
    ends: Mapping[str, Sequence[int]],
) -> AsyncIterator[FeedMessage]:
    """Read a page of each partition in turn, until all are read up to `ends`."""
    going_on = True
    while going_on:
        going_on = False
        for source in sources:
            for p, end in enumerate(ends[source.agent]):
                start = stand.at[source.agent][p]
                if start >= end:
                    continue
                going_on = True
                records, after, gaps = await source.page(p, start, end)
                for gap in gaps:
                    yield gap
                for record in records:
                    stand.move(source.agent, p, record.offset + 1)
                    happened = LiveEvent(source.agent, record, [])
                    if happened.event and choice(happened.event):
                        yield FeedMessage(stand.token(), happened.event["type"], happened.data)
                stand.move(source.agent, p, after)


def _everything(_key: bytes | None) -> bool:
    return True


def _json(values: Any) -> str:
    return strict_json(values).decode()
