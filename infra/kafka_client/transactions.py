"""The requests of one transactional id. Each is sent once: its caller decides what to send again.

Two protocols. Where the cluster's `transaction.version` is 2 (KIP-890), each transaction has an
epoch of its own, and a request adds its partitions to the transaction by itself. Below it (KIP-98),
one epoch serves many transactions, and partitions are added first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    OperationNotAttempted,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from surefoot.infra.kafka_client.batches import CODECS
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.kafka_client.protocol import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    TRANSACTION_VERSION,
    TXN_OFFSET_COMMIT,
    error_of,
    feature_level,
)
from surefoot.infra.runtime.settings import Settings
from surefoot.state.ports.log import ProducerRecord

#: level of `transaction.version` from which each transaction has an epoch of its own
_EPOCH_BUMPS = 2
_TOO_OLD = "transactions need Kafka 2.8 or newer"
#: in ListOffsets
_LATEST, _READ_UNCOMMITTED = -1, 0


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """What the coordinator knows a producer by."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Membership:
    """A consumer group, and a member of it in one generation (KIP-447).

    A broker refuses the offsets of a member that the group has put out. Without a member, it takes
    offsets from anybody.
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None

    def follows(self, former: Membership) -> bool:
        """Whether this is the same member, in the generation after the former one's."""
        return (self.member_id, self.generation) == (former.member_id, former.generation + 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition, in order."""

    place: TopicPartition
    records: Sequence[ProducerRecord]
    #: the producer's sequence number of the first record
    sequence: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's offset of one partition: the next to read; None: never committed."""

    offset: int | None
    #: what was committed with it
    metadata: str


class TransactionClient:
    """Connections, coordinators and leaders for one transactional id. For one event loop."""

    def __init__(self, transactional_id: str, settings: Settings) -> None:
        self.transactional_id = transactional_id
        #: whether each transaction has an epoch of its own; known once started
        self.bumps_epochs = False
        self._settings = settings
        self._timeout_ms = settings.producer_request_timeout_ms
        self._client = AIOKafkaClient(
            **(settings.kafka() | {"client_id": transactional_id}),
            request_timeout_ms=self._timeout_ms,
        )
        with_failover(self)
        self._coordinators: dict[tuple[CoordinationType, str], int] = {}

    async def start(self) -> None:
        """Connect, and find out which protocol the cluster speaks.

        Raises: KafkaError. The caller closes the client then."""
        await self._client.bootstrap()
        node = self._client.get_random_node()
        told = await self._send(node, API_VERSIONS("surefoot", "1"))
        _raise(told.error_code)
        self.bumps_epochs = bumps = feature_level(told, TRANSACTION_VERSION) >= _EPOCH_BUMPS
        needed = (INIT_PRODUCER_ID, OFFSET_FETCH, PRODUCE[bumps], TXN_OFFSET_COMMIT[bumps])
        if not all(api.offered(told) for api in (*needed, END_TXN[bumps])):
            raise IncompatibleBrokerVersion(_TOO_OLD)

    async def stop(self) -> None:
        await self._client.close()

    async def refresh(self) -> None:
        """Forget coordinators and leaders, and ask for them again."""
        self._coordinators.clear()
        await self._client.force_metadata_update()

    async def topic_exists(self, topic: str) -> bool:
        """Whether a topic exists, and its leaders are known from now on.

        Raises: KafkaError — no broker says so. While none answers, aiokafka reports every topic as
        unknown."""
        client = self._client
        if client.cluster.partitions_for_topic(topic):
            return True
        try:
            await client._wait_on_metadata(topic)
        except UnknownTopicOrPartitionError as error:
            answer = await self._send(client.get_random_node(), MetadataRequest([topic]))
            codes = [told[0] for told in answer.topics if told[1] == topic]
            if codes in ([UnknownTopicOrPartitionError.errno], [InvalidTopicError.errno]):
                return False
            raise LeaderNotAvailableError(topic) from error
        return True

    async def init_producer(self) -> ProducerEpoch:
        """InitProducerId: a new epoch. A transaction open under an earlier one is decided first."""
        timeout_ms = self._settings.transaction_timeout_ms
        request = INIT_PRODUCER_ID(self.transactional_id, timeout_ms, -1, -1)
        told = await self._ask_coordinator(request)
        _raise(told.error_code, self.transactional_id)
        return ProducerEpoch(told.producer_id, told.producer_epoch)

    async def add_partitions(self, by: ProducerEpoch, places: Iterable[TopicPartition]) -> None:
        """AddPartitionsToTxn, for KIP-98."""
        topics = _by_topic(places, lambda place: place.partition)
        request = ADD_PARTITIONS_TO_TXN(self.transactional_id, by.producer_id, by.epoch, topics)
        _raise_any(await self._ask_coordinator(request))

    async def add_offsets(self, by: ProducerEpoch, group: str) -> None:
        """AddOffsetsToTxn, for KIP-98."""
        request = ADD_OFFSETS_TO_TXN(self.transactional_id, by.producer_id, by.epoch, group)
        told = await self._ask_coordinator(request)
        _raise(told.error_code, group)

    async def produce(
        self, by: ProducerEpoch, batches: Sequence[Batch]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Produce, one request to each leader; one batch of each partition at most.

        Returns: for each partition the offset of its first record, or what went wrong."""
        by_leader: dict[int, list[Batch]] = {}
        done: dict[TopicPartition, int | KafkaError] = {}
        for batch in batches:
            leader = self._client.cluster.leader_for_partition(batch.place)
            if leader is None or leader < 0:
                done[batch.place] = LeaderNotAvailableError(batch.place)
            else:
                by_leader.setdefault(leader, []).append(batch)
        answers = await asyncio.gather(
            *(self._produce_to(leader, by, some) for leader, some in by_leader.items())
        )
        for answer in answers:
            done |= answer
        return done

    async def _produce_to(
        self, leader: int, by: ProducerEpoch, batches: Sequence[Batch]
    ) -> dict[TopicPartition, int | KafkaError]:
        codec = CODECS.index(self._settings.compression)
        packed = {batch.place: record_batch(batch, by, codec) for batch in batches}
        topics = _by_topic(packed, lambda place: (place.partition, packed[place], {}))
        request = PRODUCE[self.bumps_epochs](self.transactional_id, -1, self._timeout_ms, topics)
        try:
            told = await self._send(leader, request)
        except KafkaError as error:
            return {batch.place: error for batch in batches}
        return {
            TopicPartition(topic, part[0]): error_of(part[1]) or part[2]
            for topic, some, _ in told.topics
            for part in some
        }

    async def commit_offsets(
        self, by: ProducerEpoch, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """TxnOffsetCommit, of offsets to read next; their metadata names the member."""
        request = TXN_OFFSET_COMMIT[self.bumps_epochs](
            self.transactional_id, member.group, by.producer_id, by.epoch, *_said(member, offsets)
        )
        _raise_any(await self._ask(CoordinationType.GROUP, member.group, request), member.group)

    async def name(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        """OffsetCommit, outside of transactions; the metadata of the offsets names the member."""
        request = OFFSET_COMMIT(member.group, *_said(member, offsets))
        _raise_any(await self._ask(CoordinationType.GROUP, member.group, request), member.group)

    async def end(self, by: ProducerEpoch, *, commit: bool) -> ProducerEpoch:
        """EndTxn. Returns the epoch of the next transaction."""
        ask = END_TXN[self.bumps_epochs]
        request = ask(self.transactional_id, by.producer_id, by.epoch, commit)
        told = await self._ask_coordinator(request)
        _raise(told.error_code)
        if not self.bumps_epochs:
            return by
        return ProducerEpoch(told.producer_id, told.producer_epoch)

    async def committed(
        self, group: str, places: Iterable[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """OffsetFetch.

        Raises: UnstableOffsetCommit — `stable`, and an open transaction has the offset of one."""
        topics = _by_topic(places, lambda place: place.partition)
        request = OFFSET_FETCH(group, topics, stable)
        told = await self._ask(CoordinationType.GROUP, group, request)
        _raise(told.error_code, group)
        found: dict[TopicPartition, CommittedOffset] = {}
        for topic, parts, _ in told.topics:
            for number, offset, _, metadata, code, _ in parts:
                _raise(code, group)
                known = offset if offset >= 0 else None
                found[TopicPartition(topic, number)] = CommittedOffset(known, metadata or "")
        return found

    async def high_watermark(self, place: TopicPartition) -> int:
        """ListOffsets: the end of the partition, whatever transactions are open.

        A leader that cannot know it yet says so (KIP-207), unlike in the response to a fetch."""
        leader = self._client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            raise LeaderNotAvailableError(place)
        request = OffsetRequest(
            -1, _READ_UNCOMMITTED, [(place.topic, [(place.partition, _LATEST)])]
        )
        told = await self._send(leader, request)
        ((_, code, _, offset, *_),) = told.topics[0][1]
        _raise(code, place.topic)
        end: int = offset
        return end

    async def _send(self, node: Any, request: Any, **how: Any) -> Any:
        try:
            return await self._client.send(node, request, **how)
        except KeyError as error:  # aiokafka looks for a connection that was replaced meanwhile
            raise KafkaConnectionError(f"the connection to broker {node} is gone") from error
        except NotImplementedError as error:  # the broker takes no version that is spoken here
            raise IncompatibleBrokerVersion(_TOO_OLD) from error

    async def _ask_coordinator(self, request: Any) -> Any:
        return await self._ask(CoordinationType.TRANSACTION, self.transactional_id, request)

    async def _ask(self, kind: CoordinationType, key: str, request: Any) -> Any:
        """Ask a coordinator, over a connection of its own: the leader's is busy with batches."""
        node = self._coordinators.get((kind, key))
        if node is None:
            if self._client.get_random_node() is None:
                raise NodeNotReadyError("no broker is known")
            try:
                node = await self._client.coordinator_lookup(kind, key)
            except KafkaError as error:
                error.args = error.args or (key,)  # what it is about
                raise
            self._coordinators[kind, key] = node
        group = ConnectionGroup.COORDINATION
        return await self._send(node, request, group=group)


def record_batch(batch: Batch, by: ProducerEpoch, codec: int) -> bytes:
    """Return the record batch as it is sent, in format 2. `codec` is a place in CODECS."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=by.producer_id,
        producer_epoch=by.epoch,
        base_sequence=batch.sequence,
        batch_size=2**31 - 1,
    )
    for number, out in enumerate(batch.records):
        builder.append(number, batch.timestamp_ms, out.key, out.value, list(out.headers))
    return bytes(builder.build())


def _said(member: Membership, offsets: Mapping[TopicPartition, int]) -> tuple[Any, ...]:
    """Return what every commit of offsets says: by whom, and which."""

    def part(place: TopicPartition) -> tuple[int, int, int, str, dict[int, bytes]]:
        return place.partition, offsets[place], -1, member.instance_id or "", {}

    return member.generation, member.member_id, member.instance_id, _by_topic(offsets, part)


def _by_topic(
    places: Iterable[TopicPartition], part: Callable[[TopicPartition], Any]
) -> list[tuple[str, list[Any], dict[int, bytes]]]:
    """Return the array of topics of a request, with `part` of each place."""
    topics: dict[str, list[Any]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(part(place))
    return [(topic, parts, {}) for topic, parts in topics.items()]


def _raise(code: int, *about: str) -> None:
    error = error_of(code)
    if error is not None:
        error.args = error.args or about
        raise error


def _raise_any(told: Any, *about: str) -> None:
    """Raise the first error of a response with one for each partition: if one is refused, the
    others are told that nothing was done for them."""
    wrong = [(topic, code) for topic, parts, _ in told.topics for _, code, _ in parts if code]
    told_why = [each for each in wrong if each[1] != OperationNotAttempted.errno]
    for topic, code in told_why or wrong:
        _raise(code, *(about or (topic,)))
