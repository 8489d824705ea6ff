"""The checks of an app, from outside. Each asks for itself: one that cannot look costs no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from surefoot.consumers.partition.ending import never_cut_short, stop_all
from surefoot.infra.access.audit import AuditReader
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.readers.dead_letters import DeadReader
from surefoot.infra.readers.runs import LogRunReader, bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent
from surefoot.state.diagnosis.cluster import (
    judge_brokers,
    judge_disks,
    judge_replicas,
    judge_transactions,
)
from surefoot.state.diagnosis.findings import Diagnosis, Examination
from surefoot.state.diagnosis.work import (
    ONE_PROCESS,
    Listener,
    StartCommands,
    judge_access,
    judge_commands,
    judge_dead_letters,
    judge_effects,
    judge_listeners,
    judge_offsets,
    judge_runs,
    judge_tasks,
    judge_topics,
    judge_workers,
)
from surefoot.state.errors import ConfigError, Numbered, Unavailable
from surefoot.state.names.agents import pool_agent_name
from surefoot.state.names.topics import OUTBOX, AgentTopics, dead_topic
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.lag import AgentStanding
from surefoot.state.reading.runs import RunSummary

#: newest dead letters that are looked at
_LETTERS = 1_000
#: effects whose target is looked up
_TARGETS = 10

Check = Callable[[], Awaitable[list[Diagnosis]]]


class Doctor:
    """Examines the agents of one app. `stop` it afterwards."""

    def __init__(self, settings: Settings, backend: Backend, agents: Sequence[Agent]) -> None:
        self._settings = settings
        self._backend = backend
        self._agents = agents
        self._names = names_of(agents)
        self._specs = specs_for(self._names, settings)
        several = backend.capabilities.many_processes
        self._start = StartCommands(pools=_pools(agents)) if several else ONE_PROCESS
        self._cluster = backend.cluster()
        self._offsets = backend.offsets()
        self._groups = backend.groups()
        self._standings = backend.standings()
        self._runs = LogRunReader(settings, backend, [*self._names, OUTBOX])
        self._dead = DeadReader(settings, backend)
        self._audit = AuditReader(settings, backend)

    async def examine(self, now_ms: int, since_ms: int) -> Examination:
        """Ask everything at once, and judge. If the log cannot be reached, no check looks.

        Args: now_ms, since_ms: epoch ms, UTC; failures before `since_ms` do not count
        """
        try:
            async with self._backend.topics() as topics:
                await topics.names()
        except Unavailable as error:
            return Examination(blind=[("log", str(error))])
        await self._runs.start()
        checks = dict(self._checks(now_ms, since_ms))
        answers = await asyncio.gather(*map(self._looked, checks.values()))
        told = dict(zip(checks, answers, strict=True))
        return Examination(
            looked=[name for name, each in told.items() if not isinstance(each, str)],
            findings=[one for each in told.values() if not isinstance(each, str) for one in each],
            blind=[(name, each) for name, each in told.items() if isinstance(each, str)],
        )

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        parts = (self._runs, self._dead, self._audit, self._standings, self._offsets)
        await stop_all(*parts)
        if self._cluster is not None:
            await self._cluster.stop()

    def _checks(self, now_ms: int, since_ms: int) -> Iterator[tuple[str, Check]]:
        yield "topics", self._topics
        if (cluster := self._cluster) is not None:
            taken = [topic for agent in self._agents for topic in agent.event_triggers]
            names = [*(spec.name for spec in self._specs), *taken]
            read = [*self._transactional_topics(), *taken]

            async def brokers() -> list[Diagnosis]:
                view = await cluster.view(names)
                return judge_brokers(view) + judge_replicas(view)

            async def disks() -> list[Diagnosis]:
                return judge_disks(await cluster.directories())

            async def transactions() -> list[Diagnosis]:
                return judge_transactions(await cluster.open_transactions(read), now_ms)

            yield from (("brokers", brokers), ("disks", disks), ("transactions", transactions))
        yield "workers", lambda: self._workers(now_ms)
        yield "triggers", self._triggers
        yield "runs", lambda: self._run_states(since_ms)
        yield "effects", lambda: self._effects(now_ms)
        yield "dead letters", lambda: self._dead_letters(since_ms)
        if self._settings.auth != "off":
            yield "access", lambda: self._access(since_ms)

    def _transactional_topics(self) -> Iterator[str]:
        """Yield the app's topics that are written to in transactions."""
        yield dead_topic(self._settings.app)
        for name in (*self._names, OUTBOX):
            topics = AgentTopics(self._settings.app, name)
            yield from (topics.commands, topics.tasks, topics.state, topics.events)

    async def _looked(self, check: Check) -> list[Diagnosis] | str:
        """Return what a check finds, or why it cannot look."""
        try:
            async with bounded(self._settings.deadlines.check_s):
                return await check()
        except Numbered as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, it costs this check only)
            return f"{type(error).__name__}: {error}"

    async def _topics(self) -> list[Diagnosis]:
        async with self._backend.topics() as topics:
            try:
                await topics.verify(self._specs)
            except ConfigError as error:
                return judge_topics(error.message.splitlines())
        return []

    async def _workers(self, now_ms: int) -> list[Diagnosis]:
        standings = await self._standings.look([*self._names, OUTBOX])
        found = judge_workers(standings, self._start)
        found += judge_offsets(self._settings.app, standings, self._start)
        for each in standings:
            topics = AgentTopics(self._settings.app, each.agent)
            commands = await self._oldest(each, topics.commands)
            found += judge_commands(each.agent, commands, now_ms, self._start)
            found += judge_tasks(each.agent, await self._oldest(each, topics.tasks), now_ms)
        return found

    async def _oldest(self, standing: AgentStanding, topic: str) -> list[ConsumerRecord]:
        """Return the first record that is not done of each partition that has an owner."""
        lookups = self._backend.lookups(topic)
        try:
            pages = [
                (await lookups.page(place.partition, first, place.stable, lambda _: True))[0]
                for place in standing.partitions
                if place.topic == topic and place.lag and place.owner is not None
                if (first := max(place.committed or 0, place.start)) < place.stable
            ]
        finally:
            await lookups.stop()
        return [page[0] for page in pages if page]

    async def _triggers(self) -> list[Diagnosis]:
        wanted = [
            (agent.name, topic, group)
            for agent in self._agents
            for topic, group in _listeners(agent, AgentTopics(self._settings.app, agent.name))
        ]
        return judge_listeners([await self._listener(*each) for each in wanted], self._start)

    async def _listener(self, agent: str, topic: str, group: str) -> Listener:
        async with self._backend.topics() as topics:
            partitions = range((await topics.partitions([topic])).get(topic, 0))
        begins = await self._offsets.begins(topic, partitions) if partitions else {}
        ends = await self._offsets.stables(topic, partitions) if partitions else {}
        members = unread = 0
        for partition in partitions:
            members, committed = await self._groups.look(group, [topic], partition)
            first = committed[topic]
            unread += max(ends[partition] - (begins[partition] if first is None else first), 0)
        return Listener(agent=agent, topic=topic, members=members, unread=unread)

    async def _run_states(self, since_ms: int) -> list[Diagnosis]:
        versions = {agent.name: agent.version for agent in self._agents}
        found: list[Diagnosis] = []
        for name in self._names:
            runs = await self._every_run(name)
            found += judge_runs(name, versions.get(name), runs, since_ms)
        return found

    async def _every_run(self, agent: str) -> list[RunSummary]:
        reader = self._runs.agents[agent]
        await reader.caught_up()
        return list(reader.index.runs.values())

    async def _effects(self, now_ms: int) -> list[Diagnosis]:
        effects = await self._every_run(OUTBOX)
        hosts = await self._hosts(run.run_id for run in effects if run.failure)
        return judge_effects(effects, hosts, now_ms)

    async def _hosts(self, run_ids: Iterable[str]) -> Mapping[str, str]:
        """Return where some of these effects go."""
        hosts = {}
        for _, run_id in zip(range(_TARGETS), run_ids, strict=False):
            run = await self._runs.get(OUTBOX, run_id)
            if run is not None and (host := _host(run.payload)):
                hosts[run_id] = host
        return hosts

    async def _dead_letters(self, since_ms: int) -> list[Diagnosis]:
        return judge_dead_letters(
            await self._dead.latest(lambda _: True, _LETTERS, since_ms=since_ms)
        )

    async def _access(self, since_ms: int) -> list[Diagnosis]:
        return judge_access(await self._audit.entries(since_ms, lambda _: True))


def _pools(agents: Iterable[Agent]) -> dict[str, str]:
    return {pool_agent_name(agent.name, pool): pool for agent in agents for pool in agent.pools}


def _listeners(agent: Agent, topics: AgentTopics) -> Iterator[tuple[str, str]]:
    """Yield (topic, group) of the agent's triggers and subscriptions."""
    yield from ((topic, topics.trigger_group(topic)) for topic in agent.event_triggers)
    yield from ((topics.events, topics.hook_group(name)) for name in agent.subscriptions)


def _host(payload: bytes) -> str | None:
    """Return the host that an effect goes to; None: its payload is kept elsewhere."""
    try:
        url = json.loads(payload)["url"]
        return urlsplit(str(url)).hostname
    except (ValueError, KeyError, TypeError):
        return None
