"""The record of deliveries on the log: written by the gateway, read by the command line."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import structlog

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Appender, Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import CodecError, UndecodableError
from surefoot.state.errors import RecordTooLarge, Unavailable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import deliveries_topic
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.deliveries import Delivery, delivery_out, read_delivery

log = structlog.get_logger(__name__)

#: most records that may wait for the log, and bytes of their bodies
WAITING_DELIVERIES = 2_000
WAITING_DELIVERY_BYTES = 16 * 1_048_576
_AT_ONCE = 128
#: records within this time are written together: one request per broker, not one per record
_GATHER_S = 0.05
_APPEND_S = 10.0
_RETRY_S = 1.0
#: how long waiting records may take while stopping, in seconds
_STOP_S = 2.0
#: records read at a time, from the newest backwards
_WINDOW = 500
_READ_S = 30.0


class DeliveryWriter:
    """Implements DeliveryLog.

    Writes in the background, retries while the log is unavailable, and drops what exceeds the
    limits. Starts with the first record."""

    def __init__(self, settings: Settings, appender: Appender) -> None:
        self._settings = settings
        self._appender = appender
        self._waiting: deque[Delivery] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._dropped = 0

    def offer(self, delivery: Delivery) -> None:
        size = len(delivery.body or b"")
        if len(self._waiting) >= WAITING_DELIVERIES or self._bytes + size > WAITING_DELIVERY_BYTES:
            self._drop("too many records are waiting")
            return
        self._waiting.append(delivery)
        self._bytes += size
        self._written.clear()
        self._news.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    @never_cut_short
    async def stop(self) -> None:
        """Write waiting records, within a deadline, and close. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._written.wait()
            except TimeoutError:
                log.warning("deliveries_not_recorded", records=len(self._waiting))
            task.cancel()
            await asyncio.wait([task])
        await self._appender.stop()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            if not self._waiting:
                self._written.set()
                await self._news.wait()
            if len(self._waiting) < _AT_ONCE:
                await asyncio.sleep(_GATHER_S)
            batch = [self._waiting[n] for n in range(min(_AT_ONCE, len(self._waiting)))]
            outcomes = await asyncio.gather(*(self._write(each) for each in batch))
            for each in batch:
                self._waiting.popleft()
                self._bytes -= len(each.body or b"")
            away = [each for each, done in zip(batch, outcomes, strict=True) if not done]
            for each in reversed(away):  # the reader merges records of one id, so repeats are safe
                self._waiting.appendleft(each)
                self._bytes += len(each.body or b"")
            if away:
                await asyncio.sleep(_RETRY_S)

    async def _write(self, delivery: Delivery) -> bool:
        """Return False if the log is unavailable."""
        settings = self._settings
        try:
            out = delivery_out(settings.app, settings.partitions, delivery)
            await self._appender.append(out, "the record of a delivery", deadline_s=_APPEND_S)
        except Unavailable as error:
            log.warning("delivery_record_waits", reason=str(error))
            return False
        except RecordTooLarge as error:
            if delivery.body is not None:
                return await self._write(replace(delivery, body=None))
            self._drop(str(error))
        except CodecError as error:
            self._drop(str(error))
        except Exception:
            log.exception("delivery_record_failed")
            self._drop("unexpected error; see delivery_record_failed")
        return True

    def _drop(self, reason: str) -> None:
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:  # 1, 2, 4, 8 ...
            log.warning("delivery_record_dropped", dropped=self._dropped, reason=reason)


class DeliveryReader:
    """Reads the record of deliveries, newest first."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self._partitions = settings.partitions
        self._topic = deliveries_topic(settings.app)
        self._lookups = backend.lookups(self._topic)
        self._offsets = backend.offsets()

    async def latest(self, wanted: Callable[[Delivery], bool], limit: int) -> list[Delivery]:
        """Return at most `limit` wanted deliveries.

        Raises: Unavailable — the log cannot be read now.
        """
        async with bounded(_READ_S):
            spans = await self._spans()
            found: dict[str, Delivery] = {}
            for partition, (begin, end) in spans.items():
                here: dict[str, Delivery] = {}
                for start in range(end - _WINDOW, begin - _WINDOW, -_WINDOW):
                    piece = max(begin, start), start + _WINDOW
                    async for record in self._records(partition, *piece):
                        if (made := _readable(record)) is not None and wanted(made):
                            here[made.id] = made
                    if len(here) >= limit:
                        break
                found |= here
        return sorted(found.values(), key=lambda each: each.id, reverse=True)[:limit]

    async def find(self, id_: str) -> Delivery | None:
        """Find a delivery by the record's id, or the latest with the sender's own id.

        Raises: Unavailable — the log cannot be read now.
        """
        home = partition_of(id_, self._partitions)
        async with bounded(_READ_S):
            begin, end = (await self._spans())[home]
            async for record in self._records(home, begin, end, key=id_.encode()):
                if (made := _readable(record)) is not None:
                    return made
        same = await self.latest(lambda each: each.delivery == id_, 1)
        return same[0] if same else None

    async def _spans(self) -> dict[int, tuple[int, int]]:
        every = range(self._partitions)
        begins = await self._offsets.begins(self._topic, every)
        ends = await self._offsets.ends(self._topic, every)
        return {number: (begins[number], ends[number]) for number in every}

    async def _records(
        self, partition: int, start: int, end: int, key: bytes | None = None
    ) -> AsyncIterator[ConsumerRecord]:
        while start < end:
            page, start = await self._lookups.page(
                partition, start, end, lambda found: key is None or found == key
            )
            for record in page:
                yield record

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await self._lookups.stop()
        await self._offsets.stop()


def _readable(record: ConsumerRecord) -> Delivery | None:
    try:
        return read_delivery(record.value)
    except UndecodableError as error:
        log.warning("delivery_unreadable", offset=record.offset, error=str(error))
        return None
