"""Topics of other people, trigger processes on this loop, and what came of the events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import ConsumerRecord

from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.trigger import trigger
from surefoot.schemas.codec.codec import decode
from surefoot.state.declare.agent import Agent
from surefoot.state.ports.log import Headers, ProducerRecord
from surefoot.state.ports.sources import SchemaSource
from tests.support.cluster import Cluster, headers_of
from tests.support.eventually import until


@dataclass(slots=True)
class Listening:
    """One agent on one topic of a cluster."""

    kafka: Cluster
    agent: Agent
    topic: str
    partitions: int
    _stops: list[tuple[asyncio.Event, asyncio.Task[None]]] = field(default_factory=list)

    async def create(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.settings.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.topic, self.partitions, 1)])
        finally:
            await admin.close()

    async def send(
        self,
        value: bytes | None,
        headers: Headers = (),
        partition: int = 0,
        key: bytes | None = None,
    ) -> int:
        """Write one event; returns its offset."""
        return await self.kafka.send(ProducerRecord(self.topic, partition, key, value, headers))

    async def send_numbers(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self.send(b"%d" % number, partition=number % self.partitions)

    def begin(self, *, slot: int = 0, schemas: SchemaSource | None = None) -> asyncio.Event:
        """Start what `surefoot trigger` runs; set the event to stop it."""
        stop = asyncio.Event()
        self._stops.append((stop, asyncio.create_task(self._run(stop, slot, schemas))))
        return stop

    async def _run(self, stop: asyncio.Event, slot: int, schemas: SchemaSource | None) -> None:
        settings, clock = self.kafka.settings, self.kafka.clock
        async with open_backend(settings, clock) as backend:
            await trigger([self.agent], settings, backend, clock, stop, slot=slot, schemas=schemas)

    async def end(self, *stops: asyncio.Event) -> None:
        """Stop these trigger processes, or all."""
        for stop, task in self._stops:
            if not stops or stop in stops:
                stop.set()
                await task

    async def ended(self) -> None:
        """Wait until the one trigger process ends by itself. Raises what ended it."""
        ((_, task),) = self._stops
        self._stops.clear()
        await task

    async def commands(self) -> list[ConsumerRecord]:
        return await self.kafka.read(self.kafka.topics(self.agent).commands)

    async def started(self) -> list[Any]:
        """Payloads of the start commands, in no order."""
        commands = [decode(r.value or b"", "Command")[1] for r in await self.commands()]
        return sorted(int(command["payload"]) for command in commands)

    async def until_started(self, count: int) -> None:
        async def enough() -> bool:
            return len(await self.commands()) >= count

        await until(enough, what=f"{count} start commands")

    async def check_once(self) -> None:
        """No event has two start commands, and none has both one and a dead letter."""
        places = [headers_of(record)["sf-src"] for record in await self.commands()]
        for record in await self.kafka.dead():
            told = headers_of(record)
            names = (told["sf-dead-topic"], told["sf-dead-partition"], told["sf-dead-offset"])
            places.append(b"/".join(names))
        assert [place for place, times in Counter(places).items() if times > 1] == []

    async def codes(self) -> list[str]:
        return sorted(headers_of(r)["sf-dead-code"].decode() for r in await self.kafka.dead())


@asynccontextmanager
async def listening(
    kafka: Cluster, agent: Agent, *, partitions: int = 2, create: bool = True
) -> AsyncIterator[Listening]:
    """The topic is that of the agent's trigger."""
    (topic,) = agent.event_triggers
    made = Listening(kafka, agent, topic, partitions)
    if create:
        await made.create()
    try:
        yield made
    finally:
        await made.end()
