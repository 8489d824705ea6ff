"""What every implementation of the Log port must keep to; each adapter runs the whole suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidTxnState, KafkaConnectionError, PolicyViolationError
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest

from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.file import EmbeddedFile
from surefoot.infra.embedded.log import (
    EmbeddedBroker,
    EmbeddedGroup,
    EmbeddedLog,
    EmbeddedOwnership,
)
from surefoot.infra.embedded.memory import MemoryBroker
from surefoot.infra.encryption.backend import EncryptedLog
from surefoot.infra.encryption.cipher import DataKey
from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.encryption.keyring import Keyring
from surefoot.infra.kafka.log import KafkaLog, KafkaOwnership
from surefoot.infra.runtime.clock import SystemClock
from surefoot.schemas.codec.payload_fields import is_sealed
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import FencedError, NoSuchTopic, OutcomeUnknown, RecordTooLarge
from surefoot.state.names.topics import AgentTopics, agent_specs
from surefoot.state.ports.log import (
    Assignment,
    Committed,
    ConsumerRecord,
    InputGone,
    InputKind,
    Log,
    Ownership,
    ProducerRecord,
)
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT, PATIENT_WITHOUT_A_TOPIC

PARTITIONS = 2
RECORD_MAX_BYTES = 20_000
SESSION_S = PATIENT["session_timeout_ms"] / 1000


class SkippingClock(SystemClock):
    """Runs ahead by as much as a test says."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@dataclass(slots=True)
class Held:
    """Something that stops at a point, and goes on when it is let."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


class Adapter(Protocol):
    """One implementation, and what a test has to do to it from outside."""

    topics: AgentTopics
    #: offsets that the end of a transaction takes in each partition
    marker: int

    def log(self, slot: int, clock: SystemClock) -> Log: ...
    async def write(self, out: ProducerRecord) -> int:
        """Append one record that is not part of a transaction. Returns its offset."""

    async def begin(self, outs: Sequence[ProducerRecord]) -> Callable[[], Awaitable[None]]:
        """Append records in a transaction of somebody else. Returns what aborts it."""

    async def visible(self, topic: str) -> list[bytes | None]:
        """Committed values of a topic."""

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """As retention does; -1 deletes everything."""

    def lose_answer(self, ownership: Ownership) -> None:
        """The next commit is made, and what answers it is lost."""

    def hold_commit(self, ownership: Ownership) -> Held:
        """The next commit writes everything and stops just before its end."""

    def send_commit(self, ownership: Ownership) -> asyncio.Event:
        """The event is set once the end of the next commit is on its way."""

    def hold_rebalance(self, log: Log) -> asyncio.Event:
        """The member does not finish its next rebalance until the event is set."""

    async def put_out(self, log: Log, *, by: Log) -> None:
        """The group gives the member's partitions to `by`, and the member does not hear of it."""


class KafkaAdapter:
    marker = 1

    def __init__(self, kafka: Cluster, agent: str) -> None:
        self.topics = kafka.topics(agent)
        self._kafka = kafka

    def log(self, slot: int, clock: SystemClock) -> KafkaLog:
        return KafkaLog(
            topics=self.topics,
            partitions=PARTITIONS,
            settings=self._kafka.settings,
            clock=clock,
            slot=slot,
        )

    async def write(self, out: ProducerRecord) -> int:
        return await self._kafka.send(out)

    async def begin(self, outs: Sequence[ProducerRecord]) -> Callable[[], Awaitable[None]]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._kafka.settings.bootstrap_servers,
            transactional_id=f"{self.topics.group}.stranger",
        )
        await producer.start()
        await producer.begin_transaction()
        for out in outs:
            await producer.send_and_wait(out.topic, out.value, out.key, out.partition)

        async def abort() -> None:
            await producer.abort_transaction()
            await producer.stop()

        return abort

    async def visible(self, topic: str) -> list[bytes | None]:
        return [record.value for record in await self._kafka.read(topic)]

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        if topic == self.topics.state:  # a topic that is only compacted cannot be cut off
            admin = AIOKafkaAdminClient(bootstrap_servers=self._kafka.settings.bootstrap_servers)
            await admin.start()
            policy = {"cleanup.policy": "compact,delete"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, policy)])
            await admin.close()

        async def deleted() -> bool:
            try:
                await self._kafka.delete_before(topic, partition, offset)
            except PolicyViolationError:  # the new policy has not reached the log yet
                return False
            return True

        await until(deleted, what="the records to be deleted")

    def lose_answer(self, ownership: Ownership) -> None:
        async def lose(send: Callable[[], Awaitable[Any]]) -> Any:
            await send()
            raise InvalidTxnState  # what a client is told that asks too late

        self._on_end(ownership, lose)

    def hold_commit(self, ownership: Ownership) -> Held:
        held = Held()

        async def hold(send: Callable[[], Awaitable[Any]]) -> Any:
            held.reached.set()
            await held.go_on.wait()
            return await send()

        self._on_end(ownership, hold)
        return held

    def send_commit(self, ownership: Ownership) -> asyncio.Event:
        sent = asyncio.Event()

        async def send_only(send: Callable[[], Awaitable[Any]]) -> Any:
            answer = asyncio.ensure_future(send())
            await asyncio.sleep(0)  # it is in the socket's buffer now
            sent.set()
            return await answer

        self._on_end(ownership, send_only)
        return sent

    def _on_end(
        self, ownership: Ownership, do: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    ) -> None:
        assert isinstance(ownership, KafkaOwnership)
        clients: list[Any] = [each._client for each in ownership._log._shared._producers]
        reals = [client.end for client in clients]

        def through(real: Callable[..., Any]) -> Callable[..., Any]:
            async def ending(*args: Any, **kw: Any) -> Any:
                for client, end in zip(clients, reals, strict=True):
                    client.end = end
                return await do(lambda: real(*args, **kw))

            return ending

        for client, real in zip(clients, reals, strict=True):
            client.end = through(real)

    def hold_rebalance(self, log: Log) -> asyncio.Event:
        assert isinstance(log, KafkaLog)
        go_on = asyncio.Event()
        coordinator = log._live._coordinator
        real = coordinator._send_req

        async def sending(request: Any) -> Any:
            if isinstance(request, JoinGroupRequest):
                await go_on.wait()
            return await real(request)

        coordinator._send_req = sending
        return go_on

    async def put_out(self, log: Log, *, by: Log) -> None:
        assert isinstance(log, KafkaLog)
        assert isinstance(by, KafkaLog)
        coordinator = log._live._coordinator
        request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)

        async def hear_nothing(request: Any) -> Any:
            if isinstance(request, LeaveGroupRequest):  # as the test ends
                raise KafkaConnectionError
            await asyncio.get_running_loop().create_future()

        coordinator._send_req = hear_nothing
        await by._live._coordinator._send_req(request)


