"""A real cluster's history: fates, producers and markers as they were made; and a clean verdict on
workers of which one vanished, reached without a line of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from surefoot import Agent, Context, Done, Next
from surefoot.consumers.builtin.outbox import HttpDelivery, outbox_agent
from surefoot.infra.broker.find import Broker
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.egress.policy import parse_allowed
from tests.checker import Asked, History, Promise, Request, check
from tests.checker.history import Event
from tests.checker.inputs import caught_up
from tests.checker.kafka import read_history
from tests.checker.view import View
from tests.support.cluster import Cluster, cluster
from tests.support.effect_target import Sink, sink
from tests.support.eventually import until

RUNS = [f"r{n}" for n in range(12)]
#: how long the broker may take over anything, in seconds
TIMEOUT_S = 90.0


@pytest.fixture
def data(broker: Broker) -> Path:
    """The broker's data folder."""
    if broker.log_path is None:
        pytest.skip("only a broker that was started here shows its files")
    return broker.log_path.parent / "data"


def producer(bootstrap: str, name: str | None) -> Producer:
    if name is None:
        return Producer({"bootstrap.servers": bootstrap})
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    made.init_transactions(TIMEOUT_S)
    return made


def test_fates_producers_and_markers_are_as_they_were_made(
    bootstrap: str, app: str, data: Path
) -> None:
    topic = f"{app}.x.events"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    plain, first = producer(bootstrap, None), producer(bootstrap, f"{app}-1")
    plain.produce(topic, b"plain", b"k", headers=[("h", b"1"), ("h", b"")])
    plain.flush(TIMEOUT_S)
    for value, end in ((b"kept", first.commit_transaction), (b"lost", first.abort_transaction)):
        first.begin_transaction()
        first.produce(topic, value)
        first.produce(topic, value)
        first.flush(TIMEOUT_S)
        end(TIMEOUT_S)
    second = producer(bootstrap, f"{app}-1")  # the same id: a newer epoch
    second.begin_transaction()
    second.produce(topic, b"open")
    second.flush(TIMEOUT_S)
    history = read_history(bootstrap, app, data=data, at_rest=False)
    told = [(r.offset, r.value, r.committed) for r in history.records]
    assert told == [
        (0, b"plain", True),
        (1, b"kept", True),
        (2, b"kept", True),
        (4, b"lost", False),
        (5, b"lost", False),
        (7, b"open", None),
    ]
    assert history.records[0].headers == (("h", b"1"), ("h", b""))
    assert history.records[0].producer is None
    assert [(m.offset, m.commit) for m in history.markers] == [(3, True), (6, False)]
    (old,) = {record.producer for record in history.records[1:5]}
    new = history.records[5].producer
    assert old is not None
    assert new is not None
    assert {marker.producer[0] for marker in history.markers} == {old[0]} == {new[0]}
    assert old[1] < new[1]
    second.abort_transaction(TIMEOUT_S)
    producer(bootstrap, f"{app}-1")  # is there when the markers of the one before are
    history = read_history(bootstrap, app, data=None, at_rest=False)
    assert [record.committed for record in history.records[-3:]] == [False] * 3
    assert history.markers == []


def walking(target: str, name: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def walk(ctx: Context, number: int) -> Next | Done:
        ctx.outbox.http("POST", f"{target}/{ctx.run_id}/{number}", json=[ctx.run_id, number])
        await ctx.call("look", asyncio.sleep, 0.01)
        return Next(walk, number + 1) if number < 3 else Done([ctx.run_id, number])

    return agent


def promised(agent: str, run_id: str, events: Sequence[Event]) -> Promise:
    del events
    return Promise(
        result=[run_id, 3], effects=frozenset(f"{agent}:{run_id}:{seq}:0" for seq in range(4))
    )


def requests(target: Sink) -> list[Request]:
    seen: set[str] = set()
    found = []
    for request in target.book:
        found.append(
            Request(
                at_ms=0,
                key=request.key,
                method=request.method,
                url=target.url + request.path,
                body=request.body,
                applied=request.key not in seen,
            )
        )
        seen.add(request.key)
    return found


def read(kafka: Cluster, data: Path, agent: str, target: Sink) -> History:
    """What is there, and what its surroundings know."""
    bootstrap = kafka.settings.bootstrap_servers
    assert bootstrap is not None
    history = read_history(bootstrap, kafka.settings.app, data=data, at_rest=True)
    asked = [Asked(id=None, agent=agent, run_id=r, kind="start", outcome="ok") for r in RUNS]
    return replace(history, asked=asked, requests=requests(target))


async def test_workers_of_which_one_vanished_have_kept_every_promise(
    bootstrap: str, app: str, agent_name: str, data: Path
) -> None:
    async with sink() as target:
        agent = walking(target.url, agent_name)
        async with cluster(bootstrap, app, agent) as kafka:
            deliver = HttpDeliver(parse_allowed("127.0.0.1"), timeout_s=TIMEOUT_S)
            relay = outbox_agent(HttpDelivery(deliver, SystemClock()))
            await kafka.work(relay)
            gone = await kafka.work(agent)
            for run_id in RUNS:
                await kafka.start(agent, run_id)
            await until(lambda: len(target.book) > len(RUNS), what="the runs to be under way")
            await gone.vanish()
            await kafka.work(agent)
            await kafka.until_status(agent, RUNS, "completed")
            effects = [f"{agent_name}:{run_id}:{seq}:0" for run_id in RUNS for seq in range(4)]
            await kafka.until_status("outbox", effects, "completed")

            async def look() -> History:
                return await asyncio.to_thread(read, kafka, data, agent_name, target)

            async def at_rest() -> bool:
                return not list(caught_up(View(await look())))

            await until(at_rest, what="the groups to reach the end")
            history = await look()
    programs = {run_id: partial(promised, agent_name, run_id) for run_id in RUNS}
    assert check(history, programs) == []
    assert len(history.requests) >= len(effects)
    # Otherwise there was nothing to see: somebody was fenced, and all of it is in the files.
    assert len({record.producer for record in history.records if record.producer}) > 4
    assert history.markers
