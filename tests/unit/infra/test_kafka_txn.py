"""A transactional producer, on a client that answers as a test says.

What is sent again, and what is made of an answer that is lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    ConcurrentTransactions,
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    IncompatibleBrokerVersion,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NotCoordinatorError,
    ProducerFenced,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)

from surefoot.infra.kafka import txn
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.protocol import (
    INIT_PRODUCER_ID,
    FencedInstanceId,
    TransactionAbortable,
)
from surefoot.infra.kafka_client.transactions import (
    Batch,
    Membership,
    ProducerEpoch,
    TransactionClient,
)
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.errors import (
    FencedError,
    NoSuchTopic,
    OutcomeUnknown,
    RecordTooLarge,
    TopicDenied,
    Unavailable,
)
from surefoot.state.ports.log import ProducerRecord

SETTINGS = load_settings(bootstrap_servers="127.0.0.1:1", record_max_bytes=10_000)
MEMBER = Membership("g", 3, "m-1", "g.i")
STATE, EVENTS = TopicPartition("state", 0), TopicPartition("events", 0)
OFFSETS = {TopicPartition("commands", 0): 7}


class FakeClient:
    """Answers like a broker, except where a test puts an error, or a wait, into `answers`."""

    def __init__(self, *, bumps_epochs: bool = True) -> None:
        self.bumps_epochs = bumps_epochs
        #: by method: what the next requests meet; None is an answer
        self.answers: defaultdict[str, deque[Exception | asyncio.Future[None] | None]] = (
            defaultdict(deque)
        )
        #: of each request (method, epoch), in order
        self.sent: list[tuple[str, int]] = []
        self.batches: list[Batch] = []
        self.offsets: list[tuple[Membership, Mapping[TopicPartition, int]]] = []
        self.topics = {"state", "events"}
        self.epoch = -1
        self.next_offset: defaultdict[TopicPartition, int] = defaultdict(int)
        self.refreshed = self.stopped = 0

    def meets(self, method: str, *answers: Exception | asyncio.Future[None] | None) -> None:
        self.answers[method] += answers

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.sent)

    async def _asked(self, method: str, by: ProducerEpoch | None = None) -> None:
        self.sent.append((method, self.epoch if by is None else by.epoch))
        await asyncio.sleep(0)
        met = self.answers[method].popleft() if self.answers[method] else None
        if isinstance(met, asyncio.Future):
            await met
        elif met is not None:
            raise met

    async def start(self) -> None:
        await self._asked("start")

    async def stop(self) -> None:
        self.stopped += 1

    async def refresh(self) -> None:
        self.refreshed += 1

    async def topic_exists(self, topic: str) -> bool:
        if self.answers["topic_exists"]:
            await self._asked("topic_exists")
        return topic in self.topics

    async def init_producer(self) -> ProducerEpoch:
        await self._asked("init")
        self.epoch += 1
        return ProducerEpoch(1, self.epoch)

    async def add_partitions(self, by: ProducerEpoch, places: Iterable[TopicPartition]) -> None:
        del places
        await self._asked("add_partitions", by)

    async def add_offsets(self, by: ProducerEpoch, group: str) -> None:
        del group
        await self._asked("add_offsets", by)

    async def produce(
        self, by: ProducerEpoch, batches: Sequence[Batch]
    ) -> dict[TopicPartition, int | KafkaError]:
        told: dict[TopicPartition, int | KafkaError] = {}
        for batch in batches:
            self.batches.append(batch)
            try:
                await self._asked(f"produce {batch.place.topic}", by)
            except KafkaError as error:
                told[batch.place] = error
                continue
            told[batch.place] = self.next_offset[batch.place]
            self.next_offset[batch.place] += len(batch.records)
        return told

    async def commit_offsets(
        self, by: ProducerEpoch, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> None:
        self.offsets.append((member, offsets))
        await self._asked("commit_offsets", by)

    async def name(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets.append((member, offsets))
        await self._asked("name")

    async def end(self, by: ProducerEpoch, *, commit: bool) -> ProducerEpoch:
        assert commit
        await self._asked("end", by)
        if self.bumps_epochs:
            self.epoch = by.epoch + 1
        return ProducerEpoch(1, self.epoch)

    async def high_watermark(self, place: TopicPartition) -> int:
        await self._asked("high_watermark")
        return self.next_offset[place]


@pytest.fixture(params=["an epoch each", "one epoch"])
def client(request: pytest.FixtureRequest) -> FakeClient:
    return FakeClient(bumps_epochs=request.param == "an epoch each")


@pytest.fixture
def each() -> FakeClient:
    """Of a cluster where each transaction has an epoch of its own (KIP-890)."""
    return FakeClient(bumps_epochs=True)


@pytest.fixture
def one() -> FakeClient:
    """Of a cluster where one epoch serves many transactions (KIP-98)."""
    return FakeClient(bumps_epochs=False)


Start = Callable[[FakeClient], Any]


@pytest.fixture
async def started(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    made: list[TransactionalProducer] = []

    async def start(client: FakeClient) -> TransactionalProducer:
        producer = made_on(client, monkeypatch)
        made.append(producer)
        await producer.start()
        return producer

    yield start
    for producer in made:
        await producer.retire()


def made_on(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    def make(transactional_id: str, settings: Settings) -> FakeClient:
        del transactional_id, settings
        return client

    monkeypatch.setattr(txn, "TransactionClient", make)
    return TransactionalProducer("x", SETTINGS, SystemClock())


def out(topic: str = "state", value: bytes = b"v") -> ProducerRecord:
    return ProducerRecord(topic, 0, b"k", value)


# Starting and closing --------------------------------------------------------------------------


async def test_one_that_cannot_start_is_closed_and_can_be_asked_for_again(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = made_on(client, monkeypatch)
    client.meets("start", NodeNotReadyError())
    with pytest.raises(Unavailable):
        await producer.start()
    assert (client.stopped, producer.ready) == (1, False)
    await producer.start()
    assert producer.ready
    await producer.retire()
    assert (client.stopped, producer.ready) == (2, False)


async def test_one_without_a_broker_leaves_no_connection_open() -> None:
    """`no_swallowed_errors` in conftest.py looks."""
    producer = TransactionalProducer("x", SETTINGS, SystemClock())
    with pytest.raises(Unavailable):
        await producer.start()
    assert not producer.ready


async def test_a_start_waits_until_what_was_open_is_decided(
    client: FakeClient, started: Start
) -> None:
    client.meets("init", ConcurrentTransactions(), ConcurrentTransactions())
    producer = await started(client)
    assert producer.ready
    assert client.count("init") == 3


async def test_a_commit_that_was_cancelled_and_then_fenced_is_nobodys_error(
    client: FakeClient, started: Start
) -> None:
    """`no_swallowed_errors` in conftest.py looks."""
    producer = await started(client)
    late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client.meets("end", late)
    committing = asyncio.create_task(producer.transact([out()], OFFSETS, MEMBER))
    while not client.count("end"):
        await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    if not late.done():
        late.set_exception(ProducerFenced())
        late.exception()
    assert not producer.ready


@pytest.mark.parametrize("topic", ["app.no such.commands", "app.\ud83d.commands", "x" * 250, ""])
async def test_a_name_that_no_topic_can_have_is_refused_without_asking(
    topic: str, client: FakeClient, started: Start
) -> None:
    """Asked for by such a name, aiokafka's client breaks and answers nothing more."""
    producer = await started(client)
    client.topics.add(topic)
    with pytest.raises(NoSuchTopic, match="no topic can be called"):
        await producer.transact([out(topic)], OFFSETS, MEMBER)
    assert producer.ready
    assert client.batches == []


