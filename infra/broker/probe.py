"""Asks a broker, over the wire, whether it serves and which Kafka release it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, ClassVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
    UnsignedVarInt32,
)

from surefoot.infra.kafka_client.clients import close_client
from surefoot.infra.kafka_client.errors import Unreachable, why_unreachable

#: Highest metadata.version of each release. Source: `kafka-features.sh version-mapping`.
_RELEASES = {7: "3.3", 8: "3.4", 11: "3.5", 14: "3.6", 19: "3.7", 20: "3.8", 21: "3.9"} | {
    25: "4.0",
    27: "4.1",
    29: "4.2",
    30: "4.3",
    33: "4.4",
}
_SUPPORTED_FEATURES_TAG = 0


class _ApiVersionsResponse(Response):
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "api_keys",
            CompactArray(
                ("api_key", Int16),
                ("min_version", Int16),
                ("max_version", Int16),
                ("tags", TaggedFields),
            ),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class _ApiVersionsStruct(RequestStruct):
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = _ApiVersionsResponse
    SCHEMA = Schema(
        ("client_software_name", CompactString("utf-8")),
        ("client_software_version", CompactString("utf-8")),
        ("tags", TaggedFields),
    )

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        # Always the old header, so that every client can read the response. Source: KIP-511.
        return ResponseHeader_v0.decode(read_buffer)


class _ApiVersions(Request[_ApiVersionsStruct]):
    """ApiVersions v3, the first version that lists features; aiokafka itself stops at v2."""

    API_KEY = 18

    def build(self, request_struct_class: type[_ApiVersionsStruct]) -> _ApiVersionsStruct:
        return request_struct_class("surefoot", "1", {})


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
            answer = await client.send(nodes[0], _ApiVersions())
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
