"""Admin data besides runs, read from the log: deliveries, schedules, dead letters, topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.topics import names_of
from surefoot.infra.log.ports import Backend
from surefoot.infra.readers.dead_letters import DeadReader
from surefoot.infra.readers.delivery_log import DeliveryReader
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent
from surefoot.state.machine.model import State
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.names.topics import OUTBOX, AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.admin import DeadLetters
from surefoot.state.reading.deliveries import Delivery, DeliveryOutcome
from surefoot.state.reading.lag import AgentStanding
from surefoot.state.records.run_store import RunStore


class LogOverview:
    """Implements Overview for some agents of one app. Reads nothing before the first request."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        agents: Sequence[Agent],
        held: Collection[str] = (),
    ) -> None:
        """`held`: agents whose topics must not be read while they are in it."""
        self._agents, self._held = agents, held
        self._bounded = partial(bounded, settings.deadlines.read_s)
        self._standings = backend.standings()
        self._deliveries = DeliveryReader(settings, backend)
        self._dead = DeadReader(settings, backend)
        self._books = {
            agent.name: _Books(settings, backend, agent.name) for agent in agents if agent.schedules
        }

    async def standings(self) -> Sequence[AgentStanding]:
        async with self._bounded():
            served = [agent for agent in self._agents if agent.name not in self._held]
            return await self._standings.look((*names_of(served), OUTBOX))

    async def deliveries(
        self, *, source: str | None, outcome: DeliveryOutcome | None, limit: int
    ) -> Sequence[Delivery]:
        def wanted(each: Delivery) -> bool:
            return source in (None, each.source) and outcome in (None, each.outcome)

        return await self._deliveries.latest(wanted, limit)

    async def dead_letters(self, *, before: int | None, limit: int) -> DeadLetters:
        found = await self._dead.latest(lambda _: True, limit + 1, before=before)
        page = found[:limit]
        return DeadLetters(page, page[-1].offset if len(found) > limit else None)

    async def schedules(self, agent: str) -> dict[str, State]:
        books = self._books.get(agent)
        return {} if books is None else await books.now()

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await asyncio.gather(*(books.stop() for books in self._books.values()))
        await self._dead.stop()
        await self._deliveries.stop()
        await self._standings.stop()


class _Books:
    """The schedules of one agent, followed from the first request on."""

    def __init__(self, settings: Settings, backend: Backend, agent: str) -> None:
        self._bounded = partial(bounded, settings.deadlines.read_s)
        self._keeper = schedules_agent_name(agent)
        self._topic = AgentTopics(settings.app, self._keeper).state
        self._partitions = range(settings.partitions)
        self._store = RunStore()
        self._tail = backend.tail(self._topic, self._apply, from_end=False)
        self._offsets = backend.offsets()

    def _apply(self, record: ConsumerRecord) -> None:
        self._store.apply([record])

    async def now(self) -> dict[str, State]:
        self._tail.start()
        async with self._bounded():
            ends = await self._offsets.ends(self._topic, self._partitions)
            for partition, end in ends.items():
                await self._tail.reach(partition, end)
        names = sorted({*self._store.live, *self._store.receipts})
        return {name: self._store.state(name, self._keeper) for name in names}

    @never_cut_short
    async def stop(self) -> None:
        await self._tail.stop()
        await self._offsets.stop()
