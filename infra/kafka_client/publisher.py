"""Records that nobody waits for: partial output for the stream topics.

Best effort, outside of transactions. Records that cannot be written soon are dropped; anything that
matters is also in the run's checkpoint or journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.clients import close_client
from surefoot.infra.kafka_client.errors import start_client
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.runtime.settings import Settings
from surefoot.state.ports.log import ProducerRecord

log = structlog.get_logger(__name__)

#: most records that may wait for the broker
WAITING_MAX = 10_000
_CLOSE_S = 2.0


class Publisher:
    """Writes records in the given order. Starts with the first record."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: asyncio.Queue[ProducerRecord] = asyncio.Queue(WAITING_MAX)
        self._task: asyncio.Task[None] | None = None
        self._dropped = 0

    def publish(self, records: Sequence[ProducerRecord]) -> None:
        """Queue the records; never blocks."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        for record in records:
            try:
                self._waiting.put_nowait(record)
            except asyncio.QueueFull:
                self._drop("too many are waiting")

    @never_cut_short
    async def close(self) -> None:
        """Stop; drops what has not been written. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _drop(self, reason: str) -> None:
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:  # 1, 2, 4, 8 ...
            log.warning("output_dropped", dropped=self._dropped, reason=reason)

    async def _run(self) -> None:
        producer = with_failover(
            AIOKafkaProducer(
                **self._settings.kafka(),
                acks=1,
                compression_type=self._settings.compression_type,
                linger_ms=2,
                request_timeout_ms=self._settings.producer_request_timeout_ms,
            )
        )
        try:
            await start_client(producer)
            while True:
                await self._write(producer, await self._waiting.get())
        except (KafkaError, OSError) as error:
            self._drop(repr(error))
        finally:
            await close_client(producer, within_s=_CLOSE_S)

    async def _write(self, producer: AIOKafkaProducer, out: ProducerRecord) -> None:
        try:
            written = await producer.send(out.topic, out.value, out.key, partition=out.partition)
        except KafkaError as error:
            self._drop(repr(error))
            return
        written.add_done_callback(self._look)

    def _look(self, written: asyncio.Future[object]) -> None:
        if not written.cancelled() and (error := written.exception()) is not None:
            self._drop(repr(error))