@asynccontextmanager
async def kafka_adapter(
    bootstrap: str, app: str, agent_name: str, timeouts: Mapping[str, int]
) -> AsyncIterator[Adapter]:
    async with cluster(
        bootstrap,
        app,
        Agent(agent_name),
        partitions=PARTITIONS,
        record_max_bytes=RECORD_MAX_BYTES,
        **timeouts,
    ) as kafka:
        yield KafkaAdapter(kafka, agent_name)


class EmbeddedAdapter:
    """What is the same wherever the records are kept."""

    _broker: EmbeddedBroker

    def __init__(self, app: str, agent: str) -> None:
        self.topics = AgentTopics(app, agent)
        self._broker.create(agent_specs(app, agent, PARTITIONS, RECORD_MAX_BYTES))
        self._group = EmbeddedGroup(PARTITIONS)

    def log(self, slot: int, clock: SystemClock) -> Log:
        del clock
        return EmbeddedLog(broker=self._broker, group=self._group, topics=self.topics, slot=slot)

    async def write(self, out: ProducerRecord) -> int:
        (offset,) = await self._broker.append([out])
        return offset

    async def visible(self, topic: str) -> list[bytes | None]:
        places = [(topic, number) for number in range(PARTITIONS)]
        return [r.value for place in places for r in self._broker.read(place, 0, 1_000)[0]]

    def lose_answer(self, ownership: Ownership) -> None:
        async def lose() -> None:
            raise OutcomeUnknown("lost")

        assert isinstance(ownership, EmbeddedOwnership)
        ownership._answer = lose  # type: ignore[method-assign]

    def hold_commit(self, ownership: Ownership) -> Held:
        held = Held()

        async def hold() -> None:
            held.reached.set()
            await held.go_on.wait()

        assert isinstance(ownership, EmbeddedOwnership)
        ownership._end = hold  # type: ignore[method-assign]
        return held

    def send_commit(self, ownership: Ownership) -> asyncio.Event:
        sent = asyncio.Event()

        async def send_only() -> None:
            sent.set()
            await asyncio.sleep(0)

        assert isinstance(ownership, EmbeddedOwnership)
        ownership._end = send_only  # type: ignore[method-assign]
        return sent

    def hold_rebalance(self, log: Log) -> asyncio.Event:
        go_on = asyncio.Event()

        async def rejoin() -> None:
            await go_on.wait()

        assert isinstance(log, EmbeddedLog)
        log._rejoin = rejoin  # type: ignore[method-assign]
        return go_on

    async def put_out(self, log: Log, *, by: Log) -> None:
        del by
        assert isinstance(log, EmbeddedLog)
        self._group.leave(log._instance)


class MemoryAdapter(EmbeddedAdapter):
    marker = 1

    def __init__(self, app: str, agent: str) -> None:
        self._broker: MemoryBroker = MemoryBroker(SystemClock())
        super().__init__(app, agent)

    async def begin(self, outs: Sequence[ProducerRecord]) -> Callable[[], Awaitable[None]]:
        stranger = f"{self.topics.group}.stranger"
        transaction = self._broker.begin(stranger, await self._broker.take(stranger), outs)

        async def abort() -> None:
            self._broker.abort(transaction)

        return abort

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        log = self._broker.partition(topic, partition)
        log.delete_before(log.end if offset == -1 else offset)


