"""What the brokers of a cluster tell of themselves: members, replicas, disks, open transactions.

Implements ClusterAdmin. Keeps its client for later calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.clients import Shared
from surefoot.infra.kafka_client.errors import told
from surefoot.infra.kafka_client.protocol import (
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    LIST_TRANSACTIONS,
    error_of,
)
from surefoot.infra.kafka_client.tail import admin_client
from surefoot.infra.runtime.settings import Settings
from surefoot.state.diagnosis.cluster import (
    ClusterView,
    LogDirectory,
    OpenTransaction,
    PartitionReplicas,
)

_MIN_IN_SYNC = "min.insync.replicas"
#: states in which a transaction holds back readers, and its coordinator will end it
_IN_PROGRESS = ["Ongoing", "PrepareCommit", "PrepareAbort"]
#: in an answer about a producer that has no transaction open, and about a disk of unknown size
_NONE = -1


class KafkaCluster:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = Shared(lambda: admin_client(settings), settings.deadlines.connect_s)

    async def view(self, topics: Sequence[str]) -> ClusterView:
        async with self._asking("cannot look at the replicas") as admin:
            cluster, described, least = await asyncio.gather(
                admin.describe_cluster(),
                _described(admin, topics),
                _min_in_sync(admin, topics),
            )
            return ClusterView(
                brokers=frozenset(each["node_id"] for each in cluster["brokers"]),
                partitions=[
                    PartitionReplicas(
                        topic=topic["topic"],
                        partition=each["partition"],
                        leader=each["leader"] if each["leader"] >= 0 else None,
                        replicas=frozenset(each["replicas"]),
                        in_sync=frozenset(each["isr"]),
                        min_in_sync=least[topic["topic"]],
                    )
                    for topic in described
                    for each in topic["partitions"]
                ],
            )

    async def directories(self) -> Sequence[LogDirectory]:
        async with self._asking("cannot look at the disks") as admin:
            found = await asyncio.gather(
                *(_folders(admin, broker) for broker in await _brokers(admin))
            )
            return [each for folders in found for each in folders]

    async def open_transactions(self, topics: Sequence[str]) -> Sequence[OpenTransaction]:
        async with self._asking("cannot look for transactions") as admin:
            by_leader: dict[int, dict[str, list[int]]] = {}
            for topic in await _described(admin, topics):
                for each in topic["partitions"]:
                    if each["leader"] >= 0:
                        places = by_leader.setdefault(each["leader"], {})
                        places.setdefault(topic["topic"], []).append(each["partition"])
            found, names = await asyncio.gather(
                asyncio.gather(*(_opened(admin, *each) for each in by_leader.items())),
                _transactional_ids(admin),
            )
            return [
                OpenTransaction(
                    topic=topic,
                    partition=partition,
                    producer_id=producer_id,
                    start_offset=start,
                    since_ms=since_ms,
                    transactional_id=names.get(producer_id),
                )
                for opened in found
                for topic, partition, producer_id, since_ms, start in opened
            ]

    @never_cut_short
    async def stop(self) -> None:
        await self._admin.stop()

    @asynccontextmanager
    async def _asking(self, doing: str) -> AsyncIterator[AIOKafkaAdminClient]:
        async with told(doing, self._settings):
            admin = await self._admin.get()
            try:
                yield admin
            except (KafkaError, OSError):
                self._admin.retire(admin)
                raise


async def _brokers(admin: AIOKafkaAdminClient) -> list[int]:
    described = await admin.describe_cluster()
    return sorted(each["node_id"] for each in described["brokers"])


async def _min_in_sync(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, int]:
    """Return how many replicas have to be in sync, by topic; 1 where the broker does not say."""
    least = dict.fromkeys(topics, 1)
    wanted = [
        ConfigResource(ConfigResourceType.TOPIC, topic, {_MIN_IN_SYNC: ""}) for topic in topics
    ]
    for answer in await admin.describe_configs(wanted):
        for code, _, _, topic, entries in answer.resources:
            if not code:
                least[topic] = next(int(each[1]) for each in entries if each[0] == _MIN_IN_SYNC)
    return least


async def _opened(
    admin: AIOKafkaAdminClient, leader: int, places: dict[str, list[int]]
) -> list[tuple[str, int, int, int, int]]:
    """Return (topic, partition, producer id, time of its latest record, first offset)."""
    asked: list[Any] = [(topic, partitions, {}) for topic, partitions in places.items()]
    answer = await admin._client.send(leader, DESCRIBE_PRODUCERS(asked))
    found = []
    for topic, partitions, _ in answer.topics:
        for partition, code, _, producers, _ in partitions:
            _raise(code)
            found += [
                (topic, partition, producer_id, since_ms, start)
                for producer_id, _, _, since_ms, _, start, _ in producers
                if start != _NONE
            ]
    return found


async def _described(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> list[Any]:
    """Describe the topics that exist: to describe others could create them."""
    present = set(await admin.list_topics()) & set(topics)
    return list(await admin.describe_topics(sorted(present))) if present else []


async def _folders(admin: AIOKafkaAdminClient, broker: int) -> list[LogDirectory]:
    answer = await admin._client.send(broker, DESCRIBE_LOG_DIRS(None))
    _raise(answer.error_code)
    found = []
    for code, path, topics, total, usable, _ in answer.folders:
        error = error_of(code)
        sizes: Counter[str] = Counter()
        for topic, partitions, _ in topics:
            sizes[topic] += sum(size for _, size, *_ in partitions)
        found.append(
            LogDirectory(
                broker=broker,
                path=path,
                total_bytes=None if total == _NONE else total,
                usable_bytes=None if usable == _NONE else usable,
                failed=None if error is None else type(error).__name__,
                topics=dict(sizes),
            )
        )
    return found


async def _transactional_ids(admin: AIOKafkaAdminClient) -> dict[int, str]:
    """Return the ids of the transactions that coordinators will end, by producer id."""
    answers = await asyncio.gather(
        *(
            admin._client.send(broker, LIST_TRANSACTIONS(_IN_PROGRESS, []))
            for broker in await _brokers(admin)
        )
    )
    for answer in answers:
        _raise(answer.error_code)
    return {
        producer_id: name for answer in answers for name, producer_id, _, _ in answer.transactions
    }


def _raise(code: int) -> None:
    if (error := error_of(code)) is not None:
        raise error
