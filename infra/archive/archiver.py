"""Moves one agent's events from the log to the archive, as a member of a consumer group.

Each partition's records are gathered until they fill a file, or have waited long enough. The file
is stored, then what is derived from it, and only then is the offset committed. After a crash, the
next member starts at that offset, finds the existing file under the very name that its own would
have, and continues after it (state.reading.archive).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from surefoot.consumers.attempts.threads import in_thread
from surefoot.consumers.backoff import backoff
from surefoot.consumers.partition.ending import to_its_end
from surefoot.infra.archive.store import ArchiveStore
from surefoot.infra.log.ports import ArchiveLog
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.state.errors import ConfigError, FencedError, StoreRefused, Unavailable
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.ports.sources import OffsetGone
from surefoot.state.reading.archive import (
    File,
    Shelf,
    cut,
    day_end_ms,
    merged,
    newest,
    pack,
    same_log,
    unpack,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")

_POLL_S = 0.5
_BREATH_S = 0.01
#: how often to ask again for a partition's end that lies before what is archived
_LATE_TRIES = 4
#: longest wait between two attempts of a failing call, in seconds
_WAIT_MOST_S = 30.0
#: how long a file in progress may take to finish when the partition moves, in seconds
_HANDOVER_S = 3.0


@dataclass(slots=True)
class _Part:
    """A partition of this member."""

    number: int
    shelf: Shelf
    #: read, but not in a file yet
    records: list[ConsumerRecord] = field(default_factory=list)
    size: int = 0
    #: when the first of them arrived, and the end of its day
    since_s: float = 0.0
    day_ends_ms: int = 0
    later_day: bool = False
    #: end of the partition when reading began; None: still beginning
    end: int | None = None
    #: offsets that retention deleted before they were archived
    gap: tuple[int, int] | None = None
    #: date of its latest file
    date: str = ""
    #: begins the partition or writes files; the partition is paused meanwhile
    task: asyncio.Task[None] | None = None

    def take(self, record: ConsumerRecord, now_s: float) -> None:
        if not self.records:
            self.since_s, self.day_ends_ms = now_s, day_end_ms(record.timestamp_ms)
        self.records.append(record)
        self.size += len(record.value or b"")
        self.later_day = self.later_day or record.timestamp_ms >= self.day_ends_ms

    def keep_after(self, offset: int, now_s: float) -> None:
        """Drop the records that are in a file now."""
        left = [record for record in self.records if record.offset > offset]
        self.records, self.size, self.later_day = [], 0, False
        for record in left:
            self.take(record, now_s)


class Archiver:
    """Archives one agent. Use `run()`, once."""

    def __init__(
        self,
        *,
        agent: str,
        topic: str,
        log: ArchiveLog,
        store: ArchiveStore,
        clock: Clock,
        file_bytes: int,
        age_s: float,
    ) -> None:
        self.agent = agent
        #: what this archiver has archived
        self.files = self.events = 0
        self._topic = topic
        self._log = log
        self._store = store
        self._clock = clock
        self._file_bytes = file_bytes
        self._age_s = age_s
        self._parts: dict[int, _Part] = {}
        self._packing = asyncio.Lock()

    async def run(
        self, stop: asyncio.Event, abort: asyncio.Event, *, once: bool, drain_s: float
    ) -> bool:
        """Archive until `stop` is set; with `once`, until what existed is archived.

        Then finishes the files, within `drain_s` or until `abort` is set. False: some were given
        up; the next member writes them.

        Raises: ConfigError — the archive belongs to another log; Unavailable — at the start.
        """
        try:
            await self._log.start(self._assigned, self._revoked)
            while not stop.is_set() and not (once and self._through()):
                await self._turn()
            return await self._drain(abort, drain_s)
        finally:
            await to_its_end(self._close())

    async def _close(self) -> None:
        await self._end_tasks(0.0)
        await self._log.stop()

    # Partitions -------------------------------------------------------------------------------

    def _assigned(self, partitions: frozenset[int]) -> None:
        self._parts = {number: _Part(number, Shelf(self.agent, number)) for number in partitions}
        for part in self._parts.values():
            part.task = asyncio.create_task(self._begin(part))

    async def _revoked(self) -> None:
        await self._end_tasks(_HANDOVER_S)
        self._parts = {}

    async def _end_tasks(self, within_s: float) -> None:
        tasks = [part.task for part in self._parts.values() if part.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("archive_partition_failed", agent=self.agent, reason=str(error))

    async def _begin(self, part: _Part, *, refused: bool = False) -> None:
        """Resume after the last file.

        `refused`: the broker called the offset out of range. Until it does, a lower end may be that
        of a new leader that does not know everything yet (KIP-207)."""
        standing = await self._until_done(self._log.standing, part.number)
        start = standing.committed
        if start is None:
            start = await self._until_done(self._archived_end, part.shelf)
        if start is None:
            start = standing.first
        for _ in range(0 if refused else _LATE_TRIES):
            if start <= standing.end:
                break
            await asyncio.sleep(_POLL_S)
            standing = await self._until_done(self._log.standing, part.number)
        if start > standing.end:
            raise ConfigError(
                "SF1060",
                f"{self._topic} ends at {standing.end} in partition {part.number}, but is archived "
                f"up to {start} in {self._store.name}, so that archive is of another log; set "
                "SUREFOOT_ARCHIVE to another one",
            )
        if start < standing.first:
            log.error(
                "archive_gap",
                agent=self.agent,
                partition=part.number,
                first=start,
                last=standing.first - 1,
                advice="retention deleted these events before they were archived",
            )
            part.gap = (start, standing.first)
            start = standing.first
        part.end = standing.end
        log.info("archive_begins", agent=self.agent, partition=part.number, offset=start)
        self._log.resume(part.number, start)

    async def _archived_end(self, shelf: Shelf) -> int | None:
        """Return the offset after the last file, for when the group's own offset has expired."""
        for keys in shelf.by_date(await self._store.keys(shelf.indexes)).values():
            index = merged([await self._store.get(key) or b"" for key in keys])
            first = newest(index)
            if first is None:
                continue
            date = keys[0].removeprefix(shelf.indexes).partition("/")[0].removeprefix("date=")
            content = await self._store.get(shelf.events(date, first))
            if content is not None:
                return self._opened(shelf, date, first, content).last + 1
        return None

    # Reading ----------------------------------------------------------------------------------

    async def _turn(self) -> None:
        try:
            records = await self._log.poll(_POLL_S)
        except OffsetGone as gone:
            self._gone(self._parts.get(gone.partition))
            records = []
        except Unavailable as error:
            log.warning("archive_not_read", agent=self.agent, reason=str(error))
            await asyncio.sleep(_POLL_S)
            records = []
        now_s = self._clock.monotonic_s()
        for record in records:
            if (part := self._parts.get(record.partition)) is not None:
                part.take(record, now_s)
        for part in self._parts.values():
            if self._idle(part) and self._due(part, now_s):
                self._spawn_flush(part)
        # a poll does not wait while it has records, nor while a partition is being begun
        await asyncio.sleep(0 if records else _BREATH_S)

    def _gone(self, part: _Part | None) -> None:
        """Handle an offset that is gone: file what was read before it, then begin again."""
        if part is None or not self._idle(part):
            return
        self._log.pause(part.number)

        async def anew() -> None:
            await self._flush(part, everything=True)
            self._log.pause(part.number)
            await self._begin(part, refused=True)

        part.task = asyncio.create_task(anew())

    def _idle(self, part: _Part) -> bool:
        """Whether no task is running for the partition. Raises the error of a finished one."""
        if part.task is not None and part.task.done():
            done, part.task = part.task, None
            done.result()
        return part.task is None

    def _due(self, part: _Part, now_s: float) -> bool:
        return bool(part.records) and (
            part.size >= self._file_bytes or part.later_day or now_s - part.since_s >= self._age_s
        )

    def _through(self) -> bool:
        return bool(self._parts) and all(
            self._idle(part) and part.end is not None and self._log.reached(part.number) >= part.end
            for part in self._parts.values()
        )

    # Writing ----------------------------------------------------------------------------------

    def _spawn_flush(self, part: _Part, *, everything: bool = False) -> None:
        self._log.pause(part.number)
        part.task = asyncio.create_task(self._flush(part, everything=everything))

    async def _flush(self, part: _Part, *, everything: bool) -> None:
        offset: int | None = None
        while part.records and (everything or self._due(part, self._clock.monotonic_s())):
            file = await self._store_next(part)
            part.gap = None
            part.keep_after(file.last, self._clock.monotonic_s())
            offset = file.last + 1
            if not part.records:
                # also move past markers and aborted records
                offset = max(offset, self._log.reached(part.number))
            try:
                await self._until_done(self._log.commit, part.number, offset)
            except FencedError:
                log.info("archive_handed_over", agent=self.agent, partition=part.number)
                return  # a new assignment is on its way
            if part.date != file.date:
                await self._roll_up(part.shelf, file.date)
                part.date = file.date
        # a file found in the archive may contain more than was read
        self._log.resume(part.number, None if part.records else offset)

    async def _store_next(self, part: _Part) -> File:
        """Store the next file and what is derived from it."""
        records, shelf = part.records, part.shelf
        batch = records[: cut(records, self._file_bytes)]
        began_s = self._clock.monotonic_s()
        async with self._packing:  # packing a file takes several times its size in memory
            file: File = await in_thread(pack, self._topic, part.number, batch, part.gap)
        for offset, reason in file.unread:
            log.error(
                "event_not_archived",
                topic=self._topic,
                partition=part.number,
                offset=offset,
                reason=reason,
            )
        key = shelf.events(file.date, file.first)
        while not await self._until_done(self._store.put_new, key, file.events):
            content = await self._until_done(self._store.get, key)
            if content is None:
                continue
            file = await in_thread(self._opened, shelf, file.date, file.first, content)
            if not same_log(file, batch[0]):
                raise self._foreign(key)
            log.info("archive_found", agent=self.agent, file=key, last=file.last)
            break
        if file.runs is not None:
            runs = shelf.runs(file.date, file.first)
            await self._until_done(self._store.put, runs, file.runs)
        # last: a file listed in the index is complete
        await self._until_done(self._store.put, shelf.index(file.date, file.first), file.index)
        self.files += 1
        self.events += file.count
        log.info(
            "archived",
            agent=self.agent,
            file=key,
            events=file.count,
            bytes=len(file.events),
            took_ms=round((self._clock.monotonic_s() - began_s) * 1000),
        )
        return file

    def _opened(self, shelf: Shelf, date: str, first: int, content: bytes) -> File:
        try:
            file = unpack(date, content)
        except UndecodableError as error:
            raise self._foreign(shelf.events(date, first)) from error
        if file.first != first:
            raise self._foreign(shelf.events(date, first))
        return file

    def _foreign(self, key: str) -> ConfigError:
        return ConfigError(
            "SF1060",
            f"{self._store.name} has {key}, which is of another log; set SUREFOOT_ARCHIVE to "
            "another archive",
        )

    async def _roll_up(self, shelf: Shelf, today: str) -> None:
        """Merge the indexes of each past day into one. It only helps readers, so it can be late."""
        try:
            keys = shelf.by_date(await self._store.keys(shelf.indexes))
            for date, found in keys.items():
                day = shelf.day(date)
                single = [key for key in found if key != day]
                if date >= today or not single:
                    continue
                contents = await asyncio.gather(*(self._store.get(key) for key in found))
                await self._store.put(day, merged(content or b"" for content in contents))
                await asyncio.gather(*(self._store.delete(key) for key in single))
        except Unavailable as error:
            log.warning("archive_index_not_merged", agent=self.agent, reason=str(error))

    async def _drain(self, abort: asyncio.Event, drain_s: float) -> bool:
        async def finish(part: _Part) -> None:
            if part.task is not None:
                await asyncio.wait([part.task])
            if self._idle(part) and part.records:
                self._spawn_flush(part, everything=True)
                assert part.task is not None
                await asyncio.wait([part.task])
                self._idle(part)

        parts = [part for part in self._parts.values() if part.end is not None]

        async def all_of_them() -> None:
            await asyncio.gather(*(finish(part) for part in parts))

        finishing = asyncio.create_task(all_of_them())
        hurried = asyncio.create_task(abort.wait())
        try:
            await asyncio.wait(
                {finishing, hurried}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not finishing.done():
                log.warning(
                    "archive_given_up", agent=self.agent, advice="the next start archives the rest"
                )
                return False
            finishing.result()
        finally:
            hurried.cancel()
            finishing.cancel()
        return not any(part.records for part in parts)

    async def _until_done(self, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Retry until it succeeds. Nothing is committed meanwhile."""
        waits = backoff(self._clock, most_s=_WAIT_MOST_S)
        while True:
            try:
                return await call(*args)
            except StoreRefused as error:
                wait_s = next(waits)
                log.error(  # noqa: TRY400
                    "archive_refused",
                    agent=self.agent,
                    reason=str(error),
                    wait_s=round(wait_s, 1),
                    advice="correct the bucket or the folder, its permissions or the credentials "
                    "(docs/how-to/archive.md) before the events are older than their topic's "
                    "retention; the archiver then continues by itself, and commits nothing before",
                )
                await asyncio.sleep(wait_s)
            except Unavailable as error:
                wait_s = next(waits)
                log.warning(
                    "archive_waits", agent=self.agent, reason=str(error), wait_s=round(wait_s, 1)
                )
                await asyncio.sleep(wait_s)
