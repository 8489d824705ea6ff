"""Tells batches that this process can never decode from a log that is unavailable.

aiokafka reports a damaged batch, or one with a codec it lacks, from the same call that reports
outages. A retry fetches the same batch, and the records that the call had already fetched from
other partitions are lost. So the reader gives up this client, with an error that names the place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeVar

from aiokafka import codec as codecs
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import UnsupportedCodecError

from surefoot.state.errors import ConfigError, StateError

#: by the codec number in the batch header
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: by a topic's compression.type: whether its batches can be decompressed here
_UNPACKS = {
    "producer": lambda: True,
    "uncompressed": lambda: True,
    "gzip": codecs.has_gzip,
    "snappy": codecs.has_snappy,
    "lz4": codecs.has_lz4,
    "zstd": codecs.has_zstd,
}
#: the fix for a missing codec
INSTALL_CODECS = "install the codecs: pip install 'aiokafka[lz4,snappy,zstd]'"

T = TypeVar("T")


def unpacks(compression: str) -> bool:
    """Whether this process can read a topic with this compression.type."""
    known = _UNPACKS.get(compression)
    return known is not None and known()


async def readable(fetched: Awaitable[T]) -> T:
    """Await a consumer's getmany or getone.

    Raises: ConfigError — the codec of a batch is not installed; StateError — a batch is damaged;
    else whatever aiokafka raises.
    """
    try:
        return await fetched
    except Exception as error:
        frames = (frame for frame, _ in walk_tb(error.__traceback__))
        taking = next(
            (f for f in frames if f.f_code is PartitionRecords._unpack_records.__code__), None
        )
        if taking is None:
            raise
        raise _told(taking, error) from error


def _told(taking: FrameType, error: Exception) -> ConfigError | StateError:
    seen: Mapping[str, Any] = taking.f_locals
    records = seen["self"]
    place = (
        f"topic {records._tp.topic}, partition {records._tp.partition}, "
        f"offset {records.next_fetch_offset}"
    )
    if not isinstance(error, UnsupportedCodecError):
        return StateError("SF3068", f"{place}: a batch of records is damaged: {error!r}")
    number = seen["next_batch"].compression_type
    codec = CODECS[number] if number < len(CODECS) else f"codec {number}"
    return ConfigError(
        "SF3067",
        f"{place}: a batch is packed with {codec}, which cannot be unpacked here; {INSTALL_CODECS}",
    )
