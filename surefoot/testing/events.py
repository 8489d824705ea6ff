"""Tests what a trigger makes of one record, without Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from surefoot.consumers.topic_triggers.mapping import EventMapping, FramedEvent, Schemas
from surefoot.schemas.codec.catalog import Schema
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.payload import load
from surefoot.schemas.pointer import unescaped
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.topics import Unusable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import Wire

_RECORD_BYTES = 1_000_000


class AskedFor(NamedTuple):
    """The run that an event starts."""

    run_id: str
    #: the input of its first step
    payload: Any


class _Registry:
    """Schemas from a test, by id or GUID."""

    def __init__(self, schemas: Mapping[int | str, Schema]) -> None:
        self._schemas = schemas

    async def by_id(self, id: int, /) -> Schema:  # noqa: A002
        return self._schemas[id]

    async def by_guid(self, guid: str, /) -> Schema:
        return self._schemas[guid]


def from_event(
    agent: Agent,
    topic: str,
    value: bytes | None,
    *,
    headers: Sequence[tuple[str, bytes]] = (),
    key: bytes | None = None,
    partition: int = 0,
    offset: int = 0,
    timestamp_ms: int = 0,
    registry: Mapping[int | str, Schema] | None = None,
) -> AskedFor | None:
    """Return the run that a record on `topic` starts; None: no run.

    Args:    registry: Avro schemas by the id or GUID in Confluent's framing
    Raises:  Unusable - the record becomes a dead letter, with this code and message
    """
    event = agent.event_triggers[topic]
    mapping = EventMapping(
        agent=agent,
        trigger=event,
        wire=Wire("app", AgentTopics("app", agent.name), 1),
        schemas=Schemas(event, None if registry is None else _Registry(registry)),
        record_bytes=_RECORD_BYTES,
    )
    record = ConsumerRecord(topic, partition, offset, timestamp_ms, key, value, headers)
    prepared = asyncio.run(mapping.prepare(record))
    mapped = mapping.map(prepared, timestamp_ms) if isinstance(prepared, FramedEvent) else prepared
    if mapped.failure is not None:
        raise Unusable(mapped.failure.code, mapped.failure.message)
    if mapped.out is None:
        return None
    command = decode(mapped.out.value, "Command")[1]
    return AskedFor(
        command["run_id"], load(agent.start_step.adapter, unescaped(command["payload"]))
    )
