"""The ArchiveLog port on Apache Kafka.

A consumer group of its own, with ordinary committed offsets."""

from __future__ import annotations

import asyncio

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

from surefoot.infra.kafka.source import KafkaSourceLog
from surefoot.infra.kafka.txn import commit_deadline_s
from surefoot.infra.kafka_client.clients import close_client
from surefoot.infra.kafka_client.errors import unavailable
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import FencedError
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.sources import SourceOffsets

log = structlog.get_logger(__name__)

_LOST = (
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class KafkaArchiveLog(KafkaSourceLog):
    """Implements ArchiveLog.

    A dynamic group member, so several may run on one machine. Files are created exactly once,
    whichever member writes them."""

    def __init__(self, *, topics: AgentTopics, settings: Settings, clock: Clock) -> None:
        super().__init__(
            topics=topics,
            topic=topics.events,
            settings=settings,
            clock=clock,
            slot=0,
            group=topics.archive_group,
        )

    def _new_consumer(self, group_instance_id: str | None = None) -> AIOKafkaConsumer:
        del group_instance_id
        return super()._new_consumer()

    def reached(self, partition: int) -> int:
        tp = self._place(partition)
        assignment = self._live._subscription.subscription.assignment
        state = assignment.state_value(tp) if assignment is not None else None
        if state is None or not state.has_valid_position:
            return -1
        return int(state.position)

    async def standing(self, partition: int) -> SourceOffsets:
        assert self._asker is not None, "start() comes first"
        try:
            return await self._standing(self._asker, self._place(partition))
        except (TimeoutError, KafkaError) as error:
            raise unavailable("committed offset", error, self._settings) from error

    async def commit(self, partition: int, offset: int) -> None:
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                await self._live.commit({self._place(partition): offset})
        except _LOST as error:
            raise FencedError(repr(error)) from error
        except (TimeoutError, KafkaError) as error:
            raise unavailable(f"offset {offset}", error, self._settings) from error

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        asker, self._asker = self._asker, None
        await close_client(*(client for client in (consumer, asker) if client is not None))
