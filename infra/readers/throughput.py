"""Throughput of agents: what their events topics gained in the last seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Backend, Lookups, Tail
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord

#: length of the time window, in seconds
WINDOW_S = 10

#: time and type of an event, by partition and offset
Recent = dict[tuple[int, int], tuple[int, str]]


class Throughput:
    """Counts events of some agents.

    Starts with the log's events of the last seconds, so that the first answer is already right."""

    def __init__(
        self, settings: Settings, backend: Backend, agents: Sequence[str], clock: Clock
    ) -> None:
        self._bounded = partial(bounded, settings.deadlines.read_s)
        self._clock = clock
        self._partitions = range(settings.partitions)
        self._offsets = backend.offsets()
        self._recent: dict[str, Recent] = {}
        self._tails: dict[str, Tail] = {}
        self._lookups: dict[str, Lookups] = {}
        for agent in agents:
            topic = AgentTopics(settings.app, agent).events
            self._recent[agent] = {}
            self._lookups[agent] = backend.lookups(topic)
            note = partial(_note, self._recent[agent])
            self._tails[agent] = backend.tail(topic, note, from_end=True)

    async def start(self) -> None:
        """Start counting. Raises Unavailable."""
        async with self._bounded():
            await asyncio.gather(*(self._begin(agent) for agent in self._tails))

    async def _begin(self, agent: str) -> None:
        tail, lookups = self._tails[agent], self._lookups[agent]
        tail.start()
        await tail.started()
        since_ms = self._clock.now_ms() - WINDOW_S * 1000
        # What the tail hands out meanwhile is counted once: it has the same offset.
        ends = dict(tail.positions)
        for partition in self._partitions:
            start = await self._offsets.at(lookups.topic, partition, since_ms)
            while start is not None and start < ends[partition]:
                page, start = await lookups.page(partition, start, ends[partition], lambda _: True)
                for record in page:
                    _note(self._recent[agent], record)

    def counts(self, agent: str) -> Mapping[str, int]:
        """Return the number of events of each type in the last `WINDOW_S` seconds."""
        since_ms = self._clock.now_ms() - WINDOW_S * 1000
        recent = self._recent[agent]
        for place in [place for place, (at_ms, _) in recent.items() if at_ms < since_ms]:
            del recent[place]
        return Counter(kind for _, kind in recent.values())

    @never_cut_short
    async def stop(self) -> None:
        for tail in self._tails.values():
            await tail.stop()
        for lookups in self._lookups.values():
            await lookups.stop()
        await self._offsets.stop()


def _note(recent: Recent, record: ConsumerRecord) -> None:
    """Store the event's time and type by its partition and offset."""
    try:
        event = decode(record.value, "Event")[1]
    except UndecodableError:
        return  # the reader of runs reports it
    recent[record.partition, record.offset] = (event["at_ms"], event["type"])
