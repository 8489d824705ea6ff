"""What the gateway tells of topics, schedules and dead letters, of a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from surefoot import Agent, Context, Done, Next, Tick
from surefoot.commands.admin.lag import lag_rows
from surefoot.commands.admin.top import Top
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.readers.throughput import WINDOW_S
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.ports.log import ProducerRecord
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT
from tests.support.servers import asked


@pytest.fixture
def agent(agent_name: str) -> Agent:
    made = Agent(agent_name)

    @made.step
    async def first(ctx: Context, n: int) -> Next:
        return Next(second, n)

    @made.step
    async def second(ctx: Context, n: int) -> Done:
        return Done(n)

    @made.schedule("0 0 1 1 *", name="yearly")
    def yearly(tick: Tick) -> int:
        return tick.at.year

    return made


@pytest.fixture
async def kafka(bootstrap: str, app: str, agent: Agent) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, agent, gateway_port=0, **PATIENT) as made:
        yield made


class Early(SystemClock):
    """Stands still, so that what was done since then is lately."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms


@asynccontextmanager
async def aborted_in_the_end(kafka: Cluster, group: str) -> AsyncIterator[AIOKafkaProducer]:
    """A producer in a transaction."""
    producer = AIOKafkaProducer(**kafka.settings.kafka(), transactional_id=f"{group}.test")
    await producer.start()
    try:
        await producer.begin_transaction()
        yield producer
        await producer.abort_transaction()
    finally:
        await producer.stop()


async def get(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_marker_of_a_transaction_is_no_lag_and_what_waits_is(
    kafka: Cluster, agent: Agent
) -> None:
    topics = kafka.topics(agent)
    begun_ms = kafka.clock.now_ms()

    async def topic(http: httpx.AsyncClient, name: str) -> dict[int, dict[str, Any]]:
        told = (await get(http, f"/topics?agent={agent.name}"))["agents"][0]["topics"]
        return {each["partition"]: each for each in told if each["topic"] == name}

    async with asked(agent, kafka.settings) as http:
        worker = await kafka.work(agent)
        run_ids = [kafka.run_on(partition) for partition in range(kafka.settings.partitions)]
        for run_id in run_ids:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, run_ids, "completed")

        async def settled() -> Any:
            """The group has its offsets a moment after the state topic has its records."""
            places = (await topic(http, topics.tasks)).values()
            return places if all(place["lag"] == 0 for place in places) else None

        for place in await until(settled, what="the offsets to be committed"):
            assert place["exact"]
            assert place["owner"] == f"{kafka.settings.instance}.0"
        told = (await get(http, "/topics"))["agents"]
        assert [each["agent"] for each in told] == [agent.name, f"{agent.name}.schedules", "outbox"]
        assert told[0]["lag"] == 0
        assert told[0]["workers"][0]["partitions"] == list(range(kafka.settings.partitions))

        looking = Top(
            kafka.settings, KafkaBackend(kafka.settings, kafka.clock), [agent], Early(begun_ms)
        )
        try:
            await looking.start()
            seen = await looking.look()
        finally:
            await looking.stop()
        assert seen.agents[0].statuses == {"completed": 2}
        assert seen.agents[0].steps_per_s * WINDOW_S == 4
        assert lag_rows(seen.standings)[0].lag == 0

        await worker.drain()
        async with aborted_in_the_end(kafka, topics.group) as producer:
            await producer.send_and_wait(topics.tasks, b"x", b"k", 1)
        aborted = (await topic(http, topics.tasks))[1]
        assert aborted["end"] - aborted["committed"] >= 2, "an aborted record, and its marker"
        assert (aborted["lag"], aborted["exact"]) == (0, True)
        for name in ("left-1", "left-2"):
            await kafka.start(agent, kafka.run_on(1, name))
        left = (await topic(http, topics.commands))[1]
        assert (left["lag"], left["exact"], left["owner"]) == (2, True, None)


async def test_what_is_in_an_open_transaction_is_no_lag_and_is_to_be_seen(
    kafka: Cluster, agent: Agent
) -> None:
    topics = kafka.topics(agent)
    async with aborted_in_the_end(kafka, topics.group) as producer:
        await producer.send_and_wait(topics.tasks, b"x", b"k", 0)
        async with asked(agent, kafka.settings) as http:
            told = (await get(http, f"/topics?agent={agent.name}"))["agents"][0]["topics"]
            place = next(each for each in told if each["topic"] == topics.tasks)
            assert (place["end"], place["stable"], place["lag"]) == (1, 0, 0)


async def test_dead_letters_come_page_by_page_and_a_schedule_without_a_worker_has_not_begun(
    kafka: Cluster, agent: Agent
) -> None:
    topics = kafka.topics(agent)
    for n in range(3):
        await kafka.send(ProducerRecord(topics.commands, 1, b"k", b"\xff%d" % n))
    await kafka.work(agent)
    async with asked(agent, kafka.settings) as http:
        newest = await until(lambda: _three(http), what="three dead letters")
        sources = [each["source"]["offset"] for each in newest]
        assert sources == [2, 1, 0]
        page = await get(http, "/dead-letters?limit=2")
        rest = await get(http, f"/dead-letters?limit=2&before={page['older']}")
        assert [*page["dead_letters"], *rest["dead_letters"]] == newest
        assert rest["older"] is None

        [told] = (await get(http, "/schedules"))["schedules"]
        assert told["state"].startswith("not begun")


async def _three(http: httpx.AsyncClient) -> Any:
    found = (await get(http, "/dead-letters"))["dead_letters"]
    return found if len(found) == 3 else None
