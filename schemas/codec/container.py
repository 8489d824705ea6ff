"""Events in Avro object container files, which other tools read without Surefoot.

A file's schema is that of an event with three fields in front: the record's offset in its
partition, its time, and, where it is encrypted, its value as it stood there. Avro matches fields by
name, so a reader with a released schema of Event gets just the event.

Source: Avro 1.12 specification, "Object Container Files"
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastavro import parse_schema, reader, writer

from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.catalog import Schema
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.records import AvroEvent

__all__ = ["FINGERPRINT", "OFFSET", "SEALED", "TIME", "ArchivedRow", "read_rows", "write_rows"]

OFFSET: Final = "offset"
TIME: Final = "timestamp_ms"
SEALED: Final = "sealed"
_CODEC = "deflate"
#: size of a block before compression, in bytes
_BLOCK = 65_536


class ArchivedRow(AvroEvent):
    """An event, and where it stood. `sealed`: its encrypted form, if the event has no payload for
    that reason."""

    offset: int
    timestamp_ms: int
    sealed: bytes | None


def _schema() -> Schema:
    event = catalog.current()["Event"]
    own = [
        {"name": OFFSET, "type": "long", "doc": "of the record in its partition"},
        {"name": TIME, "type": "long", "doc": "of the record, epoch ms, UTC"},
        {"name": SEALED, "type": ["null", "bytes"], "default": None, "doc": "value of the record"},
    ]
    return {**event, "fields": [*own, *event["fields"]]}


#: CRC-64-AVRO of the files' schema, in hex
FINGERPRINT = catalog.crc64(_schema()).hex()
_PARSED = parse_schema(_schema(), named_schemas={})


def write_rows(rows: Iterable[ArchivedRow], metadata: Mapping[str, str]) -> bytes:
    """Return a whole file. Equal rows and metadata give equal bytes. Pure.

    Args: rows: events that the codec has decoded, each with the three fields of its record
    """
    seed = repr(sorted(metadata.items())).encode()
    out = io.BytesIO()
    writer(
        out,
        _PARSED,
        rows,
        codec=_CODEC,
        sync_interval=_BLOCK,
        metadata=dict(metadata),
        sync_marker=hashlib.sha256(seed).digest()[:16],
    )
    return out.getvalue()


def read_rows(data: bytes) -> tuple[dict[str, str], list[ArchivedRow]]:
    """Return (metadata, rows) of a file that any version wrote; rows have the current fields. Pure.

    Raises: UndecodableError - not such a file, or damaged
    """
    try:
        opened = reader(io.BytesIO(data), reader_schema=_PARSED)
        rows: Any = list(opened)
        metadata = {name: str(value) for name, value in opened.metadata.items()}
    except Exception as error:  # fastavro raises any exception for corrupt bytes
        raise UndecodableError(
            f"not an Avro file of events: {type(error).__name__} {error}"
        ) from error
    return metadata, rows
