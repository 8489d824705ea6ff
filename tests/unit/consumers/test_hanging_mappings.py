"""A mapping of a queue or a folder that hangs costs the message or the file it was asked about; one
of a topic is told while it hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done
from surefoot.consumers.deadlines import ConsumerDeadlines
from surefoot.consumers.topic_triggers.mapping import EventMapping, Schemas
from surefoot.consumers.topic_triggers.owner import TriggerOwner
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.simulation.time import VirtualClock
from surefoot.infra.sources import starter as sources
from surefoot.infra.sources.starter import BadEvent, Mappings
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import Wire
from tests.support.eventually import until
from tests.unit.consumers.test_topic_triggers import Log


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def taker() -> Agent:
    agent = Agent("taker")

    @agent.step
    async def take(ctx: Context, number: int) -> Done:
        return Done()

    return agent


async def test_one_that_hangs_is_given_up_and_named(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(event: str) -> int:
        held.wait()
        return 1

    monkeypatch.setattr(sources, "MAPPING_S", 0.01)
    with pytest.raises(BadEvent, match=r"hangs.* did not end within 0\.01 s"):
        await Mappings("files inbox/*").payload_of(taker(), hangs, "event")


async def test_where_all_threads_of_a_source_hang_it_waits_for_one_and_no_other_does(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, agent = list[str](), taker()

    def hangs(event: str) -> int:
        began.append(event)
        held.wait()
        return 1

    monkeypatch.setattr(sources, "MAPPING_S", 0.01)
    stuck = Mappings("sqs orders", threads=2)
    with capture_logs() as logs:
        for event in ("1", "2"):
            with pytest.raises(BadEvent):
                await stuck.payload_of(agent, hangs, event)
    hanging = [line for line in logs if "threads_hanging" in line]
    assert [(line["source"], line["threads_hanging"]) for line in hanging] == [
        ("sqs orders", 1),
        ("sqs orders", 2),
    ]
    monkeypatch.setattr(sources, "MAPPING_S", 600.0)
    waits = asyncio.create_task(stuck.payload_of(agent, hangs, "3"))
    assert await Mappings("files inbox/*").payload_of(agent, lambda _: 2, "4") == b"2"
    assert not waits.done()
    assert began == ["1", "2"]
    held.set()
    assert await waits == b"1"
    assert began == ["1", "2", "3"]


async def test_a_timeout_of_its_own_is_an_error_of_its_own() -> None:
    def late(event: str) -> int:
        raise TimeoutError("the catalogue does not answer")

    with pytest.raises(BadEvent, match="raised TimeoutError"):
        await Mappings("files inbox/*").payload_of(taker(), late, "event")


async def test_one_of_a_topic_is_told_while_it_hangs(held: threading.Event) -> None:
    agent = taker()

    @agent.on_event(topic="orders")
    def hangs(event: Any) -> int:
        held.wait()
        return 1

    trigger, log = agent.event_triggers["orders"], Log(VirtualClock(start_ms=0, seed=1))
    mapping = EventMapping(
        agent=agent,
        trigger=trigger,
        wire=Wire("app", AgentTopics("app", "taker"), 1),
        schemas=Schemas(trigger, None),
        record_bytes=10_000,
    )
    with capture_logs() as logs:
        source: Any = log
        made = TriggerOwner(
            mapping=mapping,
            partition=0,
            log=source,
            clock=SystemClock(),
            deadlines=ConsumerDeadlines(slow_mapping_s=0.01),
        )
        serving = asyncio.create_task(made.serve())
        await until(lambda: made.ready, what="the partition to be read")
        made.ingest(ConsumerRecord("orders", 0, 7, 0, None, b"{}"))
        await until(
            lambda: [each for each in logs if each["event"] == "mapping_slow"],
            what="the mapping that hangs to be told",
        )
    (told,) = [each for each in logs if each["event"] == "mapping_slow"]
    assert (told["topic"], told["partition"], told["offset"]) == ("orders", 0, 7)
    held.set()
    made.finish()
    await serving
