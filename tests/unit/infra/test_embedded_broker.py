"""The embedded log's file: durable, whole, one owner, and kept small."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.file import Access, EmbeddedFile
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog
from surefoot.infra.embedded.retention import Upkeep
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.errors import (
    ConfigError,
    FencedError,
    NoSuchTopic,
    OutcomeUnknown,
    RecordTooLarge,
    Unavailable,
)
from surefoot.state.names.topics import DAY_MS, AgentTopics, TopicSpec, agent_specs
from surefoot.state.ports.log import ProducerRecord
from tests.support.eventually import until

SIZE = {"max.message.bytes": "1000", "message.timestamp.type": "CreateTime"}
STATE = TopicSpec(name="a.state", partitions=2, config={"cleanup.policy": "compact", **SIZE})
EVENTS = TopicSpec(
    name="a.events",
    partitions=2,
    config={"cleanup.policy": "delete", "retention.ms": str(DAY_MS), **SIZE},
)


class MovingClock(SystemClock):
    """Can be set forward."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def clock() -> MovingClock:
    return MovingClock()


@pytest.fixture
async def broker(path: Path, clock: MovingClock) -> AsyncIterator[SqliteBroker]:
    made = SqliteBroker(path, clock, owner=True)
    made.create([STATE, EVENTS])
    yield made
    await made.close()


def event(value: bytes, key: bytes | None = b"k", partition: int = 0) -> ProducerRecord:
    return ProducerRecord(EVENTS.name, partition, key, value, (("sf-run", b"r"), ("empty", b"")))


def state(key: bytes, value: bytes | None) -> ProducerRecord:
    return ProducerRecord(STATE.name, 0, key, value)


def values(broker: SqliteBroker, topic: str, partition: int = 0) -> list[bytes | None]:
    place = (topic, partition)
    return [record.value for record in broker.read(place, 0, broker.end_offset(place) + 1)[0]]


# Writing and reading ------------------------------------------------------------------------


async def test_a_record_comes_back_as_it_was_given(broker: SqliteBroker) -> None:
    outs = [event(b"1"), ProducerRecord(EVENTS.name, 0, None, None), event(b"", b"")]
    assert await broker.append(outs) == [0, 1, 2]
    records, position = broker.read((EVENTS.name, 0), 0, 10)
    assert position == 3
    assert [(r.key, r.value, tuple(r.headers)) for r in records] == [
        (out.key, out.value, tuple(out.headers)) for out in outs
    ]


async def test_a_page_ends_where_the_next_one_begins(broker: SqliteBroker) -> None:
    await broker.append([event(b"%d" % n) for n in range(5)])
    found: list[bytes | None] = []
    position = 0
    while position < 5:
        records, position = broker.read((EVENTS.name, 0), position, 2)
        found += [record.value for record in records]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_was_committed_is_there_after_the_file_was_opened_anew(
    broker: SqliteBroker, path: Path, clock: MovingClock
) -> None:
    epoch = await broker.take("id")
    place = (EVENTS.name, 1)
    transaction = broker.begin("id", epoch, [event(b"1", partition=1), state(b"k", b"2")])
    written = await broker.commit(transaction, "group", {place: 7})
    assert written == {place: [0], (STATE.name, 0): [0]}
    await broker.close()
    again = SqliteBroker(path, clock, owner=True)
    try:
        assert (values(again, EVENTS.name, 1), values(again, STATE.name)) == ([b"1"], [b"2"])
        assert again.committed("group", place) == 7
        assert again.committed("group", (EVENTS.name, 0)) is None
        assert await again.take("id") == epoch + 1
    finally:
        await again.close()


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are those of POSIX")
async def test_only_its_user_reads_the_file_and_those_beside_it(
    path: Path, clock: MovingClock
) -> None:
    before = os.umask(0o022)
    try:
        broker = SqliteBroker(path, clock, owner=True)
        broker.create([STATE, EVENTS])
        await broker.append([event(b"1")])
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
        await broker.close()
    finally:
        os.umask(before)
    assert len(modes) > 2
    assert set(modes.values()) == {0o600}


async def test_an_older_epoch_writes_nothing_even_when_it_began_before_the_newer_one(
    broker: SqliteBroker,
) -> None:
    epoch = await broker.take("id")
    old = broker.begin("id", epoch, [event(b"old")])
    newer = await broker.take("id")
    with pytest.raises(FencedError):
        await broker.commit(old, "group", {(EVENTS.name, 0): 5})
    with pytest.raises(FencedError):
        broker.begin("id", epoch, [])
    await broker.commit(broker.begin("id", newer, [event(b"new")]), "group", {})
    assert values(broker, EVENTS.name) == [b"new"]
    assert broker.committed("group", (EVENTS.name, 0)) is None


