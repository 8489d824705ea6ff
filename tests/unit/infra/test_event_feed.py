"""The event feed on an embedded log; on Kafka: tests/integration/gateway/test_event_feed.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.event_feed import FeedPosition, LogEventFeed
from surefoot.infra.readers.event_hub import LiveEvent
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.feeds.event_id import parse_event_id
from surefoot.state.feeds.feed import EventFilter, FeedMessage
from surefoot.state.machine.model import EventRecord, OutputPiece
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.records.encoding import Wire
from tests.support.long_deadlines import LONG_S

AGENTS = ["a", "b"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(log=f"sqlite:///{tmp_path / 'runs.db'}", partitions=2)


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[Backend]:
    async with open_backend(settings, SystemClock(), owner=True) as made:
        async with made.topics() as topics:
            await topics.apply(specs_for(AGENTS, settings))
        yield made


@pytest.fixture
async def feed(settings: Settings, backend: Backend) -> AsyncIterator[LogEventFeed]:
    reader = LogRunReader(settings.within(read_s=LONG_S), backend, AGENTS)
    await reader.start()
    yield LogEventFeed(reader)
    await reader.stop()


def wire(settings: Settings, agent: str) -> Wire:
    return Wire(settings.app, AgentTopics(settings.app, agent), settings.partitions)


async def append(backend: Backend, out: ProducerRecord) -> None:
    await backend.appender().append(out, "a record", deadline_s=LONG_S)


async def write(settings: Settings, backend: Backend, agent: str, run_id: str, seq: int) -> None:
    event = EventRecord(
        type="step.completed",
        run_id=run_id,
        agent=agent,
        version=1,
        status="running",
        seq=seq,
        at_ms=1,
    )
    home = partition_of(run_id, settings.partitions)
    await append(backend, wire(settings, agent).out(event, run_id, home, (), 1))


async def test_two_agents_are_told_together_and_gone_on_with_from_anywhere(
    settings: Settings, backend: Backend, feed: LogEventFeed
) -> None:
    wanted = {(agent, f"r{n}", seq) for agent in AGENTS for n in range(4) for seq in range(2)}
    for agent, run_id, seq in sorted(wanted, key=lambda each: each[2]):
        await write(settings, backend, agent, run_id, seq)
    whole = await taken(feed, None, 16)
    assert set(about(whole)) == wanted
    for cut in range(16):
        rest = await taken(feed, whole[cut].id, 15 - cut)
        assert sorted(about(whole[: cut + 1] + rest)) == sorted(wanted)
    # what an older gateway knew nothing of is told from its beginning
    (one,) = {each.id for each in whole[-1:]}
    known = {"a": parse_event_id(one or "")["a"]}
    async with aclosing(feed.follow(AGENTS, known, EventFilter(), earliest=False)) as events:
        begin = await anext(events)
        assert parse_event_id(begin.id or "") == {**known, "b": [0, 0]}
        assert json.loads((await anext(events)).data)["agent"] == "b"


async def taken(feed: LogEventFeed, after: str | None, count: int) -> list[FeedMessage]:
    start = None if after is None else parse_event_id(after)
    told: list[FeedMessage] = []
    async with aclosing(
        feed.follow(AGENTS, start, EventFilter(), earliest=after is None)
    ) as events:
        assert (await anext(events)).event == "begin"
        while len(told) < count:
            told.append(await anext(events))
    return told


def about(told: list[FeedMessage]) -> list[tuple[str, str, int]]:
    values = [json.loads(each.data) for each in told]
    return [(each["agent"], each["run_id"], each["seq"]) for each in values]


async def test_the_output_of_a_first_step_is_there_for_somebody_who_comes_late(
    settings: Settings, backend: Backend, feed: LogEventFeed
) -> None:
    """Before its first commit nothing but the output tells of the run."""
    for kind, offset, text in (("begin", 0, ""), ("text", 0, "so "), ("text", 3, "far")):
        piece = OutputPiece("r1", "draft", 0, 0, kind, offset, text)
        await append(backend, wire(settings, "a").piece("a", piece, 1))
    async with aclosing(feed.watch("a", "r1", None)) as events:
        told = [await anext(events) for _ in range(2)]
    assert [(each.id, json.loads(each.data)["text"]) for each in told] == [
        (None, ""),
        (None, "so far"),
    ]


def test_a_tail_that_is_behind_its_watcher_repeats_nothing() -> None:
    """The watcher comes from another gateway, which was ahead of this one."""

    def live(partition: int, offset: int, offsets: list[int]) -> LiveEvent:
        return LiveEvent("a", ConsumerRecord("t", partition, offset, 0, b"r", None, ()), offsets)

    stand = FeedPosition()
    stand.at["a"] = [5, 3]
    assert not stand.takes(live(0, 3, [4, 3]))
    assert stand.token() == "a_5_3"
    assert stand.takes(live(1, 3, [4, 4]))
    assert stand.token() == "a_5_4"
    assert stand.takes(live(0, 6, [7, 5]))  # what was not chosen lies between
    assert stand.token() == "a_7_5"