class EncryptedAdapter(MemoryAdapter):
    """Behind the encryption of payloads; what strangers write is encrypted, too."""

    def __init__(self, app: str, agent: str) -> None:
        super().__init__(app, agent)
        self._envelope = Envelope(app, Keyring({"k1": DataKey(b"1" * 32)}))

    def log(self, slot: int, clock: SystemClock) -> Log:
        return EncryptedLog(super().log(slot, clock), self._envelope)

    async def write(self, out: ProducerRecord) -> int:
        return await super().write(self._envelope.seal(out))

    async def begin(self, outs: Sequence[ProducerRecord]) -> Callable[[], Awaitable[None]]:
        return await super().begin([self._envelope.seal(out) for out in outs])

    async def visible(self, topic: str) -> list[bytes | None]:
        places = [(topic, number) for number in range(PARTITIONS)]
        found = [record for place in places for record in self._broker.read(place, 0, 1_000)[0]]
        assert all(record.value is None or is_sealed(record.value) for record in found)
        return [self._envelope.open(record).value for record in found]

    def lose_answer(self, ownership: Ownership) -> None:
        super().lose_answer(inner(ownership))

    def hold_commit(self, ownership: Ownership) -> Held:
        return super().hold_commit(inner(ownership))

    def send_commit(self, ownership: Ownership) -> asyncio.Event:
        return super().send_commit(inner(ownership))

    def hold_rebalance(self, log: Log) -> asyncio.Event:
        return super().hold_rebalance(inner(log))

    async def put_out(self, log: Log, *, by: Log) -> None:
        await super().put_out(inner(log), by=by)


def inner(wrapper: Any) -> Any:
    """What the encryption wraps."""
    return wrapper._inner


class SqliteAdapter(EmbeddedAdapter):
    """Has no markers and no aborted records: what is not committed is not in the file."""

    marker = 0

    def __init__(self, broker: SqliteBroker, app: str, agent: str) -> None:
        self._broker: SqliteBroker = broker
        super().__init__(app, agent)

    async def begin(self, outs: Sequence[ProducerRecord]) -> Callable[[], Awaitable[None]]:
        stranger = f"{self.topics.group}.stranger"
        self._broker.begin(stranger, await self._broker.take(stranger), outs)

        async def abort() -> None:
            """Nothing of it is in the file."""

        return abort

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        place = (topic, partition)
        begin = self._broker.end_offset(place) if offset == -1 else offset

        def delete(file: EmbeddedFile) -> None:
            file.delete(place, range(begin), begin=begin)

        await self._broker.maintain(delete)


@dataclass(slots=True)
class Member:
    """A log that is polled, and what it said."""

    log: Log
    clock: SkippingClock
    changes: list[Assignment] = field(default_factory=list)
    #: the lease as each change was told, in seconds
    leases_s: list[float] = field(default_factory=list)
    read: list[tuple[InputKind, ConsumerRecord]] = field(default_factory=list)
    gone: list[InputGone] = field(default_factory=list)
    owned: list[Ownership] = field(default_factory=list)
    polling: asyncio.Task[None] | None = None
    #: what a rebalance waits for, and how often it did
    may_move: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    def __post_init__(self) -> None:
        self.may_move.set()

    async def rebalancing(self) -> None:
        self.asked += 1
        await self.may_move.wait()

    def changed(self, change: Assignment) -> None:
        self.changes.append(change)
        self.leases_s.append(self.log.lease_left_s())

    async def join(self) -> None:
        await self.log.start(self.changed, self.rebalancing)
        self.polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            try:
                self.read += await self.log.poll(0.1)
            except InputGone as gone:
                self.gone.append(gone)

    def has(self, partition: int) -> bool:
        """Whether the partition is assigned to it."""
        mine: frozenset[int] = frozenset()
        for change in self.changes:
            mine = (mine | change.gained) - change.lost
        return partition in mine

    async def own(self, partition: int) -> Ownership:
        await until(lambda: self.has(partition), what=f"partition {partition} to be assigned")
        ownership = await self.log.own(partition)
        self.owned.append(ownership)
        return ownership

    def values(self, partition: int, kind: InputKind = "commands") -> list[bytes | None]:
        return [r.value for k, r in self.read if (k, r.partition) == (kind, partition)]

    async def until_changes(self, count: int) -> Assignment:
        await until(lambda: len(self.changes) >= count, what=f"change {count} of the assignment")
        assert len(self.changes) == count
        return self.changes[-1]

    async def until_read(self, partition: int, *values: bytes) -> None:
        await until(
            lambda: len(self.values(partition)) >= len(values),
            what=f"{len(values)} records of partition {partition}",
        )
        assert self.values(partition) == [*values]

    async def close(self) -> None:
        if self.polling is not None:
            self.polling.cancel()
            await asyncio.gather(self.polling, return_exceptions=True)
        for ownership in self.owned:
            await ownership.close()
        await self.log.stop(leave=True)