async def test_a_commit_that_nobody_waits_for_any_more_is_made_all_the_same(
    broker: SqliteBroker,
) -> None:
    epoch = await broker.take("id")
    waiting = asyncio.ensure_future(
        broker.commit(broker.begin("id", epoch, [event(b"1")]), "group", {})
    )
    await asyncio.sleep(0)
    waiting.cancel()
    await until(lambda: values(broker, EVENTS.name) == [b"1"], what="the record")


async def test_what_a_topic_does_not_take_is_refused_with_nothing_written(
    broker: SqliteBroker,
) -> None:
    epoch = await broker.take("id")
    with pytest.raises(NoSuchTopic, match=r"no topic a\.nothing"):
        broker.begin("id", epoch, [event(b"1"), ProducerRecord("a.nothing", 0, None, b"")])
    with pytest.raises(NoSuchTopic, match="partition 2"):
        await broker.append([event(b"1", partition=2)])
    with pytest.raises(RecordTooLarge) as refused:
        await broker.append([event(b"1"), event(b"x" * 1000)])
    assert refused.value.limit == 1000
    assert values(broker, EVENTS.name) == []


async def test_a_file_that_cannot_be_written_to_loses_nothing_and_goes_on(
    broker: SqliteBroker, path: Path
) -> None:
    """As when the disk is full: another connection keeps the file from growing."""
    epoch = await broker.take("id")

    def full(file: EmbeddedFile) -> None:
        (pages,) = file._db.execute("PRAGMA page_count").fetchone()
        file._db.execute(f"PRAGMA max_page_count = {pages}")

    await broker.maintain(full)
    outs = [event(b"x" * 900) for _ in range(100)]
    with pytest.raises(OutcomeUnknown, match="full"):
        await broker.commit(broker.begin("id", epoch, outs), "group", {(EVENTS.name, 0): 1})
    with pytest.raises(Unavailable, match="full"):
        await broker.append(outs)
    assert values(broker, EVENTS.name) == []
    assert broker.committed("group", (EVENTS.name, 0)) is None

    def room(file: EmbeddedFile) -> None:
        file._db.execute("PRAGMA max_page_count = 1000000")

    await broker.maintain(room)
    await broker.commit(broker.begin("id", epoch, [event(b"1")]), "group", {})
    assert values(broker, EVENTS.name) == [b"1"]
    assert broker.read((EVENTS.name, 0), 0, 10)[0][0].offset == 0


