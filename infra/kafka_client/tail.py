"""Reads topics without a consumer group, committed records only.

Implements the readers of log/ports.py. A position also moves past transaction markers, so "read up
to there" always compares positions, never offsets of records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.batches import readable
from surefoot.infra.kafka_client.clients import Background, Shared, close_client, open_client
from surefoot.infra.kafka_client.errors import start_client, told
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, StateError
from surefoot.state.ports.log import ConsumerRecord

log = structlog.get_logger(__name__)

#: records processed before other tasks of the loop get their turn
_BATCH = 500
_POLL_MS = 500
_RETRY_S = 1.0
_COORDINATOR_S = 0.1
#: limits of a page: matching records, their bytes, and records scanned
_PAGE_RECORDS = 200
_PAGE_BYTES = 1_048_576
_PAGE_SCANNED = 5_000
_LOOKUPS_AT_ONCE = 8
_LOOKUPS_IDLE = 2


def admin_client(settings: Settings) -> AIOKafkaAdminClient:
    """Return a client, not started, for questions that a cluster answers at once."""
    return with_failover(
        AIOKafkaAdminClient(
            **settings.kafka(), request_timeout_ms=settings.producer_request_timeout_ms
        )
    )


def consumer(settings: Settings, *, isolation_level: str, **options: Any) -> AIOKafkaConsumer:
    """Return a consumer without a group, which commits nothing."""
    return with_failover(
        AIOKafkaConsumer(
            **settings.kafka(),
            group_id=None,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=settings.producer_request_timeout_ms,
            **options,
        )
    )


class KafkaTail:
    """Passes every committed record of a topic to `apply`, in order within each partition.

    Reads all partitions, or those given. Resumes by itself after any failure, at its position; no
    record is skipped or repeated. One task; `apply` and the positions change without an await
    between them. A batch that can never be read makes every waiting call raise, as long as it is in
    the way.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        apply: Callable[[ConsumerRecord], None],
        *,
        from_end: bool,
        partitions: Iterable[int] | None = None,
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._from_end = from_end
        chosen = range(settings.partitions) if partitions is None else partitions
        self._tps = [TopicPartition(topic, p) for p in chosen]
        self._topic = topic
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        #: an error that no retry can fix
        self._stuck: ConfigError | StateError | None = None
        #: next offset to apply, by partition; empty until the first connection
        self.positions: dict[int, int] = {}

    def start(self) -> None:
        """Start in the background. Safe to call twice."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def started(self) -> None:
        """Wait until the first position of every partition is known."""
        await self._until(lambda: len(self.positions) == len(self._tps))

    async def reach(self, partition: int, offset: int) -> None:
        """Wait until everything committed before `offset` has been applied."""
        await self._until(lambda: self.positions.get(partition, -1) >= offset)

    async def _until(self, true: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: true() or self._stuck is not None)
            if self._stuck is not None and not true():
                raise self._stuck

    @never_cut_short
    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("tail_interrupted", topic=self._topic, error=repr(error))
            except (ConfigError, StateError) as error:
                log.error("tail_stuck", topic=self._topic, error=str(error))  # noqa: TRY400
                await self._tell(error)
            except Exception:
                log.exception("tail_failed", topic=self._topic)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> None:
        client = await open_client(self._consumer, self._settings.deadlines.connect_s)
        try:
            await self._seek(client)
            while True:
                batches = await readable(client.getmany(timeout_ms=_POLL_MS, max_records=_BATCH))
                for records in batches.values():
                    for record in records:
                        self._apply(received(record))
                        self.positions[record.partition] = record.offset + 1
                await self._step_over_markers(client)
                await asyncio.sleep(0)  # getmany does not yield while it has records
        finally:
            await close_client(client)

    def _consumer(self) -> AIOKafkaConsumer:
        client = consumer(self._settings, isolation_level="read_committed")
        client.assign(self._tps)
        return client

    async def _seek(self, client: AIOKafkaConsumer) -> None:
        if self.positions:
            for tp in self._tps:
                client.seek(tp, self.positions[tp.partition])
            return
        seek = client.seek_to_end if self._from_end else client.seek_to_beginning
        if not await seek(*self._tps):
            raise TimeoutError(f"no offsets of {self._topic}; does it have all its partitions?")
        self.positions = {tp.partition: await client.position(tp) for tp in self._tps}
        await self._tell(None)

    async def _step_over_markers(self, client: AIOKafkaConsumer) -> None:
        for tp in self._tps:
            self.positions[tp.partition] = await client.position(tp)
        await self._tell(None)

    async def _tell(self, stuck: ConfigError | StateError | None) -> None:
        async with self._moved:
            self._stuck = stuck
            self._moved.notify_all()


class KafkaLookups:
    """Reads ranges of one topic with a few consumers, which it keeps for later calls."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self.topic = topic
        self._idle: list[AIOKafkaConsumer] = []
        self._turn = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._background = Background()

    async def one(self, partition: int, offset: int) -> ConsumerRecord:
        """Return the first committed record at or after `offset`; waits for one."""
        async with self._at(partition, offset) as client:
            return received(await readable(client.getone()))

    async def page(
        self, partition: int, start: int, until: int, wanted: Callable[[bytes | None], bool]
    ) -> tuple[list[ConsumerRecord], int]:
        """Read one page of a partition between offsets `start` and `until`.

        Returns: the records whose key is `wanted`, and the offset where the next page begins."""
        found: list[ConsumerRecord] = []
        size = scanned = 0
        tp = TopicPartition(self.topic, partition)
        async with self._at(partition, start) as client:
            while (position := await client.position(tp)) < until and scanned < _PAGE_SCANNED:
                batches = await readable(client.getmany(timeout_ms=_POLL_MS, max_records=_BATCH))
                for record in batches.get(tp, ()):
                    if record.offset >= until:
                        return found, until
                    scanned += 1
                    if wanted(record.key):
                        found.append(received(record))
                        size += len(record.value or b"")
                    if len(found) >= _PAGE_RECORDS or size >= _PAGE_BYTES:
                        return found, record.offset + 1
                await asyncio.sleep(0)
        return found, position

    @asynccontextmanager
    async def _at(self, partition: int, offset: int) -> AsyncIterator[AIOKafkaConsumer]:
        tp = TopicPartition(self.topic, partition)
        async with self._turn, told(f"reading {self.topic}", self._settings):
            client = self._idle.pop() if self._idle else await self._open()
            try:
                client.assign([tp])
                client.seek(tp, offset)
                yield client
                client.pause(tp)
            except BaseException:
                self._background.spawn(close_client(client))
                raise
            if len(self._idle) < _LOOKUPS_IDLE:
                self._idle.append(client)
            else:
                self._background.spawn(close_client(client))

    async def _open(self) -> AIOKafkaConsumer:
        within_s = self._settings.deadlines.connect_s
        return await self._background.open(self._consumer, within_s)

    def _consumer(self) -> AIOKafkaConsumer:
        # a fetch that waits for new data at the end of the log would delay the next lookup
        return consumer(self._settings, isolation_level="read_committed", fetch_max_wait_ms=50)

    @never_cut_short
    async def stop(self) -> None:
        idle, self._idle = self._idle, []
        await close_client(*idle)
        await self._background.wait()


