"""The one owner of one partition of a topic that starts runs.

1. own: a new producer epoch fences the former owner and settles its open transaction
2. standing: only now is the committed offset final; begin there, or report what was lost
3. read on; each batch becomes one transaction of start commands, dead letters and the offset
4. after a clean commit, continue; after any other outcome except a fence, restart at 1, since the
   committed offset tells what was committed
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from surefoot.consumers.attempts.threads import in_thread
from surefoot.consumers.backoff import Denials, backoff
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.consumers.topic_triggers.mapping import (
    SCHEMAS_MAX,
    EventMapping,
    FramedEvent,
    Mapped,
    NotYet,
)
from surefoot.schemas.foreign.event_codec import SchemaRef
from surefoot.state.declare.topics import begin_at
from surefoot.state.errors import OutcomeUnknown, RecordTooLarge, StoreRefused, Unavailable
from surefoot.state.machine.model import Failure
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.ports.sources import SourceLog, SourceOffsets, SourceOwnership
from surefoot.state.telemetry import metrics

#: most events in one transaction, and bytes after which no further event is added
BATCH_EVENTS_MAX = 1_000
BATCH_EVENT_BYTES = 2_000_000
#: events and bytes that may wait before reading is paused
WAITING_EVENTS_MAX = 2 * BATCH_EVENTS_MAX
WAITING_BYTES_MAX = 2 * BATCH_EVENT_BYTES
#: most dead letters of one transaction that are logged individually
TOLD_MAX = 10
#: after this long with nothing to read, the offset is committed past the markers, in seconds
IDLE_S = 1.0
#: longest wait before the schema registry, which others share, is asked again, in seconds
REGISTRY_MOST_S = 5.0


class TriggerOwner:
    """`serve` runs until `finish`, until it is fenced, or until it fails."""

    def __init__(
        self,
        *,
        mapping: EventMapping,
        partition: int,
        log: SourceLog,
        clock: Clock,
        deadlines: ConsumerDeadlines = DEADLINES,
    ) -> None:
        self.partition = partition
        self.ready = False
        self._mapping = mapping
        self._log = log
        self._clock = clock
        self._deadlines = deadlines
        self._ownership: SourceOwnership | None = None
        self._waiting: deque[ConsumerRecord] = deque()
        self._bytes = 0
        self._paused = False
        self._finishing = False
        #: the broker has said that the next offset does not exist
        self._refused = False
        self._wake = asyncio.Event()
        #: next offset to read, as committed
        self._committed = 0
        #: schemas that the registry lacks, since when; monotonic seconds
        self._missing: dict[SchemaRef, float] = {}
        self._logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__).bind(
            agent=mapping.agent.name, topic=mapping.trigger.topic, partition=partition
        )

    def ingest(self, record: ConsumerRecord) -> None:
        """Queue one record, in the order of offsets."""
        self._waiting.append(record)
        self._bytes += _size(record)
        self._wake.set()
        full = len(self._waiting) > WAITING_EVENTS_MAX or self._bytes > WAITING_BYTES_MAX
        if full and not self._paused:
            self._paused = True
            self._log.pause(self.partition)

    def again(self) -> None:
        """Take the partition over again: the next offset is gone from the log."""
        self.ready, self._refused = False, True
        self._wake.set()

    def finish(self) -> None:
        """Begin no further transaction."""
        self._finishing = True
        self._wake.set()

    async def serve(self) -> None:
        """Serve the partition. Call `close` afterwards.

        Raises: FencedError — a newer owner exists."""
        while not self._finishing:
            try:
                if not self.ready:
                    await self._take()
                await self._wait()
                if self.ready and not self._finishing:
                    await self._commit_some()
            except OutcomeUnknown as error:
                self._logger.warning("commit_unknown", error=str(error))
                self.ready = False

    async def close(self) -> None:
        """Give up the ownership. Safe to call twice."""
        ownership, self._ownership = self._ownership, None
        if ownership is not None:
            await ownership.close()

    async def _take(self) -> None:
        self._log.pause(self.partition)
        standing = await self._own()
        start, lost = begin_at(standing, self._mapping.trigger.start, refused=self._refused)
        if lost is not None:
            self._logger.error("events_lost", error=lost.message, start=lost.start, end=lost.end)
            metrics.INPUTS_LOST.add(self._mapping.agent.name, "events", by=lost.end - lost.start)
            gap = self._mapping.lost(self.partition, lost, self._clock.now_ms())
            await self._commit([gap], start)
        elif standing.committed is None:
            await self._commit([], start)
        self._committed = start
        self._waiting.clear()
        self._bytes, self._paused, self._refused = 0, False, False
        self.ready = True
        self._log.resume(self.partition, start)
        self._logger.info("source_ready", offset=start, end=standing.end)

    async def _own(self) -> SourceOffsets:
        waits, denials = backoff(self._clock), Denials(self._clock, self._deadlines.denied_s)
        while True:
            await self.close()
            try:
                self._ownership = await self._log.own(self.partition)
                return await self._ownership.standing()
            except Unavailable as error:
                self._logger.warning("takeover_retry", error=str(error))
                denials.look(error)
            await asyncio.sleep(next(waits))

    @property
    def _owned(self) -> SourceOwnership:
        assert self._ownership is not None
        return self._ownership

    async def _wait(self) -> None:
        """Wait for something to do.

        After a while without, commit the offset past markers, so that the lag becomes 0."""
        try:
            async with asyncio.timeout(IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            position = self._log.position(self.partition)
            if position is not None and position > self._committed:
                await self._commit([], position)
        if not self._waiting:
            self._wake.clear()

    async def _commit_some(self) -> None:
        batch: list[ConsumerRecord] = []
        size = 0
        while self._waiting and len(batch) < BATCH_EVENTS_MAX and size < BATCH_EVENT_BYTES:
            batch.append(self._waiting.popleft())
            size += _size(batch[-1])
        if not batch:
            return
        self._bytes -= size
        if (
            self._paused
            and len(self._waiting) <= BATCH_EVENTS_MAX
            and self._bytes <= BATCH_EVENT_BYTES
        ):
            self._paused = False
            self._log.resume(self.partition)
        mapped = await self._map(batch)
        if not self._finishing:
            await self._commit_mapped(batch, mapped)

    async def _map(self, batch: Sequence[ConsumerRecord]) -> list[Mapped]:
        """Map a batch. The author's functions run in a thread, so that they delay no heartbeat."""
        prepared = await self._prepare(batch)
        now_ms = self._clock.now_ms()

        def map_all() -> list[Mapped]:
            return [
                self._mapping.map(each, now_ms) if isinstance(each, FramedEvent) else each
                for each in prepared
            ]

        slow_s = self._deadlines.slow_mapping_s
        telling = asyncio.get_running_loop().call_later(slow_s, self._tell_slow, batch)
        try:
            mapped: list[Mapped] = await in_thread(map_all)
        finally:
            telling.cancel()
        for each in mapped:
            await self._store(each)
        return mapped

    def _tell_slow(self, batch: Sequence[ConsumerRecord]) -> None:
        """Warn while it still runs: it may never end."""
        self._logger.warning(
            "mapping_slow",
            events=len(batch),
            offset=batch[0].offset,
            after_s=self._deadlines.slow_mapping_s,
        )

    async def _store(self, mapped: Mapped) -> None:
        """Store what is large, before a record points to it.

        Stops when finishing: nothing of this batch is committed then."""
        waits = backoff(self._clock)
        while mapped.claimed is not None and not self._finishing:
            try:
                await self._mapping.store(mapped)
            except StoreRefused as error:
                self._logger.error("blob_refused", asked_to="store", error=str(error))  # noqa: TRY400
            except Unavailable as error:
                self._logger.warning("blob_waits", bytes=len(mapped.claimed[1]), error=str(error))
            else:
                return
            await asyncio.sleep(next(waits))

    async def _prepare(self, batch: Sequence[ConsumerRecord]) -> list[FramedEvent | Mapped]:
        """Look up the reader of each event; waits for the registry.

        Returns nothing when finishing: nothing of this batch is committed then."""
        waits = backoff(self._clock, most_s=REGISTRY_MOST_S)
        prepared = dict[int, FramedEvent | Mapped]()
        while not self._finishing:
            self._mapping.schemas.ask_again()
            why = await self._prepare_some(batch, prepared)
            if why is None:
                return [prepared[record.offset] for record in batch]
            self._logger.warning("schema_lookup_retry", error=why)
            await asyncio.sleep(next(waits))
        return []

    async def _prepare_some(
        self, batch: Sequence[ConsumerRecord], prepared: dict[int, FramedEvent | Mapped]
    ) -> str | None:
        """Prepare those that are not yet; returns why some cannot be now.

        Events whose schema the registry lacks wait for `schema_wait_s`, all at the same time, and
        then become dead letters."""
        late: str | None = None
        for record in batch:
            if record.offset in prepared:
                continue
            try:
                prepared[record.offset] = await self._mapping.prepare(record)
            except Unavailable as error:
                return str(error)
            except NotYet as missing:
                waited_s = self._waited_s(missing.ref)
                if waited_s < (wait_s := self._mapping.schema_wait_s):
                    late = late or f"{missing}; waited {waited_s:.0f} of {wait_s:g} s for it"
                    continue
                told = f"{missing}; waited {waited_s:.0f} s for it"
                failure = Failure(code="schema_missing", message=told)
                prepared[record.offset] = self._mapping.dead(record, failure)
        return late

    def _waited_s(self, ref: SchemaRef) -> float:
        if len(self._missing) >= SCHEMAS_MAX and ref not in self._missing:
            self._missing.clear()
        now_s = self._clock.monotonic_s()
        return now_s - self._missing.setdefault(ref, now_s)

    async def _commit_mapped(
        self, batch: Sequence[ConsumerRecord], mapped: Sequence[Mapped]
    ) -> None:
        """Commit in one transaction; a record refused for its size becomes a dead letter."""
        outs = [each.out for each in mapped if each.out is not None]
        try:
            await self._commit(outs, batch[-1].offset + 1)
        except RecordTooLarge as error:
            if len(batch) > 1:
                half = len(batch) // 2
                await self._commit_mapped(batch[:half], mapped[:half])
                await self._commit_mapped(batch[half:], mapped[half:])
                return
            (record,), (refused,) = batch, mapped
            if refused.failure is None:
                failure = Failure(code="too_large", message=str(error))
                await self._commit_mapped(batch, [self._mapping.dead(record, failure)])
            elif refused.out is not None and refused.out.value is not None:
                await self._commit_mapped(
                    batch, [self._mapping.dead(record, refused.failure, bare=True)]
                )
            else:
                raise
            return
        dead = [(r, m.failure) for r, m in zip(batch, mapped, strict=True) if m.failure]
        for record, why in dead[:TOLD_MAX]:
            self._logger.error(
                "dead_letter", offset=record.offset, code=why.code, error=why.message
            )
        if len(dead) > TOLD_MAX:
            self._logger.error("dead_letters_untold", count=len(dead) - TOLD_MAX)

    async def _commit(self, outs: Sequence[ProducerRecord], offset: int) -> None:
        await self._owned.commit(outs, offset)
        self._committed = offset


def _size(record: ConsumerRecord) -> int:
    return len(record.value or b"") + len(record.key or b"")
