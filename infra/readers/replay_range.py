"""A range of an agent's input topics: its bounds, its records, and where copies of them go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Appender, Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.producers.commands.replay import Bounds, OffsetSlice
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import INPUT_KINDS, ConsumerRecord, InputKind, ProducerRecord


class ReplayRange:
    """`replay.Stretch` for one agent."""

    def __init__(
        self, settings: Settings, backend: Backend, agent: str, appender: Appender
    ) -> None:
        self._deadline_s = settings.deadlines.replay_s
        topics = AgentTopics(settings.app, agent)
        self._names: dict[InputKind, str] = {"commands": topics.commands, "tasks": topics.tasks}
        self._lookups = {kind: backend.lookups(name) for kind, name in self._names.items()}
        self._offsets = backend.offsets()
        self._appender = appender

    async def pieces(
        self, wanted: Bounds, partitions: Sequence[int], offsets_of: InputKind
    ) -> list[OffsetSlice]:
        """Return what lies in the range in each partition, commands first.

        Times are those of the records and apply to both topics; offsets apply to one. Later appends
        are not included.

        Raises: ConfigError — the topic does not have these offsets; Unavailable — the log cannot be
        read now.
        """
        async with bounded(self._deadline_s):
            if wanted.unit == "offset":
                return [await self._by_offset(wanted, offsets_of, p) for p in partitions]
            return [
                await self._by_time(wanted, kind, p) for p in partitions for kind in INPUT_KINDS
            ]

    async def _by_offset(self, wanted: Bounds, kind: InputKind, partition: int) -> OffsetSlice:
        topic = self._names[kind]
        first = (await self._offsets.begins(topic, [partition]))[partition]
        last = (await self._offsets.ends(topic, [partition]))[partition]
        end = last if wanted.end is None else wanted.end
        if not first <= wanted.start <= end <= last:
            raise ConfigError(
                "SF6002",
                f"partition {partition} of {topic} has offsets {first} to {last}; earlier ones "
                f"have expired; got {wanted.start} to {end}",
            )
        return OffsetSlice(kind=kind, partition=partition, start=wanted.start, end=end)

    async def _by_time(self, wanted: Bounds, kind: InputKind, partition: int) -> OffsetSlice:
        topic = self._names[kind]
        first = (await self._offsets.begins(topic, [partition]))[partition]
        last = (await self._offsets.ends(topic, [partition]))[partition]

        async def offset(time_ms: int) -> int:
            found = await self._offsets.at(topic, partition, time_ms)
            return last if found is None else min(found, last)

        start = await offset(wanted.start)
        end = last if wanted.end is None else await offset(wanted.end)
        return OffsetSlice(
            kind=kind,
            partition=partition,
            start=start,
            end=max(start, end),
            cut=0 < first == start < last,
        )

    async def read(self, piece: OffsetSlice) -> AsyncIterator[ConsumerRecord]:
        """Yield committed records, in order.

        Raises: Unavailable — the log cannot be read now.
        """
        lookups, position = self._lookups[piece.kind], piece.start
        while position < piece.end:
            async with bounded(self._deadline_s):
                page, position = await lookups.page(
                    piece.partition, position, piece.end, lambda _key: True
                )
            for record in page:
                yield record

    async def append(self, record: ProducerRecord) -> None:
        """Append one record to the log. Raises Unavailable — it may have been written."""
        await self._appender.append(record, "a copied record", deadline_s=self._deadline_s)

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        for lookups in self._lookups.values():
            await lookups.stop()
        await self._offsets.stop()
