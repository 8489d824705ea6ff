"""The history of a real cluster, as librdkafka reads it: every topic twice, once what is committed
and once everything that was ever written.

Blocks while it reads. The system has to be at rest, or at least to be stopped: of what is written
meanwhile only a part is in the history.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.checker.history import History, Marker, Place, Record, Sample
from tests.checker.segments import read_partition
from tests.checker.view import INPUTS

#: how long the broker may take to tell something, in seconds
_TIMEOUT_S = 90.0
_POLL_S = 60.0


def read_history(bootstrap: str, app: str, *, data: Path | None, at_rest: bool) -> History:
    """All topics of an app.

    Args: data: the broker's data folder, for producers, epochs and markers, which consumers are
        not told; None: the history is without them
    """
    every, ends = _read(bootstrap, app, "read_uncommitted")
    seen, stable_ends = _read(bootstrap, app, "read_committed")
    committed = {(record.topic, record.partition, record.offset) for record in seen}
    written = {place: read_partition(data, *place) for place in ends} if data is not None else {}
    markers: list[Marker] = []
    for place in sorted(written):
        markers += written[place].markers
    records = []
    for record in every:
        place = (record.topic, record.partition)
        fate: bool | None = (*place, record.offset) in committed
        if not fate and record.offset >= stable_ends[place]:
            fate = None
        producer = written[place].producers.get(record.offset) if place in written else None
        records.append(replace(record, committed=fate, producer=producer))
    return History(
        app=app,
        partitions=max((partition + 1 for _, partition in ends), default=0),
        records=records,
        markers=markers,
        samples=read_offsets(bootstrap, app),
        at_rest=at_rest,
        log_start=_starts(records),
    )


def _read(bootstrap: str, app: str, isolation: str) -> tuple[list[Record], dict[Place, int]]:
    """Every record that can be seen so, by place and offset; and where each partition ended."""
    consumer = _consumer(bootstrap, isolation)
    try:
        places = _places(consumer, app)
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        found: list[Record] = []
        ends: dict[Place, int] = {}
        while len(ends) < len(places):
            message = consumer.poll(_POLL_S)
            assert message is not None, f"nothing more of {sorted(set(places) - ends.keys())}"
            error = message.error()
            if error is None:
                found.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[_place(message)] = _offset(message)
            else:
                raise AssertionError(str(error))
        return sorted(found, key=lambda r: (r.topic, r.partition, r.offset)), ends
    finally:
        consumer.close()


def _consumer(bootstrap: str, isolation: str, group: str | None = None) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group or f"checker-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )


def _places(consumer: Consumer, app: str) -> list[Place]:
    topics = consumer.list_topics(timeout=_TIMEOUT_S).topics
    places = [
        (name, partition)
        for name, topic in sorted(topics.items())
        if name.startswith(f"{app}.")
        for partition in sorted(topic.partitions)
    ]
    assert places, f"there are no topics of {app}: an empty history has nothing wrong with it"
    return places


def _record(message: Message) -> Record:
    topic, partition = _place(message)
    headers: Sequence[tuple[str, Any]] = message.headers() or ()  # type: ignore[assignment]
    return Record(
        topic=topic,
        partition=partition,
        offset=_offset(message),
        timestamp_ms=message.timestamp()[1],
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, value or b"") for name, value in headers),
        committed=None,
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    assert not isinstance(value, str)
    return value


def _place(message: Message) -> Place:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def read_offsets(bootstrap: str, app: str) -> list[Sample]:
    """Where the group of each agent stands now, next to the last stable offset of what it reads."""
    consumer = _consumer(bootstrap, "read_committed")
    try:
        places = _places(consumer, app)
        ends = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=_TIMEOUT_S)[1]
            for place in places
            if place[0].rpartition(".")[2] in INPUTS
        }
    finally:
        consumer.close()
    groups: dict[str, list[TopicPartition]] = {}
    for topic, partition in ends:
        groups.setdefault(topic.rpartition(".")[0], []).append(TopicPartition(topic, partition))
    return [
        Sample(
            at_ms=time.time_ns() // 1_000_000,
            group=group,
            topic=at.topic,
            partition=at.partition,
            offset=at.offset,
            stable_end=ends[at.topic, at.partition],
        )
        for group, of in groups.items()
        for at in stable_offsets(bootstrap, group, of)
        if at.offset >= 0
    ]


def stable_offsets(
    bootstrap: str, group: str, places: list[TopicPartition]
) -> list[TopicPartition]:
    """The group's offsets; negative where it has none. Those of a transaction that is being
    completed are waited for."""
    consumer = _consumer(bootstrap, "read_committed", group)
    try:
        return consumer.committed(places, timeout=_TIMEOUT_S)
    finally:
        consumer.close()


def _starts(records: Sequence[Record]) -> dict[Place, int]:
    """First offset of each partition: what is before it, retention has taken."""
    starts: dict[Place, int] = {}
    for record in records:
        starts.setdefault((record.topic, record.partition), record.offset)
    return starts
