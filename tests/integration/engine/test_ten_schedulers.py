"""Ten schedulers on a real broker, some of them killed in the middle of a tick."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Literal

import pytest

from surefoot import Agent, Context, Done, Tick
from surefoot.consumers.builtin.schedules import schedules_agent
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.kafka.log import KafkaOwnership
from surefoot.infra.readers.schedules import declare_schedules
from surefoot.state.names.partitioner import partition_of
from surefoot.state.ports.log import Committed, InputKind, ProducerRecord
from tests.integration.engine.test_schedules import started, ticks_of
from tests.support.cluster import Running, cluster
from tests.support.eventually import until

SCHEDULERS = 10
#: one in each partition
SCHEDULES = [
    next(name for n in range(1_000) if partition_of(name := f"s-{n}", SCHEDULERS) == partition)
    for partition in range(SCHEDULERS)
]

Moment = Literal["before", "amid", "after"]

#: who is killed closes nothing
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def ticking() -> Agent:
    agent = Agent("ticking")

    @agent.step
    async def note(ctx: Context, second: str) -> Done:
        return Done(second)

    def second(tick: Tick) -> str:
        return f"{tick.at:%H:%M:%S}"

    for name in SCHEDULES:
        agent.schedule("* * * * * *", name=name, overlap="allow", misfire="all")(second)
    return agent


class Doomed:
    """A scheduler, and the moment of a tick's commit at which it is to be killed, if at all."""

    def __init__(self, running: Running, commands: str) -> None:
        self.running = running
        self.moment: Moment | None = None
        self._commands = commands
        self._reached = asyncio.Event()
        own = running.log.own

        async def owning(partition: int) -> KafkaOwnership:
            ownership = await own(partition)
            self._watch(ownership)
            return ownership

        running.log.own = owning  # type: ignore[method-assign]

    def _watch(self, ownership: KafkaOwnership) -> None:
        commit = ownership.commit

        async def committing(
            outs: list[ProducerRecord], offsets: dict[InputKind, int]
        ) -> Committed:
            moment = self.moment if any(out.topic == self._commands for out in outs) else None
            if moment in ("before", "amid"):
                self._reached.set()
            if moment == "before":
                await asyncio.Future()
            committed = await commit(outs, offsets)
            if moment == "after":
                self._reached.set()
                await asyncio.Future()
            return committed

        ownership.commit = committing  # type: ignore[method-assign, assignment]

    async def die(self, moment: Moment) -> None:
        """Without a goodbye, at that moment of the next tick's commit."""
        self.moment = moment
        await until(self._reached.is_set, what=f"the moment {moment} a tick's commit")
        await self.running.vanish()


async def test_each_tick_has_one_run_with_ten_schedulers_of_which_some_are_killed(
    bootstrap: str, app: str
) -> None:
    agent = ticking()
    async with cluster(bootstrap, app, agent, partitions=SCHEDULERS) as kafka:
        keeper = schedules_agent(agent, kafka.clock)
        commands = kafka.topics(agent).commands

        async def scheduler(slot: int) -> Doomed:
            return Doomed(await kafka.work(keeper, slot=slot, ready=False), commands)

        async def ticked_since(before: set[str]) -> bool:
            made = [run_id for run_id in await started(kafka) if run_id not in before]
            return all(len(ticks_of(name, made)) >= 2 for name in SCHEDULES)

        schedulers = [await scheduler(slot) for slot in range(SCHEDULERS)]

        def one_each() -> bool:
            workers = [each.running.worker for each in schedulers]
            return all(len(worker.partitions) == 1 and worker.ready for worker in workers)

        await until(one_each, what="each scheduler to have a partition")
        await kafka.work(agent)
        backend = KafkaBackend(kafka.settings, kafka.clock)
        await declare_schedules([agent], kafka.settings, backend, kafka.clock)
        await until(lambda: ticked_since(set()), what="the first ticks")
        moments: tuple[Moment, ...] = ("before", "amid", "after")
        victims = zip(schedulers, moments * 2, strict=False)
        await asyncio.gather(*(victim.die(moment) for victim, moment in victims))
        alive = [*schedulers[6:], *[await scheduler(slot) for slot in range(3)]]
        before = set(await started(kafka))
        await until(lambda: ticked_since(before), what="ticks after the kill")
        await asyncio.gather(*(each.running.drain() for each in alive))
        run_ids = await started(kafka)
        for name in SCHEDULES:
            made = ticks_of(name, run_ids)
            assert made == [made[0] + timedelta(seconds=n) for n in range(len(made))], name
        await kafka.until_status(agent, run_ids, "completed")
        events = await kafka.events(agent)
        begun = Counter(event["run_id"] for event in events if event["type"] == "run.started")
        assert begun == Counter(run_ids)
        await kafka.check_history(keeper, agent)
        await kafka.check_history(agent)
