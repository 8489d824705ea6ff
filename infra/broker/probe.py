"""Asks a broker, over the wire, whether it serves and which Kafka release it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    TaggedFields,
    UnsignedVarInt32,
)

from surefoot.infra.kafka_client.clients import close_client
from surefoot.infra.kafka_client.errors import Unreachable, why_unreachable
from surefoot.infra.kafka_client.protocol import API_VERSIONS

#: Highest metadata.version of each release. Source: `kafka-features.sh version-mapping`.
_RELEASES = {7: "3.3", 8: "3.4", 11: "3.5", 14: "3.6", 19: "3.7", 20: "3.8", 21: "3.9"} | {
    25: "4.0",
    27: "4.1",
    29: "4.2",
    30: "4.3",
    33: "4.4",
}
_SUPPORTED_FEATURES_TAG = 0


def ask(client: Mapping[str, Any], *, timeout_s: float) -> str | None:
    """Return the release of the cluster at `client`, as in "4.4"; None if none serves yet.

    "Serves" means that a broker has registered and is in its own metadata. Only the release is
    available over the wire: no Kafka request returns the patch level. Brokers without a
    metadata.version (before 3.3) give "unknown".

    Args: client: keyword arguments of an aiokafka client, bootstrap_servers and security included
    """
    # In a thread, since the caller's may already run an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _ask(client, timeout_s)).result()


def why_not(client: Mapping[str, Any]) -> Unreachable:
    """Return why no broker answers to these arguments of an aiokafka client.

    Takes some seconds per address."""

    async def look() -> Unreachable:
        return await why_unreachable(AIOKafkaClient(**client))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, look()).result()


async def _ask(client_arguments: Mapping[str, Any], timeout_s: float) -> str | None:
    client = AIOKafkaClient(**client_arguments)
    try:
        async with asyncio.timeout(timeout_s):
            await client.bootstrap()
            # While no broker has registered, the only "broker" is the address itself.
            nodes = [b.nodeId for b in client.cluster.brokers() if isinstance(b.nodeId, int)]
            if not nodes:
                return None
            answer = await client.send(nodes[0], API_VERSIONS("surefoot", "1"))
            return _release(answer.tags.get(_SUPPORTED_FEATURES_TAG, b""))
    except (KafkaError, OSError, TimeoutError):
        return None
    finally:
        await close_client(client)


def _release(supported_features: bytes) -> str:
    features = CompactArray(
        ("name", CompactString("utf-8")), ("min", Int16), ("max", Int16), ("tags", TaggedFields)
    )
    listed = features.decode(BytesIO(supported_features or UnsignedVarInt32.encode(0))) or []
    level = {name: highest for name, _, highest, _ in listed}.get("metadata.version")
    if level is None:
        return "unknown"
    known = max((lvl for lvl in _RELEASES if lvl <= level), default=None)
    if level > max(_RELEASES):
        return f"newer than {_RELEASES[max(_RELEASES)]} (metadata.version {level})"
    return _RELEASES[known] if known is not None else "unknown"
