"""Events for archive tests, and what any Avro reader makes of an archive."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import fastavro

from surefoot.schemas.codec.catalog import released
from surefoot.schemas.codec.codec import encode
from surefoot.state.machine.model import EventRecord, jsonable
from surefoot.state.ports.log import ConsumerRecord

#: 2026-01-31 12:00 UTC
NOON_MS = 1_769_860_800_000
DAY_MS = 86_400_000
EVENT = list(released().values())[-1]["Event"]


def event(run_id: str, kind: Any, *, seq: int = 0, at_ms: int = NOON_MS, **fields: Any) -> bytes:
    record = EventRecord(
        type=kind,
        run_id=run_id,
        agent="shop",
        version=1,
        seq=seq,
        at_ms=at_ms,
        **{"status": "running", **fields},
    )
    return encode("Event", jsonable(record))


def life(run_id: str, *, at_ms: int = NOON_MS) -> list[bytes]:
    """The history of a run of one step."""
    return [
        event(run_id, "run.started", at_ms=at_ms, next_step="ship", payload=b"1"),
        event(
            run_id, "run.completed", at_ms=at_ms + 7, status="completed", step="ship", result=b"42"
        ),
    ]


def records(
    values: Iterable[bytes | None], *, first: int = 0, at_ms: int = NOON_MS, partition: int = 0
) -> list[ConsumerRecord]:
    """At every second offset, as markers of transactions stand between."""
    return [
        ConsumerRecord(
            "app.shop.events", partition, first + 2 * number, at_ms, b"key-%d" % number, value
        )
        for number, value in enumerate(values)
    ]


def offsets_by_any_reader(contents: Iterable[bytes]) -> list[int]:
    """The offsets of all events in these files; each must also be one for whoever knows no more
    than the released schema."""
    found: list[int] = []
    for content in contents:
        rows: list[Any] = list(fastavro.reader(io.BytesIO(content)))
        plain: list[Any] = list(fastavro.reader(io.BytesIO(content), reader_schema=EVENT))
        assert [row["run_id"] for row in plain] == [row["run_id"] for row in rows]
        assert all("offset" not in row for row in plain)
        found += [row["offset"] for row in rows]
    return sorted(found)


def metadata(content: bytes) -> dict[str, str]:
    return dict(fastavro.reader(io.BytesIO(content)).metadata)
