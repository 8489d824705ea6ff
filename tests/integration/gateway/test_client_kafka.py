"""The client on a real broker, with a gateway that is started again in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from surefoot import Agent, Approval, Approve, Context, Done, Refused, RunFailed
from surefoot.client import Client, Event
from tests.support.cluster import Cluster, Watched, cluster
from tests.support.eventually import until
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT
from tests.support.servers import served


async def test_a_gateway_that_is_started_again_is_noticed_by_nobody(
    bootstrap: str, app: str, agent_name: str
) -> None:
    port = unused_port()
    counting = Watched(agent_name, steps=6)
    agent = counting.on("A")
    seen: list[tuple[Any, str, int]] = []
    of_all: list[Any] = []
    async with cluster(bootstrap, app, agent, gateway_port=port, **PATIENT) as kafka:
        await kafka.work(agent)
        for seq in (2, 4):
            counting.hold("r", seq)
        async with Client.connect(f"http://127.0.0.1:{port}", patience_s=240) as client:

            async def watch() -> None:
                async for event in client.run(agent_name, "r").events():
                    seen.append((event.id, event.type, event.seq))  # noqa: PERF401

            async def watch_all() -> None:
                async with contextlib.aclosing(client.events(earliest=True)) as events:
                    async for event in events:
                        of_all.append(event)
                        if isinstance(event, Event) and event.ends_run:
                            return

            watching = asyncio.gather(watch(), watch_all())
            waiting = asyncio.create_task(client.run(agent_name, "r").result(int))
            starting = asyncio.create_task(client.start(agent_name, 0, "r"))
            for seq in (2, 4):  # nobody listens at first, and between two gateways
                async with served(agent, kafka.settings):
                    await starting
                    await until(lambda: counting.times("r", seq), what="the step to be held")  # noqa: B023
                    await until(lambda: len(seen) >= seq, what="its history to be seen")  # noqa: B023
                counting.let_go("r", seq)
            await until(lambda: _over(kafka, agent_name), what="the run to end unwatched")
            async with served(agent, kafka.settings):
                assert await asyncio.wait_for(waiting, 240) == 6
                await asyncio.wait_for(watching, 240)
        wanted = [
            (event["type"], event["seq"])
            for event in await kafka.events(agent, "r")
            if event["type"] != "start.ignored"
        ]
    assert [(kind, seq) for _, kind, seq in seen] == wanted
    told = [each for each in of_all if each.type != "start.ignored"]
    assert [(each.run_id, each.type, each.seq) for each in told] == [
        ("r", *each) for each in wanted
    ]
    assert len({number for number, *_ in seen}) == len(seen) == len(wanted) >= 7
    assert [kind for _, kind, _ in seen].count("run.started") == 1


async def _over(kafka: Cluster, agent: str) -> bool:
    return await kafka.status(agent, "r") == "completed"


async def test_runs_are_steered_and_refusals_are_told(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def ask(ctx: Context, amount: int) -> Approve:
        return Approve({"amount": amount}, then=pay)

    @agent.step
    async def pay(ctx: Context, approval: Approval, what: dict[str, int]) -> Done:
        return Done({"paid": approval.approved})

    async with cluster(bootstrap, app, agent, gateway_port=0, **PATIENT) as kafka:
        await kafka.work(agent)
        async with (
            served(agent, kafka.settings) as url,
            Client.connect(url, patience_s=240) as client,
        ):
            run = await client.start(agent_name, 7)
            async with contextlib.aclosing(run.events()) as events:
                async for event in events:
                    if event.status == "waiting":
                        break
            paused = await run.pause(by="ann", command_id="p1")
            assert paused is not None
            assert paused.status == "paused"
            again = await run.pause(by="ann", command_id="p1")
            assert again is not None
            assert again.status == "paused"
            await run.resume()
            await run.approve(True, by="ann")
            assert await run.result(dict[str, bool], timeout_s=120) == {"paid": True}
            with pytest.raises(Refused, match="too_late") as late:
                await run.cancel()
            assert late.value.code == "too_late"
            other = await client.start(agent_name, 8)
            await until(lambda: _shown(client, agent_name, other.run_id), what="the other run")
            await other.cancel()
            with pytest.raises(RunFailed, match="was cancelled"):
                await other.result(timeout_s=120)
            wanted = {run.run_id: "completed", other.run_id: "cancelled"}

            async def listed() -> bool:
                return {r.run_id: r.status for r in await client.list(agent_name)} == wanted

            await until(listed, what="the list, which comes behind the events, to tell both")


async def _shown(client: Client, agent: str, run_id: str) -> bool:
    return any(each.run_id == run_id for each in await client.list(agent))
