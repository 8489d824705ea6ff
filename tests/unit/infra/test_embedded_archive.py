"""The archive of an embedded log: the same archiver over the file's own offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from surefoot.infra.archive.archiver import Archiver
from surefoot.infra.archive.store import FolderArchive
from surefoot.infra.embedded.archive import EmbeddedArchiveLog
from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.retention import Upkeep
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import DAY_MS, AgentTopics, agent_specs
from surefoot.state.ports.log import ProducerRecord
from tests.support.archived import life, offsets_by_any_reader
from tests.support.eventually import until

TOPICS = AgentTopics("app", "shop")
PARTITIONS = 2
#: longer than a busy machine needs: nothing is given up by chance
DRAIN_S = 300.0


class MovingClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture
def clock() -> MovingClock:
    return MovingClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovingClock) -> AsyncIterator[SqliteBroker]:
    made = SqliteBroker(tmp_path / "runs.db", clock, owner=True)
    made.create(agent_specs("app", "shop", PARTITIONS, 100_000))
    yield made
    await made.close()


async def write(broker: SqliteBroker, *run_ids: str) -> None:
    await broker.append(
        [
            ProducerRecord(TOPICS.events, number % PARTITIONS, run_id.encode(), value)
            for number, run_id in enumerate(run_ids)
            for value in life(run_id)
        ]
    )


def archiver(broker: SqliteBroker, folder: Path, age_s: float = 300.0) -> Archiver:
    return Archiver(
        agent="shop",
        topic=TOPICS.events,
        log=EmbeddedArchiveLog(broker, TOPICS, PARTITIONS),
        store=FolderArchive(folder / "app"),
        clock=SystemClock(),
        file_bytes=1_000_000,
        age_s=age_s,
    )


async def once(broker: SqliteBroker, folder: Path) -> int:
    made = archiver(broker, folder)
    assert await made.run(asyncio.Event(), asyncio.Event(), once=True, drain_s=DRAIN_S)
    return made.events


def files(folder: Path) -> list[bytes]:
    return [
        path.read_bytes() for path in sorted(folder.glob("app/agent=shop/kind=events/**/*.avro"))
    ]


async def test_each_event_is_archived_once(broker: SqliteBroker, tmp_path: Path) -> None:
    await write(broker, "a", "b", "c")
    assert await once(broker, tmp_path) == 6
    assert await once(broker, tmp_path) == 0
    await write(broker, "d")
    assert await once(broker, tmp_path) == 2
    assert offsets_by_any_reader(files(tmp_path)) == [0, 0, 1, 1, 2, 3, 4, 5]


async def test_what_retention_has_deleted_first_is_told(
    broker: SqliteBroker, clock: MovingClock, tmp_path: Path
) -> None:
    await write(broker, "a", "b")
    await once(broker, tmp_path)
    await write(broker, "c", "d")
    clock.ahead_ms = 40 * DAY_MS
    await Upkeep(broker, clock).once()
    with capture_logs() as logs:
        assert await once(broker, tmp_path) == 0
    told = [(line["first"], line["last"]) for line in logs if line["event"] == "archive_gap"]
    assert told == [(2, 3)] * PARTITIONS


async def test_of_two_that_archive_one_file_the_first_ends(
    broker: SqliteBroker, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    first = archiver(broker, tmp_path, age_s=0.01)
    run = asyncio.create_task(first.run(stop, asyncio.Event(), once=False, drain_s=DRAIN_S))
    await write(broker, "a")
    await until(lambda: first.events == 2, what="the first file")
    assert await once(broker, tmp_path) == 0
    await write(broker, "b", "c")
    with pytest.raises(ConfigError, match="SF3104"):
        await run
    await once(broker, tmp_path)
    assert offsets_by_any_reader(files(tmp_path)) == [0, 0, 1, 1, 2, 3]


async def test_a_file_that_was_made_anew_needs_another_archive(
    broker: SqliteBroker, clock: MovingClock, tmp_path: Path
) -> None:
    await write(broker, "a")
    await once(broker, tmp_path)
    anew = SqliteBroker(tmp_path / "anew.db", clock, owner=True)
    anew.create(agent_specs("app", "shop", PARTITIONS, 100_000))
    try:
        stop = asyncio.Event()
        with pytest.raises(ConfigError, match="SF1060"):
            await archiver(anew, tmp_path).run(stop, asyncio.Event(), once=False, drain_s=DRAIN_S)
    finally:
        await anew.close()
