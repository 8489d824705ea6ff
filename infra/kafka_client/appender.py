"""The producers' side of Kafka: single records, and the probe behind /ready.

In aiokafka, idempotent batches never expire and calls have no deadline, so every wait here has one.
A producer whose failure may have left a gap in its sequence numbers is retired and replaced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.clients import BATCH_BYTES, Shared
from surefoot.infra.kafka_client.errors import unavailable
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import RecordTooLarge, Unavailable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import Position, ProducerRecord

#: key of the probe's record in the state topic; "@" keys never belong to runs
READY_KEY = b"@ready"
_READY_PARTITION = 0
_READY_EVERY_S = 2.0


async def _check_partitions(producer: AIOKafkaProducer, topic: str, settings: Settings) -> None:
    found = len(await producer.partitions_for(topic))
    if found != settings.partitions:
        raise Unavailable(
            "SF3005",
            f"topic {topic} has {found} partitions where {settings.partitions} are expected; "
            "check SUREFOOT_PARTITIONS and run `surefoot topics verify`",
        )


class KafkaAppender:
    """Implements Appender over one idempotent, acks=all producer.

    Starts on first use, so a gateway can start while the broker is down."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer = Shared(self._make, settings.deadlines.connect_s)

    def _make(self) -> AIOKafkaProducer:
        return with_failover(
            AIOKafkaProducer(
                **self._settings.kafka(),
                enable_idempotence=True,
                acks="all",
                compression_type=self._settings.compression_type,
                request_timeout_ms=self._settings.producer_request_timeout_ms,
                max_request_size=self._settings.record_max_bytes,
                # a topic's size limit applies to batches
                max_batch_size=min(BATCH_BYTES, self._settings.record_max_bytes),
            )
        )

    async def append(self, out: ProducerRecord, what: str, *, deadline_s: float) -> Position:
        limit = self._settings.record_max_bytes
        headers = list(out.headers)
        size = DefaultRecordBatchBuilder.estimate_size_in_bytes(out.key, out.value, headers)
        if size > limit:
            raise RecordTooLarge(
                f"{what} takes {size} bytes, {limit} are allowed",
                size=size,
                limit=limit,
            )
        try:
            async with asyncio.timeout(deadline_s):
                producer = await self._producer.get()
                written = await self._write(producer, out)
        except TimeoutError as error:
            raise Unavailable(
                "SF3002", f"no acknowledgement from Kafka in {deadline_s:g} s"
            ) from error
        except (KafkaError, OSError) as error:
            raise unavailable(
                f"Kafka did not take {what}", error, self._settings, operation="Write"
            ) from error
        return Position(written.partition, written.offset)

    async def _write(self, producer: AIOKafkaProducer, out: ProducerRecord) -> RecordMetadata:
        try:
            await _check_partitions(producer, out.topic, self._settings)
            acked = await producer.send(
                out.topic,
                out.value,
                out.key,
                partition=out.partition,
                headers=list(out.headers),
            )
            return await acked
        except KafkaError:
            # a failed batch leaves a gap in the sequence numbers; later batches would fail too
            self._producer.retire(producer)
            raise

    async def stop(self) -> None:
        """Flush and close, within a deadline. Safe to call twice."""
        await self._producer.stop()


@dataclass(slots=True, eq=False)
class _Probe:
    """The latest probe of one agent; concurrent callers share it."""

    producer: Shared[AIOKafkaProducer]
    started_s: float = float("-inf")
    #: result: None, or the reason of the failure
    task: asyncio.Task[str | None] | None = None


class KafkaReadiness:
    """Implements Readiness: commits one record to partition 0 of the agent's state topic.

    At most one probe every two seconds. It has a transactional id of its own, so it can never fence
    an owner. A gateway killed during a probe holds back the readers of that partition until the
    broker times the transaction out (5 s, plus up to 10 s until the broker checks).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._deadlines = settings.deadlines
        self._probes: dict[str, _Probe] = {}

    async def check(self, agent: str) -> None:
        """Raises: Unavailable — with the reason, after 3 s at the latest."""
        probe = self._probes.get(agent)
        if probe is None:
            probe = _Probe(Shared(lambda: self._make(agent), self._deadlines.connect_s))
            self._probes[agent] = probe
        now_s = asyncio.get_running_loop().time()
        if probe.task is None or (probe.task.done() and now_s - probe.started_s >= _READY_EVERY_S):
            probe.started_s = now_s
            probe.task = asyncio.create_task(self._probe(agent, probe.producer))
        if reason := await asyncio.shield(probe.task):
            raise Unavailable("SF3010", f"agent {agent}: {reason}")

    def _make(self, agent: str) -> AIOKafkaProducer:
        group = AgentTopics(self._settings.app, agent).group
        return with_failover(
            AIOKafkaProducer(
                **self._settings.kafka(),
                transactional_id=f"{group}.ready.{self._settings.instance}",
                transaction_timeout_ms=int(self._deadlines.ready_transaction_s * 1_000),
                request_timeout_ms=int(self._deadlines.ready_request_s * 1_000),
            )
        )

    async def _probe(self, agent: str, producers: Shared[AIOKafkaProducer]) -> str | None:
        try:
            async with asyncio.timeout(self._deadlines.ready_s):
                try:
                    await self._commit(agent, producers)
                except ProducerFenced:
                    # another gateway has the same instance name; the new epoch is ours
                    await self._commit(agent, producers)
        except Unavailable as error:
            return str(error)
        except TimeoutError:
            return f"no transaction could be committed in {self._deadlines.ready_s:g} s"
        except (KafkaError, OSError, AssertionError) as error:
            # aiokafka guards its own transaction states with assertions
            doing = "no transaction could be committed"
            return unavailable(doing, error, self._settings, operation="Write").message
        return None

    async def _commit(self, agent: str, producers: Shared[AIOKafkaProducer]) -> None:
        producer = await producers.get()
        topic = AgentTopics(self._settings.app, agent).state
        try:
            await _check_partitions(producer, topic, self._settings)
            await producer.begin_transaction()
            sent = await producer.send(
                topic,
                self._settings.instance.encode(),
                READY_KEY,
                partition=_READY_PARTITION,
            )
            await sent
            await producer.commit_transaction()
        except BaseException:
            producers.retire(producer)
            raise

    @never_cut_short
    async def stop(self) -> None:
        """Close the producers, within a deadline. Safe to call twice."""
        for probe in self._probes.values():
            if probe.task is not None:
                probe.task.cancel()
                await asyncio.wait([probe.task])
            await probe.producer.stop()
        self._probes.clear()
