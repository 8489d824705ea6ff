"""The archive role: moves events and finished runs into the archive, until SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from surefoot.infra.archive.archiver import Archiver
from surefoot.infra.archive.store import ArchiveStore, open_archive
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.worker import until_signalled
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.exits import EXIT_CLEAN, EXIT_GAVE_UP
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)


def require_archive(settings: Settings) -> ArchiveStore:
    """Return the archive. Raises ConfigError — none is set, or it cannot be used."""
    store = open_archive(settings)
    if store is None:
        raise ConfigError(
            "SF1057",
            "no archive is set; set SUREFOOT_ARCHIVE=s3://bucket/prefix or file:///folder",
        )
    return store


def run_archive(
    agents: Sequence[Agent], settings: Settings, *, once: bool
) -> tuple[int, list[Archiver]]:
    """Archive until SIGTERM or SIGINT; with `once`, only what exists.

    Returns: the exit status, and the archivers with their counts.

    Raises: ConfigError — no archive is set, it cannot be used, or a topic is wrong; Unavailable.
    """

    async def run() -> tuple[int, list[Archiver]]:
        clock, store = SystemClock(), require_archive(settings)
        try:
            stop, abort = until_signalled(settings.drain_timeout_s)
            async with open_backend(settings, clock) as backend:
                async with backend.topics() as topics:
                    await topics.verify(specs_for(names_of(agents), settings))
                await store.check()
                archivers = [
                    archiver(settings, name, backend, store, clock)
                    for name in dict.fromkeys(names_of(agents))
                ]
                log.info("archive_ready", store=store.name, agents=[a.agent for a in archivers])
                status = await archive(archivers, settings, stop, abort, once=once)
                return status, archivers
        finally:
            store.close()

    return asyncio.run(run())


def archiver(
    settings: Settings, agent: str, backend: Backend, store: ArchiveStore, clock: Clock
) -> Archiver:
    """Return an archiver of one agent's events."""
    topics = AgentTopics(settings.app, agent)
    return Archiver(
        agent=agent,
        topic=topics.events,
        log=backend.archive_log(topics),
        store=store,
        clock=clock,
        file_bytes=settings.archive_file_bytes,
        age_s=settings.archive_age_s,
    )


async def archive(
    archivers: Sequence[Archiver],
    settings: Settings,
    stop: asyncio.Event,
    abort: asyncio.Event,
    *,
    once: bool,
) -> int:
    """Run the archivers side by side; a failing one ends them all. Returns the exit status."""
    running = [
        asyncio.create_task(each.run(stop, abort, once=once, drain_s=settings.drain_timeout_s))
        for each in archivers
    ]
    try:
        done = await asyncio.gather(*running)
    finally:
        stop.set()
        await asyncio.wait(running)
    return EXIT_CLEAN if all(done) else EXIT_GAVE_UP
