"""Reads runs and their history from the log: committed records only.

Memory holds one small summary per run (state.reading.runs); the rest of a run is read from the
state topic on request. History is one live tail per agent, shared by all watchers, plus lookups of
earlier events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, Literal

import structlog

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Backend, Lookups, Offsets
from surefoot.infra.readers.event_hub import EventHub, OutputHub, decoded
from surefoot.infra.readers.history_pages import latest_before, source_of
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.records import AvroEvent, AvroStream
from surefoot.schemas.payload import strict_json
from surefoot.state.errors import StateError, Unavailable
from surefoot.state.feeds.feed import FeedMessage
from surefoot.state.feeds.live_output import Shown, StreamRecord, settled
from surefoot.state.machine.model import Entry, Status
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import OUTBOX, AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.ports import Backlog, RunPage, RunView
from surefoot.state.reading.query import Activity, HistoryEntry, HistoryPage, RunQuery
from surefoot.state.reading.runs import (
    RunIndex,
    RunSummary,
    ends_run,
    event_json,
    is_history,
    listed,
    shown,
)
from surefoot.state.reading.select import activity, place, select
from surefoot.state.reading.versions import Keep, Line
from surefoot.state.records.encoding import decode_checkpoint, decode_entry, entry_key

log = structlog.get_logger(__name__)

#: time limit for reading the whole record of effects, in seconds
_EFFECTS_S = 30.0
#: by how much the clocks of two workers may differ without missing history
_SKEW_MS = 60_000
#: pieces of output, of any run of the partition, searched for those of one run
_PIECES = 20_000


#: (what, offset, what it says): a step of following one run
FollowStep = (
    tuple[Literal["event"], int, AvroEvent]
    | tuple[Literal["piece"], int, AvroStream]
    | tuple[Literal["live", "slow"], int, None]
)


class LogRunReader:
    """Implements ports.RunBrowser and versions.Versions for some agents of one app.

    `partitions` limits it to their runs: less is read before the first answer. `only` limits it to
    runs of that status: less is kept in memory.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        agents: Sequence[str],
        partitions: Collection[int] | None = None,
        *,
        only: Status | None = None,
    ) -> None:
        self.partitions = settings.partitions
        self.bounded = partial(bounded, settings.deadlines.read_s)
        self._offsets = backend.offsets()
        self._count = settings.partitions
        self._effects = backend.lookups(AgentTopics(settings.app, OUTBOX).events)
        chosen = range(settings.partitions) if partitions is None else sorted(partitions)
        self.agents = {
            name: AgentReader(
                settings,
                backend,
                AgentTopics(settings.app, name),
                self._offsets,
                chosen,
                only,
            )
            for name in agents
        }

    async def start(self, held: Collection[str] = ()) -> None:
        """Start reading in the background, except the agents that are held. Safe to call again.

        Does not wait for the broker: until everything written so far has been read, requests raise
        Unavailable after 5 s."""
        for name, agent in self.agents.items():
            if name not in held:
                agent.state.start()

    @never_cut_short
    async def stop(self) -> None:
        """End the live streams and close every client. Safe to call twice."""
        self.end_streams()
        for agent in self.agents.values():
            await agent.stop()
        await self._effects.stop()
        await self._offsets.stop()

    def end_streams(self) -> None:
        """End every live stream; watchers can resume with the id of their last event."""
        for agent in self.agents.values():
            agent.hub.close()
            agent.output.close()

    async def get(self, agent: str, run_id: str) -> RunView | None:
        """Return the run as of the latest checkpoint received, a few ms behind its commit.

        Raises: Unavailable — the log cannot be read now.
        """
        async with self.bounded():
            return await self.agents[agent].get(run_id)

    async def list(
        self, agent: str, *, status: Status | None = None, limit: int = 50
    ) -> Sequence[RunView]:
        """Return the latest updated runs first, without payloads, results and failure messages.

        Raises: Unavailable — the log cannot be read now.
        """
        return (await self.page(agent, RunQuery(status=status, limit=limit))).runs

    async def page(self, agent: str, query: RunQuery) -> RunPage:
        """See `ports.RunBrowser`. Runs in a thread: searching a million runs takes a while.

        Raises: Unavailable — the log cannot be read now.
        """
        runs = await self.agents[agent].everything()
        found, matches = await asyncio.to_thread(select, runs, query)
        shown = found[: query.limit]
        return RunPage(
            runs=[listed(agent, run) for run in shown],
            matches=matches,
            next=place(shown[-1]) if len(found) > query.limit else None,
        )

    async def activity(self, agent: str, now_ms: int, *, bucket_ms: int, buckets: int) -> Activity:
        """See `ports.RunBrowser`.

        Raises: Unavailable — the log cannot be read now.
        """
        runs = await self.agents[agent].everything()
        return await asyncio.to_thread(activity, runs, now_ms, bucket_ms, buckets)

    async def past(self, agent: str, run_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """See `ports.RunBrowser`.

        Raises: Unavailable — the log cannot be read now.
        """
        reader = self.agents[agent]
        async with self.bounded():
            begin, end = await reader.extent(run_id, before)
            records, older = await latest_before(
                reader.history, reader.home(run_id), begin, end, run_id.encode().__eq__, limit
            )
        told = [
            HistoryEntry(record.partition, record.offset, source_of(record), event)
            for record in records
            if (event := _event(record)) is not None
        ]
        return HistoryPage(topic=reader.history.topic, events=told, before=older)

    async def counts(self, agent: str) -> Mapping[tuple[int, Status], int]:
        """Count the runs by (version of the agent, status).

        Raises: Unavailable — the log cannot be read now.
        """
        reader = self.agents[agent]
        async with self.bounded():
            await reader.caught_up()
        return dict(reader.index.counts)

    async def latest(self, agent: str, run_id: str) -> RunView | None:
        """Return the run as of everything committed by now; waits for commits in progress.

        Raises: Unavailable — the log cannot be read now.
        """
        reader = self.agents[agent]
        async with self.bounded():
            await reader.refresh(reader.home(run_id))
            return await reader.get(run_id)

    async def backlog(self, agent: str, run_id: str) -> Backlog:
        """Return how many inputs are ahead of a run in its partition.

        Raises: Unavailable — the log cannot be read now.
        """
        async with self.bounded():
            return await self.agents[agent].backlog(run_id)

    @asynccontextmanager
    async def answers(self, agent: str, run_id: str) -> AsyncIterator[AsyncIterator[AvroEvent]]:
        """Yield events of one run from now on; see `ports.RunReader`.

        Ends for a watcher that is too slow, and when the reader stops."""
        reader = self.agents[agent]
        async with self.bounded():
            await reader.hub.started()
        with reader.hub.watch(run_id.encode(), reader.home(run_id)) as live:
            async with aclosing(_decoded(live)) as events:
                yield events

    async def events(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[tuple[int, AvroEvent], None]:
        """Yield (offset, event) from the offset after `after` on, then live: no gap, no repeat.

        Omits commands refused because the run was over. Ends after the event that ends the run,
        unless the run has continued since, and at once when the run is over and nothing follows
        `after`. Waits for an unknown run. An `after` beyond the topic's end counts as None: the
        topic has been created again. Also ends when the watcher is too slow (more than 1,000 events
        or 4 MiB waiting) and when the reader stops.

        Raises: Unavailable — the log cannot be read now; nothing has been omitted so far.
        """
        async with aclosing(self._follow(agent, run_id, after)) as steps:
            async for step in steps:
                if step[0] == "event":
                    yield step[1], step[2]

    async def watch(
        self, agent: str, run_id: str, after: int | None
    ) -> AsyncGenerator[FeedMessage, None]:
        """Like `events`, with the partial output of the step in progress.

        `output` has no id, contains only the attempt in progress (state/feeds/live_output.py), and
        is best effort. `slow` is last for a watcher that is too slow, and names the id to resume
        from.

        Raises: as `events`.
        """
        reader = self.agents[agent]
        seen = Shown()
        async with aclosing(self._follow(agent, run_id, after, reader.output)) as steps:
            async for step in steps:
                match step:
                    case "event", offset, event:
                        for void in seen.event(event):
                            yield _output(void)
                        after = offset
                        yield FeedMessage(str(offset), event["type"], _json(event_json(event)))
                    case "piece", _, piece:
                        for each in seen.piece(piece):
                            yield _output(each)
                    case "live", _, _:
                        for each in settled(await reader.written(run_id, seen)):
                            yield _output(each)
                    case "slow", _, _:
                        resume = None if after is None else str(after)
                        yield FeedMessage(None, "slow", _json({"resume": resume}))

    async def _follow(
        self, agent: str, run_id: str, after: int | None, output: EventHub | None = None
    ) -> AsyncGenerator[FollowStep, None]:
        """Yield each `event`, and with `output` each `piece` of it.

        `live` comes once, after everything written before; `slow` ends a watcher that is too
        slow."""
        reader = self.agents[agent]
        partition = reader.home(run_id)
        key = run_id.encode()
        async with self.bounded():
            await reader.hub.started()
            if output is not None:
                await output.started()
        with reader.hub.watch(key, partition) as live, ExitStack() as joined:
            if output is not None:
                joined.enter_context(output.join(key, live))
            async with self.bounded():
                start, until, over = await reader.span(run_id, partition, after, live.offset)
            while start < until:
                async with self.bounded():
                    page, start = await reader.history.page(partition, start, until, key.__eq__)
                for record in page:
                    event = _event(record)
                    if event is not None and is_history(event):
                        yield "event", record.offset, event
            if over:
                return
            yield "live", 0, None
            async for record in live:
                if record.topic != reader.hub.topic:
                    if (piece := decoded(record, "Stream")) is not None:
                        yield "piece", record.offset, piece
                    continue
                event = _event(record) if record.offset >= start else None
                if event is not None and is_history(event):
                    yield "event", record.offset, event
                    if ends_run(event):
                        return
            if live.too_slow():
                yield "slow", 0, None

    async def effect(self, effect_id: str, since_ms: int) -> AvroEvent | None:
        """See `ports.RunBrowser`.

        Raises: Unavailable — the log cannot be read now.
        """
        partition, topic = partition_of(effect_id, self._count), self._effects.topic
        async with self.bounded():
            end = (await self._offsets.ends(topic, [partition]))[partition]
            begin = await self._offsets.at(topic, partition, since_ms - _SKEW_MS)
            found: list[ConsumerRecord] = []
            while begin is not None and begin < end and not found:
                found, older = await latest_before(
                    self._effects, partition, begin, end, effect_id.encode().__eq__, 1
                )
                end = begin if older is None else older
        return _event(found[0]) if found else None

    async def summaries(self, agent: str, run_ids: Collection[str]) -> dict[str, RunSummary]:
        """Return the summaries of the existing runs, as of everything committed by now.

        Raises: Unavailable — the log cannot be read now.
        """
        reader = self.agents[agent]
        async with self.bounded():
            await reader.caught_up()
            for partition in {reader.home(run_id) for run_id in run_ids}:
                await reader.refresh(partition)
        return {run_id: run for run_id in run_ids if (run := reader.index.runs.get(run_id))}

    async def lines(self, agent: str, run_ids: Collection[str], keep: Keep) -> dict[str, Line]:
        """Return the lines of history of the existing runs; see `versions.Versions`.

        Each partition is read once, from the start of its oldest run.

        Raises: Unavailable — the log cannot be read now.
        """
        reader = self.agents[agent]
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
        """Return the first `count` messages of a run's thread.

        Raises: StateError — some are missing; Unavailable — the log cannot be read now.
        """
        if not count:
            return ()
        keys = [entry_key(run_id, f"m:{number}") for number in range(count)]
        said = await self._entries(agent, run_id, frozenset(keys).__contains__)
        if len(said) < count:
            raise StateError("SF2007", f"only {len(said)} of {count} messages of {run_id} are left")
        return tuple(said[key].value or b"null" for key in keys)

    async def calls(self, agent: str, run_id: str) -> tuple[Entry, ...]:
        """Return what is on record of the run's calls and actions, of any step and epoch.

        Raises: Unavailable — the log cannot be read now.
        """
        theirs = tuple(entry_key(run_id, kind) for kind in ("c:", "o:", "a:"))
        found = await self._entries(
            agent, run_id, lambda key: key is not None and key.startswith(theirs)
        )
        return tuple(found.values())

    async def _entries(
        self, agent: str, run_id: str, wanted: Callable[[bytes | None], bool]
    ) -> dict[bytes, Entry]:
        """Return the run's remaining entries with matching keys."""
        reader = self.agents[agent]
        found = await self.summaries(agent, [run_id])
        since_ms = found[run_id].created_ms if found else 0
        left: dict[bytes, Entry] = {}
        async for record in reader.since(reader.states, reader.home(run_id), since_ms, wanted):
            assert record.key is not None
            left.pop(record.key, None)
            if record.value is not None:
                left[record.key] = decode_entry(record.value)
        return left


class AgentReader:
    """Reads the topics of one agent."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        topics: AgentTopics,
        offsets: Offsets,
        partitions: Collection[int],
        only: Status | None,
    ) -> None:
        self.bounded = partial(bounded, settings.deadlines.read_s)
        self.index = RunIndex(only)
        self.state = backend.tail(topics.state, self._apply, from_end=False, partitions=partitions)
        self.hub = EventHub(backend, topics.events, topics.agent)
        self.output = OutputHub(backend, topics.stream, topics.agent)
        self.history = backend.lookups(topics.events)
        self.pieces = backend.lookups(topics.stream)
        self.states = backend.lookups(topics.state)
        self._partitions = partitions
        self._count = settings.partitions
        self._topics = topics
        self.offsets = offsets
        self._groups = backend.groups()
        self._caught_up = False

    def home(self, run_id: str) -> int:
        """Return the partition in which the run lives."""
        return partition_of(run_id, self._count)

    def _apply(self, record: ConsumerRecord) -> None:
        if reason := self.index.apply(record):
            log.warning(
                "checkpoint_undecodable",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason,
            )

    async def caught_up(self) -> None:
        """Wait until everything written before the first call is in the index."""
        if self._caught_up:
            return
        ends = await self.offsets.ends(self._topics.state, self._partitions)
        for partition, end in ends.items():
            await self.state.reach(partition, end)
        self._caught_up = True

    async def everything(self) -> list[RunSummary]:
        """Return a copy of the present list of summaries."""
        async with self.bounded():
            await self.caught_up()
        return list(self.index.runs.values())

    async def extent(self, run_id: str, before: int | None) -> tuple[int, int]:
        """Return offsets that enclose all of the run's events, without those from `before` on."""
        partition = self.home(run_id)
        await self.caught_up()
        end = (await self.offsets.ends(self._topics.events, [partition]))[partition]
        run = self.index.runs.get(run_id)
        since_ms = run.created_ms - _SKEW_MS if run is not None else 0
        begin = await self.offsets.at(self._topics.events, partition, since_ms)
        return end if begin is None else begin, end if before is None else min(before, end)

    async def refresh(self, partition: int) -> None:
        """Wait until everything written by now is in the index."""
        ends = await self.offsets.ends(self._topics.state, [partition])
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
                    raise StateError("SF2007", f"checkpoint of {run_id}: {error}") from error
            # compacted away meanwhile: a newer one is on its way to the index
            await self.refresh(partition)
        return None

    async def span(
        self, run_id: str, partition: int, after: int | None, live_offset: int
    ) -> tuple[int, int, bool]:
        """Return (start, until, over): the offsets to look up, and whether nothing can follow."""
        await self.refresh(partition)
        run = self.index.runs.get(run_id)
        end = (await self.offsets.ends(self._topics.events, [partition]))[partition]
        over = run is not None and run.terminal
        until = end if over else live_offset
        if after is not None and after < end:
            return after + 1, until, over
        if run is None:
            return live_offset, until, over  # none of its events had been committed before
        since_ms = run.created_ms - _SKEW_MS
        start = await self.offsets.at(self._topics.events, partition, since_ms)
        return until if start is None else start, until, over

    async def written(self, run_id: str, seen: Shown) -> list[StreamRecord]:
        """Return the partial output of the attempt in progress, up to now."""
        run = self.index.runs.get(run_id)
        partition, key = self.home(run_id), run_id.encode()
        async with self.bounded():
            end = (await self.offsets.ends(self.pieces.topic, [partition]))[partition]
            start: int | None = 0  # in its first step a run has no checkpoint
            if run is not None:
                since_ms = run.updated_ms - _SKEW_MS
                start = await self.offsets.at(self.pieces.topic, partition, since_ms)
        position = end if start is None else max(start, end - _PIECES)
        told: list[StreamRecord] = []
        while position < end:
            async with self.bounded():
                page, position = await self.pieces.page(partition, position, end, key.__eq__)
            for record in page:
                if (piece := decoded(record, "Stream")) is not None:
                    told += seen.piece(piece)
        return told

    async def since(
        self,
        lookups: Lookups,
        partition: int,
        since_ms: int,
        wanted: Callable[[bytes | None], bool],
    ) -> AsyncIterator[ConsumerRecord]:
        """Yield records with matching keys of one partition, from that time to its present end."""
        async with self.bounded():
            end = (await self.offsets.ends(lookups.topic, [partition]))[partition]
            start = await self.offsets.at(lookups.topic, partition, since_ms - _SKEW_MS)
        position = end if start is None else start
        while position < end:
            async with self.bounded():
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
                done = (await self.offsets.begins(topic, [partition]))[partition]
            end = (await self.offsets.ends(topic, [partition]))[partition]
            left.append(max(end - done, 0))
        return Backlog(
            partition=partition,
            commands=left[0],
            tasks=left[1],
            workers=workers,
            start_worker=self._groups.start_worker,
        )

    @never_cut_short
    async def stop(self) -> None:
        await self.state.stop()
        await self.hub.stop()
        await self.output.stop()
        await self.history.stop()
        await self.pieces.stop()
        await self.states.stop()


async def _decoded(records: AsyncIterator[ConsumerRecord]) -> AsyncGenerator[AvroEvent, None]:
    async for record in records:
        if (event := _event(record)) is not None:
            yield event


def _output(piece: StreamRecord) -> FeedMessage:
    return FeedMessage(None, "output", _json(piece))


def _json(values: Any) -> str:
    return strict_json(values).decode()


def _event(record: ConsumerRecord) -> AvroEvent | None:
    return decoded(record, "Event")


@asynccontextmanager
async def failed_effects(settings: Settings, backend: Backend) -> AsyncIterator[LogRunReader]:
    """Read the app's failed effects, as runs of the outbox. Nothing is kept afterwards.

    Raises: Unavailable — the log cannot be read now, or not within 30 s.
    """
    reader = LogRunReader(settings, backend, [OUTBOX], only="failed")
    try:
        await reader.start()
        async with bounded(_EFFECTS_S):
            await reader.agents[OUTBOX].caught_up()
        yield reader
    finally:
        await reader.stop()


@asynccontextmanager
async def bounded(deadline_s: float) -> AsyncIterator[None]:
    """Raise Unavailable if the block does not finish within the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise Unavailable("SF3002", f"the log could not be read within {deadline_s:g} s") from error
