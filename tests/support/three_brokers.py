"""A cluster of three brokers on this machine, each also a controller, and what breaks them.

Everything has three replicas, of which two must have a record before it is acknowledged. What the
cluster says of itself is asked of each broker over a connection of its own, with a short deadline:
an answer is that broker's, and a broker that does not answer is one that serves nobody.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import (
    CompactArray,
    Int16,
    Int32,
    Int64,
    TaggedFields,
)

from surefoot.infra.broker.config import STORAGE, Storage, free_ports, tail
from surefoot.infra.broker.java import JavaNode, new_cluster_id, start_java
from surefoot.infra.kafka_client.protocol import Api, by_topic
from tests.support.eventually import until, until_sync

NODES = (1, 2, 3)
#: of each broker, in MB
HEAP_MB = 320
#: how long a broker may take to answer what it knows, in seconds
ASK_S = 1.0
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"

#: beyond what one node has (infra.broker.config.ONE_NODE)
THREE_NODES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.index.size.max.bytes": "65536",
}

_NO_ANSWER = (KafkaError, OSError, TimeoutError)


_REPLICA_STATES = CompactArray(
    ("replica", Int32), ("log_end_offset", Int64), ("tags", TaggedFields)
)
#: only the active controller answers without an error
_DESCRIBE_QUORUM = Api(
    55,
    0,
    (by_topic(("partition", Int32)),),
    (
        ("error_code", Int16),
        by_topic(
            ("partition", Int32),
            ("error_code", Int16),
            ("leader", Int32),
            ("leader_epoch", Int32),
            ("high_watermark", Int64),
            ("voters", _REPLICA_STATES),
            ("observers", _REPLICA_STATES),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Replicas:
    """One partition, as a broker sees it."""

    topic: str
    partition: int
    #: None: nobody
    leader: int | None
    all: frozenset[int]
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class View:
    """The cluster, as one broker sees it."""

    brokers: frozenset[int]
    partitions: list[Replicas]

    @property
    def whole(self) -> bool:
        return self.brokers == set(NODES) and all(
            each.leader is not None and each.in_sync == each.all for each in self.partitions
        )


class ThreeBrokers:
    """Its faults take effect before they return; they block for no longer than that takes."""

    def __init__(self, folder: Path, properties: Mapping[str, str], storage: Storage) -> None:
        ports = free_ports(2 * len(NODES))
        self._ports = dict(zip(NODES, ports[: len(NODES)], strict=True))
        self._controller_ports = dict(zip(NODES, ports[len(NODES) :], strict=True))
        self._folder = folder
        self._properties = properties
        self._storage = storage
        self._nodes: dict[int, JavaNode] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def alive(self) -> list[int]:
        """The brokers that were started and not killed; a frozen one is among them."""
        return sorted(self._nodes)

    def data(self, node: int) -> Path:
        """The data folder of a broker."""
        return self._folder / str(node) / "data"

    def log_text(self, node: int) -> str:
        return self._nodes[node].log_text()

    # Faults ----------------------------------------------------------------------------------

    def start(self, *nodes: int) -> None:
        """Start these brokers, with the data that they have; returns before they serve."""
        with ThreadPoolExecutor(len(nodes)) as threads:
            self._nodes |= dict(zip(nodes, threads.map(self._start, nodes), strict=True))

    def kill(self, node: int) -> None:
        """As a power failure does, except that the machine goes on."""
        gone = self._nodes.pop(node)
        assert gone.pid is not None
        os.kill(gone.pid, signal.SIGKILL)
        gone.stop()

    def shut_down(self, node: int) -> None:
        """As an operator does: the broker hands its partitions over first."""
        self._nodes.pop(node).stop()

    def freeze(self, node: int) -> None:
        """The broker stands still, and its connections stay."""
        process = psutil.Process(self._nodes[node].pid)
        self._nodes[node].pause()
        until_sync(
            lambda: process.status() == psutil.STATUS_STOPPED, what=f"broker {node} to freeze"
        )

    def thaw(self, node: int) -> None:
        self._nodes[node].resume()

    def stop(self) -> None:
        """For good. Safe to call twice."""
        for node in self.alive:
            self.kill(node)

    # Looks -----------------------------------------------------------------------------------

    async def view(self, node: int) -> View | None:
        """What this broker sees; None: it does not answer."""
        answer = await self._ask(self._ports[node], MetadataRequest(None))
        return answer and View(
            frozenset(broker for broker, *_ in answer.brokers),
            [
                Replicas(
                    topic, partition, None if leader < 0 else leader, frozenset(of), frozenset(up)
                )
                for _, topic, _, partitions in answer.topics
                for _, partition, leader, of, up, *_ in partitions
            ],
        )

    async def leader(self, topic: str, partition: int) -> int:
        """Which broker leads the partition; waits while none does, or one that was killed."""

        async def found() -> int | None:
            for node in self.alive:
                view = await self.view(node)
                for each in view.partitions if view else ():
                    place = (each.topic, each.partition)
                    if place == (topic, partition) and each.leader in self.alive:
                        return each.leader
            return None

        leader = await until(found, what=f"{topic}/{partition} to have a leader")
        assert leader is not None
        return leader

    async def controller(self) -> int:
        """Which broker is the active controller; waits while none is."""

        async def found() -> int | None:
            ports = [(node, self._controller_ports[node]) for node in self.alive]
            asked = _DESCRIBE_QUORUM([("__cluster_metadata", [(0, {})], {})])
            answers = await asyncio.gather(*(self._ask(port, asked) for _, port in ports))
            for (node, _), answer in zip(ports, answers, strict=True):
                if answer is not None and not answer.error_code:
                    ((_, ((_, error_code, leader, *_),), _),) = answer.topics
                    if not error_code and leader == node:
                        return node
            return None

        active = await until(found, what="a controller to be active")
        assert active is not None
        return active

    async def until_whole(self) -> None:
        """Wait until each broker sees, of each partition, a leader and all replicas in sync."""

        async def whole() -> bool:
            dead = [node for node in self.alive if self._nodes[node].failure()]
            assert not dead, tail(self.log_text(dead[0]), 40)
            views = await asyncio.gather(*map(self.view, NODES))
            return all(view is not None and view.whole for view in views)

        await until(whole, what="the cluster to be whole")

    async def _ask(self, port: int, request: Request[Any]) -> Any:
        """The answer of a broker, or of a controller; None: there is none in time."""
        try:
            conn = await create_conn("127.0.0.1", port, request_timeout_ms=int(ASK_S * 1000))
        except _NO_ANSWER:
            return None
        try:
            return await conn.send(request)
        except _NO_ANSWER:
            return None
        finally:
            conn.close()

    def _start(self, node: int) -> JavaNode:
        client, controller = self._ports[node], self._controller_ports[node]
        voters = (f"{n}@127.0.0.1:{port}" for n, port in self._controller_ports.items())
        own = {
            "node.id": str(node),
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": ",".join(voters),
        }
        return start_java(
            folder=self._folder / str(node),
            port=client,
            properties={**THREE_NODES, **self._properties, **own},
            storage=self._storage,
            heap_mb=HEAP_MB,
        )


@contextmanager
def three_brokers(
    *, properties: Mapping[str, str] | None = None, storage: Storage = STORAGE
) -> Iterator[ThreeBrokers]:
    """A cluster that is whole. Blocks, some ten seconds on two cores.

    Raises: CannotStart — Java or Maven is missing."""
    folder = Path(tempfile.mkdtemp(prefix="surefoot-cluster-"))
    shared = Storage(cluster_id=storage.cluster_id or new_cluster_id(), features=storage.features)
    cluster = ThreeBrokers(folder, properties or {}, shared)
    try:
        cluster.start(*NODES)
        with ThreadPoolExecutor(1) as thread:  # the caller's may run an event loop
            thread.submit(asyncio.run, cluster.until_whole()).result()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
