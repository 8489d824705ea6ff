"""The embedded log's broker on a SQLite file.

One thread writes. It puts everything that waits into one transaction of the file, so that many
commits share one fsync (group commit), and reports each result once it is on disk. The event loop
reads, on a connection of its own. Appends by other processes are found by polling the file's change
counter.

When SQLite fails (disk full, file locked by another process), nothing has been written. The outcome
of a commit is then unknown to its owner, who takes the partition over again and retries, so work
resumes once the cause is gone, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from surefoot.infra.embedded.file import Access, EmbeddedFile, OffsetRange, OwnerLock, Write
from surefoot.infra.embedded.log import TopicPartition
from surefoot.state.errors import (
    ConfigError,
    FencedError,
    NoSuchTopic,
    OutcomeUnknown,
    RecordTooLarge,
    SurefootError,
    Unavailable,
)
from surefoot.state.names.topics import TopicSpec
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.records.sizes import record_size

log = structlog.get_logger(__name__)

#: how often to poll the file for writes of other processes, in seconds
LOOK_S = 0.05
#: most commits that share one transaction of the file
_TOGETHER = 512


@dataclass(frozen=True, slots=True)
class _Job:
    """Work for the writing thread; `done` gets the result, on the loop."""

    work: Write | Callable[[EmbeddedFile], Any]
    done: Callable[[Any, Exception | None], None]


@contextmanager
def _told(done: str = "read") -> Iterator[None]:
    """Raise what SQLite raises inside as Unavailable."""
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable("SF3105", f"the embedded log cannot be {done}: {error}") from error


_UNAVAILABLE = partial(Unavailable, "SF3105")

#: a job, its result, and its error
_Done = tuple[_Job, Any, Exception | None]


class SqliteBroker:
    """Implements EmbeddedBroker. `owner` is for the one process that runs agents.

    Create it on the event loop that uses it, and close it there.
    """

    def __init__(self, path: Path, clock: Clock, *, owner: bool, access: Access = "make") -> None:
        """Raises: ConfigError — the file cannot be used, or already has an owner."""
        self.path = path
        self._lock = OwnerLock(path) if owner else None
        self._clock = clock
        try:
            self._reader = EmbeddedFile(path, access)
            self._writer = EmbeddedFile(path, access)
        except ConfigError:
            if self._lock is not None:
                self._lock.release()
            raise
        self._topics = self._reader.topics()
        self._epochs: dict[str, int] = {}
        self._changes = self._reader.changes()
        self.listeners: dict[Callable[[], None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._write_on, name="surefoot-log", daemon=True)
        self._thread.start()
        self._looking = self._loop.create_task(self._look_on())

    async def close(self) -> None:
        """Write what is queued, and close the file. Safe to call twice."""
        self._looking.cancel()
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._writer.close()
            self._reader.close()
        if self._lock is not None:
            self._lock.release()

    # Topics ----------------------------------------------------------------------------------

    def create(self, specs: Iterable[TopicSpec]) -> list[str]:
        with _told("written to"):
            made = self._reader.create(specs)
            self._topics = self._reader.topics()
        return made

    def alter(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Change these configs of existing topics, by topic; durable."""
        if configs:
            with _told("written to"):
                self._reader.alter(configs)
                self._topics = self._reader.topics()

    def describe(self, names: Iterable[str]) -> dict[str, TopicSpec]:
        self.refresh()
        return {name: self._topics[name] for name in names if name in self._topics}

    def names(self) -> list[str]:
        """Return the names of all topics."""
        self.refresh()
        return list(self._topics)

    # Reading ---------------------------------------------------------------------------------

    def begin_offset(self, place: TopicPartition) -> int:
        return self._span(place).begin

    def end_offset(self, place: TopicPartition) -> int:
        return self._span(place).end

    def stable_end(self, place: TopicPartition) -> int:
        """Return the end offset: uncommitted records are never visible here."""
        return self._span(place).end

    def read(
        self, place: TopicPartition, position: int, most: int
    ) -> tuple[list[ConsumerRecord], int]:
        span = self._span(place)
        if position >= span.end:
            return [], position
        with _told():
            records = self._reader.read(place, position, most)
        return records, records[-1].offset + 1 if len(records) == most else span.end

    def offset_at(self, place: TopicPartition, time_ms: int) -> int | None:
        self._span(place)
        with _told():
            return self._reader.offset_at(place, time_ms)

    def committed(self, group: str, place: TopicPartition) -> int | None:
        offset = self.bookmark(group, place)
        return None if offset is None else max(offset, self._span(place).begin)

    def bookmark(self, group: str, place: TopicPartition) -> int | None:
        """Like `committed`, but not moved up where retention has deleted the record."""
        self._span(place)
        with _told():
            return self._reader.committed(group, place)

    def _span(self, place: TopicPartition) -> OffsetRange:
        span = self._reader.spans.get(place)
        if span is None:
            self.refresh()
            span = self._reader.spans.get(place)
        if span is None:
            raise NoSuchTopic(
                f"there is no topic {place[0]} with a partition {place[1]}: check the agent's name"
            )
        return span

    def refresh(self) -> None:
        """Load what other processes have written and created."""
        with _told():
            self._changes = self._reader.changes()
            self._reader.look()
            self._topics = self._reader.topics()

    async def _look_on(self) -> None:
        """Poll for what other processes have written."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                with _told():
                    changed = self._reader.changes() != self._changes
                if changed:
                    before = {place: span.end for place, span in self._reader.spans.items()}
                    self.refresh()
                    now = {place: span.end for place, span in self._reader.spans.items()}
                    if now != before:
                        self._tell()
            except Unavailable as error:
                log.warning("log_not_read", error=str(error))

    # Writing ---------------------------------------------------------------------------------

    async def append(self, outs: Sequence[ProducerRecord]) -> list[int]:
        self._check(outs)
        offsets: list[int] = await self._do(Write(outs, self._clock.now_ms()), _UNAVAILABLE)
        return offsets

    def publish(self, outs: Sequence[ProducerRecord]) -> None:
        self._check(outs)

        def done(_: Any, error: Exception | None) -> None:
            if error is not None:
                log.warning("publish_dropped", error=str(error))

        self._put(_Job(Write(outs, self._clock.now_ms()), done))

    async def take(self, transactional_id: str) -> int:
        epoch: int = await self.maintain(lambda file: file.take(transactional_id))
        self._epochs[transactional_id] = epoch
        return epoch

    def begin(self, transactional_id: str, epoch: int, outs: Sequence[ProducerRecord]) -> Write:
        newest = self._epochs.get(transactional_id)
        if newest != epoch:
            raise FencedError(f"{transactional_id}: epoch {epoch} is over, {newest} holds")
        self._check(outs)
        return Write(outs, self._clock.now_ms(), transactional_id, epoch)

    async def commit(
        self, transaction: Write, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[int]]:
        for place in offsets:
            self._span(place)
        whole = Write(
            transaction.outs,
            transaction.now_ms,
            transaction.transactional_id,
            transaction.epoch,
            group,
            offsets,
        )
        written: list[int] = await self._do(whole, OutcomeUnknown)
        places: dict[TopicPartition, list[int]] = {}
        for out, offset in zip(transaction.outs, written, strict=True):
            places.setdefault((out.topic, out.partition), []).append(offset)
        return places

    def _check(self, outs: Sequence[ProducerRecord]) -> None:
        for out in outs:
            self._span((out.topic, out.partition))
            limit = int(self._topics[out.topic].config["max.message.bytes"])
            size = record_size(out)
            if size > limit:
                raise RecordTooLarge(
                    f"a record of {size} bytes for {out.topic}", size=size, limit=limit
                )

    async def maintain(self, work: Callable[[EmbeddedFile], Any]) -> Any:
        """Run work on the file between two commits. Raises Unavailable."""
        return await self._do(work, _UNAVAILABLE)

    async def _do(
        self, work: Write | Callable[[EmbeddedFile], Any], failure: Callable[[str], SurefootError]
    ) -> Any:
        """Have the writing thread do it, and wait. Under cancellation it is done all the same."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(value: Any, error: Exception | None) -> None:
            if future.cancelled():
                return
            if isinstance(error, sqlite3.Error):
                error = failure(f"the embedded log cannot be written to: {error}")
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        self._put(_Job(work, done))
        return await future

    def _put(self, job: _Job) -> None:
        if self._closed:
            job.done(None, sqlite3.ProgrammingError("it is closed"))
        else:
            self._jobs.put(job)

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()

    # The writing thread ----------------------------------------------------------------------

    def _write_on(self) -> None:
        more = True
        while more:
            jobs = [self._jobs.get()]
            while len(jobs) < _TOGETHER and not self._jobs.empty():
                jobs.append(self._jobs.get())
            more = None not in jobs
            done = self._carry_out([job for job in jobs if job is not None])
            spans = {place: (span.begin, span.end) for place, span in self._writer.spans.items()}
            try:
                self._loop.call_soon_threadsafe(self._carried_out, done, spans)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _carry_out(self, jobs: Sequence[_Job]) -> list[_Done]:
        done: list[_Done] = []
        writes = [(job, job.work) for job in jobs if isinstance(job.work, Write)]
        try:
            results = self._writer.write([write for _, write in writes])
        except Exception as error:  # noqa: BLE001  (told to everybody who waits)
            done += ((job, None, error) for job, _ in writes)
        else:
            for (job, _), result in zip(writes, results, strict=True):
                if isinstance(result, FencedError):
                    done.append((job, None, result))
                else:
                    done.append((job, result, None))
        for job in jobs:
            if isinstance(job.work, Write):
                continue
            try:
                done.append((job, job.work(self._writer), None))
            except Exception as error:  # noqa: BLE001  (told to whoever waits)
                done.append((job, None, error))
        return done

    def _carried_out(
        self, done: Sequence[_Done], spans: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        """Publish what was written to the readers. Runs on the loop."""
        for place, (begin, end) in spans.items():
            span = self._reader.spans.get(place)
            if span is not None:
                span.begin, span.end = max(span.begin, begin), max(span.end, end)
        for job, value, error in done:
            job.done(value, error)
        self._tell()
