"""aiokafka's consumer and producer, as far as Surefoot's adapter uses them, against a SimBroker.

They behave as aiokafka 0.14 was read to behave: requests that time out are sent again by themselves
and nobody is told, EndTxn with the same epoch too; committed offsets are looked up without the
stable flag, before the assignment callback; every rebalance resets positions and pauses; a failed
batch does not fail the commit; stop() leaves a transaction open and a static member in its group.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, RequestTimedOutError
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest

from surefoot.infra.kafka.assignor import Claim
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from tests.simulation.broker import SimBroker
from tests.simulation.loop import PROCESS, Process, SimLoop

#: between two tries of a request, in seconds
_BACKOFF_S = 0.1
_POLL_S = 5.0
_REBALANCING, _UNKNOWN = 27, 25


@dataclass(slots=True)
class Weather:
    """How the network treats requests, by api: chances of each fate."""

    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    reset: float = 0.0


class Net:
    """Carries requests to the broker, in its own time."""

    def __init__(self, loop: SimLoop, broker: SimBroker, random: Random) -> None:
        self.loop = loop
        self.broker = broker
        self._random = random
        self.weather: dict[str, Weather] = {}
        self.calm = Weather()
        #: how often each fault bit
        self.bitten: dict[str, int] = {}
        #: told which process gets the answer to an EndTxn that has recorded something of a step
        self.on_journaled: Callable[[Process], None] | None = None
        self._world = contextvars.Context()

    async def call(self, api: str, work: Callable[[], Any], timeout_s: float) -> Any:
        """Have the broker do it. Raises what it raises, or RequestTimedOutError."""
        loop, random = self.loop, self._random
        weather = self.weather.get(api, self.calm)
        there_s, back_s = 0.001 + random.random() * 0.004, 0.001 + random.random() * 0.004
        if weather.slow and random.random() < weather.slow:
            there_s += random.random() * timeout_s * 0.8
            self.bite("slow")
        lost = bool(weather.lost) and random.random() < weather.lost
        answer_lost = bool(weather.answer_lost) and random.random() < weather.answer_lost
        if weather.late and random.random() < weather.late:
            there_s = timeout_s + random.random() * 3
            self.bite(f"late {api}")
        will_reset = bool(weather.reset) and random.random() < weather.reset
        if will_reset:
            there_s = random.choice((0.002, 0.05, 0.2, 0.5, 1.0, 3.0)) * random.random()
        answer: asyncio.Future[Any] = loop.create_future()
        process = PROCESS.get()

        journaled = False

        def arrive() -> None:
            nonlocal journaled
            try:
                result, error = work(), None
            except KafkaError as raised:
                result, error = None, raised
            journaled = api == "end" and self.broker.journaled
            if not answer_lost:
                loop.call_later(back_s, deliver, result, error, context=self._world)

        def deliver(result: Any, error: KafkaError | None) -> None:
            if answer.done():
                return
            if journaled and process is not None and self.on_journaled is not None:
                self.on_journaled(process)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def time_out() -> None:
            if not answer.done():
                answer.set_exception(RequestTimedOutError())

        if lost:
            self.bite(f"lost {api}")
        else:
            if answer_lost:
                self.bite(f"answer lost {api}")
            loop.call_later(there_s, arrive, context=self._world)
            if weather.twice and random.random() < weather.twice:
                self.bite(f"twice {api}")
                later_s = there_s + random.random() * 0.05
                loop.call_later(later_s, arrive, context=self._world)
        if will_reset:
            self.bite(f"reset {api}")
            # the socket broke after the request had left: it may arrive at any time, or has
            timeout_s = random.random() * 0.02
        timer = loop.call_later(timeout_s, time_out, context=self._world)
        try:
            return await answer
        finally:
            timer.cancel()

    def bite(self, what: str) -> None:
        self.bitten[what] = self.bitten.get(what, 0) + 1

    async def insist(self, api: str, work: Callable[[], Any], timeout_s: float) -> Any:
        """As `call`, again and again until there is an answer."""
        while True:
            try:
                return await self.call(api, work, timeout_s)
            except RequestTimedOutError:
                await asyncio.sleep(_BACKOFF_S)


#: of the life that is being lived
NET: Net


def use(net: Net) -> None:
    """The network that clients made from now on are on."""
    global NET  # noqa: PLW0603  (aiokafka's constructors take no network)
    NET = net


# Producing ----------------------------------------------------------------------------------


class Added(NamedTuple):
    size: int


class Written(NamedTuple):
    offset: int


class Batch:
    """A batch builder."""

    def __init__(self, limit: int) -> None:
        self.records: list[tuple[bytes | None, bytes | None, Any]] = []
        self._size, self._limit = 0, limit

    def append(
        self, *, key: bytes | None, value: bytes | None, headers: Any, **_: Any
    ) -> Added | None:
        size = len(key or b"") + len(value or b"") + 100
        if self.records and self._size + size > self._limit:
            return None
        self._size += size
        self.records.append((key, value, tuple(headers)))
        return Added(size)

    def close(self) -> None:
        """Nothing is packed."""

    def record_count(self) -> int:
        return len(self.records)


class _Cluster:
    def partitions_for_topic(self, topic: str) -> Any:
        return NET.broker.topics.get(topic)


class _Client:
    cluster = _Cluster()


class _Sender:
    sender_task = None

    def __init__(self, producer: SimProducer) -> None:
        self._producer = producer

    async def _do_txn_commit(self, _result: Any) -> None:
        """One EndTxn."""
        producer = self._producer
        name, epoch = producer._name, producer._epoch
        await NET.call(
            "end", lambda: NET.broker.end_txn(name, epoch, commit=True), producer._timeout_s
        )

    async def _do_txn_offset_commit(self, offsets: Mapping[Any, int], group: str) -> None:
        """One TxnOffsetCommit."""
        producer = self._producer
        name, epoch = producer._name, producer._epoch
        await NET.call(
            "offsets",
            lambda: NET.broker.add_offsets(name, epoch, group, offsets),
            producer._timeout_s,
        )


class SimProducer:
    """AIOKafkaProducer with a transactional id."""

    def __init__(
        self,
        *,
        transactional_id: str,
        transaction_timeout_ms: int,
        request_timeout_ms: int,
        max_batch_size: int,
        **_: Any,
    ) -> None:
        self._name = transactional_id
        self._transaction_s = transaction_timeout_ms / 1000
        self._timeout_s = request_timeout_ms / 1000
        self._limit = max_batch_size
        self._epoch = -1
        self._batches = 0
        self._in_transaction = False
        self._sending: set[asyncio.Task[None]] = set()
        self.client = _Client()
        self._sender = _Sender(self)
        #: offsets do not go through it here
        self._txn_manager = SimpleNamespace(add_offsets_to_txn=None)

    async def start(self) -> None:
        broker, name, timeout_s = NET.broker, self._name, self._transaction_s
        self._epoch = await NET.insist(
            "init", lambda: broker.init_producer(name, timeout_s), self._timeout_s
        )

    async def stop(self) -> None:
        for task in list(self._sending):
            task.cancel()

    def create_batch(self) -> Batch:
        return Batch(self._limit)

    async def begin_transaction(self) -> None:
        assert not self._in_transaction
        self._in_transaction = True

    async def send_batch(
        self, batch: Batch, topic: str, *, partition: int
    ) -> asyncio.Future[Written]:
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._batches += 1
        task = asyncio.create_task(self._send(batch, topic, partition, self._batches, written))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return written

    async def _send(
        self,
        batch: Batch,
        topic: str,
        partition: int,
        number: int,
        written: asyncio.Future[Written],
    ) -> None:
        broker, name, epoch = NET.broker, self._name, self._epoch
        outs = [ProducerRecord(topic, partition, *record) for record in batch.records]
        try:
            firsts = await NET.insist(
                "produce", lambda: broker.produce(name, epoch, number, outs), self._timeout_s
            )
        except KafkaError as error:
            if not written.done():
                written.set_exception(error)
        else:
            if not written.done():
                written.set_result(Written(firsts[topic, partition]))

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group: str
    ) -> None:
        places = {(tp.topic, tp.partition): offset for tp, offset in offsets.items()}
        while True:
            try:
                return await self._sender._do_txn_offset_commit(places, group)
            except RequestTimedOutError:
                await asyncio.sleep(_BACKOFF_S)

    async def commit_transaction(self) -> None:
        while True:
            try:
                await self._sender._do_txn_commit(None)
                break
            except RequestTimedOutError:
                await asyncio.sleep(_BACKOFF_S)
        self._in_transaction = False


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

    async def _send_req(self, request: Any) -> _Answer:
        consumer = self._consumer
        match request:
            case HeartbeatRequest():
                return _Answer(await NET.call("heartbeat", consumer._heard, consumer._timeout_s))
            case SyncGroupRequest():
                return _Answer(await NET.call("sync", consumer._heard, consumer._timeout_s))
            case LeaveGroupRequest():
                await NET.call("leave", consumer._left, consumer._timeout_s)
                return _Answer(0)
        raise NotImplementedError(request)

    async def fetch_committed_offsets(
        self, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, _Committed]:
        consumer, wanted = self._consumer, list(tps)

        def look() -> dict[TopicPartition, _Committed]:
            found = {}
            for tp in wanted:
                offset = NET.broker.committed(consumer._group_id, (tp.topic, tp.partition))
                if offset is not None:
                    found[tp] = _Committed(offset)
            return found

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
        self._member = 0
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

    def _heard(self) -> int:
        group = NET.broker.groups[self._group_id]
        member = group.members.get(self._instance)
        if member is None or member.id != self._member:
            return _UNKNOWN
        member.seen_s = NET.loop.time()
        return _REBALANCING if group.rebalancing_until_s is not None else 0

    def _left(self) -> None:
        group = NET.broker.groups[self._group_id]
        NET.broker.leave(group, self._instance, self._member, self._rebalance_s)

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
        broker = NET.broker
        group = broker.group(self._group_id, len(broker.topics[self._topics[0]]))
        while True:
            self._rejoin.clear()
            self._member = await NET.insist(
                "join",
                lambda: broker.join(group, self._instance, self, self._rebalance_s),
                self._timeout_s,
            )
            while group.rebalancing_until_s is not None and self._heard() != _UNKNOWN:
                self._news.clear()
                left_s = group.rebalancing_until_s - NET.loop.time()
                try:
                    async with asyncio.timeout(max(0.01, left_s)):
                        await self._news.wait()
                except TimeoutError:
                    broker.settle(group)
            generation = group.generation
            member = group.members.get(self._instance)
            if member is None or member.id != self._member:
                await asyncio.sleep(_BACKOFF_S)
                continue
            mine = member.partitions
            try:
                answer = await self._coordinator._send_req(_SYNC)
            except RequestTimedOutError:
                continue
            if not answer.error_code:
                break
            await asyncio.sleep(_BACKOFF_S)
        self._coordinator.generation = generation
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
