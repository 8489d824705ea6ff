"""The trigger role: starts runs from topics, queues and folders, until SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from surefoot.consumers.topic_triggers.mapping import EventMapping, Schemas
from surefoot.consumers.topic_triggers.worker import EventWorker
from surefoot.infra.aws.client import Aws
from surefoot.infra.blobs.stores import check_blobs, open_claims
from surefoot.infra.kafka.txn import commit_deadline_s
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.webhooks_out import hook_workers
from surefoot.infra.processes.worker import (
    Watchdog,
    follow_supervisor,
    record_room,
    until_signalled,
)
from surefoot.infra.registry.schema_source import open_schemas
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.exits import EXIT_CLEAN
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.sources.files import FileSource
from surefoot.infra.sources.sqs import SQS_CALLS_MAX, SqsSource
from surefoot.infra.sources.starter import Starter
from surefoot.infra.sources.supervise import RunningSource, run_sources
from surefoot.infra.telemetry.health import Part, announced
from surefoot.infra.writers.commands import LogCommands
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import AgentTopics, dead_topic
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.sources import SchemaSource
from surefoot.state.records.encoding import Wire

log = structlog.get_logger(__name__)

T = TypeVar("T")


def has_sources(agents: Sequence[Agent]) -> bool:
    """Whether any of the agents needs a trigger process."""
    return any(
        agent.event_triggers or agent.queues or agent.folders or agent.subscriptions
        for agent in agents
    )


def require_sources(agents: Sequence[Agent]) -> None:
    """Raises: ConfigError — none of the agents listens to anything."""
    if not has_sources(agents):
        raise ConfigError(
            "SF1030",
            "no agent of the file has a trigger or a subscription; declare one with "
            "agent.on_event, agent.sqs, agent.files or agent.subscribe",
        )


def run_trigger(agents: Sequence[Agent], settings: Settings, *, slot: int) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status.

    Raises: ConfigError — a topic is wrong, or a declaration cannot work here.
    """

    async def run() -> int:
        clock = SystemClock()
        stop, _ = until_signalled(settings.drain_timeout_s)
        async with open_backend(settings, clock) as backend:
            async with backend.topics() as topics:
                await topics.verify(specs_for(names_of(agents), settings))
            following = asyncio.create_task(follow_supervisor(stop))
            try:
                # with an embedded log, the process that runs the agents also runs the subscriptions
                hooks = backend.capabilities.many_processes
                await trigger(agents, settings, backend, clock, stop, slot=slot, hooks=hooks)
            finally:
                following.cancel()
                stop.set()  # starts the deadline of the exit, however it came about
        return EXIT_CLEAN

    return asyncio.run(run())


async def trigger(
    agents: Sequence[Agent],
    settings: Settings,
    backend: Backend,
    clock: Clock,
    stop: asyncio.Event,
    *,
    slot: int,
    schemas: SchemaSource | None = None,
    hooks: bool = True,
) -> None:
    """Run the agents' sources on the running loop until `stop` is set.

    With `hooks`, also their subscriptions. Finishes transactions that have begun. `schemas`
    replaces the registry that the settings name.

    Raises: ConfigError — a declaration cannot work here.
    """
    await check_blobs(settings, clock)
    async with open_schemas(settings) as named:
        workers = []
        for agent in agents:
            for topic in agent.event_triggers:
                if backend.capabilities.topic_triggers:
                    reads = schemas or named
                    workers.append(
                        event_worker(agent, topic, settings, backend, clock, slot, reads)
                    )
                else:
                    log.warning("topic_needs_kafka", agent=agent.name, topic=topic)
        workers += hook_workers(agents if hooks else [], settings, backend, clock, slot)
        commands = LogCommands(settings, backend.appender(), clock)
        outside = sources_of(agents, settings, Starter(commands, clock))
        sources = [*workers, *outside]
        # a queue or a folder has no members among whom its events are shared
        parts = [Part(each.name, partial(_in_service, each)) for each in workers]
        parts += [Part(each.name, lambda: True) for each in outside]
        watchdog = Watchdog(workers, clock)
        watchdog.start()
        try:
            with announced(parts):
                await run_sources(sources, stop, clock)
        finally:
            watchdog.stop()
            await commands.stop()


def _in_service(worker: EventWorker) -> bool:
    return worker.in_service


def sources_of(
    agents: Sequence[Agent], settings: Settings, starter: Starter
) -> list[RunningSource]:
    """Return one source for each queue and each folder that agents listen to.

    Raises: ConfigError — AWS cannot be used, or a folder does not exist.
    """
    queues = _by([(t.queue, (agent, t)) for agent in agents for t in agent.queues])
    folders = _by([(t.pattern, (agent, t)) for agent in agents for t in agent.folders])
    return [
        *(
            SqsSource(queue, triggers, starter, Aws(settings, "sqs", at_once=SQS_CALLS_MAX))
            for queue, triggers in queues.items()
        ),
        *(
            FileSource(Path(), pattern, triggers, starter, settle_s=settings.file_settle_s)
            for pattern, triggers in folders.items()
        ),
    ]


def _by(pairs: Sequence[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for name, each in pairs:
        found.setdefault(name, []).append(each)
    return found


def event_worker(
    agent: Agent,
    topic: str,
    settings: Settings,
    backend: Backend,
    clock: Clock,
    slot: int,
    schemas: SchemaSource | None,
) -> EventWorker:
    """Return the worker of one trigger. Raises ConfigError — it must not read that topic."""
    if topic == dead_topic(settings.app):
        raise ConfigError(
            "SF1126",
            f"agent {agent.name!r} listens to {topic}, the topic of its own dead letters; "
            "use another topic",
        )
    topics = AgentTopics(settings.app, agent.name)
    return EventWorker(
        mapping=event_mapping(agent, topic, settings, clock, schemas),
        log=backend.source(topics, topic, topics.trigger_group(topic), slot),
        clock=clock,
        settle_s=commit_deadline_s(settings),
    )


def event_mapping(
    agent: Agent, topic: str, settings: Settings, clock: Clock, schemas: SchemaSource | None
) -> EventMapping:
    """Return the mapping of the topic's events to starts.

    Raises: ConfigError — the store of large payloads cannot be used."""
    event = agent.event_triggers[topic]
    return EventMapping(
        agent=agent,
        trigger=event,
        wire=Wire(settings.app, AgentTopics(settings.app, agent.name), settings.partitions),
        schemas=Schemas(event, schemas),
        record_bytes=record_room(settings),
        claims=open_claims(settings, clock),
        schema_wait_s=settings.schema_wait_s,
    )
