"""The log's ports with payloads encrypted: every record passes here on its way out and in.

Who acts on records (a worker, a trigger) reads strictly: without the key of one it stops, and
commits nothing past it. Who shows them (a reader) reads what it may, with placeholders; a record
made of such a one is refused, so that no placeholder becomes a payload. The archive keeps records
as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.log.ports import (
    Appender,
    ArchiveLog,
    Backend,
    Capabilities,
    ClusterAdmin,
    Groups,
    Lookups,
    Offsets,
    Probe,
    Standings,
    Tail,
    TopicAdmin,
)
from surefoot.state.errors import KeyMissing
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import (
    Assignment,
    Committed,
    ConsumerRecord,
    InputKind,
    Log,
    Ownership,
    Position,
    ProducerRecord,
)
from surefoot.state.ports.sources import (
    SourceLog,
    SourceOffsets,
    SourceOwnership,
    StartPosition,
)


class EncryptedBackend:
    """Implements Backend on another one."""

    def __init__(self, inner: Backend, envelope: Envelope) -> None:
        self.inner = inner
        self._envelope = envelope

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def views_file(self) -> Path | None:
        return self.inner.views_file

    def topics(self) -> AbstractAsyncContextManager[TopicAdmin]:
        return self.inner.topics()

    def log(self, topics: AgentTopics, slot: int) -> Log:
        return EncryptedLog(self.inner.log(topics, slot), self._envelope)

    def source(self, topics: AgentTopics, topic: str, group: str, slot: int) -> SourceLog:
        return EncryptedSourceLog(self.inner.source(topics, topic, group, slot), self._envelope)

    def tail(
        self,
        topic: str,
        apply: Callable[[ConsumerRecord], None],
        *,
        from_end: bool,
        partitions: Iterable[int] | None = None,
    ) -> Tail:
        show = self._envelope.show
        return self.inner.tail(
            topic, lambda record: apply(show(record)), from_end=from_end, partitions=partitions
        )

    def lookups(self, topic: str) -> Lookups:
        return EncryptedLookups(self.inner.lookups(topic), self._envelope)

    def offsets(self) -> Offsets:
        return self.inner.offsets()

    def groups(self) -> Groups:
        return self.inner.groups()

    def standings(self) -> Standings:
        return self.inner.standings()

    def cluster(self) -> ClusterAdmin | None:
        return self.inner.cluster()

    def appender(self) -> Appender:
        return EncryptedAppender(self.inner.appender(), self._envelope)

    def readiness(self) -> Probe:
        return self.inner.readiness()

    def archive_log(self, topics: AgentTopics) -> ArchiveLog:
        return self.inner.archive_log(topics)

    def show(self, record: ConsumerRecord) -> ConsumerRecord:
        return self._envelope.show(record)


class EncryptedLog:
    """Implements Log."""

    def __init__(self, inner: Log, envelope: Envelope) -> None:
        self._inner = inner
        self._envelope = envelope
        #: a record that was polled has a key that is missing: what follows it is not passed on
        self._locked: KeyMissing | None = None

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    async def start(
        self,
        on_change: Callable[[Assignment], None],
        on_rebalance: Callable[[], Awaitable[None]],
    ) -> None:
        await self._inner.start(on_change, on_rebalance)

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        """Read as Log does. Raises KeyMissing, from then on: the process has to end."""
        polled = await self._inner.poll(timeout_s)
        if self._locked is not None:
            raise self._locked
        try:
            return [(kind, self._envelope.open(record)) for kind, record in polled]
        except KeyMissing as error:
            self._locked = error
            raise

    def pause(self, partition: int) -> None:
        self._inner.pause(partition)

    def resume(
        self, partition: int, positions: Mapping[InputKind, int | None] | None = None
    ) -> None:
        self._inner.resume(partition, positions)

    async def positions(self, partition: int) -> dict[InputKind, int]:
        """Return no position once a record could not be opened: it would be past it."""
        positions = await self._inner.positions(partition)
        return {} if self._locked is not None else positions

    async def own(self, partition: int) -> Ownership:
        return _Ownership(await self._inner.own(partition), self._envelope)

    def publish(self, records: Sequence[ProducerRecord]) -> None:
        self._inner.publish([self._envelope.seal(out) for out in records])

    def lease_left_s(self) -> float:
        return self._inner.lease_left_s()

    def lease_s(self) -> float:
        return self._inner.lease_s()

    async def stop(self, *, leave: bool) -> None:
        await self._inner.stop(leave=leave)


class _Ownership:
    """Implements Ownership."""

    def __init__(self, inner: Ownership, envelope: Envelope) -> None:
        self._inner = inner
        self._envelope = envelope

    async def committed(self) -> dict[InputKind, int | None]:
        return await self._inner.committed()

    async def begins(self) -> dict[InputKind, int]:
        return await self._inner.begins()

    async def restore(
        self, start: int | None, apply: Callable[[list[ConsumerRecord]], None]
    ) -> int:
        """Restore as Ownership does. Raises KeyMissing too."""
        open_ = self._envelope.open
        return await self._inner.restore(
            start, lambda records: apply([open_(record) for record in records])
        )

    async def name_owner(self, offsets: Mapping[InputKind, int]) -> None:
        await self._inner.name_owner(offsets)

    async def commit(
        self, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        return await self._inner.commit([self._envelope.seal(out) for out in records], offsets)

    async def close(self) -> None:
        await self._inner.close()


class EncryptedSourceLog:
    """Implements SourceLog."""

    def __init__(self, inner: SourceLog, envelope: Envelope) -> None:
        self._inner = inner
        self._envelope = envelope
        #: as in EncryptedLog
        self._locked: KeyMissing | None = None

    async def settle_start(self, start: StartPosition) -> None:
        await self._inner.settle_start(start)

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        await self._inner.start(on_assigned, on_revoked)

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """Read as SourceLog does. Raises KeyMissing, from then on: the process has to end."""
        polled = await self._inner.poll(timeout_s)
        if self._locked is not None:
            raise self._locked
        try:
            return [self._envelope.open(record) for record in polled]
        except KeyMissing as error:
            self._locked = error
            raise

    def pause(self, partition: int) -> None:
        self._inner.pause(partition)

    def resume(self, partition: int, position: int | None = None) -> None:
        self._inner.resume(partition, position)

    def position(self, partition: int) -> int | None:
        """Return no position once a record could not be opened: it would be past it."""
        return None if self._locked is not None else self._inner.position(partition)

    async def own(self, partition: int) -> SourceOwnership:
        return _SourceOwnership(await self._inner.own(partition), self._envelope)

    async def stop(self) -> None:
        await self._inner.stop()


class _SourceOwnership:
    """Implements SourceOwnership."""

    def __init__(self, inner: SourceOwnership, envelope: Envelope) -> None:
        self._inner = inner
        self._envelope = envelope

    async def standing(self) -> SourceOffsets:
        return await self._inner.standing()

    async def commit(self, records: Sequence[ProducerRecord], offset: int) -> None:
        await self._inner.commit([self._envelope.seal(out) for out in records], offset)

    async def close(self) -> None:
        await self._inner.close()


class EncryptedLookups:
    """Implements Lookups."""

    def __init__(self, inner: Lookups, envelope: Envelope) -> None:
        self.topic = inner.topic
        self._inner = inner
        self._envelope = envelope

    async def one(self, partition: int, offset: int) -> ConsumerRecord:
        return self._envelope.show(await self._inner.one(partition, offset))

    async def page(
        self, partition: int, start: int, until: int, wanted: Callable[[bytes | None], bool]
    ) -> tuple[list[ConsumerRecord], int]:
        records, after = await self._inner.page(partition, start, until, wanted)
        return [self._envelope.show(record) for record in records], after

    async def stop(self) -> None:
        await self._inner.stop()


class EncryptedAppender:
    """Implements Appender."""

    def __init__(self, inner: Appender, envelope: Envelope) -> None:
        self._inner = inner
        self._envelope = envelope

    async def append(self, out: ProducerRecord, what: str, *, deadline_s: float) -> Position:
        """Write as Appender does. Raises KeyMissing — nothing was written: the record has a
        placeholder for what could not be opened."""
        self._envelope.refuse_concealed(out, what)
        return await self._inner.append(self._envelope.seal(out), what, deadline_s=deadline_s)

    async def stop(self) -> None:
        await self._inner.stop()
