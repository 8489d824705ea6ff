"""Events of whole agents on a real broker: nothing left out and nothing twice, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.frames import CloseCode

from surefoot import Agent, Context, Done, Next
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.readers import event_hub
from surefoot.infra.readers.event_feed import LogEventFeed
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.feeds.event_id import parse_event_id
from surefoot.state.feeds.feed import EventFilter, FeedMessage
from surefoot.state.machine.model import OutputPiece
from surefoot.state.names.partitioner import partition_of
from surefoot.state.records.encoding import Wire, start_out
from tests.integration.gateway.test_gateway_kafka import TRACE, Owner
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT
from tests.support.servers import served

ALL = EventFilter()
#: message of the feed, as SSE or over a WebSocket
Message = tuple[str | None, str, Any]


@pytest.fixture
def agent(agent_name: str) -> Agent:
    made = Agent(agent_name)

    @made.step
    async def first(ctx: Context, payload: int) -> Next:
        return Next(second, payload)

    @made.step
    async def second(ctx: Context, payload: int) -> Done:
        return Done(payload)

    return made


@pytest.fixture
async def kafka(bootstrap: str, app: str, agent: Agent) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, agent, **PATIENT) as made:
        yield made


@pytest.fixture
async def owner(kafka: Cluster, agent: Agent) -> AsyncIterator[Owner]:
    async with Owner(kafka.settings, agent) as made:
        yield made


@contextlib.asynccontextmanager
async def feed_of(kafka: Cluster, agent: Agent) -> AsyncIterator[LogEventFeed]:
    backend = KafkaBackend(kafka.settings, SystemClock())
    reader = LogRunReader(kafka.settings, backend, [agent.name])
    await reader.start()
    try:
        yield LogEventFeed(reader)
    finally:
        await reader.stop()


def following(
    feed: LogEventFeed, agent: Agent, after: str | None, choice: EventFilter = ALL
) -> AsyncGenerator[FeedMessage, None]:
    start = None if after is None else parse_event_id(after)
    return feed.follow([agent.name], start, choice, earliest=after is None)


async def taken(events: AsyncGenerator[FeedMessage, None], count: int) -> list[FeedMessage]:
    """The next `count` that have an id of an event, and whatever is told between them."""
    told: list[FeedMessage] = []
    async with asyncio.timeout(90):
        async for each in events:
            told.append(each)
            if sum(one.event not in ("begin", "gap") for one in told) == count:
                break
    return told


def about(told: list[FeedMessage]) -> list[tuple[str, int]]:
    """(run, seq) of the events."""
    values = [json.loads(each.data) for each in told if each.event not in ("begin", "gap", "slow")]
    return [(each["run_id"], each["seq"]) for each in values]


async def test_a_position_goes_on_from_any_event_over_all_partitions(
    kafka: Cluster, agent: Agent, owner: Owner
) -> None:
    runs = [f"r{n}" for n in range(8)]
    for seq in range(3):
        for run in runs:
            await owner.write(run, "step.completed", seq=seq)
    wanted = Counter((run, seq) for run in runs for seq in range(3))
    assert len({partition_of(run, kafka.settings.partitions) for run in runs}) > 1
    async with feed_of(kafka, agent) as feed:
        async with aclosing(following(feed, agent, None)) as events:
            whole = await taken(events, 24)
        assert Counter(about(whole)) == wanted
        for cut in (0, 1, 9, 17, 23):  # 0: nothing but where it began
            async with aclosing(following(feed, agent, whole[cut].id)) as events:
                rest = await taken(events, 24 - cut)
            assert Counter(about(whole[: cut + 1])) + Counter(about(rest)) == wanted
            for run in runs:
                assert [s for r, s in about(whole[: cut + 1] + rest) if r == run] == [0, 1, 2]
        # live, behind what was looked up, and another gateway on the way
        async with feed_of(kafka, agent) as other, contextlib.AsyncExitStack() as open_:
            live = [
                await open_.enter_async_context(aclosing(following(each, agent, whole[-1].id)))
                for each in (feed, other)
            ]
            for each in live:
                await anext(each)
            going_on = [asyncio.create_task(taken(each, 8)) for each in live]
            for run in runs:
                await owner.write(run, "run.completed", "completed", seq=3)
            for told in await asyncio.gather(*going_on):
                assert Counter(about(told)) == Counter((run, 3) for run in runs)


async def test_watchers_that_come_at_any_time_see_what_comes_once_they_are_there(
    kafka: Cluster, agent: Agent, owner: Owner
) -> None:
    """What had been committed just before may be among it, as "now" is where the tail stands, in
    each partition for itself."""

    async def watch(first: int, begun: asyncio.Event) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        async with aclosing(feed.follow([agent.name], None, ALL, earliest=False)) as events:
            await anext(events)
            begun.set()
            while not set(range(first, 10)) <= {seq for _, seq in seen}:
                seen += about(await taken(events, 1))
        return seen

    async with feed_of(kafka, agent) as feed:
        watching = []
        for seq in range(10):
            begun = asyncio.Event()
            watching.append(asyncio.create_task(watch(seq, begun)))
            await begun.wait()
            await owner.write(f"r{seq % 3}", "step.completed", seq=seq)
        for seen in await asyncio.gather(*watching):
            for run in {run for run, _ in seen}:
                of_run = [seq for each, seq in seen if each == run]
                assert of_run == list(range(of_run[0], 10, 3))


async def test_what_retention_has_taken_is_told_and_so_is_a_topic_that_is_made_anew(
    kafka: Cluster, agent: Agent, owner: Owner
) -> None:
    for seq in range(6):
        await owner.write("r1", "step.completed", seq=seq)
    partition = partition_of("r1", kafka.settings.partitions)
    async with feed_of(kafka, agent) as feed:
        async with aclosing(following(feed, agent, None)) as events:
            whole = await taken(events, 6)
        offsets = [parse_event_id(each.id or "")[agent.name][partition] for each in whole]
        await kafka.delete_before(kafka.topics(agent).events, partition, offsets[4])
        async with aclosing(following(feed, agent, whole[2].id)) as events:
            rest = await taken(events, 2)
        assert [each.event for each in rest] == ["begin", "gap", *["step.completed"] * 2]
        assert json.loads(rest[1].data) == {
            "agent": agent.name,
            "partition": partition,
            "from": offsets[2],
            "to": offsets[4],
        }
        assert rest[1].id is None
        # a position that is kept has no gap
        async with aclosing(following(feed, agent, whole[5].id)) as events:
            assert (await anext(events)).event == "begin"
            going_on = asyncio.create_task(anext(events))
            await owner.write("r1", "step.completed", seq=6)
            assert (await asyncio.wait_for(going_on, 90)).event == "step.completed"
        ahead = [10_000_000] * kafka.settings.partitions
        async with aclosing(
            feed.follow([agent.name], {agent.name: ahead}, ALL, earliest=False)
        ) as events:
            told = await taken(events, 1)
        assert {each.event for each in told[1:-1]} == {"gap"}


async def test_a_gap_that_opens_while_it_is_read_is_told(
    kafka: Cluster, agent: Agent, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(6):
        await owner.write("r1", "step.completed", seq=seq)
    partition = partition_of("r1", kafka.settings.partitions)
    monkeypatch.setattr("surefoot.infra.kafka_client.tail._PAGE_RECORDS", 2)
    async with feed_of(kafka, agent) as feed, aclosing(following(feed, agent, None)) as events:
        first = await taken(events, 1)
        start = parse_event_id(first[-1].id or "")[agent.name][partition]
        await kafka.delete_before(kafka.topics(agent).events, partition, start + 6)
        told = first + await taken(events, 3)
    assert "gap" in [each.event for each in told]
    assert [seq for _, seq in about(told)][-2:] == [4, 5]


async def test_a_filter_chooses_and_the_position_still_counts_what_was_left_out(
    kafka: Cluster, agent: Agent, owner: Owner
) -> None:
    for seq in range(3):
        await owner.write("r1", "step.completed", seq=seq)
        await owner.write("r2", "run.completed", "completed", seq=seq)
    async with feed_of(kafka, agent) as feed:
        ended = EventFilter(types=frozenset({"run.completed"}))
        async with aclosing(following(feed, agent, None, ended)) as events:
            told = await taken(events, 3)
        assert about(told) == [("r2", 0), ("r2", 1), ("r2", 2)]
        # nothing that was left out before the last one is told to another filter from there
        others = EventFilter(statuses=frozenset({"running"}))
        async with aclosing(following(feed, agent, told[-1].id, others)) as events:
            await anext(events)
            await owner.write("r3", "step.completed", seq=9)
            rest = await taken(events, 1)
            while about(rest)[-1] != ("r3", 9):
                rest += await taken(events, 1)
        assert set(about(rest)) <= {("r1", 0), ("r1", 1), ("r1", 2), ("r3", 9)}
        assert len(set(about(rest))) == len(about(rest))


async def test_a_watcher_that_is_too_slow_is_told_where_to_go_on(
    kafka: Cluster, agent: Agent, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "WAITING_RECORDS", 5)
    async with feed_of(kafka, agent) as feed:
        async with aclosing(feed.follow([agent.name], None, ALL, earliest=False)) as events:
            await anext(events)
            taking = asyncio.create_task(anext(events))
            await owner.write("r1", "step.completed", seq=0)
            seen = [await taking]
            hub = next(iter(feed._sources.values())).hub
            ((watcher,),) = hub._all.values()
            async with owner.producer.transaction():
                for seq in range(1, 20):
                    await owner.send("r1", "step.completed", seq=seq)
            await until(watcher.too_slow, what="the watcher to be given up")
            seen += [each async for each in events]
        assert [each.event for each in seen][-1] == "slow"
        resume = json.loads(seen[-1].data)["resume"]
        assert resume == [each.id for each in seen if each.id][-1]
        async with aclosing(following(feed, agent, resume)) as events:
            rest = await taken(events, 20 - len(about(seen)))
        assert [seq for _, seq in about(seen + rest)] == list(range(20))


# Over HTTP --------------------------------------------------------------------------------------


async def sse(
    client: httpx.AsyncClient, path: str, after: str | None
) -> AsyncGenerator[Message, None]:
    headers = {} if after is None else {"Last-Event-ID": after}
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield fields.get("id"), fields["event"], json.loads(fields["data"])
                fields = {}


async def websocket(url: str, path: str, after: str | None) -> AsyncGenerator[Message, None]:
    query = "" if after is None else f"?last_event_id={after}"
    address = f"{url.replace('http', 'ws')}/ws{path}{query}"
    async with connect(address, open_timeout=90, ping_interval=None) as socket:
        try:
            async for text in socket:
                told = json.loads(text)
                yield told["id"], told["event"], told["data"]
        except ConnectionClosedError as error:
            if error.rcvd is None or error.rcvd.code != CloseCode.SERVICE_RESTART:
                raise


@pytest.mark.parametrize("kind", ["sse", "websocket"])
async def test_a_client_misses_and_repeats_nothing_through_restarts_and_rebalances(
    kafka: Cluster, agent: Agent, kind: str
) -> None:
    """The gateway is started again and again while workers come and go."""
    settings = kafka.settings.model_copy(update={"gateway_port": 0})
    seen: list[Message] = []
    after: str | None = None
    worker = await kafka.work(agent)
    runs = [f"r{n}" for n in range(24)]

    async def watch(url: str) -> None:
        nonlocal after
        async with httpx.AsyncClient(base_url=url, timeout=90) as client:
            path = f"/events/{agent.name}"
            messages = sse(client, path, after) if kind == "sse" else websocket(url, path, after)
            async with aclosing(messages) as told:
                async for message in told:
                    after = message[0] or after
                    seen.append(message)

    def count(kind: str, least: int) -> bool:
        return sum(event == kind for _, event, _ in seen) >= least

    for number, start in enumerate(range(0, len(runs), 8), 1):
        async with served(agent, settings) as url:
            watching = asyncio.create_task(watch(url))
            await until(partial(count, "begin", number), what="the watcher")
            for run in runs[start : start + 8]:
                await kafka.start(agent, run)
            if number == 2:
                other = await kafka.work(agent, slot=1)
                await worker.drain()
                worker = other
            await until(partial(count, "run.completed", start + 1), what="one of these to end")
        await watching  # the gateway has ended the stream, and other runs end without it
    async with served(agent, settings) as url:
        watching = asyncio.create_task(watch(url))
        await until(partial(count, "begin", 4), what="the watcher")  # all may be told already
        await until(partial(count, "run.completed", len(runs)), what="all runs to end")
    await watching
    told = Counter((e["run_id"], e["seq"], kind) for i, kind, e in seen if i and kind != "begin")
    wanted = Counter(
        (event["run_id"], event["seq"], event["type"]) for event in await kafka.events(agent)
    )
    assert told == wanted


async def test_a_run_is_watched_with_what_its_step_has_written_so_far(
    kafka: Cluster, agent: Agent, owner: Owner
) -> None:
    """Somebody who comes in the middle has all of it; of an attempt that is over, nothing."""
    settings = kafka.settings.model_copy(update={"gateway_port": 0})
    wire = Wire(settings.app, kafka.topics(agent), settings.partitions)

    async def write(attempt: int, kind: str, offset: int = 0, text: str = "") -> None:
        piece = OutputPiece("r1", "draft", 0, attempt, kind, offset, text)
        await kafka.send(wire.piece(agent.name, piece, kafka.clock.now_ms()))

    await owner.write("r1", "run.started")
    assert len(await kafka.events(agent)) == 1  # for every reader, before the first piece is told
    await write(0, "begin")
    await write(0, "text", 0, "Once ")
    await write(0, "text", 5, "upon")
    async with (
        served(agent, settings) as url,
        aclosing(websocket(url, f"/runs/{agent.name}/r1/events", None)) as told,
    ):
        first = [await anext(told) for _ in range(3)]
        assert [(event, data.get("text")) for _, event, data in first] == [
            ("run.started", None),
            ("output", ""),
            ("output", "Once upon"),
        ]
        await write(1, "begin")
        await write(0, "text", 9, " a time")  # late, of the attempt that is over
        await write(1, "text", 0, "It was")
        second = [await anext(told) for _ in range(3)]
        assert [data["kind"] for _, _, data in second] == ["discard", "begin", "text"]
        await owner.write("r1", "step.completed", seq=0)
        rest = [await anext(told) for _ in range(2)]  # two topics: told before the late one comes
        await write(1, "text", 6, " late")
        await owner.write("r1", "run.completed", "completed", seq=1)
        rest += [each async for each in told]
        assert [event for _, event, _ in rest] == ["output", "step.completed", "run.completed"]
        assert rest[0][2]["kind"] == "discard"
        assert [number for number, event, _ in first + second + rest if event == "output"] == (
            [None] * 6
        )


async def test_a_websocket_that_is_refused_is_told_why(kafka: Cluster, agent: Agent) -> None:
    settings = kafka.settings.model_copy(update={"gateway_port": 0})
    async with served(agent, settings) as url:
        address = f"{url.replace('http', 'ws')}/ws"
        for path, headers, status, number in (
            ("/events", {"Origin": "http://evil.example"}, 403, "SF5023"),
            ("/events", {"Origin": "null"}, 403, "SF5023"),
            ("/runs/a/b/events", {"Origin": "http://evil.example"}, 403, "SF5023"),
            ("/events/nobody", {}, 404, "SF5011"),
            ("/events?type=run.feild", {}, 400, "SF5022"),
            ("/events?tpye=run.failed", {}, 400, "SF5022"),
            ("/events?last_event_id=7", {}, 400, "SF5004"),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await connect(address + path, additional_headers=headers, open_timeout=90)
            assert refused.value.response.status_code == status
            assert number in (refused.value.response.body or b"").decode()
        async with connect(
            f"{address}/events",
            origin=url,  # type: ignore[arg-type]
            open_timeout=90,
        ) as socket:
            assert json.loads(await socket.recv())["event"] == "begin"


async def test_the_events_of_a_run_carry_the_trace_of_its_start(
    kafka: Cluster, agent: Agent
) -> None:
    await kafka.work(agent)
    settings = kafka.settings
    await kafka.send(
        start_out(
            settings.app, settings.partitions, agent.name, "r1", b"1", sent_ms=1, traceparent=TRACE
        )
    )
    await kafka.until_status(agent, "r1", "completed")
    records = await kafka.read(kafka.topics(agent).events)
    told = [dict(record.headers) for record in records]
    assert {each["traceparent"] for each in told} == {TRACE.encode()}
    assert [each["ce_type"] for each in told][-1] == b"surefoot.run.completed"
    assert len({each["ce_id"] for each in told}) == len(records)
