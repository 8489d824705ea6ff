"""Reads an agent's schedules from the log, and declares the code's schedules to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.log.ports import Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.writers.commands import LogCommands
from surefoot.producers.commands.schedules import update_schedules
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import RecordTooLarge, Unavailable
from surefoot.state.machine.model import State
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.run_store import RunStore

log = structlog.get_logger(__name__)

#: time limit for reading the schedules, and the pause before a retry; in seconds
_READ_S, _AGAIN_S = 30.0, 2.0


async def read_schedules(settings: Settings, backend: Backend, agent: str) -> dict[str, State]:
    """Return an agent's schedules by name, as of everything committed by now.

    Raises: Unavailable — the log cannot be read now.
    """
    topic = AgentTopics(settings.app, schedules_agent_name(agent)).state
    partitions = range(settings.partitions)
    store = RunStore()

    def apply(record: ConsumerRecord) -> None:
        store.apply([record])

    tail, offsets = backend.tail(topic, apply, from_end=False), backend.offsets()
    try:
        async with bounded(_READ_S):
            tail.start()
            for partition, end in (await offsets.ends(topic, partitions)).items():
                await tail.reach(partition, end)
    finally:
        await stop_all(tail, offsets)
    names = {*store.live, *store.receipts}
    return {name: store.state(name, schedules_agent_name(agent)) for name in sorted(names)}


async def declare_schedules(
    agents: Sequence[Agent], settings: Settings, backend: Backend, clock: Clock
) -> None:
    """Send each agent's schedules the declarations of its code; retries until sent."""
    waiting = list(agents)
    while waiting:
        agent = waiting.pop(0)
        try:
            await _declare(agent, settings, backend, clock)
        except* (Unavailable, RecordTooLarge) as errors:
            log.warning("schedules_not_declared", agent=agent.name, error=str(errors.exceptions[0]))
            waiting.append(agent)
        if waiting and waiting[-1] is agent:
            await asyncio.sleep(_AGAIN_S)


async def _declare(agent: Agent, settings: Settings, backend: Backend, clock: Clock) -> None:
    known = await read_schedules(settings, backend, agent.name)
    appender = backend.appender()
    try:
        commands = LogCommands(settings, appender, clock)
        done = await update_schedules(
            agent, known, commands, clock, send_s=settings.deadlines.send_s
        )
    finally:
        await appender.stop()
    log.info("schedules_declared", agent=agent.name, schedules=len(agent.schedules), done=done[:20])
