"""Mappings that hang: what they hold up, and what they do not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping

import httpx
import pytest
import structlog

from surefoot import Agent, Context, Done, Webhook
from surefoot.producers.webhooks.mapping_threads import Hangs, MappingThreads
from tests.support.eventually import until
from tests.unit.producers import test_signatures as signed
from tests.unit.producers.test_gateway import Gateway


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    """What the mappings of a test wait for; threads end with the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_what_a_mapping_returns_or_raises_comes_out() -> None:
    threads = MappingThreads("s", size=2, within_s=60)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 7, 0)
    with pytest.raises(SystemExit):
        await threads.run(exit, 3)
    assert await threads.run(divmod, 7, 2) == (3, 1)


async def test_there_are_no_more_threads_than_allowed_and_all_are_daemons(
    hold: threading.Event,
) -> None:
    threads, running = MappingThreads("s", size=3, within_s=60), list[threading.Thread]()

    def work() -> None:
        running.append(threading.current_thread())
        hold.wait()

    asked = [asyncio.create_task(threads.run(work)) for _ in range(9)]
    await until(lambda: len(running) == 3, what="three at work")
    assert all(thread.daemon for thread in running)
    hold.set()
    await asyncio.gather(*asked)
    assert len(set(running)) <= 3
    assert threads.hanging == 0


async def hang(threads: MappingThreads, hold: threading.Event) -> None:
    """Until one has been given up that had begun."""
    while not threads.hanging:
        with pytest.raises(Hangs):
            await threads.run(hold.wait)


async def test_when_every_thread_hangs_nothing_waits_for_one_until_one_is_back(
    hold: threading.Event,
) -> None:
    threads = MappingThreads("s", size=1, within_s=0.01)
    await hang(threads, hold)
    threads._within_s, ran = 600, list[int]()
    with pytest.raises(Hangs):
        await threads.run(ran.append, 1)
    hold.set()
    await until(lambda: not threads.hanging, what="the thread to be back")
    await threads.run(ran.append, 2)
    assert ran == [2]


async def test_what_has_waited_in_vain_for_a_thread_is_not_done_later(
    hold: threading.Event,
) -> None:
    threads, ran = MappingThreads("s", size=1, within_s=600), list[int]()
    began = threading.Event()

    def first() -> None:
        began.set()
        hold.wait()
        ran.append(1)

    asked = asyncio.create_task(threads.run(first))
    await until(began.is_set, what="the first to begin")
    threads._within_s = 0.01
    with pytest.raises(Hangs):
        await threads.run(ran.append, 2)
    assert threads.hanging == 0
    hold.set()
    await asked
    threads._within_s = 600
    await threads.run(ran.append, 3)
    assert ran == [1, 3]


class Sources(Gateway):
    """Two sources, of which the mapping of one hangs."""

    secrets: Mapping[str, list[str]] = {**Gateway.secrets, "standard": [signed.WHSEC]}

    def __init__(self, hold: threading.Event, **limits: float) -> None:
        hung, fine = Agent("hung"), Agent("fine")
        for agent in (hung, fine):

            @agent.step
            async def first(ctx: Context, number: int) -> Done:
                return Done()

        self.began = list[str]()

        def hangs(delivery: Webhook) -> int:
            self.began.append(delivery.id)
            hold.wait()
            return 1

        hung.webhook("standard")(hangs)
        fine.webhook("github")(lambda _: 2)
        super().__init__(hung, fine, **limits)

    async def hang(self) -> httpx.Response:
        headers = signed.standard(signed.WHSEC, b"{}", "1700000000")
        return await self.http.post("/webhooks/standard", content=b"{}", headers=headers)


async def test_mappings_that_hang_hold_up_no_other_source(hold: threading.Event) -> None:
    gateway = Sources(hold, mapping_threads=16, mapping_s=600)
    async with gateway.http:
        hung = [asyncio.create_task(gateway.hang()) for _ in range(45)]
        await until(lambda: len(gateway.began) == 16, what="all threads of the source to hang")
        assert (await gateway.deliver()).status_code == 202
        assert [agent for agent, *_ in gateway.commands.started] == ["fine"]
        assert not any(each.done() for each in hung)
        hold.set()
        assert {each.status_code for each in await asyncio.gather(*hung)} == {202}


async def test_a_mapping_that_hangs_is_named_and_its_sender_is_told_when_to_come_again(
    hold: threading.Event,
) -> None:
    gateway = Sources(hold, mapping_threads=4, mapping_s=0.01)
    async with gateway.http:
        with structlog.testing.capture_logs() as logs:
            answers = await asyncio.gather(*(gateway.hang() for _ in range(45)))
    assert {each.status_code for each in answers} == {503}
    assert {each.headers["Retry-After"] for each in answers} == {"5"}
    assert answers[0].json() == {
        "error": "SF5179: the mappings of this source take too long; try again"
    }
    told = [line for line in logs if line["event"] == "mapping_hangs"]
    assert {(line["source"], line["delivery"], *line["agents"]) for line in told} == {
        ("standard", "msg_1", "hung")
    }
    assert max(line["threads_hanging"] for line in told) <= 4
    assert gateway.commands.started == []
    assert {each.outcome for each in gateway.deliveries.offered} == {"unavailable"}
