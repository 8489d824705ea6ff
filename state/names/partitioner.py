"""Which partition a run lives in: one function, the same in every process and language.

The hash is that of Kafka's Java producer, so that any producer that sets run_id (less the effect's
number) as the key agrees. Everything of Surefoot's own names the partition explicitly.

Source: org.apache.kafka.common.utils.Utils.murmur2 and toPositive (Apache-2.0)
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

#: what state.steps.context.idempotency_key puts behind the run's own name
_EFFECT_NUMBER = re.compile(r"(?:~e[0-9]+)?(?:~c)?:([0-9]+):([0-9]+)\Z")
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=4096)  # a run asks several times a step; a miss costs microseconds
def partition_of(run_id: str, partitions: int) -> int:
    """Return the partition, from 0, of a run among `partitions`. Pure."""
    return (murmur2(affinity(run_id).encode()) & 0x7FFFFFFF) % partitions


def affinity(run_id: str) -> str:
    """Return what runs must have in common to share a lane. Pure.

    A run of the outbox is called agent:run_id:seq:index; without the last two, all effects of one
    run are in one partition, in order. A run that shares limits with others is called KEY=NAME: all
    of one key are in one partition. Its children (KEY=NAME~...) are anywhere.
    """
    run = _EFFECT_NUMBER.sub("", run_id)
    key, _, name = run.partition("=")
    return key if key and name and run == run_id and "~" not in run else run


def affinity_order(run_id: str) -> tuple[int, ...]:
    """Return the place of an effect among those of its run: (seq, index). Pure."""
    found = _EFFECT_NUMBER.search(run_id)
    return tuple(map(int, found.groups())) if found else ()


def murmur2(data: bytes) -> int:
    """Return Java's murmur2 of `data`, as the signed 32-bit number that Java prints. Pure."""
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