class KafkaOffsets:
    """Asks the broker for offsets; reads no records."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # for a read_committed consumer the "end" is the last stable offset, which an open
        # transaction holds back; committed records may lie beyond it
        connect_s = settings.deadlines.connect_s
        self._client = Shared(
            lambda: consumer(settings, isolation_level="read_uncommitted"), connect_s
        )
        self._committed = Shared(
            lambda: consumer(settings, isolation_level="read_committed"), connect_s
        )

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the high watermark by partition: everything written so far lies before it."""
        return await self._ends(self._client, topic, partitions)

    async def stables(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the last stable offset by partition."""
        return await self._ends(self._committed, topic, partitions)

    async def _ends(
        self, shared: Shared[AIOKafkaConsumer], topic: str, partitions: Iterable[int]
    ) -> dict[int, int]:
        tps = [TopicPartition(topic, partition) for partition in partitions]
        async with self._asking(shared, topic) as client:
            ends = await client.end_offsets(tps)
        return {tp.partition: offset for tp, offset in ends.items()}

    async def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of the first record still retained, by partition."""
        tps = [TopicPartition(topic, partition) for partition in partitions]
        async with self._asking(self._client, topic) as client:
            begins = await client.beginning_offsets(tps)
        return {tp.partition: offset for tp, offset in begins.items()}

    async def at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """Return the offset of the first record at or after that time; None if there is none."""
        tp = TopicPartition(topic, partition)
        async with self._asking(self._client, topic) as client:
            found = (await client.offsets_for_times({tp: max(time_ms, 0)}))[tp]
        return found.offset if found is not None else None

    @asynccontextmanager
    async def _asking(
        self, shared: Shared[AIOKafkaConsumer], topic: str
    ) -> AsyncIterator[AIOKafkaConsumer]:
        async with told(f"offsets of {topic}", self._settings):
            client = await shared.get()
            try:
                yield client
            except KafkaError:
                shared.retire(client)
                raise

    @never_cut_short
    async def stop(self) -> None:
        await self._client.stop()
        await self._committed.stop()


class KafkaGroups:
    """Asks the broker about consumer groups; opens a connection per question."""

    start_worker = "surefoot worker AGENT.py"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def look(
        self, group: str, topics: Sequence[str], partition: int
    ) -> tuple[int, dict[str, int | None]]:
        """Return the group's member count, and its committed offset in each topic's partition.

        The offset is the next to read; None: none committed."""
        tps = [TopicPartition(topic, partition) for topic in topics]
        admin = admin_client(self._settings)
        try:
            async with told(f"looking at group {group}", self._settings):
                await start_client(admin)
                coordinator = await coordinator_of(admin, group)
                (answer,) = await admin.describe_consumer_groups([group], coordinator)
                found = await admin.list_consumer_group_offsets(group, coordinator, tps)
        finally:
            await close_client(admin)
        members = sum(len(described[5]) for described in answer.groups)
        offsets = {tp.topic: found[tp].offset for tp in tps if tp in found}
        return members, {
            topic: offset if (offset := offsets.get(topic, -1)) >= 0 else None for topic in topics
        }


async def coordinator_of(admin: AIOKafkaAdminClient, group: str) -> int:
    """Return the broker that coordinates the group.

    Waits on a new cluster, which creates the topic of groups' offsets at the first request."""
    while True:
        try:
            found: int = await admin.find_coordinator(group)
        except GroupCoordinatorNotAvailableError:
            await asyncio.sleep(_COORDINATOR_S)
        else:
            return found


def received(record: Any) -> ConsumerRecord:
    """Convert aiokafka's record."""
    return ConsumerRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )
