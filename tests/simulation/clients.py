"""The clients of Kafka, as far as Surefoot's adapter uses them, against a SimBroker.

The consumer behaves as aiokafka 0.14 was read to behave: requests that time out are sent again by
themselves and nobody is told; committed offsets are looked up without the stable flag, before the
assignment callback; every rebalance resets positions and pauses; stop() leaves a static member in
its group. The client of transactions sends each request once, as our own does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, RequestTimedOutError
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest

from surefoot.infra.kafka.assignor import Claim
from surefoot.infra.kafka_client.transactions import (
    Batch,
    CommittedOffset,
    Membership,
    ProducerEpoch,
)
from surefoot.infra.runtime.settings import Settings
from surefoot.state.ports.log import ConsumerRecord
from tests.simulation.groups import Group
from tests.simulation.net import BACKOFF_S, Net

_POLL_S = 5.0
#: error codes of the group coordinator
_ILLEGAL_GENERATION, _UNKNOWN, _REBALANCING = 22, 25, 27
#: brokers among which the partitions are shared out
_LEADERS = 2

#: of the life that is being lived
NET: Net


def use(net: Net) -> None:
    """The network that clients made from now on are on."""
    global NET  # noqa: PLW0603  (the clients' constructors take no network)
    NET = net


# Producing ----------------------------------------------------------------------------------


class SimTransactionClient:
    """TransactionClient: each method sends one request to each broker that it concerns."""

    def __init__(self, transactional_id: str, settings: Settings) -> None:
        self.transactional_id = transactional_id
        self.bumps_epochs = False
        self._timeout_s = settings.producer_request_timeout_ms / 1000
        self._transaction_s = settings.transaction_timeout_ms / 1000

    async def start(self) -> None:
        await self._ask("metadata", lambda: None)
        self.bumps_epochs = NET.broker.bumps_epochs

    async def stop(self) -> None:
        """There are no connections."""

    async def refresh(self) -> None:
        """Every broker stays where it is."""

    async def topic_exists(self, topic: str) -> bool:
        return topic in NET.broker.topics

    async def init_producer(self) -> ProducerEpoch:
        broker, name = NET.broker, self.transactional_id
        begun: ProducerEpoch = await self._ask(
            "init", partial(broker.init_producer, name, self._transaction_s)
        )
        return begun

    async def add_partitions(self, by: ProducerEpoch, places: Iterable[TopicPartition]) -> None:
        broker, name = NET.broker, self.transactional_id
        await self._ask("add", partial(broker.add_partitions, name, by, list(places)))

    async def add_offsets(self, by: ProducerEpoch, group: str) -> None:
        broker, name = NET.broker, self.transactional_id
        await self._ask("add", partial(broker.add_offsets, name, by, group))

    async def produce(
        self, by: ProducerEpoch, batches: Sequence[Batch]
    ) -> dict[TopicPartition, int | KafkaError]:
        by_leader: dict[int, list[Batch]] = {}
        for batch in batches:
            leader = (len(batch.place.topic) + batch.place.partition) % _LEADERS
            by_leader.setdefault(leader, []).append(batch)
        answers = await asyncio.gather(*(self._produce_to(by, b) for b in by_leader.values()))
        return {place: told for answer in answers for place, told in answer.items()}

    async def _produce_to(
        self, by: ProducerEpoch, batches: Sequence[Batch]
    ) -> dict[TopicPartition, int | KafkaError]:
        broker, name = NET.broker, self.transactional_id
        try:
            done: dict[TopicPartition, int | KafkaError] = await self._ask(
                "produce", partial(broker.produce, name, by, batches)
            )
        except KafkaError as error:
            return {batch.place: error for batch in batches}
        return done

    async def commit_offsets(
        self, by: ProducerEpoch, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> None:
        broker, name = NET.broker, self.transactional_id
        await self._ask("offsets", partial(broker.commit_offsets, name, by, member, dict(offsets)))

    async def name(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        await self._ask("name", partial(NET.broker.name_member, member, dict(offsets)))

    async def end(self, by: ProducerEpoch, *, commit: bool) -> ProducerEpoch:
        broker, name = NET.broker, self.transactional_id
        ended: ProducerEpoch = await self._ask(
            "end", partial(broker.end_txn, name, by, commit=commit)
        )
        return ended

    async def committed(
        self, group: str, places: Iterable[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = list(places)
        found: dict[TopicPartition, CommittedOffset] = await self._ask(
            "fetch offsets",
            lambda: NET.broker.groups.by_name[group].fetch(wanted, stable=stable),
        )
        return found

    async def high_watermark(self, place: TopicPartition) -> int:
        end: int = await self._ask("ends", lambda: NET.broker.partition(place).end)
        return end

    async def _ask(self, api: str, work: Callable[[], Any]) -> Any:
        return await NET.call(api, work, self._timeout_s)


# Consuming ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Answer:
    error_code: int


class _Committed(NamedTuple):
    offset: int


class _Position(NamedTuple):
    position: int
    has_valid_position: bool


class _Coordinator:
    """The part of aiokafka's group coordinator that the adapter looks into."""

    def __init__(self, consumer: SimConsumer) -> None:
        self._consumer = consumer
        self.group_id = consumer._group_id
        self.generation = -1
        self.member_id = ""

    def request_rejoin(self) -> None:
        self._consumer._rejoin.set()

    async def _send_req(self, request: Any) -> _Answer:
        consumer = self._consumer
        match request:
            case HeartbeatRequest():
                heard = partial(consumer._heard, self.generation)
                return _Answer(await NET.call("heartbeat", heard, consumer._timeout_s))
            case SyncGroupRequest():
                heard = partial(consumer._heard, self.generation)
                return _Answer(await NET.call("sync", heard, consumer._timeout_s))
            case LeaveGroupRequest():
                await NET.call("leave", consumer._left, consumer._timeout_s)
                return _Answer(0)
        raise NotImplementedError(request)

    async def fetch_committed_offsets(
        self, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, _Committed]:
        consumer, wanted = self._consumer, list(tps)

        def look() -> dict[TopicPartition, _Committed]:
            found = consumer._group.fetch(wanted, stable=False)
            return {tp: _Committed(at.offset) for tp, at in found.items() if at.offset is not None}

        found: dict[TopicPartition, _Committed] = await NET.insist(
            "fetch offsets", look, consumer._timeout_s
        )
        return found


class _Assignment:
    def __init__(self, consumer: SimConsumer) -> None:
        self._consumer = consumer
        self.subscription = self
        self.assignment = self

    def state_value(self, tp: TopicPartition) -> _Position:
        position = self._consumer._positions.get(tp)
        return _Position(position or 0, position is not None)


_HEARTBEAT = HeartbeatRequest("", 0, "")
_SYNC = SyncGroupRequest("", 0, "", None, [])


class SimConsumer:
    """AIOKafkaConsumer, in a group or on its own."""

    def __init__(
        self,
        *,
        isolation_level: str,
        group_id: str = "",
        group_instance_id: str = "",
        heartbeat_interval_ms: int = 0,
        rebalance_timeout_ms: int = 0,
        partition_assignment_strategy: tuple[Any, ...] = (None,),
        **_: Any,
    ) -> None:
        self._committed = isolation_level == "read_committed"
        self._group_id = group_id
        self._instance = group_instance_id
        self._heartbeat_s = heartbeat_interval_ms / 1000
        self._rebalance_s = rebalance_timeout_ms / 1000
        self._timeout_s = 5.0
        self._assignor = partition_assignment_strategy[0]
        self._member = ""
        self._listener: Any = None
        self._topics: list[str] = []
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._high: dict[TopicPartition, int] = {}
        self._stable: dict[TopicPartition, int] = {}
        self._news = asyncio.Event()
        self._rejoin = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._coordinator = _Coordinator(self)
        self._subscription = _Assignment(self)

    @property
    def claim(self) -> Claim:
        owned: Claim = self._assignor.owned
        return owned

    async def start(self) -> None:
        NET.broker.wake[self._news] = None
        await NET.insist("metadata", lambda: None, self._timeout_s)

    async def stop(self) -> None:
        NET.broker.wake.pop(self._news, None)
        for task in self._tasks:
            task.cancel()

    def subscribe(self, topics: list[str], *, listener: Any) -> None:
        self._topics, self._listener = topics, listener
        self._tasks = [asyncio.create_task(self._coordinate()), asyncio.create_task(self._beat())]

    # The group -------------------------------------------------------------------------------

    @property
    def _group(self) -> Group:
        groups = NET.broker.groups
        return groups.group(self._group_id, len(NET.broker.topics[self._topics[0]]))

    def _knows(self, group: Group) -> bool:
        """Whether the group has this member."""
        member = group.members.get(self._instance)
        return member is not None and member.id == self._member

    def _has_joined(self, group: Group) -> bool:
        """Whether the member is part of the rebalance that is under way, or was the last."""
        return self._knows(group) and group.members[self._instance].joined

    def _heard(self, generation: int) -> int:
        group = self._group
        if not self._knows(group):
            return _UNKNOWN
        if generation != group.generation:
            return _ILLEGAL_GENERATION
        group.members[self._instance].seen_s = NET.loop.time()
        return _REBALANCING if group.rebalancing_until_s is not None else 0

    def _left(self) -> None:
        NET.broker.groups.leave(self._group, self._instance, self._member, self._rebalance_s)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if not self._member:
                continue
            generation = self._coordinator.generation
            try:
                answer = await self._coordinator._send_req(_HEARTBEAT)
            except RequestTimedOutError:
                continue
            if answer.error_code and generation == self._coordinator.generation:
                self._rejoin.set()

    async def _coordinate(self) -> None:
        while True:
            await self._join()
            await self._rejoin.wait()

    async def _join(self) -> None:
        await self._listener.on_partitions_revoked(set(self._positions))
        groups, group = NET.broker.groups, self._group
        while True:
            self._rejoin.clear()
            self._member = self._coordinator.member_id = await NET.insist(
                "join",
                lambda: groups.join(group, self._instance, self, self._rebalance_s),
                self._timeout_s,
            )
            while group.rebalancing_until_s is not None and self._has_joined(group):
                self._news.clear()
                left_s = group.rebalancing_until_s - NET.loop.time()
                try:
                    async with asyncio.timeout(max(0.01, left_s)):
                        await self._news.wait()
                except TimeoutError:
                    groups.settle(group)
            if not self._has_joined(group):
                await asyncio.sleep(BACKOFF_S)
                continue
            self._coordinator.generation = group.generation
            mine = group.members[self._instance].partitions
            try:
                answer = await self._coordinator._send_req(_SYNC)
            except RequestTimedOutError:
                continue
            if not answer.error_code:
                break
            await asyncio.sleep(BACKOFF_S)
        self._rejoin.clear()
        tps = {TopicPartition(topic, number) for topic in self._topics for number in sorted(mine)}
        ordered = sorted(tps)
        found = await self._coordinator.fetch_committed_offsets(ordered)
        self._positions = {tp: found[tp].offset if tp in found else 0 for tp in ordered}
        self._paused.clear()
        self._listener.on_partitions_assigned(tps)

    # Reading ---------------------------------------------------------------------------------

    def assign(self, tps: list[TopicPartition]) -> None:
        self._positions = dict.fromkeys(tps, 0)
        self._paused.clear()

    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def paused(self) -> set[TopicPartition]:
        return self._paused

    def pause(self, *tps: TopicPartition) -> None:
        self._paused.update(tps)

    def resume(self, *tps: TopicPartition) -> None:
        self._paused.difference_update(tps)
        self._news.set()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._positions[tp] = offset

    async def position(self, tp: TopicPartition) -> int:
        return self._positions[tp]

    def highwater(self, tp: TopicPartition) -> int | None:
        return self._high.get(tp)

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        return self._stable.get(tp)

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(tps)

        def look() -> dict[TopicPartition, int]:
            return {tp: NET.broker.partition((tp.topic, tp.partition)).start for tp in wanted}

        found: dict[TopicPartition, int] = await NET.insist("begins", look, self._timeout_s)
        return found

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        found = self._fetch(tps)
        if not found:
            self._news.clear()
            # What comes wakes it: a member of a group need not look as often as a real one.
            wait_s = max(timeout_ms / 1000, _POLL_S if self._listener is not None else 0.0)
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                return self._fetch(tps)
            await asyncio.sleep(0.002)
            found = self._fetch(tps)
        return found

    def _fetch(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, list[ConsumerRecord]]:
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for tp, position in self._positions.items():
            if tp in self._paused or (tps and tp not in tps):
                continue
            place = (tp.topic, tp.partition)
            log = NET.broker.partition(place)
            end = log.end
            stable = log.stable_end if log._open else end
            self._high[tp], self._stable[tp] = end, stable
            if position >= (stable if self._committed else end):
                continue
            records, after = NET.broker.read(place, position, 100, committed=self._committed)
            self._positions[tp] = after
            if records:
                found[tp] = [_Record(record) for record in records]  # type: ignore[misc]
        return found


class _Record:
    """As aiokafka's ConsumerRecord."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "topic", "value")

    def __init__(self, record: ConsumerRecord) -> None:
        self.topic, self.partition, self.offset = record.topic, record.partition, record.offset
        self.timestamp, self.key, self.value = record.timestamp_ms, record.key, record.value
        self.headers = record.headers