class Group:
    """The members of one test, closed at its end."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._members: list[Member] = []

    async def join(self) -> Member:
        return await self.join_again(len(self._members))

    async def join_again(self, slot: int) -> Member:
        """Join as the process of that slot, which may have joined before."""
        clock = SkippingClock()
        member = Member(self._adapter.log(slot, clock), clock)
        self._members.append(member)
        await member.join()
        return member

    async def of_two(self) -> tuple[Member, Member]:
        """Members that have a partition each: the first has 0, and the second 1."""
        first = await self.join()
        await first.until_changes(1)
        second = await self.join()
        await until(lambda: first.changes[1:] and second.changes, what="a partition for each")
        return first, second

    async def close(self) -> None:
        for member in self._members:
            await member.close()


#: what cannot be said of an embedded log, by the test that says it of Kafka
NOT_EMBEDDED = {
    "test_the_lease_is_shorter_than_the_session_and_renewed_by_proof": (
        "a member in one process with its group's coordinator looks at it: a lease needs no proof, "
        "and there are no other machines to rebalance with"
    ),
}
#: and of one that is kept in a file, where nobody sees a transaction before it is committed
NOT_IN_A_FILE = dict.fromkeys(
    (
        "test_the_position_of_an_input_read_to_its_end_steps_over_what_cannot_be_read",
        "test_nothing_is_read_beyond_a_transaction_that_is_still_open",
        "test_restoring_waits_for_a_transaction_that_is_still_open",
    ),
    "no transaction is in the file before it is committed: there is nothing to step over",
)
#: what names a topic that there is not
WITHOUT_A_TOPIC = {"test_a_record_for_a_topic_that_is_not_there_leaves_nothing_behind"}
GAPS = {
    "kafka": {},
    "memory": NOT_EMBEDDED,
    "encrypted": NOT_EMBEDDED,
    "sqlite": NOT_EMBEDDED | NOT_IN_A_FILE,
}


@asynccontextmanager
async def adapter_of(
    kind: str, request: pytest.FixtureRequest, app: str, agent: str
) -> AsyncIterator[Adapter]:
    match kind:
        case "memory":
            yield MemoryAdapter(app, agent)
        case "encrypted":
            yield EncryptedAdapter(app, agent)
        case "sqlite":
            path = request.getfixturevalue("tmp_path") / "log.db"
            broker = SqliteBroker(path, SystemClock(), owner=True)
            try:
                yield SqliteAdapter(broker, app, agent)
            finally:
                await broker.close()
        case _:
            bootstrap = request.getfixturevalue("bootstrap")
            missing = request.function.__name__ in WITHOUT_A_TOPIC
            timeouts = PATIENT_WITHOUT_A_TOPIC if missing else PATIENT
            async with kafka_adapter(bootstrap, app, agent, timeouts) as made:
                yield made


@pytest.fixture(params=["kafka", "memory", "encrypted", "sqlite"])
async def adapter(
    request: pytest.FixtureRequest, app: str, agent_name: str
) -> AsyncIterator[Adapter]:
    gap = GAPS[request.param].get(request.function.__name__)
    if gap is not None:
        request.applymarker(pytest.mark.xfail(reason=gap, strict=True))
    async with adapter_of(request.param, request, app, agent_name) as made:
        yield made


@pytest.fixture
async def group(adapter: Adapter) -> AsyncIterator[Group]:
    made = Group(adapter)
    yield made
    await made.close()


NOTHING: Mapping[InputKind, int] = {"commands": 0, "tasks": 0}


async def restored(
    ownership: Ownership, start: int | None = None
) -> tuple[list[bytes | None], int]:
    """Values of the committed state, and the position reached."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(90):
        position = await ownership.restore(start, records.extend)
    offsets = [record.offset for record in records]
    assert offsets == sorted(offsets)
    return [record.value for record in records], position


async def write_aborted(adapter: Adapter, outs: Sequence[ProducerRecord]) -> None:
    """Records that are in the log, and never were."""
    abort = await adapter.begin(outs)
    await abort()


async def hang(adapter: Adapter, owner: Ownership) -> tuple[Held, asyncio.Task[Committed]]:
    """Commit once, and again without an end: everything of the second commit is sent but that."""
    state = adapter.topics.state
    await owner.commit([ProducerRecord(state, 0, b"k", b"1")], NOTHING)
    held = adapter.hold_commit(owner)
    lost = owner.commit([ProducerRecord(state, 0, b"k", b"lost")], {"commands": 5, "tasks": 5})
    hanging = asyncio.create_task(lost)
    await held.reached.wait()
    return held, hanging


async def until_committed(ownership: Ownership, offsets: Mapping[InputKind, int]) -> None:
    """A commit returns before the group has its offsets; only a new owner waits for them."""

    async def reached() -> bool:
        return await ownership.committed() == offsets

    await until(reached, what=f"the group to have {offsets}")


