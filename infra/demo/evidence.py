"""Reads what the auditor judges: every topic from its first record, as any consumer can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from surefoot.infra.demo.auditor import Record
from surefoot.infra.settings import Settings
from surefoot.state.errors import Unavailable
from surefoot.state.topics import TopicSpec

#: longer than any transaction may stay open
READ_S = 60.0


async def read_topics(settings: Settings, specs: Sequence[TopicSpec]) -> dict[str, list[Record]]:
    """All committed records of these topics, up to their high watermarks.

    Raises: Unavailable — not within 60 s; a transaction that nobody ended may hold them back.
    """
    topics: dict[str, list[Record]] = {spec.name: [] for spec in specs}
    places = [TopicPartition(spec.name, p) for spec in specs for p in range(spec.partitions)]
    consumer = AIOKafkaConsumer(
        **settings.kafka(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
    )
    await consumer.start()
    try:
        async with asyncio.timeout(READ_S):
            await _read(consumer, places, topics)
    except TimeoutError:
        told = f"the topics could not be read to their ends within {READ_S:g} s"
        raise Unavailable(told) from None
    finally:
        await consumer.stop()
    return topics


async def _read(
    consumer: AIOKafkaConsumer, left: list[TopicPartition], topics: dict[str, list[Record]]
) -> None:
    consumer.assign(left)
    await consumer.seek_to_beginning(*left)
    while left:
        for tp, records in (await consumer.getmany(timeout_ms=200)).items():
            topics[tp.topic] += [
                Record(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
                for record in records
            ]
        left = [tp for tp in left if not await _at_end(consumer, tp)]


async def _at_end(consumer: AIOKafkaConsumer, tp: TopicPartition) -> bool:
    """The high watermark is in every answer, whatever the isolation level."""
    end = consumer.highwater(tp)
    return end is not None and await consumer.position(tp) >= end