async def test_without_an_epoch_nothing_is_sent(client: FakeClient, started: Start) -> None:
    producer = await started(client)
    producer.end_epoch()
    before = len(client.sent)
    with pytest.raises(OutcomeUnknown, match="has to be started"):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert len(client.sent) == before


# A clean commit --------------------------------------------------------------------------------


async def test_a_clean_commit_tells_where_each_record_is(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.next_offset |= {STATE: 40, EVENTS: 5}
    outs = [out("state"), out("events"), out("state"), out("events")]
    assert await producer.transact(outs, OFFSETS, MEMBER) == [40, 5, 41, 6]
    assert client.offsets == [(MEMBER, OFFSETS)]
    assert producer.ready


async def test_batches_of_one_partition_are_written_one_after_the_other(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    outs = [out("state", b"%d" % n * 4_000) for n in range(5)]
    assert await producer.transact(outs, OFFSETS, MEMBER) == [0, 1, 2, 3, 4]
    assert [len(batch.records) for batch in client.batches] == [2, 2, 1]
    assert [batch.sequence for batch in client.batches] == [0, 2, 4]


async def test_each_transaction_begins_its_sequences_anew_if_it_has_an_epoch_of_its_own(
    each: FakeClient, started: Start
) -> None:
    producer = await started(each)
    for _ in range(2):
        await producer.transact([out(), out()], OFFSETS, MEMBER)
    assert [batch.sequence for batch in each.batches] == [0, 0]
    assert [epoch for method, epoch in each.sent if method == "end"] == [0, 1]


async def test_sequences_run_on_with_their_epoch(one: FakeClient, started: Start) -> None:
    producer = await started(one)
    for _ in range(2):
        await producer.transact([out(), out()], OFFSETS, MEMBER)
    assert [batch.sequence for batch in one.batches] == [0, 2]
    assert [epoch for method, epoch in one.sent if method == "end"] == [0, 0]


async def test_a_broker_that_verifies_transactions_is_told_of_partitions_before_their_batches(
    one: FakeClient, started: Start
) -> None:
    producer = await started(one)
    await producer.transact([out()], OFFSETS, MEMBER)
    assert [method for method, _ in one.sent][2:] == [
        "add_partitions",
        "produce state",
        "add_offsets",
        "commit_offsets",
        "end",
    ]


async def test_nothing_is_added_where_a_request_adds_by_itself(
    each: FakeClient, started: Start
) -> None:
    producer = await started(each)
    await producer.transact([out()], OFFSETS, MEMBER)
    assert {method for method, _ in each.sent} == {
        "start", "init", "produce state", "commit_offsets", "end",
    }  # fmt: skip


# Answers that are lost, or not to be had now ---------------------------------------------------

LOST = [RequestTimedOutError(), KafkaConnectionError()]
#: the broker has answered, and may do it a moment later
REFUSED = [
    NotCoordinatorError(),
    GroupCoordinatorNotAvailableError(),
    ConcurrentTransactions(),
]


@pytest.mark.parametrize("error", [*LOST, *REFUSED], ids=repr)
@pytest.mark.parametrize("method", ["produce state", "commit_offsets", "end"])
async def test_with_an_epoch_for_each_transaction_a_request_is_sent_until_it_is_answered(
    method: str, error: Exception, each: FakeClient, started: Start
) -> None:
    producer = await started(each)
    each.meets(method, error, error)
    assert await producer.transact([out()], OFFSETS, MEMBER) == [0]
    assert each.count(method) == 3
    assert len({epoch for sent, epoch in each.sent if sent == method}) == 1
    assert producer.ready


@pytest.mark.parametrize("error", [*LOST, UnknownTopicOrPartitionError()], ids=repr)
@pytest.mark.parametrize("method", ["commit_offsets", "end"])
async def test_with_one_epoch_an_answer_that_is_lost_is_not_asked_for_again(
    method: str, error: Exception, one: FakeClient, started: Start
) -> None:
    """The first request may still be on its way, and would be taken for one of a later
    transaction."""
    producer = await started(one)
    one.meets(method, error)
    with pytest.raises(OutcomeUnknown):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert one.count(method) == 1
    assert not producer.ready


@pytest.mark.parametrize("error", REFUSED, ids=repr)
@pytest.mark.parametrize("method", ["commit_offsets", "end"])
async def test_with_one_epoch_what_cannot_arrive_any_more_is_asked_for_again(
    method: str, error: Exception, one: FakeClient, started: Start
) -> None:
    producer = await started(one)
    one.meets(method, error)
    assert await producer.transact([out()], OFFSETS, MEMBER) == [0]
    assert one.count(method) == 2


@pytest.mark.parametrize("method", ["add_partitions", "produce state", "add_offsets"])
async def test_with_one_epoch_what_cannot_outlive_its_transaction_is_sent_again(
    method: str, one: FakeClient, started: Start
) -> None:
    producer = await started(one)
    one.meets(method, *LOST)
    assert await producer.transact([out()], OFFSETS, MEMBER) == [0]
    assert one.count(method) == 3


async def test_only_the_batches_without_an_answer_are_sent_again(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.meets("produce events", LeaderNotAvailableError())
    assert await producer.transact([out("state"), out("events")], OFFSETS, MEMBER) == [0, 0]
    assert [batch.place for batch in client.batches] == [STATE, EVENTS, EVENTS]
    assert client.batches[1] is client.batches[2]  # with the same sequence number
    assert client.refreshed == 1


@pytest.mark.parametrize(
    "error", [InvalidTxnState(), TransactionAbortable(), GroupAuthorizationFailedError()], ids=repr
)
@pytest.mark.parametrize("method", ["produce state", "commit_offsets", "end"])
async def test_any_other_error_leaves_the_outcome_unknown(
    method: str, error: Exception, client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.meets(method, error)
    with pytest.raises(OutcomeUnknown):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert client.count(method) == 1
    assert not producer.ready
    await producer.start()
    assert await producer.transact([out()], OFFSETS, MEMBER) == [client.next_offset[STATE] - 1]


async def test_a_commit_that_nobody_answers_is_given_up_at_its_deadline(
    client: FakeClient, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await started(client)
    monkeypatch.setattr(txn, "commit_deadline_s", lambda _settings: 0.0)
    client.meets("produce state", asyncio.get_running_loop().create_future())
    with pytest.raises(OutcomeUnknown, match="no answer within"):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert not producer.ready


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ProducerFenced(), InvalidProducerEpoch()], ids=repr)
@pytest.mark.parametrize("method", ["produce state", "commit_offsets", "end"])
async def test_whoever_has_the_id_now_fences_whoever_had_it(
    method: str, error: Exception, client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.meets(method, error)
    with pytest.raises(FencedError):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert client.count(method) == 1
    assert not producer.ready


@pytest.mark.parametrize("error", [IllegalGenerationError(), UnknownMemberIdError()], ids=repr)
async def test_a_member_that_its_group_has_put_out_is_fenced_and_ends_its_transaction(
    error: Exception, client: FakeClient, started: Start
) -> None:
    """Readers wait behind what it has written."""
    producer = await started(client)
    client.meets("commit_offsets", error)
    with pytest.raises(FencedError):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert (client.count("end"), client.count("init")) == (0, 2)
    assert producer.ready


async def test_a_member_whose_name_another_process_has_leaves_its_transaction_to_that_one(
    client: FakeClient, started: Start
) -> None:
    """That one has the transactional ids too."""
    producer = await started(client)
    client.meets("commit_offsets", FencedInstanceId())
    with pytest.raises(FencedError):
        await producer.transact([out()], OFFSETS, MEMBER)
    assert (client.count("end"), client.count("init")) == (0, 1)
    assert not producer.ready


async def test_a_record_too_large_ends_the_transaction_and_the_producer_goes_on(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.meets("produce events", MessageSizeTooLargeError())
    with pytest.raises(RecordTooLarge) as told:
        await producer.transact([out("state"), out("events", b"x" * 20_000)], OFFSETS, MEMBER)
    assert told.value.size > told.value.limit == 10_000
    assert (client.count("end"), client.count("init")) == (0, 2)
    assert producer.ready
    await producer.transact([out("state")], OFFSETS, MEMBER)
    assert client.batches[-1].sequence == 0  # of a new epoch
    assert client.sent[-1] == ("end", 1)


async def test_a_topic_that_is_not_there_is_told_before_anything_is_sent(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    with pytest.raises(NoSuchTopic, match=r"no topic nobody\.commands"):
        await producer.transact([out("state"), out("nobody.commands")], OFFSETS, MEMBER)
    assert client.batches == []
    assert producer.ready


@pytest.mark.parametrize("at", ["topic_exists", "produce app.other.commands", "add_partitions"])
async def test_a_missing_right_for_another_agents_commands_refuses_the_record(
    at: str, client: FakeClient, started: Start
) -> None:
    if at == "add_partitions" and client.bumps_epochs:
        return  # that request is of the other protocol
    producer = await started(client)
    member = Membership("app.mine", 3, "m-1", "app.mine.i")
    client.topics |= {"app.other.commands", "app.outbox.commands", "app.mine.commands"}
    client.meets(at, TopicAuthorizationFailedError("app.other.commands"))
    with pytest.raises(TopicDenied, match=r"lacks Write on topic app\.other\.commands; grant it"):
        await producer.transact([out("app.other.commands")], OFFSETS, member)
    assert producer.ready
    await producer.transact([out("app.other.commands")], OFFSETS, member)

    # What every run needs is waited for.
    for own in ("app.mine.commands", "app.outbox.commands", "state"):
        client.meets(f"produce {own}", TopicAuthorizationFailedError(own))
        with pytest.raises(OutcomeUnknown, match=f"lacks Write on topic {own}"):
            await producer.transact([out(own)], OFFSETS, member)
        await producer.start()


# Reading ---------------------------------------------------------------------------------------


async def test_one_that_is_retired_meanwhile_stops_asking(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client.meets("high_watermark", late)
    asking = asyncio.create_task(producer.high_watermark(STATE))
    while not client.count("high_watermark"):
        await asyncio.sleep(0)
    await producer.retire()
    late.set_exception(KafkaConnectionError())
    with pytest.raises(KafkaConnectionError):
        await asking
    assert client.refreshed == 0


async def test_a_broker_that_is_too_old_is_told_as_such() -> None:
    """Before 2.4 it takes no version of a request that aiokafka could prepare."""

    async def prepares(_node: object, request: Any) -> None:
        request.prepare({request.API_KEY: (0, 0)})

    client = TransactionClient("x", SETTINGS)
    client._client.send = prepares
    with pytest.raises(IncompatibleBrokerVersion, match=r"Kafka 2\.8 or newer"):
        await client._send(0, INIT_PRODUCER_ID("x", 1, -1, -1))


# Outside of transactions -------------------------------------------------------------------------


async def test_offsets_that_name_the_member_are_asked_for_until_the_broker_has_been(
    client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.meets("name", NodeNotReadyError(), NotCoordinatorError(), None)
    await producer.name(MEMBER, OFFSETS)
    assert client.offsets == [(MEMBER, OFFSETS)] * 3


@pytest.mark.parametrize("lost", [RequestTimedOutError(), KafkaConnectionError()], ids=repr)
async def test_offsets_that_name_the_member_are_sent_once(
    lost: KafkaError, client: FakeClient, started: Start
) -> None:
    """No epoch ends with an ordinary commit: the first one may still arrive."""
    producer = await started(client)
    client.meets("name", lost)
    with pytest.raises(OutcomeUnknown):
        await producer.name(MEMBER, OFFSETS)
    assert client.count("name") == 1


@pytest.mark.parametrize(
    "refused", [IllegalGenerationError(), GroupAuthorizationFailedError("g")], ids=repr
)
async def test_why_offsets_that_name_the_member_are_refused_is_told(
    refused: KafkaError, client: FakeClient, started: Start
) -> None:
    producer = await started(client)
    client.meets("name", refused)
    with pytest.raises(type(refused)):
        await producer.name(MEMBER, OFFSETS)
