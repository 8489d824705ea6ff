"""What no consumer is told: who wrote each record of a partition, and where transactions ended.

Read from the log's segment files, record batches of version 2. Batches are not unpacked: their
headers say whose they are and which offsets they have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.checker.history import Marker

#: base offset, length of what follows, leader epoch, magic, checksum, attributes, last offset
#: delta, base and max timestamp, producer id and epoch, base sequence, number of records
_BATCH = struct.Struct(">qiibIhiqqqhii")
#: bytes of a batch that its length does not count
_UNCOUNTED = 12
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_COMMIT = 1


class Batch(NamedTuple):
    """One batch of records, not unpacked."""

    base: int
    last_delta: int
    #: of its first record, in epoch ms; of a marker: when the broker wrote it
    at_ms: int
    producer: tuple[int, int]
    transactional: bool
    #: how the transaction ended, if this is its marker
    commit: bool | None
    #: where the next one begins in the file
    end: int


@dataclass(slots=True)
class Partition:
    """Who wrote what in one partition."""

    #: (producer id, epoch) by offset, of records of transactions
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)


def read_partition(folder: Path, topic: str, partition: int) -> Partition:
    """Of a broker's data folder. A batch that is only being written is left out."""
    found = Partition()
    for segment in sorted((folder / f"{topic}-{partition}").glob("*.log")):
        for batch in batches(segment.read_bytes()):
            if batch.commit is not None:
                marker = Marker(
                    topic=topic,
                    partition=partition,
                    offset=batch.base,
                    producer=batch.producer,
                    commit=batch.commit,
                )
                found.markers.append(marker)
            elif batch.transactional:
                offsets = range(batch.base, batch.base + batch.last_delta + 1)
                found.producers |= dict.fromkeys(offsets, batch.producer)
    return found


def batches(data: bytes) -> Iterator[Batch]:
    """Those that are there as a whole."""
    at = 0
    while at + _BATCH.size <= len(data):
        base, length, _, magic, _, attributes, last_delta, at_ms, _, producer, epoch, _, _ = (
            _BATCH.unpack_from(data, at)
        )
        body = at + _BATCH.size
        end = at + _UNCOUNTED + length
        if length <= 0 or end > len(data):
            return
        assert magic == 2, f"a record batch of version {magic}"
        control = bool(attributes & _CONTROL)
        yield Batch(
            base,
            last_delta,
            at_ms,
            (producer, epoch),
            transactional=bool(attributes & _TRANSACTIONAL),
            commit=_control_type(data[body:end]) == _COMMIT if control else None,
            end=end,
        )
        at = end


def _control_type(body: bytes) -> int:
    """Of the one record of a control batch: its key is a version and a type, two bytes each."""
    at = 0
    _, at = _varint(body, at)  # length
    at += 1  # attributes
    for _ in ("timestamp delta", "offset delta", "length of the key"):
        _, at = _varint(body, at)
    kind: int = struct.unpack_from(">hh", body, at)[1]
    return kind


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and where it ends."""
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