@asynccontextmanager
async def held(broker: SqliteBroker) -> AsyncIterator[None]:
    """The writing thread stands still meanwhile: what comes is carried out together afterwards."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(_: EmbeddedFile) -> None:
        reached.set()
        go_on.wait()

    holding = asyncio.ensure_future(broker.maintain(hold))
    try:
        await until(reached.is_set, what="the writing thread to be held")
        yield
        await asyncio.sleep(0)  # whoever was made a task has handed in its commit
    finally:
        go_on.set()
    await holding


async def test_commits_that_wait_are_one_transaction_of_the_file_and_each_has_its_own_answer(
    broker: SqliteBroker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    real = broker._writer.write

    def write(writes: Any) -> Any:
        if writes:
            together.append(len(writes))
        return real(writes)

    monkeypatch.setattr(broker._writer, "write", write)
    mine, other = await broker.take("mine"), await broker.take("other")
    place = (EVENTS.name, 0)

    def commit(owner: str, epoch: int, number: int) -> asyncio.Task[Any]:
        transaction = broker.begin(owner, epoch, [event(b"%d" % number), state(b"k", b"v")])
        return asyncio.create_task(broker.commit(transaction, owner, {place: number}))

    async with held(broker):
        commits = [commit("mine", mine, 1), commit("other", other, 2), commit("mine", mine, 3)]
        elsewhere = EmbeddedFile(path)  # another process takes one of them over
        elsewhere.take("other")
        elsewhere.close()
    done = await asyncio.gather(*commits, return_exceptions=True)
    assert together == [3]
    assert [done[0], done[2]] == [{place: [n], (STATE.name, 0): [n]} for n in (0, 1)]
    assert isinstance(done[1], FencedError)
    assert values(broker, EVENTS.name) == [b"1", b"3"]
    assert (broker.committed("mine", place), broker.committed("other", place)) == (3, None)
    assert await broker.append([event(b"4"), state(b"k", None)]) == [2, 2]


async def test_a_log_that_is_closed_says_so_and_nobody_waits_for_ever(
    broker: SqliteBroker,
) -> None:
    epoch = await broker.take("id")
    transaction = broker.begin("id", epoch, [event(b"1")])
    await broker.close()
    async with asyncio.timeout(180):
        with pytest.raises(OutcomeUnknown, match="closed"):
            await broker.commit(transaction, "group", {})
        with pytest.raises(Unavailable, match="closed"):
            await broker.append([event(b"1")])
    broker.publish([event(b"1")])


async def test_what_cannot_be_read_just_now_can_be_asked_for_again(
    broker: SqliteBroker, path: Path
) -> None:
    place = (EVENTS.name, 0)
    await broker.append([event(b"1")])
    ask: list[Callable[[], Any]] = [
        lambda: broker.read(place, 0, 10),
        lambda: broker.offset_at(place, 0),
        lambda: broker.committed("group", place),
    ]

    def rename(old: str, new: str) -> None:
        with sqlite3.connect(path) as db:
            db.execute(f"ALTER TABLE {old} RENAME TO {new}")
        db.close()

    for table in ("records", "offsets"):
        rename(table, f"no_{table}")
    for question in ask:
        with pytest.raises(Unavailable, match="cannot be read"):
            question()
    for table in ("records", "offsets"):
        rename(f"no_{table}", table)
    assert values(broker, EVENTS.name) == [b"1"]


async def test_a_poll_that_fails_halfway_steps_over_no_record(
    broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = AgentTopics("app", "agent")
    broker.create(agent_specs("app", "agent", 2, 1_000))
    assigned = asyncio.Event()

    async def rebalancing() -> None: ...

    log = EmbeddedLog(broker=broker, group=EmbeddedGroup(2), topics=topics, slot=0)
    await log.start(lambda _: assigned.set(), rebalancing)
    await until(assigned.is_set, what="the partitions")
    outs = [
        ProducerRecord(topics.commands, partition, b"k", b"%d" % partition) for partition in (0, 1)
    ]
    await broker.append(outs)
    for partition in (0, 1):
        log.resume(partition)
    real, asked = broker.read, 0

    def read(place: tuple[str, int], position: int, most: int) -> Any:
        nonlocal asked
        asked += 1
        if asked == 4:  # the last place: all others have been read by then
            raise Unavailable("SF3002", "just now")
        return real(place, position, most)

    monkeypatch.setattr(broker, "read", read)
    with pytest.raises(Unavailable):
        await log.poll(0.0)
    assert sorted(record.value or b"" for _, record in await log.poll(0.0)) == [b"0", b"1"]
    await log.stop(leave=True)


# Several processes --------------------------------------------------------------------------


async def test_a_second_process_that_would_run_agents_is_told_who_does(
    broker: SqliteBroker, path: Path, clock: MovingClock
) -> None:
    with pytest.raises(ConfigError, match=f"process {os.getpid()} runs agents on"):
        SqliteBroker(path, clock, owner=True)
    await broker.close()
    again = SqliteBroker(path, clock, owner=True)
    await again.close()


async def test_what_another_process_appends_is_noticed_and_keeps_the_order(
    broker: SqliteBroker, path: Path, clock: MovingClock
) -> None:
    news = asyncio.Event()
    broker.listeners[news.set] = None
    other = SqliteBroker(path, clock, owner=False)
    try:
        await broker.append([event(b"1")])
        news.clear()
        assert await other.append([event(b"2")]) == [1]
        await until(news.is_set, what="the news of the other's record")
        assert values(broker, EVENTS.name) == [b"1", b"2"]
        assert await broker.append([event(b"3")]) == [2]
        await until(lambda: values(other, EVENTS.name) == [b"1", b"2", b"3"], what="the third")
    finally:
        await other.close()


KILLED = """
import asyncio, sys
from pathlib import Path
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.state.ports.log import ProducerRecord

async def main():
    broker = SqliteBroker(Path(sys.argv[1]), SystemClock(), owner=True)
    epoch = await broker.take("id")
    async def commit(number):
        value = b"%d" % number
        outs = [ProducerRecord("a.events", place, b"k", value) for place in (0, 1)]
        transaction = broker.begin("id", epoch, outs)
        await broker.commit(transaction, "group", {("a.state", 0): number})
        print(number, flush=True)
    number = int(sys.argv[2])
    while True:
        await asyncio.gather(*(commit(n) for n in range(number, number + 5)))
        number += 5

