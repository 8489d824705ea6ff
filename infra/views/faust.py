"""Views of an agent as a Faust app: events in, a compacted changelog out, RocksDB in between.

Faust assigns partitions, keeps a standby of each on another instance, and restores a table from its
changelog. Nothing that it does not promise is relied on (infra/views/shard.py): neither its
committed offsets nor that events come without gaps after a rebalance. A change is written to the
changelog before RocksDB, so that the local table is never ahead of what another instance would
restore; Faust's own `table[key] = value` does it the other way round.

Faust's cost per message is higher than that of folding an event. So the records of one fetch and
partition pass through it as one message: the last one, whose value is the records.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import faust
import rocksdict
import structlog
from aiokafka.errors import KafkaError
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from yarl import URL

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.tail import received
from surefoot.infra.log.ports import Backend
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.views.shard import Shard
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import VIEWS_TABLE
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord

log = structlog.get_logger(__name__)

#: records per fetch, and fetches taken at a time; as many may wait
_FETCH, _FETCHES = 500, 32
#: least timeout of a request, in seconds; Faust accepts no session longer than it
_REQUEST_S = 90.0
#: how long events wait for others, in seconds, and how many of a partition are folded at a time
_WITHIN_S, _BATCH = 0.25, 2_000
#: after an error, and between checks for new partitions; in seconds
_RETRY_S, _LOOK_S = 1.0, 0.1
#: limits per partition's RocksDB, in bytes; Faust's defaults are 2 GiB and 192 MiB
_ROCKSDB = {
    "driver": "rocksdict",
    "block_cache_size": 32 * 1_048_576,
    "max_open_files": 256,
    "write_buffer_size": 8 * 1_048_576,
    "max_write_buffer_number": 2,
}


class FaustViews(Shard):
    """The partitions of one agent's views that the consumer group assigns to this instance."""

    def __init__(
        self,
        agent: str,
        settings: Settings,
        backend: Backend,
        clock: Clock,
        *,
        url: str,
        folder: Path,
    ) -> None:
        super().__init__(agent, settings, backend, clock)
        self._url = url
        folder.mkdir(parents=True, exist_ok=True)
        self._app: Any = _app(self.topics.views, settings, url=url, folder=folder)
        source = self._app.topic(
            self.topics.events,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            partitions=settings.partitions,
            maxsize=_FETCHES,
        )
        self._table: Any = self._app.Table(
            VIEWS_TABLE,
            key_type=bytes,
            value_type=bytes,
            partitions=settings.partitions,
            options=dict(_ROCKSDB),
        )
        self._app.agent(source, name="fold")(self._follow)
        self._app.on_partitions_revoked.connect(self._revoked, weak=False)
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._app.finalize()
        await self._app.start()
        self._opening = asyncio.create_task(self._open())

    @never_cut_short
    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
            self._opening = None
            await self._app.stop()
        await super().stop()

    async def crashed(self) -> BaseException:
        """Wait until Faust gives up; it does not recover."""
        await self._app._crashed.wait()
        reason: BaseException | None = self._app.crash_reason
        return reason or RuntimeError("Faust gave no reason")

    # Partitions ------------------------------------------------------------------------------

    def _ready(self) -> bool:
        return self._app.tables.recovery.completed.is_set() and not self._app.rebalancing

    def owners(self) -> Mapping[str | None, Iterable[int]]:
        if not self._ready():
            raise Unavailable("SF3015", f"views of {self.agent} are being assigned or restored")
        changelog = self.topics.views_changelog
        found: dict[str | None, Iterable[int]] = {}
        for host, topics in self._app.router.table_metadata(self._table.name).items():
            mine = URL(host) == URL(self._url)
            found[None if mine else host] = sorted(topics.get(changelog, ()))
        return found

    def holds(self, partition: int) -> bool:
        return partition in self._actives()

    async def _revoked(self, *_: Any, **__: Any) -> None:
        await self.forget()

    async def _open(self) -> None:
        """Read newly assigned partitions up to the present end of the log, again and again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                for partition in self._actives():
                    if partition not in self._opened:
                        await self.catch_up(partition)
                        log.info("view_opened", agent=self.agent, partition=partition)
            except (Unavailable, KafkaError) as error:
                log.warning("views_not_read", agent=self.agent, error=str(error))
            except Exception:
                log.exception("views_not_opened", agent=self.agent)
                await asyncio.sleep(_RETRY_S)

    def _actives(self) -> list[int]:
        if not self._ready():
            return []
        changelog = self.topics.views_changelog
        return [
            tp.partition for tp in self._app.assignor.assigned_actives() if tp.topic == changelog
        ]

    # Events ----------------------------------------------------------------------------------

    async def _follow(self, stream: Any) -> None:
        async for fetches in stream.noack_take(_FETCHES, within=_WITHIN_S):
            records: defaultdict[int, list[ConsumerRecord]] = defaultdict(list)
            for fetch in fetches:
                records[fetch.message.partition] += map(received, fetch.message.value)
            generation = fetches[-1].message.generation_id
            await asyncio.gather(
                *(self._take(partition, found, generation) for partition, found in records.items())
            )
            for fetch in fetches:
                fetch.ack()

    async def _take(
        self, partition: int, records: Sequence[ConsumerRecord], generation: int
    ) -> None:
        """Retry until the events are taken, or the partition may have moved."""
        while generation == self._app.consumer_generation_id and self.holds(partition):
            try:
                for first in range(0, len(records), _BATCH):
                    await self.take(partition, records[first : first + _BATCH])
            except (Unavailable, KafkaError) as error:
                log.warning("views_interrupted", agent=self.agent, error=str(error))
            except Exception:
                log.exception("views_failed", agent=self.agent)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    # What is kept ----------------------------------------------------------------------------

    def values(self, partition: int) -> _Kept:
        return _Kept(self._table.data, partition)

    async def keep(self, partition: int, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        changelog = self.topics.views_changelog
        producer = await self._app.maybe_start_producer()
        sent = [
            await producer.send(changelog, key, value, partition, None, None)
            for key, value in changes
        ]
        last = [await each for each in sent][-1]
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._table.data._db_for_partition(partition).write(batch)
        self._table.data.set_persisted_offset(TP(changelog, partition), last.offset)


class _Kept:
    """Values of one partition, in RocksDB."""

    def __init__(self, store: Any, partition: int) -> None:
        self._store = store
        self._partition = partition

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._store._db_for_partition(self._partition).get(key)
        return found

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        for key, value in self._store._db_for_partition(self._partition).items():
            if key != self._store.offset_key:
                yield key, value


def _app(name: str, settings: Settings, *, url: str, folder: Path) -> faust.App:
    kafka = settings.kafka()
    app = faust.App(
        name,
        broker=[URL(f"kafka://{each.strip()}") for each in kafka["bootstrap_servers"].split(",")],
        broker_client_id=kafka["client_id"],
        broker_credentials=_credentials(kafka),
        broker_max_poll_records=_FETCH,
        broker_heartbeat_interval=settings.heartbeat_interval_ms / 1_000,
        broker_request_timeout=max(_REQUEST_S, settings.session_timeout_ms / 1_000),
        broker_session_timeout=settings.session_timeout_ms / 1_000,
        broker_rebalance_timeout=settings.rebalance_timeout_ms / 1_000,
        canonical_url=url,
        consumer_auto_offset_reset="earliest",
        datadir=str(folder),
        producer_linger=0.005,
        producer_max_batch_size=262_144,
        producer_max_request_size=settings.record_max_bytes,
        store="rocksdb://",
        table_standby_replicas=1,
        topic_disable_leader=True,
        topic_partitions=settings.partitions,
        web_enabled=False,
    )
    app.transport = _Committed(app.conf.broker_consumer, app)
    return app


def _credentials(kafka: Mapping[str, Any]) -> Any:
    context = kafka.get("ssl_context")
    if kafka.get("sasl_oauth_token_provider") is not None:
        return OAuthCredentials(oauth_cb=kafka["sasl_oauth_token_provider"], ssl_context=context)
    if kafka["security_protocol"].startswith("SASL"):
        return SASLCredentials(
            mechanism=kafka["sasl_mechanism"],
            username=kafka["sasl_plain_username"],
            password=kafka["sasl_plain_password"],
            ssl_context=context,
        )
    return SSLCredentials(context=context) if context is not None else None


class _Thread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        """Make it read_committed; Faust does so only when it writes transactions itself."""
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        return consumer


class _Consumer(driver.Consumer):
    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:  # noqa: ASYNC109
        """Return fetched records, the events of a partition as one message.

        Faust tracks by offset what is done, so the offsets before the last one count as done with
        it."""
        fetched = dict(await super()._getmany(active_partitions, timeout))
        for tp, records in fetched.items():
            if not self._is_changelog_tp(tp):
                fetched[tp] = [replace(records[-1], value=tuple(records))]
                await self._add_gap(tp, records[0].offset, records[-1].offset - 1)
        return fetched

    def _new_consumer_thread(self) -> Any:
        return _Thread(self, loop=self.loop, beacon=self.beacon)


class _Committed(driver.Transport):
    """Faust's transport, with a consumer that passes on committed events, one message per fetch."""

    Consumer = _Consumer
