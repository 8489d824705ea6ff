"""Reads what the auditor checks: every topic from its first record, as any consumer can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.demo.auditor import AuditedRecord
from surefoot.infra.log.ports import Backend
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import TopicSpec

#: longer than any transaction may stay open, in seconds
READ_S = 60.0


async def read_topics(
    backend: Backend, specs: Sequence[TopicSpec]
) -> dict[str, list[AuditedRecord]]:
    """Return all committed records of these topics, up to their high watermarks.

    Raises: Unavailable — not within 60 s; a transaction that nobody ended may hold them back.
    """
    try:
        async with asyncio.timeout(READ_S):
            return {spec.name: await _read(backend, spec) for spec in specs}
    except TimeoutError:
        told = f"the topics could not be read to their ends within {READ_S:g} s"
        raise Unavailable("SF3007", told) from None


async def _read(backend: Backend, spec: TopicSpec) -> list[AuditedRecord]:
    found: list[AuditedRecord] = []
    lookups, offsets = backend.lookups(spec.name), backend.offsets()
    try:
        partitions = range(spec.partitions)
        begins = await offsets.begins(spec.name, partitions)
        ends = await offsets.ends(spec.name, partitions)
        for partition in partitions:
            position = begins[partition]
            while position < ends[partition]:
                page, position = await lookups.page(
                    partition, position, ends[partition], lambda _key: True
                )
                found += (AuditedRecord(**record._asdict()) for record in page)
    finally:
        await stop_all(lookups, offsets)
    return found