asyncio.run(main())
"""


async def test_a_process_killed_among_its_commits_has_lost_none_that_it_was_told_of(
    broker: SqliteBroker, path: Path, clock: MovingClock
) -> None:
    await broker.close()
    told: list[int] = []
    for life in range(8):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            KILLED,
            str(path),
            str(life * 1_000_000),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        told += [int(await process.stdout.readline()) for _ in range(20 + 7 * life)]
        process.kill()
        told += [int(line) for line in (await process.stdout.read()).split(b"\n")[:-1]]
        await process.wait()
        again = SqliteBroker(path, clock, owner=True)
        found = [int(value or b"") for value in values(again, EVENTS.name)]
        assert found == [int(value or b"") for value in values(again, EVENTS.name, 1)]
        assert len(set(found)) == len(found)
        assert set(told) <= set(found)
        assert again.committed("group", (STATE.name, 0)) == found[-1]
        await again.close()


# Files that are none of ours ----------------------------------------------------------------


async def test_a_file_that_cannot_be_used_is_refused_with_what_to_do(
    tmp_path: Path, clock: MovingClock
) -> None:
    text = tmp_path / "text.db"
    text.write_text("nothing that SQLite knows" * 100)
    with pytest.raises(ConfigError, match="SUREFOOT_LOG"):
        SqliteBroker(text, clock, owner=False)
    for owner in (False, True):
        with pytest.raises(ConfigError, match="folder that is there"):
            SqliteBroker(tmp_path / "nowhere" / "log.db", clock, owner=owner)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(ConfigError, match="something else"):
        SqliteBroker(other, clock, owner=False)
    newer = tmp_path / "newer.db"
    EmbeddedFile(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="another version"):
        SqliteBroker(newer, clock, owner=False)


@pytest.mark.parametrize("access", ["write", "read"])
async def test_only_what_makes_logs_makes_one(
    access: Access, path: Path, clock: MovingClock
) -> None:
    missing, empty = path.with_name("no where?#.db"), path.with_name("empty.db")
    empty.touch()
    for mistyped in (missing, empty):
        with pytest.raises(ConfigError, match=f"no embedded log at {re.escape(str(mistyped))};"):
            SqliteBroker(mistyped, clock, owner=False, access=access)
    assert not missing.exists()
    assert empty.stat().st_size == 0
    EmbeddedFile(missing).close()
    await SqliteBroker(missing, clock, owner=False, access=access).close()


async def test_a_reader_reads_what_is_there_and_writes_nothing(
    broker: SqliteBroker, path: Path, clock: MovingClock
) -> None:
    await broker.append([event(b"one")])
    other = SqliteBroker(path, clock, owner=False, access="read")
    assert values(other, EVENTS.name) == [b"one"]
    with pytest.raises(Unavailable, match="readonly"):
        await other.append([event(b"two")])
    await other.close()
    await broker.close()
    before = await asyncio.to_thread(path.read_bytes)
    alone = SqliteBroker(path, clock, owner=False, access="read")
    assert values(alone, EVENTS.name) == [b"one"]
    await alone.close()
    assert await asyncio.to_thread(path.read_bytes) == before


async def test_a_damaged_file_is_refused_with_what_to_do_and_is_not_held(
    broker: SqliteBroker, path: Path, clock: MovingClock
) -> None:
    await broker.append([event(b"x" * 900) for _ in range(200)])
    await broker.close()
    first_page = 4_096
    with path.open("r+b") as file:
        whole = file.read()
        file.seek(first_page)
        file.write(b"\xff" * (len(whole) - first_page))
    with pytest.raises(ConfigError, match=r"damaged.* put a copy of it in its place"):
        SqliteBroker(path, clock, owner=True)
    with path.open("r+b") as file:
        file.write(whole)
    again = SqliteBroker(path, clock, owner=True)
    assert len(values(again, EVENTS.name)) == 200
    await again.close()


# Keeping it small ---------------------------------------------------------------------------


async def test_of_a_compacted_topic_the_latest_of_each_key_stays(
    broker: SqliteBroker, clock: MovingClock
) -> None:
    upkeep = Upkeep(broker, clock)
    await broker.append([state(b"k%d" % (n % 3), b"%d" % n) for n in range(1_200)])
    await broker.append([state(b"gone", b"x"), state(b"gone", None)])
    await upkeep.once()
    assert values(broker, STATE.name) == [b"1197", b"1198", b"1199", None]
    assert broker.end_offset((STATE.name, 0)) == 1_202
    clock.ahead_ms = 2 * DAY_MS
    await broker.append([state(b"k0", b"%d" % n) for n in range(1_000)])
    await upkeep.once()
    assert values(broker, STATE.name) == [b"1198", b"1199", b"999"]
    assert await broker.append([state(b"k", b"next")]) == [2_202]


async def test_compaction_that_is_cut_short_brings_nothing_back(
    broker: SqliteBroker, clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done in pieces; at every point between two of them a key has its latest value, or the
    tombstone that took the value's place, or nothing."""
    keys = [b"k%d" % n for n in range(700)]
    await broker.append([state(key, b"old") for key in keys])
    await broker.append([state(key, None) for key in keys])
    clock.ahead_ms = 2 * DAY_MS
    await broker.append([state(b"other", b"1"), state(b"other", b"2")])
    pieces: list[int] = []
    folded: list[dict[bytes | None, bytes | None]] = []
    real = EmbeddedFile.delete

    def delete(file: EmbeddedFile, place: Any, offsets: Any, *, begin: int | None = None) -> None:
        real(file, place, offsets, begin=begin)
        pieces.append(len(offsets))
        folded.append({record.key: record.value for record in file.read(place, 0, 10_000)})

    monkeypatch.setattr(EmbeddedFile, "delete", delete)
    await Upkeep(broker, clock).once()
    assert len(pieces) > 2
    assert max(pieces) <= 500
    assert sum(pieces) == 1_401
    for fold in folded:
        assert fold.pop(b"other") == b"2"
        assert {*fold.values()} <= {None}
    assert folded[-1] == {}


