"""Runs and their history, read from the log: committed records only, and nothing is written.

In memory there is one small summary a run (state.views); the rest of a run is read from the state
topic when somebody looks at it. History is one live tail a gateway, shared by all who watch, plus
a lookup for what had been written before.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from surefoot.infra.backend import Backend, Lookups, Offsets
from surefoot.infra.settings import Settings
from surefoot.schemas.codec import UndecodableError, decode
from surefoot.state.errors import StateError, Unavailable
from surefoot.state.model import Status
from surefoot.state.partitioner import partition_of
from surefoot.state.ports import Backlog, In, RunView
from surefoot.state.topics import AgentTopics
from surefoot.state.versions import Keep, Line
from surefoot.state.views import RunIndex, RunSummary, ends_run, is_history, listed, shown
from surefoot.state.wire import decode_checkpoint, decode_entry, entry_key

log = structlog.get_logger(__name__)

#: how long one answer may take
_DEADLINE_S = 5.0
#: by how much the clocks of two workers may differ without history being missed
_SKEW_MS = 60_000
#: what may wait for one slow watcher
_WAITING_RECORDS = 1_000
_WAITING_BYTES = 4 * 1_048_576


class LogRunReader:
    """`ports.RunReader` and `versions.Versions` for some agents of one app.

    With `partitions`, of the runs in these only: less is read before the first answer.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        agents: Sequence[str],
        partitions: Collection[int] | None = None,
    ) -> None:
        self._offsets = backend.offsets()
        chosen = range(settings.partitions) if partitions is None else sorted(partitions)
        self._agents = {
            name: _AgentReader(
                settings.partitions, backend, AgentTopics(settings.app, name), self._offsets, chosen
            )
            for name in agents
        }

    async def start(self) -> None:
        """Begin to read in the background. Does not wait for the broker: until everything written
        so far has been read, asking raises Unavailable after 5 s."""
        for agent in self._agents.values():
            agent.state.start()

    async def stop(self) -> None:
        """End the live streams and close every client. Safe to call twice."""
        self.end_streams()
        for agent in self._agents.values():
            await agent.stop()
        await self._offsets.stop()

    def end_streams(self) -> None:
        """End every live stream; its watcher can resume by the id of the last event it has."""
        for agent in self._agents.values():
            agent.hub.close()

    async def get(self, agent: str, run_id: str) -> RunView | None:
        """The run as of its latest checkpoint that has reached us, a few ms behind its commit.

        Raises: Unavailable — the log cannot be read just now.
        """
        async with _bounded():
            return await self._agents[agent].get(run_id)

    async def list(
        self, agent: str, *, status: Status | None = None, limit: int = 50
    ) -> Sequence[RunView]:
        """Most recently updated first; payloads, results and failure messages are left out.

        Raises: Unavailable — the log cannot be read just now.
        """
        reader = self._agents[agent]
        async with _bounded():
            await reader.caught_up()
        return [listed(agent, run) for run in reader.index.recent(status, limit)]

    async def counts(self, agent: str) -> Mapping[tuple[int, Status], int]:
        """How many runs there are of each (version of the agent, status).

        Raises: Unavailable — the log cannot be read just now.
        """
        reader = self._agents[agent]
        async with _bounded():
            await reader.caught_up()
        return dict(reader.index.counts)

    async def latest(self, agent: str, run_id: str) -> RunView | None:
        """The run as of everything that has been committed by now; what is being committed is
        waited for.

        Raises: Unavailable — the log cannot be read just now.
        """
        reader = self._agents[agent]
        async with _bounded():
            await reader.refresh(reader.home(run_id))
            return await reader.get(run_id)

    async def backlog(self, agent: str, run_id: str) -> Backlog:
        """How much stands before a run in its partition.

        Raises: Unavailable — the log cannot be read just now.
        """
        async with _bounded():
            return await self._agents[agent].backlog(run_id)

    @asynccontextmanager
    async def answers(
        self, agent: str, run_id: str
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Events of one run from now on; see `ports.RunReader`. Ends for a watcher that is too
        slow, and when the reader stops."""
        reader = self._agents[agent]
        async with _bounded():
            await reader.hub.started()
        with reader.hub.watch(run_id.encode(), reader.home(run_id)) as live:
            async with aclosing(_decoded(live)) as events:
                yield events

    async def events(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        """(offset, event) from the offset after `after` on, then live: no gap, no repeat. What was
        asked of the run in vain once it was over is left out.

        Ends after the event that ends the run, unless the run has gone on since, and at once when
        the run is over and nothing comes after `after`. An unknown run is waited for. An `after`
        that the topic has not reached is taken as None: the topic has been made anew. Also ends
        when the watcher is too slow (more than 1,000 events or 4 MiB waiting) and when the reader
        stops.

        Raises: Unavailable — the log cannot be read just now; nothing has been left out so far.
        """
        reader = self._agents[agent]
        partition = reader.home(run_id)
        key = run_id.encode()
        async with _bounded():
            await reader.hub.started()
        with reader.hub.watch(key, partition) as live:
            async with _bounded():
                start, until, over = await reader.span(run_id, partition, after, live.offset)
            while start < until:
                async with _bounded():
                    page, start = await reader.history.page(partition, start, until, key.__eq__)
                for record in page:
                    event = _event(record)
                    if event is not None and is_history(event):
                        yield record.offset, event
            if over:
                return
            async for record in live:
                event = _event(record) if record.offset >= start else None
                if event is not None and is_history(event):
                    yield record.offset, event
                    if ends_run(event):
                        return

    async def summaries(self, agent: str, run_ids: Collection[str]) -> dict[str, RunSummary]:
        """Those of the runs that there are, as of everything that has been committed by now.

        Raises: Unavailable — the log cannot be read just now.
        """
        reader = self._agents[agent]
        async with _bounded():
            await reader.caught_up()
            for partition in {reader.home(run_id) for run_id in run_ids}:
                await reader.refresh(partition)
        return {run_id: run for run_id in run_ids if (run := reader.index.runs.get(run_id))}

    async def lines(self, agent: str, run_ids: Collection[str], keep: Keep) -> dict[str, Line]:
        """The lines of history of those of the runs that there are; see `versions.Versions`. Each
        partition is read once, from the start of the oldest of its runs.

        Raises: Unavailable — the log cannot be read just now.
        """
        reader = self._agents[agent]
        found = await self.summaries(agent, run_ids)
        lines = {run_id: Line(keep) for run_id in found}
        keys = {run_id.encode() for run_id in found}
        oldest: dict[int, int] = {}
        for run_id, run in found.items():
            partition = reader.home(run_id)
            oldest[partition] = min(run.created_ms, oldest.get(partition, run.created_ms))
        for partition, since_ms in oldest.items():
            wanted = keys.__contains__
            async for record in reader.since(reader.history, partition, since_ms, wanted):
                if (event := _event(record)) is not None:
                    lines[event["run_id"]].apply(event)
        return lines

    async def messages(self, agent: str, run_id: str, count: int) -> tuple[bytes, ...]:
        """The first `count` messages of a run's thread.

        Raises: StateError — some are missing; Unavailable — the log cannot be read just now.
        """
        if not count:
            return ()
        reader = self._agents[agent]
        found = await self.summaries(agent, [run_id])
        keys = [entry_key(run_id, f"m:{number}") for number in range(count)]
        said: dict[bytes, bytes] = {}
        since_ms = found[run_id].created_ms if found else 0
        wanted = frozenset(keys).__contains__
        async for record in reader.since(reader.states, reader.home(run_id), since_ms, wanted):
            assert record.key is not None
            said.pop(record.key, None)
            if record.value is not None:
                said[record.key] = decode_entry(record.value).value or b"null"
        if len(said) < count:
            raise StateError(f"of {count} messages of {run_id} only {len(said)} are left")
        return tuple(said[key] for key in keys)


class _AgentReader:
    """The state and events topics of one agent."""

    def __init__(
        self,
        count: int,
        backend: Backend,
        topics: AgentTopics,
        offsets: Offsets,
        partitions: Collection[int],
    ) -> None:
        self.index = RunIndex()
        self.state = backend.tail(topics.state, self._apply, from_end=False, partitions=partitions)
        self.hub = EventHub(backend, topics.events)
        self.history = backend.lookups(topics.events)
        self.states = backend.lookups(topics.state)
        self._partitions = partitions
        self._count = count
        self._topics = topics
        self._offsets = offsets
        self._groups = backend.groups()
        self._caught_up = False

    def home(self, run_id: str) -> int:
        """The partition that the run lives in."""
        return partition_of(run_id, self._count)

    def _apply(self, record: In) -> None:
        if reason := self.index.apply(record):
            log.warning(
                "checkpoint_undecodable",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason,
            )

    async def caught_up(self) -> None:
        """Wait until all that had been written when we came is in the index."""
        if self._caught_up:
            return
        ends = await self._offsets.ends(self._topics.state, self._partitions)
        for partition, end in ends.items():
            await self.state.reach(partition, end)
        self._caught_up = True

    async def refresh(self, partition: int) -> None:
        """Wait until all that has been written by now is in the index."""
        ends = await self._offsets.ends(self._topics.state, [partition])
        await self.state.reach(partition, ends[partition])

    async def get(self, run_id: str) -> RunView | None:
        await self.caught_up()
        partition = self.home(run_id)
        while summary := self.index.runs.get(run_id):
            if summary.broken is not None:
                return listed(self._topics.agent, summary)
            record = await self.states.one(partition, summary.offset)
            if record.offset == summary.offset and record.value is not None:
                try:
                    return shown(decode_checkpoint(record.value))
                except UndecodableError as error:
                    raise StateError(f"checkpoint of {run_id}: {error}") from error
            # compacted away since we saw it: a newer one is on its way to the index
            await self.refresh(partition)
        return None

    async def span(
        self, run_id: str, partition: int, after: int | None, live_offset: int
    ) -> tuple[int, int, bool]:
        """(start, until, over): the offsets of what is to be looked up, and whether nothing can
        come after it because the run is over."""
        await self.refresh(partition)
        run = self.index.runs.get(run_id)
        end = (await self._offsets.ends(self._topics.events, [partition]))[partition]
        over = run is not None and run.terminal
        until = end if over else live_offset
        if after is not None and after < end:
            return after + 1, until, over
        if run is None:
            return live_offset, until, over  # none of its events had been committed before
        since_ms = run.created_ms - _SKEW_MS
        start = await self._offsets.at(self._topics.events, partition, since_ms)
        return until if start is None else start, until, over

    async def since(
        self,
        lookups: Lookups,
        partition: int,
        since_ms: int,
        wanted: Callable[[bytes | None], bool],
    ) -> AsyncIterator[In]:
        """Records with such keys of one partition, from that time to what is its end now."""
        async with _bounded():
            end = (await self._offsets.ends(lookups.topic, [partition]))[partition]
            start = await self._offsets.at(lookups.topic, partition, since_ms - _SKEW_MS)
        position = end if start is None else start
        while position < end:
            async with _bounded():
                page, position = await lookups.page(partition, position, end, wanted)
            for record in page:
                yield record

    async def backlog(self, run_id: str) -> Backlog:
        partition = self.home(run_id)
        topics = (self._topics.commands, self._topics.tasks)
        workers, committed = await self._groups.look(self._topics.group, topics, partition)
        left = []
        for topic in topics:
            done = committed[topic]
            if done is None:
                done = (await self._offsets.begins(topic, [partition]))[partition]
            end = (await self._offsets.ends(topic, [partition]))[partition]
            left.append(max(end - done, 0))
        return Backlog(
            partition=partition, commands=left[0], tasks=left[1], workers=workers,
            start_worker=self._groups.start_worker,
        )  # fmt: skip

    async def stop(self) -> None:
        await self.state.stop()
        await self.hub.stop()
        await self.history.stop()
        await self.states.stop()


class EventHub:
    """One live tail of an agent's events topic, shared by everybody who watches a run.

    It begins with the first watcher, so that a process in which nobody watches reads no events.
    """

    def __init__(self, backend: Backend, topic: str) -> None:
        self._tail = backend.tail(topic, self._publish, from_end=True)
        self._watchers: dict[bytes, set[Watcher]] = {}
        self._closed = False

    async def started(self) -> None:
        if self._closed:
            raise Unavailable("the reader is stopping")
        self._tail.start()
        await self._tail.started()

    @contextmanager
    def watch(self, key: bytes, partition: int) -> Iterator[Watcher]:
        """Everything with that key from `Watcher.offset` on. There is no await between reading the
        tail's position and being registered, so nothing falls in between."""
        watcher = Watcher(self._tail.positions[partition])
        if self._closed:
            watcher.close()
        self._watchers.setdefault(key, set()).add(watcher)
        try:
            yield watcher
        finally:
            self._watchers[key].discard(watcher)
            if not self._watchers[key]:
                del self._watchers[key]

    def _publish(self, record: In) -> None:
        for watcher in self._watchers.get(record.key or b"", ()):
            watcher.offer(record)

    def close(self) -> None:
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.close()

    async def stop(self) -> None:
        self.close()
        await self._tail.stop()


class Watcher:
    """Records that wait for one watcher. Bounded: one that is too slow is closed, and what waits is
    dropped, as it can come back with the id of the last event that it has."""

    def __init__(self, offset: int) -> None:
        #: what comes has this offset or a later one; what was before has to be looked up
        self.offset = offset
        self._waiting: deque[In] = deque()
        self._bytes = 0
        self._closed = False
        self._wake = asyncio.Event()

    def offer(self, record: In) -> None:
        if self._closed:
            return
        self._waiting.append(record)
        self._bytes += len(record.value or b"")
        if len(self._waiting) > _WAITING_RECORDS or self._bytes > _WAITING_BYTES:
            log.info("watcher_too_slow", waiting=len(self._waiting), bytes=self._bytes)
            self.close()
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._wake.set()

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> In:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        record = self._waiting.popleft()
        self._bytes -= len(record.value or b"")
        return record


async def _decoded(records: AsyncIterator[In]) -> AsyncGenerator[dict[str, Any], None]:
    async for record in records:
        if (event := _event(record)) is not None:
            yield event


def _event(record: In) -> dict[str, Any] | None:
    try:
        return decode(record.value, "Event")[1]
    except UndecodableError as error:
        log.warning(
            "event_undecodable",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=str(error),
        )
        return None


@asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            yield
    except TimeoutError as error:
        raise Unavailable(f"the log could not be read within {_DEADLINE_S:g} s") from error
    except (KafkaError, sqlite3.Error, OSError) as error:
        raise Unavailable(f"the log could not be read: {error!r}") from error