class TestLog:
    """The contract of ports.Log and ports.Ownership."""

    # Reading ---------------------------------------------------------------------------------

    async def test_nothing_of_a_gained_partition_is_read_before_it_is_resumed(
        self, adapter: Adapter, group: Group
    ) -> None:
        for partition in range(PARTITIONS):
            await adapter.write(ProducerRecord(adapter.topics.commands, partition, None, b"1"))
        member = await group.join()
        change = await member.until_changes(1)
        assert change == Assignment(frozenset({0, 1}), frozenset(), frozenset())
        member.log.resume(0, {"commands": None, "tasks": None})
        await member.until_read(0, b"1")
        assert member.values(1) == []
        member.log.resume(1, {"commands": None, "tasks": None})
        await member.until_read(1, b"1")

    async def test_reading_begins_at_the_position_and_stops_when_paused(
        self, adapter: Adapter, group: Group
    ) -> None:
        commands = adapter.topics.commands
        for n in range(4):
            await adapter.write(ProducerRecord(commands, 0, None, b"%d" % n))
        member = await group.join()
        await member.until_changes(1)
        member.log.resume(0, {"commands": 2, "tasks": 0})
        await member.until_read(0, b"2", b"3")
        member.log.pause(0)
        member.log.resume(1, {"commands": None, "tasks": None})
        await adapter.write(ProducerRecord(commands, 0, None, b"4"))
        await adapter.write(ProducerRecord(commands, 1, None, b"other"))
        await member.until_read(1, b"other")
        await member.until_read(0, b"2", b"3")
        member.log.resume(0)
        await member.until_read(0, b"2", b"3", b"4")

    async def test_a_record_is_read_as_it_was_written(self, adapter: Adapter, group: Group) -> None:
        out = ProducerRecord(
            adapter.topics.tasks, 1, b"\xff key", b"\x00 value", (("h", b"\xfe"), ("h", b""))
        )
        offset = await adapter.write(out)
        member = await group.join()
        await member.until_changes(1)
        member.log.resume(1, {"commands": None, "tasks": None})
        await until(lambda: member.read, what="the record")
        ((kind, record),) = member.read
        assert kind == "tasks"
        assert (record.topic, record.partition, record.offset) == (out.topic, 1, offset)
        assert (record.key, record.value) == (out.key, out.value)
        assert list(record.headers) == list(out.headers)

    async def test_the_position_of_an_input_read_to_its_end_steps_over_what_cannot_be_read(
        self, adapter: Adapter, group: Group
    ) -> None:
        assert adapter.marker, "there is nothing to step over"
        out = ProducerRecord(adapter.topics.commands, 0, None, b"1")
        await adapter.write(out)
        await write_aborted(adapter, [out, out])
        member = await group.join()
        await member.until_changes(1)
        assert await member.log.positions(0) == {}
        member.log.resume(0, {"commands": None, "tasks": None})
        assert "commands" not in await member.log.positions(0)  # there is more to read

        async def at_the_end() -> bool:
            # two aborted records, and the marker of their transaction
            return await member.log.positions(0) == {"commands": 4, "tasks": 0}

        await until(at_the_end, what="the positions to be at the end")
        assert member.values(0) == [b"1"]
        member.log.pause(0)
        assert await member.log.positions(0) == {}

    async def test_nothing_is_read_beyond_a_transaction_that_is_still_open(
        self, adapter: Adapter, group: Group
    ) -> None:
        assert adapter.marker, "there is no transaction that is open"
        commands = adapter.topics.commands
        member = await group.join()
        await member.until_changes(1)
        member.log.resume(0, {"commands": None, "tasks": None})
        await adapter.write(ProducerRecord(commands, 0, None, b"1"))
        abort = await adapter.begin([ProducerRecord(commands, 0, None, b"open")])
        await adapter.write(ProducerRecord(commands, 0, None, b"2"))
        await member.until_read(0, b"1")

        async def before_the_open_one() -> bool:
            return (await member.log.positions(0)).get("commands") == 1

        await until(before_the_open_one, what="the position to be before the open transaction")
        assert member.values(0) == [b"1"]
        await abort()
        await member.until_read(0, b"1", b"2")

    async def test_what_retention_takes_before_it_is_read_is_told_and_the_rest_is_read(
        self, adapter: Adapter, group: Group
    ) -> None:
        commands = adapter.topics.commands
        await adapter.write(ProducerRecord(commands, 0, None, b"0"))
        member = await group.join()
        await member.until_changes(1)
        member.log.resume(0, {"commands": None, "tasks": None})
        await member.until_read(0, b"0")
        member.log.pause(0)
        for n in range(1, 4):
            await adapter.write(ProducerRecord(commands, 0, None, b"%d" % n))
        await adapter.delete_before(commands, 0, 3)
        member.log.resume(0, {"commands": 1, "tasks": 0})
        await member.until_read(0, b"0", b"3")
        (gone,) = member.gone
        assert (gone.kind, gone.partition, gone.start, gone.end) == ("commands", 0, 1, 3)

    # Membership ------------------------------------------------------------------------------

    async def test_a_partition_that_stays_is_told_as_such_and_reads_on_where_it_is_told(
        self, adapter: Adapter, group: Group
    ) -> None:
        commands = adapter.topics.commands
        for n in range(3):
            await adapter.write(ProducerRecord(commands, 0, None, b"%d" % n))
        first = await group.join()
        await first.until_changes(1)
        for partition in range(PARTITIONS):
            first.log.resume(partition, {"commands": None, "tasks": None})
        await first.until_read(0, b"0", b"1", b"2")
        second = await group.join()
        change = await first.until_changes(2)
        assert change == Assignment(frozenset(), frozenset({0}), frozenset({1}))
        assert (await second.until_changes(1)).gained == {1}
        second.log.resume(1, {"commands": None, "tasks": None})
        await adapter.write(ProducerRecord(commands, 0, None, b"3"))
        await adapter.write(ProducerRecord(commands, 1, None, b"other"))
        await second.until_read(1, b"other")
        await first.until_read(0, b"0", b"1", b"2")  # paused until it is told where to go on
        first.log.resume(0, {"commands": 2, "tasks": 0})
        await first.until_read(0, b"0", b"1", b"2", b"2", b"3")
        assert first.values(1) == []

    async def test_the_lease_is_shorter_than_the_session_and_renewed_by_proof(
        self, group: Group
    ) -> None:
        member = await group.join()
        assert member.log.lease_left_s() == 0
        await member.until_changes(1)
        lease_s = member.log.lease_left_s()
        assert 0 < lease_s <= 0.9 * SESSION_S
        member.clock.ahead_s = lease_s
        assert member.log.lease_left_s() == 0
        await until(lambda: member.log.lease_left_s() > 0, what="a heartbeat to renew the lease")

    async def test_no_partition_moves_before_its_owner_says_that_it_may(self, group: Group) -> None:
        first = await group.join()
        await first.until_changes(1)
        first.may_move.clear()
        second = await group.join()
        await until(lambda: first.asked == 1, what="the owner to be asked")
        assert second.changes == []
        first.may_move.set()
        change = await second.until_changes(1)
        assert len(change.gained) == 1

    async def test_there_is_no_lease_while_the_group_rebalances(
        self, adapter: Adapter, group: Group
    ) -> None:
        first = await group.join()
        await first.until_changes(1)
        go_on = adapter.hold_rebalance(first.log)
        second = await group.join()
        await until(
            lambda: first.log.lease_left_s() == 0,
            timeout_s=SESSION_S / 2,
            what="the lease to end long before it runs out",
        )
        assert second.log.lease_left_s() == 0
        go_on.set()
        await first.until_changes(2)
        assert first.log.lease_left_s() > 0
        await second.until_changes(1)
        assert second.log.lease_left_s() > 0
        # What is lost is given up before there is a lease again.
        assert first.leases_s == [0, 0]

    async def test_one_that_leaves_is_followed_long_before_its_session_is_over(
        self, group: Group
    ) -> None:
        first = await group.join()
        await first.until_changes(1)
        second = await group.join()
        await second.until_changes(1)
        await first.log.stop(leave=True)
        async with asyncio.timeout(SESSION_S / 2):
            change = await second.until_changes(2)
            assert change == Assignment(frozenset({0}), frozenset({1}), frozenset())
            await second.own(0)

    async def test_one_that_does_not_say_that_it_leaves_is_still_a_member(
        self, group: Group
    ) -> None:
        """A static member that is back within its session gets what it had; nobody else moves."""
        first = await group.join()
        await first.until_changes(1)
        second = await group.join()
        await second.until_changes(1)
        await first.log.stop(leave=False)
        back = await group.join_again(0)
        assert (await back.until_changes(1)).gained == {0}
        assert len(second.changes) == 1

    # Owning ----------------------------------------------------------------------------------

    async def test_a_new_owner_fences_the_former_one(self, adapter: Adapter, group: Group) -> None:
        topics = adapter.topics
        first, second = await group.of_two()
        former = await first.own(0)
        await former.commit([ProducerRecord(topics.state, 0, b"k", b"1")], NOTHING)
        await adapter.put_out(first.log, by=second.log)
        owner = await second.own(0)
        with pytest.raises(FencedError):
            await former.commit(
                [
                    ProducerRecord(topics.state, 0, b"k", b"lost"),
                    ProducerRecord(topics.events, 0, b"k", b"lost"),
                ],
                {"commands": 7, "tasks": 7},
            )
        assert (await restored(owner))[0] == [b"1"]
        assert await owner.committed() == NOTHING
        await owner.commit(
            [ProducerRecord(topics.state, 0, b"k", b"2")], {"commands": 1, "tasks": 0}
        )
        assert await adapter.visible(topics.state) == [b"1", b"2"]
        assert await adapter.visible(topics.events) == []

    async def test_owners_of_other_partitions_are_left_alone(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        first, second = await group.of_two()
        zero, one = await first.own(0), await second.own(1)
        for partition, ownership in enumerate((zero, one)):
            await ownership.commit([ProducerRecord(topics.state, partition, b"k", b"1")], NOTHING)
        assert await adapter.visible(topics.state) == [b"1", b"1"]

    async def test_a_new_owner_settles_what_the_former_one_has_left_open(
        self, adapter: Adapter, group: Group
    ) -> None:
        first, second = await group.of_two()
        held, hanging = await hang(adapter, await first.own(0))
        await adapter.put_out(first.log, by=second.log)
        owner = await second.own(0)
        assert await owner.committed() == NOTHING
        assert (await restored(owner))[0] == [b"1"]
        held.go_on.set()
        with pytest.raises(FencedError):
            await hanging
        assert (await restored(owner))[0] == [b"1"]

    async def test_one_that_is_back_ends_at_once_what_it_has_left_open(
        self, adapter: Adapter, group: Group
    ) -> None:
        first, _ = await group.of_two()
        held, hanging = await hang(adapter, await first.own(0))
        await first.log.stop(leave=False)
        back = await group.join_again(0)
        async with asyncio.timeout(SESSION_S / 2):  # long before the transaction times out
            owner = await back.own(0)
            assert await owner.committed() == NOTHING
            assert (await restored(owner))[0] == [b"1"]
        held.go_on.set()
        (lost,) = await asyncio.gather(hanging, return_exceptions=True)
        assert isinstance(lost, FencedError | OutcomeUnknown)
        assert (await restored(owner))[0] == [b"1"]

    async def test_committed_offsets_are_final_once_the_partition_is_owned(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        first, second = await group.of_two()
        former = await first.own(0)
        offsets: dict[InputKind, int] = {"commands": 5, "tasks": 6}
        sent = adapter.send_commit(former)
        ending = asyncio.create_task(
            former.commit([ProducerRecord(topics.state, 0, b"k", b"1")], offsets)
        )
        await sent.wait()
        await adapter.put_out(first.log, by=second.log)
        owner = await second.own(0)
        committed = await owner.committed()
        values, _ = await restored(owner)
        # It has happened, or not: in the offsets and in the state alike, and for good.
        assert (committed, values) in [
            (offsets, [b"1"]),
            ({"commands": None, "tasks": None}, []),
        ]
        await asyncio.gather(ending, return_exceptions=True)
        assert await owner.committed() == committed
        assert (await restored(owner))[0] == values

    async def test_an_offset_never_committed_is_told_from_offset_zero(self, group: Group) -> None:
        member = await group.join()
        ownership = await member.own(1)
        assert await ownership.committed() == {"commands": None, "tasks": None}

    async def test_where_the_inputs_begin_is_what_retention_has_left(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        for _ in range(3):
            await adapter.write(ProducerRecord(topics.commands, 0, None, b"1"))
        await adapter.delete_before(topics.commands, 0, 2)
        member = await group.join()
        ownership = await member.own(0)
        assert await ownership.begins() == {"commands": 2, "tasks": 0}

    # Restoring -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "tail", ["marker", "aborted", "only aborted", "emptied", "one record", "nothing"]
    )
    async def test_restoring_ends_with_everything_committed_whatever_the_log_ends_with(
        self, adapter: Adapter, group: Group, tail: str
    ) -> None:
        state = adapter.topics.state
        member = await group.join()
        ownership = await member.own(0)
        aborted = [ProducerRecord(state, 0, b"a", b"aborted")] * 50
        values: list[bytes | None] = []
        end = 0
        if tail in ("marker", "aborted", "emptied"):
            outs = [ProducerRecord(state, 0, b"k", b"1"), ProducerRecord(state, 0, b"k", None)]
            end = (await ownership.commit(outs, NOTHING)).state_end + adapter.marker
            values = [b"1", None]
        if tail in ("aborted", "only aborted"):
            await write_aborted(adapter, aborted)
            end += (len(aborted) + 1) * adapter.marker
        if tail == "emptied":
            await adapter.delete_before(state, 0, -1)
            values = []
        if tail == "one record":
            assert await adapter.write(ProducerRecord(state, 0, b"k", b"only")) == 0
            values, end = [b"only"], 1
        assert await restored(ownership) == (values, end)
        assert await restored(ownership, end) == ([], end)

    async def test_restoring_waits_for_a_transaction_that_is_still_open(
        self, adapter: Adapter, group: Group
    ) -> None:
        state = adapter.topics.state
        member = await group.join()
        ownership = await member.own(0)
        abort = await adapter.begin([ProducerRecord(state, 0, b"k", b"open")])
        await adapter.write(ProducerRecord(state, 0, b"k", b"1"))
        restoring = asyncio.create_task(restored(ownership))
        await asyncio.wait([restoring], timeout=0.3)
        assert not restoring.done()
        await abort()
        assert await restoring == ([b"1"], 3)

    async def test_restoring_goes_on_from_where_a_commit_has_ended(
        self, adapter: Adapter, group: Group
    ) -> None:
        state = adapter.topics.state
        member = await group.join()
        ownership = await member.own(0)
        await ownership.commit([ProducerRecord(state, 0, b"k", b"1")], NOTHING)
        second = await ownership.commit([ProducerRecord(state, 0, b"k", b"2")], NOTHING)
        await ownership.commit([ProducerRecord(state, 0, b"k", b"3")], NOTHING)
        assert (await restored(ownership, second.state_end))[0] == [b"3"]

    # Committing ------------------------------------------------------------------------------

    async def test_a_commit_writes_all_of_it_in_order(self, adapter: Adapter, group: Group) -> None:
        topics = adapter.topics
        member = await group.join()
        ownership = await member.own(1)
        many = [b"%05d" % n * 1000 for n in range(100)]  # more than fits into one batch
        await ownership.commit(
            [
                ProducerRecord(topics.state, 1, b"k", b"state"),
                *(ProducerRecord(topics.events, 1, b"k", value) for value in many),
                ProducerRecord(topics.tasks, 0, b"k", b"elsewhere"),
            ],
            {"commands": 3, "tasks": 0},
        )
        assert await adapter.visible(topics.state) == [b"state"]
        assert await adapter.visible(topics.events) == many
        assert await adapter.visible(topics.tasks) == [b"elsewhere"]
        await until_committed(ownership, {"commands": 3, "tasks": 0})

    async def test_a_commit_tells_at_which_offsets_its_partition_has_its_tasks(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        member = await group.join()
        await member.until_changes(1)
        ownership = await member.own(0)
        await adapter.write(ProducerRecord(topics.tasks, 0, None, b"of somebody else"))
        many = [b"%05d" % n * 1000 for n in range(100)]  # more than fits into one batch
        outs = [ProducerRecord(topics.state, 0, b"k", b"1")]
        for value in many:
            outs.append(ProducerRecord(topics.tasks, 0, b"k", value))
            outs.append(ProducerRecord(topics.tasks, 1, b"k", b"of another partition"))
            outs.append(ProducerRecord(topics.state, 0, b"k", value))
        committed = await ownership.commit(outs, NOTHING)
        member.log.resume(0, {"commands": None, "tasks": None})
        await until(lambda: len(member.read) >= 101, what="the tasks")
        read = [(record.offset, record.value) for _, record in member.read]
        assert read[1:] == list(zip(committed.tasks, many, strict=True))
        without = await ownership.commit([ProducerRecord(topics.state, 0, b"k", b"2")], NOTHING)
        assert without.tasks == ()

    async def test_a_record_too_large_leaves_nothing_behind_and_the_ownership_as_it_was(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        first, second = await group.of_two()
        ownership = await first.own(0)
        large = ProducerRecord(topics.events, 0, b"k", b"x" * (RECORD_MAX_BYTES + 1))
        with pytest.raises(RecordTooLarge) as told:
            await ownership.commit(
                [
                    ProducerRecord(topics.state, 0, b"k", b"1"),
                    large,
                    ProducerRecord(topics.tasks, 0, b"k", b"1"),
                ],
                {"commands": 9, "tasks": 9},
            )
        assert told.value.size > told.value.limit == RECORD_MAX_BYTES
        assert await ownership.committed() == {"commands": None, "tasks": None}
        await ownership.commit(
            [ProducerRecord(topics.state, 0, b"k", b"2")], {"commands": 1, "tasks": 0}
        )
        await until_committed(ownership, {"commands": 1, "tasks": 0})
        assert await adapter.visible(topics.state) == [b"2"]
        assert await adapter.visible(topics.tasks) == []
        await adapter.put_out(first.log, by=second.log)
        await second.own(0)
        with pytest.raises(FencedError):
            await ownership.commit([ProducerRecord(topics.state, 0, b"k", b"3")], NOTHING)

    async def test_a_record_too_large_does_not_concern_other_partitions(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        member = await group.join()
        zero, one = await member.own(0), await member.own(1)
        large = ProducerRecord(topics.events, 0, b"k", b"x" * (RECORD_MAX_BYTES + 1))
        moved: dict[InputKind, int] = {"commands": 1, "tasks": 0}
        refused, written = await asyncio.gather(
            zero.commit([ProducerRecord(topics.state, 0, b"k", b"0"), large], moved),
            one.commit([ProducerRecord(topics.state, 1, b"k", b"1")], moved),
            return_exceptions=True,
        )
        assert isinstance(refused, RecordTooLarge)
        assert not isinstance(written, BaseException)
        await until_committed(one, moved)
        assert await zero.committed() == {"commands": None, "tasks": None}
        assert await adapter.visible(topics.state) == [b"1"]

    async def test_a_record_for_a_topic_that_is_not_there_leaves_nothing_behind(
        self, adapter: Adapter, group: Group
    ) -> None:
        topics = adapter.topics
        member = await group.join()
        ownership = await member.own(0)
        with pytest.raises(NoSuchTopic, match=f"no topic {topics.group}-nobody.commands"):
            await ownership.commit(
                [
                    ProducerRecord(topics.state, 0, b"k", b"1"),
                    ProducerRecord(f"{topics.group}-nobody.commands", 0, b"k", b"1"),
                ],
                {"commands": 9, "tasks": 9},
            )
        await ownership.commit(
            [ProducerRecord(topics.state, 0, b"k", b"2")], {"commands": 1, "tasks": 0}
        )
        await until_committed(ownership, {"commands": 1, "tasks": 0})
        assert await adapter.visible(topics.state) == [b"2"]

    async def test_a_commit_whose_answer_is_lost_is_unknown_and_can_be_looked_up(
        self, adapter: Adapter, group: Group
    ) -> None:
        state = adapter.topics.state
        member = await group.join()
        ownership = await member.own(0)
        adapter.lose_answer(ownership)
        with pytest.raises(OutcomeUnknown):
            await ownership.commit(
                [ProducerRecord(state, 0, b"k", b"1")], {"commands": 1, "tasks": 0}
            )
        await ownership.close()
        await ownership.close()
        after = await member.own(0)
        assert await after.committed() == {"commands": 1, "tasks": 0}
        assert (await restored(after))[0] == [b"1"]

    # Publishing ------------------------------------------------------------------------------

    async def test_what_is_published_needs_no_owner_and_what_cannot_be_written_is_dropped(
        self, adapter: Adapter, group: Group
    ) -> None:
        stream = adapter.topics.stream
        member = await group.join()
        large = ProducerRecord(stream, 1, b"k", b"x" * (RECORD_MAX_BYTES + 1))
        member.log.publish(
            [ProducerRecord(stream, 1, b"k", b"1"), large, ProducerRecord(stream, 1, b"k", b"2")]
        )
        member.log.publish([ProducerRecord(stream, 1, b"k", b"3")])

        async def written() -> bool:
            return await adapter.visible(stream) == [b"1", b"2", b"3"]

        await until(written, what="what can be written to be there")
