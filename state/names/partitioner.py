"""Which partition a run lives in: one function, the same in every process and language.

The hash is that of Kafka's Java producer, so that any producer agrees if its key is the run_id
(without an effect's number). Surefoot itself always names the partition explicitly.

Source: org.apache.kafka.common.utils.Utils.murmur2 and toPositive (Apache-2.0)
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

#: what state.steps.context.idempotency_key appends to the run's own name
_EFFECT_NUMBER = re.compile(r"(?:~e[0-9]+)?(?:~c)?:([0-9]+):([0-9]+)\Z")
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=4096)  # called several times per step of a run; a miss costs microseconds
def partition_of(run_id: str, partitions: int) -> int:
    """Return the partition, from 0, of a run among `partitions`. Pure."""
    return (murmur2(affinity(run_id).encode()) & 0x7FFFFFFF) % partitions


def affinity(run_id: str) -> str:
    """Return the part of a run_id that runs of the same lane have in common. Pure.

    A run of the outbox has the id agent:run_id:seq:index; without the last two, all effects of one
    run are in one partition, in order. A run that shares limits has the id KEY=NAME: all runs of a
    key are in one partition. Its children (KEY=NAME~...) may be in any.
    """
    run = _EFFECT_NUMBER.sub("", run_id)
    key, _, name = run.partition("=")
    return key if key and name and run == run_id and "~" not in run else run


def affinity_order(run_id: str) -> tuple[int, ...]:
    """Return the order of an effect among those of its run: (seq, index). Pure."""
    found = _EFFECT_NUMBER.search(run_id)
    return tuple(map(int, found.groups())) if found else ()


def murmur2(data: bytes) -> int:
    """Return Java's murmur2 of `data`, as the signed 32-bit number that Java returns. Pure."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for k in struct.unpack(f"<{length >> 2}I", data[:whole]):
        k = k * _M & _MASK  # noqa: PLW2901
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if length != whole:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    h = ((h ^ h >> 13) * _M) & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h