async def test_a_place_with_little_that_is_new_is_not_compacted(
    broker: SqliteBroker, clock: MovingClock
) -> None:
    upkeep = Upkeep(broker, clock)
    await broker.append([state(b"k", b"%d" % n) for n in range(999)])
    await upkeep.once()
    assert len(values(broker, STATE.name)) == 999


async def test_records_go_when_their_time_is_over_and_their_offsets_with_them(
    broker: SqliteBroker, clock: MovingClock
) -> None:
    upkeep, place = Upkeep(broker, clock), (EVENTS.name, 0)
    await broker.append([event(b"old")] * 1_100)
    clock.ahead_ms = DAY_MS // 2
    await broker.append([event(b"young")])
    clock.ahead_ms = DAY_MS + 60_000
    await upkeep.once()
    assert values(broker, EVENTS.name) == [b"young"]
    assert (broker.begin_offset(place), broker.end_offset(place)) == (1_100, 1_101)
    clock.ahead_ms = 3 * DAY_MS
    await upkeep.once()
    assert broker.begin_offset(place) == broker.end_offset(place) == 1_101
    assert await broker.append([event(b"next")]) == [1_101]


async def test_where_bytes_are_bounded_the_oldest_records_go(
    broker: SqliteBroker, clock: MovingClock
) -> None:
    spec = TopicSpec(
        name="t.bounded",
        partitions=1,
        config={**EVENTS.config, "retention.ms": str(DAY_MS), "retention.bytes": "1000"},
    )
    broker.create([spec])
    upkeep = Upkeep(broker, clock)

    async def add(count: int) -> None:
        await broker.append(
            [ProducerRecord(spec.name, 0, b"k", b"%100d" % n) for n in range(count)]
        )
        await upkeep.once()

    await add(10)
    assert broker.begin_offset((spec.name, 0)) == 0
    await add(700)
    assert (broker.begin_offset((spec.name, 0)), broker.end_offset((spec.name, 0))) == (700, 710)
    assert len(values(broker, spec.name)) == 10


async def test_the_first_record_of_a_time_is_found(
    broker: SqliteBroker, clock: MovingClock
) -> None:
    place = (EVENTS.name, 0)
    await broker.append([event(b"1"), event(b"2")])
    clock.ahead_ms = 60_000
    before_ms = clock.now_ms()
    await broker.append([event(b"3")])
    assert broker.offset_at(place, 0) == 0
    assert broker.offset_at(place, before_ms - 30_000) == 2
    assert broker.offset_at(place, clock.now_ms() + 30_000) is None
    assert broker.offset_at((EVENTS.name, 1), 0) is None
