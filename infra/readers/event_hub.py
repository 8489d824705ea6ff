"""One live tail of a topic for all watchers: each record is read and decoded once.

Each watcher has a bounded queue of references to the same records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, overload

import structlog

from surefoot.infra.log.ports import Backend
from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.schemas.codec.records import AvroEvent, AvroStream
from surefoot.schemas.payload import strict_json
from surefoot.state.errors import Unavailable
from surefoot.state.feeds.event_id import part
from surefoot.state.feeds.feed import EventFilter
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.runs import event_json

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: most that may wait for one slow watcher
WAITING_RECORDS = 1_000
WAITING_BYTES = 4 * 1_048_576


class LiveEvent:
    """One event of an agent, and the topic position after it.

    Derived values are computed once, for all watchers."""

    def __init__(self, agent: str, record: ConsumerRecord, offsets: list[int]) -> None:
        self.agent = agent
        self.record = record
        #: next offset of every partition, as the tail handed them out
        self.offsets = offsets

    @cached_property
    def event(self) -> AvroEvent | None:
        return decoded(self.record, "Event")

    @cached_property
    def data(self) -> str:
        assert self.event is not None
        return strict_json(event_json(self.event)).decode()

    @cached_property
    def part(self) -> str:
        return part(self.agent, self.offsets)


class EventHub:
    """One live tail of an agent's topic, shared by all watchers.

    Starts with the first watcher: a process without watchers reads nothing.
    """

    def __init__(self, backend: Backend, topic: str, agent: str) -> None:
        self._tail = backend.tail(topic, self._publish, from_end=True)
        self.topic = topic
        self._agent = agent
        self._watchers: dict[bytes, set[Watcher[ConsumerRecord]]] = {}
        #: watchers of whole agents, by their filter
        self._all: dict[EventFilter, set[Watcher[LiveEvent]]] = {}
        self._closed = False

    async def started(self) -> None:
        if self._closed:
            raise Unavailable("SF3009", "the reader is stopping")
        self._tail.start()
        await self._tail.started()

    @property
    def offsets(self) -> list[int]:
        """Next offset of every partition to be handed out."""
        return [offset for _, offset in sorted(self._tail.positions.items())]

    @contextmanager
    def watch(self, key: bytes, partition: int) -> Iterator[Watcher[ConsumerRecord]]:
        """Watch one key's records from `Watcher.offset` on.

        There is no await between reading the tail's position and registering, so no record is
        missed."""
        watcher: Watcher[ConsumerRecord] = Watcher(self._tail.positions[partition])
        with self.join(key, watcher):
            yield watcher

    @contextmanager
    def join(self, key: bytes, watcher: Watcher[ConsumerRecord]) -> Iterator[None]:
        """Watch one key's records from now on, for a watcher that also watches another topic."""
        if self._closed:
            watcher.close()
        self._watchers.setdefault(key, set()).add(watcher)
        try:
            yield
        finally:
            self._watchers[key].discard(watcher)
            if not self._watchers[key]:
                del self._watchers[key]

    @contextmanager
    def join_all(self, watcher: Watcher[LiveEvent], choice: EventFilter) -> Iterator[None]:
        """Watch the chosen events from the present `offsets` on."""
        if self._closed:
            watcher.close()
        self._all.setdefault(choice, set()).add(watcher)
        try:
            yield
        finally:
            self._all[choice].discard(watcher)
            if not self._all[choice]:
                del self._all[choice]

    def _publish(self, record: ConsumerRecord) -> None:
        size = len(record.value or b"")
        for watcher in self._watchers.get(record.key or b"", ()):
            self._offer(watcher, record, size)
        if self._all:
            offsets = self.offsets
            offsets[record.partition] = record.offset + 1
            happened = LiveEvent(self._agent, record, offsets)
            for choice, watchers in self._all.items():
                if happened.event is not None and choice(happened.event):
                    for each in watchers:
                        each.offer(happened, size)

    def _offer(self, watcher: Watcher[ConsumerRecord], record: ConsumerRecord, size: int) -> None:
        watcher.offer(record, size)

    def close(self) -> None:
        self._closed = True
        for everything in self._all.values():
            for watcher in everything:
                watcher.close()
        for watchers in self._watchers.values():
            for each in watchers:
                each.close()

    async def stop(self) -> None:
        self.close()
        await self._tail.stop()


class OutputHub(EventHub):
    """The same for partial output: best effort, so a slow watcher loses it before events."""

    def _offer(self, watcher: Watcher[ConsumerRecord], record: ConsumerRecord, size: int) -> None:
        if not watcher.half_full:
            watcher.offer(record, size)


class Watcher(Generic[T]):
    """The queue of one watcher.

    Bounded: a watcher that is too slow is closed and its queue dropped; it can resume with the id
    of its last event."""

    def __init__(self, offset: int = 0) -> None:
        #: records have this offset or a later one; earlier ones have to be looked up
        self.offset = offset
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._too_slow = False
        self._wake = asyncio.Event()

    def offer(self, item: T, size: int) -> None:
        if self._closed:
            return
        self._waiting.append((item, size))
        self._bytes += size
        if len(self._waiting) > WAITING_RECORDS or self._bytes > WAITING_BYTES:
            log.info("watcher_too_slow", waiting=len(self._waiting), bytes=self._bytes)
            self._too_slow = True
            self.close()
        self._wake.set()

    def too_slow(self) -> bool:
        """Whether it was closed because too much was waiting."""
        return self._too_slow

    @property
    def half_full(self) -> bool:
        return len(self._waiting) > WAITING_RECORDS // 2 or self._bytes > WAITING_BYTES // 2

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._wake.set()

    def __aiter__(self) -> Watcher[T]:
        return self

    async def __anext__(self) -> T:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        item, size = self._waiting.popleft()
        self._bytes -= size
        return item


@overload
def decoded(record: ConsumerRecord, schema: Literal["Event"]) -> AvroEvent | None: ...
@overload
def decoded(record: ConsumerRecord, schema: Literal["Stream"]) -> AvroStream | None: ...
def decoded(record: ConsumerRecord, schema: str) -> Any:
    """Decode the record; None, with a line in the log, if it cannot be decoded."""
    try:
        return decode(record.value, schema)[1]
    except UndecodableError as error:
        log.warning(
            "event_undecodable",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=str(error),
        )
        return None
