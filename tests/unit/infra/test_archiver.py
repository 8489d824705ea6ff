"""What becomes of an agent's records on their way to the archive, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot.infra.archive import reader as archive_reader
from surefoot.infra.archive.archiver import Archiver
from surefoot.infra.archive.reader import ArchiveReader
from surefoot.infra.archive.store import ArchiveStore, FolderArchive
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.errors import ConfigError, FencedError, StateError, StoreRefused, Unavailable
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.ports.sources import OffsetGone, SourceOffsets
from surefoot.state.reading.archive import Shelf, pack
from tests.support.archived import DAY_MS, NOON_MS, life, metadata, offsets_by_any_reader, records
from tests.support.eventually import until

TOPIC = "app.shop.events"
#: longer than a busy machine needs: nothing is given up by chance
DRAIN_S = 300.0


class OnePartition:
    """Implements ArchiveLog over a list: a log with one partition, and the offset of one group."""

    def __init__(self, records: list[ConsumerRecord], *, first: int = 0) -> None:
        self.records = records
        self.first = first
        self.committed: int | None = None
        #: records that are read at a time
        self.most = 1_000
        self.fenced = False
        self._position = -1
        self._paused = True
        self.on_revoked: Callable[[], Awaitable[None]] | None = None

    @property
    def end(self) -> int:
        return self.records[-1].offset + 2 if self.records else self.first

    def again(self) -> OnePartition:
        """As the next process finds it."""
        made = OnePartition(self.records, first=self.first)
        made.committed = self.committed
        return made

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        self.on_revoked = on_revoked
        on_assigned(frozenset({0}))

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        await asyncio.sleep(min(timeout_s, 0.001))
        if self._paused or self._position < 0:
            return []
        if not self.first <= self._position <= self.end:
            raise OffsetGone(0)
        found = [record for record in self.records if record.offset >= self._position]
        self._position = found[self.most].offset if len(found) > self.most else self.end
        return found[: self.most]

    def pause(self, partition: int) -> None:
        assert partition == 0
        self._paused = True

    def resume(self, partition: int, position: int | None = None) -> None:
        assert partition == 0
        self._paused = False
        if position is not None:
            self._position = position

    def reached(self, partition: int) -> int:
        assert partition == 0
        return self._position

    async def standing(self, partition: int) -> SourceOffsets:
        assert partition == 0
        return SourceOffsets(self.committed, self.first, self.end)

    async def commit(self, partition: int, offset: int) -> None:
        assert partition == 0
        if self.fenced:
            raise FencedError("another has it")
        self.committed = offset

    async def stop(self) -> None: ...


def archiver(log: OnePartition, store: ArchiveStore, **options: Any) -> Archiver:
    return Archiver(
        agent="shop",
        topic=TOPIC,
        log=log,
        store=store,
        clock=SystemClock(),
        **{"file_bytes": 1_000_000, "age_s": 300.0, **options},
    )


def reader_of(store: ArchiveStore) -> ArchiveReader:
    return ArchiveReader(store, "app", 1, lambda record: record)


async def once(log: OnePartition, store: ArchiveStore, **options: Any) -> Archiver:
    made = archiver(log, store, **options)
    assert await made.run(asyncio.Event(), asyncio.Event(), once=True, drain_s=DRAIN_S)
    return made


def files(folder: Path, kind: str = "events") -> list[bytes]:
    return [
        path.read_bytes() for path in sorted(folder.glob(f"app/agent=shop/kind={kind}/**/*.avro"))
    ]


def some(count: int = 20) -> list[ConsumerRecord]:
    return records([value for number in range(count // 2) for value in life(f"r{number}")])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderArchive:
    monkeypatch.setattr(archive_reader, "_DEADLINE_S", DRAIN_S)
    return FolderArchive(tmp_path / "app")


async def test_each_event_is_in_one_file_and_the_offset_is_that_of_the_end(
    store: FolderArchive, tmp_path: Path
) -> None:
    log = OnePartition(some())
    made = await once(log, store, file_bytes=500)
    assert (made.events, made.files) == (20, len(files(tmp_path)))
    assert made.files > 2
    assert offsets_by_any_reader(files(tmp_path)) == [r.offset for r in log.records]
    assert offsets_by_any_reader(files(tmp_path, "runs")) == [r.offset for r in log.records[1::2]]
    assert log.committed == log.end
    assert (await once(log.again(), store)).files == 0


class DiesAfter(FolderArchive):
    """The process is gone after so many calls that changed something."""

    def __init__(self, folder: Path, calls: int) -> None:
        super().__init__(folder)
        self.calls = calls

    async def put_new(self, key: str, content: bytes) -> bool:
        done = await super().put_new(key, content)
        await self._count()
        return done

    async def put(self, key: str, content: bytes) -> None:
        await super().put(key, content)
        await self._count()

    async def _count(self) -> None:
        self.calls -= 1
        if self.calls <= 0:
            await asyncio.Event().wait()


async def killed(log: OnePartition, store: DiesAfter, file_bytes: int) -> bool:
    """False: it came to its end before."""
    made = archiver(log, store, file_bytes=file_bytes)
    run = asyncio.create_task(
        made.run(asyncio.Event(), asyncio.Event(), once=True, drain_s=DRAIN_S)
    )
    await until(lambda: run.done() or store.calls <= 0, what="it to die or to end")
    died = not run.done()
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    return died


async def test_wherever_it_dies_each_event_is_in_one_file_and_in_the_index(
    store: FolderArchive, tmp_path: Path
) -> None:
    """And what comes after reads other batches, into files of another size."""
    log = OnePartition(some(60))
    deaths = 0
    for calls in range(1, 40):
        deaths += await killed(log, DiesAfter(tmp_path / "app", calls), 300 + 100 * (calls % 5))
        if log.committed == log.end:
            break
        log = log.again()
    assert deaths > 4
    assert offsets_by_any_reader(files(tmp_path)) == [r.offset for r in log.records]
    assert offsets_by_any_reader(files(tmp_path, "runs")) == [r.offset for r in log.records[1::2]]
    for number in range(30):
        assert len(await reader_of(store).history("shop", f"r{number}")) == 2


async def test_a_file_that_has_more_than_was_read_is_gone_on_behind(
    store: FolderArchive, tmp_path: Path
) -> None:
    log = OnePartition(some())
    assert await killed(log, DiesAfter(tmp_path / "app", 1), 1_000_000)
    again = log.again()
    again.most = 3
    await once(again, store, age_s=0.0)
    assert (again.committed, len(files(tmp_path))) == (log.records[-1].offset + 1, 1)


async def test_a_process_that_wakes_up_late_adds_nothing(
    store: FolderArchive, tmp_path: Path
) -> None:
    log = OnePartition(some())
    awake, there = asyncio.Event(), asyncio.Event()

    class Frozen(FolderArchive):
        async def put_new(self, key: str, content: bytes) -> bool:
            there.set()
            await awake.wait()
            return await super().put_new(key, content)

    frozen = archiver(log, Frozen(tmp_path / "app"))
    run = asyncio.create_task(
        frozen.run(asyncio.Event(), asyncio.Event(), once=True, drain_s=DRAIN_S)
    )
    await there.wait()
    await once(log.again(), store, file_bytes=500)
    log.fenced = True
    awake.set()
    await until(lambda: log.fenced and frozen.files, what="it to go on")
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert offsets_by_any_reader(files(tmp_path)) == [r.offset for r in log.records]


class Away(FolderArchive):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked = 0
        self.away = True
        self.why: Unavailable = Unavailable("SF3041", "no answer")

    async def put_new(self, key: str, content: bytes) -> bool:
        self.asked += 1
        if self.away:
            raise self.why
        return await super().put_new(key, content)


async def test_while_the_store_is_away_nothing_is_committed_and_then_all_is_there(
    tmp_path: Path,
) -> None:
    log, store = OnePartition(some()), Away(tmp_path / "app")
    made = archiver(log, store, file_bytes=500)
    run = asyncio.create_task(
        made.run(asyncio.Event(), asyncio.Event(), once=True, drain_s=DRAIN_S)
    )
    await until(lambda: store.asked >= 2, what="it to try again")
    before, store.away = log.committed, False
    assert await run
    assert (before, log.committed) == (None, log.end)
    assert offsets_by_any_reader(files(tmp_path)) == [r.offset for r in log.records]


async def test_a_store_that_refuses_is_told_with_what_to_do_and_waited_for(tmp_path: Path) -> None:
    log, store = OnePartition(some()), Away(tmp_path / "app")
    store.why = StoreRefused("SF3066", "s3://bucket/ refuses: AccessDenied")
    made = archiver(log, store, file_bytes=500)
    with capture_logs() as logs:
        run = asyncio.create_task(
            made.run(asyncio.Event(), asyncio.Event(), once=True, drain_s=DRAIN_S)
        )
        await until(lambda: store.asked >= 2, what="it to try again")
        before, store.away = log.committed, False
        assert await run
    assert (before, log.committed) == (None, log.end)
    told = [line for line in logs if line["event"] == "archive_refused"]
    assert {line["log_level"] for line in told} == {"error"}
    assert told[0]["reason"] == "SF3066: s3://bucket/ refuses: AccessDenied"
    assert "permissions" in told[0]["advice"]


async def test_asked_to_stop_it_writes_what_it_has_read(
    store: FolderArchive, tmp_path: Path
) -> None:
    log, stop = OnePartition(some()), asyncio.Event()
    made = archiver(log, store)
    run = asyncio.create_task(made.run(stop, asyncio.Event(), once=False, drain_s=DRAIN_S))
    await until(lambda: log.reached(0) == log.end, what="all to be read")
    assert not files(tmp_path)
    stop.set()
    assert await run
    assert log.committed == log.end
    assert offsets_by_any_reader(files(tmp_path)) == [r.offset for r in log.records]


async def test_in_a_hurry_it_gives_up_what_cannot_be_written(tmp_path: Path) -> None:
    log, store = OnePartition(some()), Away(tmp_path / "app")
    stop, abort = asyncio.Event(), asyncio.Event()
    run = asyncio.create_task(archiver(log, store).run(stop, abort, once=False, drain_s=DRAIN_S))
    await until(lambda: log.reached(0) == log.end, what="all to be read")
    stop.set()
    await until(lambda: store.asked, what="it to try")
    abort.set()
    assert not await run
    assert log.committed is None


async def test_a_file_is_written_when_its_first_event_has_waited_long_enough(
    store: FolderArchive, tmp_path: Path
) -> None:
    log, stop = OnePartition(some(2)), asyncio.Event()
    made = archiver(log, store, age_s=0.05)
    run = asyncio.create_task(made.run(stop, asyncio.Event(), once=False, drain_s=DRAIN_S))
    await until(lambda: log.committed == log.end, what="the file")
    stop.set()
    assert await run


async def test_the_file_of_a_day_that_is_over_waits_for_nothing_more(
    store: FolderArchive, tmp_path: Path
) -> None:
    days = some(4) + records(life("next"), first=8, at_ms=NOON_MS + DAY_MS)
    log, stop = OnePartition(days), asyncio.Event()
    run = asyncio.create_task(
        archiver(log, store).run(stop, asyncio.Event(), once=False, drain_s=DRAIN_S)
    )
    await until(lambda: log.committed, what="the file of the first day")
    assert offsets_by_any_reader(files(tmp_path)) == [0, 2, 4, 6]
    stop.set()
    assert await run


async def test_what_retention_has_deleted_first_is_told_in_the_log_and_in_the_file(
    store: FolderArchive, tmp_path: Path
) -> None:
    log = OnePartition(some())
    await once(log, store)
    later = OnePartition(records(life("late"), first=100), first=100)
    later.committed = log.committed
    with capture_logs() as logs:
        await once(later, store)
    (told,) = [line for line in logs if line["event"] == "archive_gap"]
    assert (told["first"], told["last"], told["log_level"]) == (log.end, 99, "error")
    assert metadata(files(tmp_path)[-1])["surefoot.gap"] == f"{log.end}-99"
    assert offsets_by_any_reader(files(tmp_path))[-2:] == [100, 102]


async def test_retention_that_overtakes_it_while_it_reads_is_told_too(
    store: FolderArchive, tmp_path: Path
) -> None:
    log, stop = OnePartition(some()), asyncio.Event()
    made = archiver(log, store)
    run = asyncio.create_task(made.run(stop, asyncio.Event(), once=False, drain_s=DRAIN_S))
    end = log.end
    await until(lambda: log.reached(0) == end, what="all to be read")
    log.records, log.first = records(life("late"), first=100), 100
    await until(lambda: log.reached(0) > 100, what="it to go on")
    stop.set()
    assert await run
    assert [metadata(file).get("surefoot.gap") for file in files(tmp_path)] == [None, f"{end}-99"]


async def test_without_an_offset_it_goes_on_where_the_archive_ends(
    store: FolderArchive, tmp_path: Path
) -> None:
    written = some(4)
    log = OnePartition(written)
    await once(log, store)
    written += records(life("late"), first=log.end)
    # the group's offsets have expired, and retention stands in the middle of a file
    rest = OnePartition(written[1:], first=written[1].offset)
    await once(rest, store)
    assert offsets_by_any_reader(files(tmp_path)) == [r.offset for r in written]


async def test_the_archive_of_another_log_is_refused_and_left_as_it_is(
    store: FolderArchive, tmp_path: Path
) -> None:
    await once(OnePartition(some()), store)
    before = files(tmp_path)
    anew = OnePartition(records(life("x"), at_ms=NOON_MS + 60_000))
    with pytest.raises(ConfigError, match="SF1060"):
        await once(anew, store)  # the archive goes on beyond its end
    anew.committed = 0
    with pytest.raises(ConfigError, match="SF1060"):
        await once(anew, store)  # the file that it would make is there, with other records
    assert files(tmp_path) == before


async def test_days_get_files_of_their_own_and_past_days_one_index(
    store: FolderArchive, tmp_path: Path
) -> None:
    days = [
        record
        for day in range(3)
        for record in records(life(f"day{day}"), first=10 * day, at_ms=NOON_MS + day * DAY_MS)
    ]
    days += records(life("day0"), first=30, at_ms=NOON_MS + 2 * DAY_MS)
    await once(OnePartition(days), store)
    shelf = Shelf("shop", 0)
    assert list(await store.keys(shelf.indexes)) == [
        shelf.day("2026-01-31"),
        shelf.day("2026-02-01"),
        shelf.index("2026-02-02", 20),
    ]
    reader = reader_of(store)
    assert [offset for offset, _ in await reader.history("shop", "day1")] == [10, 12]
    assert [offset for offset, _ in await reader.history("shop", "day0")] == [30, 32]
    assert await reader.history("shop", "nobody") == []


async def test_a_file_that_has_gone_is_told(store: FolderArchive) -> None:
    await once(OnePartition(some()), store)
    (key,) = await store.keys("agent=shop/kind=events")
    await store.delete(key)
    with pytest.raises(StateError, match="SF3042"):
        await reader_of(store).history("shop", "r1")


async def test_two_files_of_one_name_are_never_made(store: FolderArchive) -> None:
    file = pack(TOPIC, 0, some())
    made = await asyncio.gather(*(store.put_new("k/x", file.events) for _ in range(8)))
    assert sorted(made) == [False] * 7 + [True]
