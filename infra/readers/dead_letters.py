"""Reads an app's dead letters from the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

from surefoot.infra.log.ports import Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.state.names.topics import dead_topic
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.dead_letters import DeadLetter, dead_letter

#: offsets read at a time, from the newest backwards
_WINDOW = 200
#: the topic has one partition
_ONLY = 0


class DeadReader:
    """Reads nothing before the first request.

    Every method raises Unavailable if the log cannot be read now."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self._bounded = partial(bounded, settings.deadlines.read_s)
        self._topic = dead_topic(settings.app)
        self._offsets = backend.offsets()
        self._lookups = backend.lookups(self._topic)

    async def latest(
        self,
        wanted: Callable[[DeadLetter], bool],
        limit: int,
        *,
        before: int | None = None,
        since_ms: int = 0,
    ) -> list[DeadLetter]:
        """Return matching dead letters, newest first, below the offset `before`, written since that
        time (epoch ms)."""
        found: list[DeadLetter] = []
        async with self._bounded():
            begin, end = await self._span()
            if since_ms:
                first = await self._offsets.at(self._topic, _ONLY, since_ms)
                begin = end if first is None else first
            until = end if before is None else min(before, end)
            while until > begin and len(found) < limit:
                start = max(begin, until - _WINDOW)
                letters = [
                    dead_letter(record)
                    async for page in self._pages(start, until)
                    for record in page
                ]
                found += filter(wanted, reversed(letters))
                until = start
        return found[:limit]

    async def find(self, offset: int) -> ConsumerRecord | None:
        async with self._bounded():
            begin, end = await self._span()
            if not begin <= offset < end:
                return None
            page, _ = await self._lookups.page(_ONLY, offset, offset + 1, lambda _: True)
        return page[0] if page else None

    async def everything(self) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield what exists now, oldest first, page by page."""
        async with self._bounded():
            start, end = await self._span()
        while start < end:
            async with self._bounded():
                page, start = await self._lookups.page(_ONLY, start, end, lambda _: True)
            yield page

    async def _span(self) -> tuple[int, int]:
        begins = await self._offsets.begins(self._topic, [_ONLY])
        ends = await self._offsets.stables(self._topic, [_ONLY])
        return begins[_ONLY], ends[_ONLY]

    async def _pages(self, start: int, until: int) -> AsyncIterator[list[ConsumerRecord]]:
        while start < until:
            page, start = await self._lookups.page(_ONLY, start, until, lambda _: True)
            yield page

    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await self._lookups.stop()
        await self._offsets.stop()
