"""Reads runs that the log no longer has from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from surefoot.consumers.attempts.threads import in_thread
from surefoot.infra.archive.store import ArchiveStore, open_archive
from surefoot.infra.log.ports import Backend
from surefoot.infra.readers.event_hub import EventHub
from surefoot.infra.readers.runs import FollowStep, LogRunReader
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.container import read_rows
from surefoot.state.errors import StateError, Unavailable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.reading.archive import (
    ArchivedEvent,
    Shelf,
    ShowRecord,
    events_of,
    files_of,
    latest_life,
    run_of,
)
from surefoot.state.reading.ports import RunView
from surefoot.state.reading.runs import is_history

#: days searched at a time, latest first
_DAYS = 16
#: time limit of one answer, in seconds
_DEADLINE_S = 30.0
#: how long a readiness check waits for the archive before it reports the previous result
_LOOK_S = 1.0


class ArchiveReader:
    """Finds a run by the indexes of its partition."""

    def __init__(self, store: ArchiveStore, app: str, partitions: int, show: ShowRecord) -> None:
        self._store = store
        self._app = app
        self._partitions = partitions
        self._show = show

    async def history(self, agent: str, run_id: str) -> list[ArchivedEvent]:
        """Return the run's archived events in order; empty: nothing is archived.

        Raises: Unavailable — the archive cannot be read now; StateError — a file is damaged.
        """
        shelf = Shelf(agent, partition_of(run_id, self._partitions))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                while (found := await self._history(shelf, run_id)) is None:
                    pass  # a day's indexes were just merged
                return found
        except TimeoutError as error:
            raise Unavailable(
                "SF3041", f"{self._store.name} could not be read within {_DEADLINE_S:g} s"
            ) from error

    async def _history(self, shelf: Shelf, run_id: str) -> list[ArchivedEvent] | None:
        """Return None if an index has gone since it was listed."""
        found: list[ArchivedEvent] = []
        dates = [*shelf.by_date(await self._store.keys(shelf.indexes)).items()]
        for at in range(0, len(dates), _DAYS):
            pairs = [(date, key) for date, keys in dates[at : at + _DAYS] for key in keys]
            indexes = await asyncio.gather(*(self._store.get(key) for _, key in pairs))
            if None in indexes:
                return None
            files = {
                shelf.events(date, first)
                for (date, _), index in zip(pairs, indexes, strict=True)
                for first in files_of(index or b"", run_id)
            }
            topic = AgentTopics(self._app, shelf.agent).events
            reads = (self._items(key, topic, run_id) for key in files)
            for items in await asyncio.gather(*reads):
                found += items
            if any(event["type"] == "run.started" for _, event in found):
                break
        return latest_life(found)

    async def _items(self, key: str, topic: str, run_id: str) -> list[ArchivedEvent]:
        content = await self._store.get(key)
        if content is None:
            raise StateError("SF3042", f"{self._store.name}: {key} is in the index but is missing")

        def read() -> list[ArchivedEvent]:
            return events_of(read_rows(content)[1], run_id, topic, self._show)

        try:
            return await in_thread(read)  # type: ignore[no-any-return]
        except UndecodableError as error:
            raise StateError("SF3042", f"{self._store.name}: {key}: {error}") from error


class ArchivedRunReader(LogRunReader):
    """Reads runs from the log, and falls back on the archive."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        agents: Sequence[str],
        partitions: Collection[int] | None = None,
        *,
        store: ArchiveStore,
    ) -> None:
        super().__init__(settings, backend, agents, partitions)
        self._store = store
        self._archive = ArchiveReader(store, settings.app, settings.partitions, backend.show)
        self._fault: str | None = None
        self._looking: asyncio.Task[None] | None = None

    async def archive_fault(self) -> str | None:
        """Return why the archive could not be read at the latest check; None: it could."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.wait({self._looking}, timeout=_LOOK_S)
        return self._fault

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await self._store.look()
            self._fault = None
        except Unavailable as error:
            self._fault = str(error)
        except TimeoutError:
            self._fault = f"SF3041: {self._store.name} does not answer"

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await super().stop()
        self._store.close()

    async def get(self, agent: str, run_id: str) -> RunView | None:
        """Like LogRunReader; looks in the archive for a run that the log does not have.

        Raises: Unavailable — the log, or the archive, cannot be read now.
        """
        run = await super().get(agent, run_id)
        if run is None:
            run = run_of(await self._archive.history(agent, run_id))
        return run

    async def _follow(
        self, agent: str, run_id: str, after: int | None, output: EventHub | None = None
    ) -> AsyncGenerator[FollowStep, None]:
        """Like LogRunReader; for a run that only the archive has, yields its archived events."""
        if await super().get(agent, run_id) is None and (
            archived := await self._archive.history(agent, run_id)
        ):
            for offset, event in archived:
                if (after is None or offset > after) and is_history(event):
                    yield "event", offset, event
            return
        async with aclosing(super()._follow(agent, run_id, after, output)) as live:
            async for step in live:
                yield step


def open_run_reader(
    settings: Settings,
    backend: Backend,
    agents: Sequence[str],
    partitions: Collection[int] | None = None,
) -> LogRunReader:
    """Return a reader, backed by the archive if the settings name one. Raises ConfigError."""
    store = open_archive(settings)
    if store is None:
        return LogRunReader(settings, backend, agents, partitions)
    return ArchivedRunReader(settings, backend, agents, partitions, store=store)
