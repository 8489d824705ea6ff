"""One transaction for what all partitions of a member have ready, on producers of no broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalGenerationError, KafkaConnectionError, KafkaError

from surefoot.infra.kafka import shared as kafka_shared
from surefoot.infra.kafka.shared import UNSTABLE_S, Holding, SharedTransactions
from surefoot.infra.kafka_client.protocol import UnstableOffsetCommit
from surefoot.infra.kafka_client.transactions import CommittedOffset, Membership
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.errors import FencedError, OutcomeUnknown, RecordRefused, Unavailable
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ProducerRecord
from tests.support.eventually import until

SETTINGS = load_settings(bootstrap_servers="127.0.0.1:1")
ALL = frozenset({0, 1, 2})
#: what nobody waits for any more does not keep a test
PROMPT_S = 30.0
NONE: frozenset[int] = frozenset()


@dataclass
class Written:
    """One call of `transact`."""

    by: str
    values: list[bytes | None]
    offsets: dict[TopicPartition, int]
    generation: int


@dataclass
class Broker:
    """What the producers of a test have written, and what they meet next."""

    written: list[Written] = field(default_factory=list)
    #: of each transaction to come: an error, something to wait for, or None
    meets: deque[Exception | asyncio.Future[None] | None] = field(default_factory=deque)
    #: of each start to come
    starts: deque[Exception | asyncio.Future[None] | None] = field(default_factory=deque)
    #: ids, in the order in which they were started
    started: list[str] = field(default_factory=list)
    #: of each look at stable offsets to come: whether they are
    unstable: int = 0
    error: KafkaError | None = None
    #: offsets that name a member, with its generation
    named: list[tuple[int, dict[TopicPartition, int]]] = field(default_factory=list)
    #: what those to come meet
    naming: deque[Exception] = field(default_factory=deque)
    offset = CommittedOffset(5, "g.former.0")

    async def until_written(self, count: int) -> None:
        await until(lambda: len(self.written) >= count, what=f"transaction {count}")


class FakeProducer:
    broker: Broker

    def __init__(self, transactional_id: str, settings: Settings, clock: Clock) -> None:
        del settings, clock
        self.transactional_id = transactional_id
        self.ready = False

    async def start(self) -> None:
        await asyncio.sleep(0)
        met = self.broker.starts.popleft() if self.broker.starts else None
        if isinstance(met, asyncio.Future):
            await met
        elif met is not None:
            raise met
        self.broker.started.append(self.transactional_id)
        self.ready = True

    def end_epoch(self) -> None:
        self.ready = False

    async def retire(self) -> None:
        self.ready = False

    async def transact(
        self,
        records: Sequence[ProducerRecord],
        offsets: Mapping[TopicPartition, int],
        member: Membership,
    ) -> list[int]:
        assert self.ready
        values = [out.value for out in records]
        broker = self.broker
        broker.written.append(
            Written(self.transactional_id, values, dict(offsets), member.generation)
        )
        met = broker.meets.popleft() if broker.meets else None
        await asyncio.sleep(0)
        if isinstance(met, asyncio.Future):
            await met
        elif met is not None:
            self.ready = isinstance(met, RecordRefused)
            raise met
        if b"refused" in values:
            raise RecordRefused("refused")
        return [100 + n for n in range(len(records))]

    async def committed(
        self, group: str, places: Sequence[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        del group
        await asyncio.sleep(0)
        if self.broker.error is not None:
            raise self.broker.error
        if stable and self.broker.unstable:
            self.broker.unstable -= 1
            raise UnstableOffsetCommit
        return dict.fromkeys(places, self.broker.offset)

    async def name(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        await asyncio.sleep(0)
        if self.broker.naming:
            raise self.broker.naming.popleft()
        self.broker.named.append((member.generation, dict(offsets)))


class RunningClock(SystemClock):
    """Each look at it takes as long as an open transaction may hold an offset."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        self.now_s += UNSTABLE_S
        return self.now_s


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(FakeProducer, "broker", made, raising=False)
    monkeypatch.setattr(kafka_shared, "TransactionalProducer", FakeProducer)
    return made


@pytest.fixture
async def shared(broker: Broker) -> SharedTransactions:
    del broker
    made = SharedTransactions("g.i.0", SETTINGS, RunningClock())
    made.admit(member(1), ALL, NONE)
    return made


def member(generation: int) -> Membership:
    return Membership("g", generation, "m", "g.i.0")


def place(partition: int) -> TopicPartition:
    return TopicPartition("commands", partition)


def write(shared: SharedTransactions, holding: Holding, *values: bytes) -> asyncio.Task[list[int]]:
    at = holding.partition
    records = [ProducerRecord("state", at, b"k", value) for value in values]

    async def committed() -> list[int]:
        async with asyncio.timeout(PROMPT_S):
            return await shared.commit(holding, records, {place(at): 7})

    return asyncio.create_task(committed())


async def wait() -> None:
    """Let everything happen that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def held() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def in_progress(
    shared: SharedTransactions, broker: Broker, holding: Holding
) -> tuple[asyncio.Task[list[int]], asyncio.Future[None]]:
    """A transaction of the value a, which goes on until the future is done."""
    goes_on = held()
    broker.meets.append(goes_on)
    writing = write(shared, holding, b"a")
    await broker.until_written(1)
    return writing, goes_on


async def lose_both_epochs(shared: SharedTransactions, broker: Broker, holding: Holding) -> None:
    broker.meets += [OutcomeUnknown("lost"), OutcomeUnknown("lost")]
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await write(shared, holding, b"a")


# Together --------------------------------------------------------------------------------------


async def test_what_is_ready_at_the_same_time_is_one_transaction(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    writing = write(shared, zero, b"a", b"b"), write(shared, one, b"c")
    assert list(await asyncio.gather(*writing)) == [[100, 101], [102]]
    (written,) = broker.written
    assert written.values == [b"a", b"b", b"c"]
    assert written.offsets == {place(0): 7, place(1): 7}
    assert written.generation == 1


async def test_what_becomes_ready_meanwhile_is_the_next_one_under_the_other_id(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    writing, first = await in_progress(shared, broker, zero)
    next_ones = write(shared, zero, b"b"), write(shared, one, b"c")
    await wait()
    assert len(broker.written) == 1
    first.set_result(None)
    await asyncio.gather(writing, *next_ones)
    await write(shared, one, b"d")
    assert [written.values for written in broker.written] == [[b"a"], [b"b", b"c"], [b"d"]]
    assert [written.by for written in broker.written] == ["g.i.0.a", "g.i.0.b", "g.i.0.a"]


async def test_taking_a_partition_takes_a_new_epoch_of_those_ids_only_that_have_none(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero = await shared.take(0)
    assert broker.started == ["g.i.0.a", "g.i.0.b"]
    broker.meets.append(OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        await write(shared, zero, b"a")
    await shared.take(0)
    assert broker.started == ["g.i.0.a", "g.i.0.b", "g.i.0.a"]


# What fails ------------------------------------------------------------------------------------


async def test_what_one_partition_is_refused_for_does_not_concern_the_others(
    shared: SharedTransactions, broker: Broker
) -> None:
    holdings = [await shared.take(partition) for partition in range(3)]
    writing = [
        write(shared, holding, value)
        for holding, value in zip(holdings, (b"a", b"refused", b"c"), strict=True)
    ]
    done = await asyncio.gather(*writing, return_exceptions=True)
    assert (done[0], done[2]) == ([100], [100])
    assert isinstance(done[1], RecordRefused)
    assert [written.values for written in broker.written] == [
        [b"a", b"refused", b"c"],
        [b"a"],
        [b"refused"],
        [b"c"],
    ]


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), FencedError("fenced")], ids=repr)
async def test_what_a_transaction_fails_with_all_of_it_fails_with(
    error: Exception, shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    broker.meets.append(error)
    done = await asyncio.gather(
        write(shared, zero, b"a"), write(shared, one, b"b"), return_exceptions=True
    )
    assert [type(each) for each in done] == [type(error)] * 2
    assert len(broker.written) == 1


async def test_whoever_fenced_one_id_has_the_other_too(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero = await shared.take(0)
    broker.meets.append(FencedError("fenced"))
    with pytest.raises(FencedError):
        await write(shared, zero, b"a")
    await shared.take(0)
    assert sorted(broker.started) == ["g.i.0.a", "g.i.0.a", "g.i.0.b", "g.i.0.b"]


async def test_a_partition_that_was_in_no_transaction_that_failed_goes_on(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    await lose_both_epochs(shared, broker, zero)
    assert await write(shared, one, b"b") == [100]


async def test_a_producer_that_cannot_start_leaves_the_outcome_unknown(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    await lose_both_epochs(shared, broker, zero)
    broker.starts.append(Unavailable("SF3007", "no broker"))
    with pytest.raises(OutcomeUnknown):
        await write(shared, one, b"b")
    assert await write(shared, one, b"c") == [100]


async def test_a_defect_leaves_the_outcome_unknown_and_does_not_end_all_commits(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    failing, first = await in_progress(shared, broker, zero)
    waiting = write(shared, one, b"b")
    first.set_exception(ZeroDivisionError())
    with pytest.raises(OutcomeUnknown):
        await failing
    assert await waiting == [100]


# Who may commit --------------------------------------------------------------------------------


async def test_a_partition_that_is_not_assigned_is_not_written(
    shared: SharedTransactions, broker: Broker
) -> None:
    stranger = await shared.take(9)
    with pytest.raises(FencedError):
        await write(shared, stranger, b"a")
    assert broker.written == []


async def test_nothing_is_written_between_revocation_and_assignment(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero = await shared.take(0)
    await shared.hold()
    writing = write(shared, zero, b"a")
    await wait()
    assert broker.written == []
    shared.admit(member(2), ALL, kept=ALL)
    assert await writing == [100]
    assert broker.written[0].generation == 2


@pytest.mark.parametrize("now", [ALL, ALL - {0}], ids=["gained again", "lost"])
async def test_what_waits_for_a_partition_that_somebody_else_may_have_had_is_not_written(
    now: frozenset[int], shared: SharedTransactions, broker: Broker
) -> None:
    """It was decided on a state that is not the latest any more."""
    zero, one = await shared.take(0), await shared.take(1)
    await shared.hold()
    stale, good = write(shared, zero, b"stale"), write(shared, one, b"good")
    await wait()
    shared.admit(member(3), now, kept=frozenset({1}))
    with pytest.raises(FencedError):
        await stale
    assert await good == [100]
    assert [written.values for written in broker.written] == [[b"good"]]


async def test_what_is_to_be_written_alone_is_not_once_its_partition_is_given_up(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    alone = held()
    broker.meets += [None, alone]
    refused, stale = write(shared, zero, b"refused"), write(shared, one, b"stale")
    await broker.until_written(2)
    again = await shared.take(1)
    alone.set_result(None)
    await asyncio.gather(refused, return_exceptions=True)
    with pytest.raises(FencedError):
        await stale
    await write(shared, again, b"new")
    assert [written.values for written in broker.written][2:] == [[b"new"]]


async def test_what_is_to_be_written_alone_waits_for_the_next_assignment(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    alone = held()
    broker.meets += [None, alone]
    writing = write(shared, zero, b"refused"), write(shared, one, b"b")
    await broker.until_written(2)
    holding = asyncio.create_task(shared.hold())
    await wait()
    assert not holding.done()
    alone.set_result(None)
    await holding
    await wait()
    assert len(broker.written) == 2
    shared.admit(member(2), ALL, kept=ALL)
    await asyncio.gather(*writing, return_exceptions=True)
    assert broker.written[2].generation == 2


@pytest.mark.parametrize("give_up", ["drop", "take"])
async def test_a_partition_that_was_given_up_writes_nothing_more(
    give_up: str, shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    writing, first = await in_progress(shared, broker, one)
    stale = write(shared, zero, b"stale")
    await wait()
    if give_up == "drop":
        shared.drop(zero)
    else:
        await shared.take(0)
    with pytest.raises(FencedError):
        await stale
    with pytest.raises(FencedError):
        await write(shared, zero, b"later")
    first.set_result(None)
    await writing
    assert [written.values for written in broker.written] == [[b"a"]]


async def test_who_gives_a_partition_up_late_takes_nothing_from_the_next_owner(
    shared: SharedTransactions,
) -> None:
    former = await shared.take(0)
    owner = await shared.take(0)
    shared.drop(former)
    assert await write(shared, owner, b"a") == [100]


async def test_a_partition_is_taken_once_nothing_of_it_is_being_written(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero = await shared.take(0)
    writing, first = await in_progress(shared, broker, zero)
    taking = asyncio.create_task(shared.take(0))
    other = asyncio.create_task(shared.take(1))
    await wait()
    assert (taking.done(), other.done()) == (False, True)
    first.set_result(None)
    await asyncio.gather(writing, taking)


async def test_who_stops_waiting_before_it_is_written_has_not_committed(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    writing, first = await in_progress(shared, broker, one)
    cancelled = write(shared, zero, b"b")
    await wait()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    first.set_result(None)
    await writing
    await write(shared, one, b"c")
    assert [written.values for written in broker.written] == [[b"a"], [b"c"]]


async def test_closing_leaves_every_outcome_unknown(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await shared.take(0), await shared.take(1)
    writing, _ = await in_progress(shared, broker, zero)
    waiting = write(shared, one, b"b")
    await wait()
    await shared.close()
    await shared.close()
    done = await asyncio.gather(writing, waiting, return_exceptions=True)
    assert [type(each) for each in done] == [OutcomeUnknown] * 2


# Stable offsets --------------------------------------------------------------------------------


async def test_offsets_that_an_open_transaction_holds_are_waited_for(
    shared: SharedTransactions, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_shared, "UNSTABLE_S", 600.0)
    holding = await shared.take(0)
    broker.unstable = 3
    found = await shared.committed(holding, "g", [place(0)])
    assert (broker.unstable, found) == (0, {place(0): broker.offset})
    assert holding.former == {"g.former.0"}
    assert broker.started == ["g.i.0.a", "g.i.0.b"]


async def test_a_former_owner_that_holds_them_for_long_is_fenced_once(
    shared: SharedTransactions, broker: Broker
) -> None:
    holding = await shared.take(0)
    broker.unstable = 5
    await shared.committed(holding, "g", [place(0)])
    assert broker.started[2:] == ["g.former.0.a", "g.former.0.b"]


@pytest.mark.parametrize(
    "former",
    ["", "g.i.0", "set by hand", "gg.former.0", "\u0000" * 4_000],
    ids=["nobody", "this member", "somebody's note", "of another group", "odd"],
)
async def test_nobody_else_is_fenced(
    former: str, shared: SharedTransactions, broker: Broker
) -> None:
    holding = await shared.take(0)
    broker.unstable = 5
    broker.offset = CommittedOffset(5, former)
    await shared.committed(holding, "g", [place(0)])
    assert broker.started == ["g.i.0.a", "g.i.0.b"]


async def test_a_broker_that_does_not_answer_is_told_in_the_ports_words(
    shared: SharedTransactions, broker: Broker
) -> None:
    holding = await shared.take(0)
    broker.error = KafkaConnectionError()
    with pytest.raises(Unavailable):
        await shared.committed(holding, "g", [place(0)])


# Who has the partition ---------------------------------------------------------------------------


async def taken(shared: SharedTransactions, partition: int) -> Holding:
    holding = await shared.take(partition)
    await shared.committed(holding, "g", [place(partition)])
    return holding


async def test_the_committed_offsets_come_to_name_a_new_owner(
    shared: SharedTransactions, broker: Broker
) -> None:
    await shared.name(await taken(shared, 0), {place(0): 5})
    assert broker.named == [(1, {place(0): 5})]


async def test_offsets_that_name_their_owner_are_left_alone(
    shared: SharedTransactions, broker: Broker
) -> None:
    broker.offset = CommittedOffset(5, "g.i.0")
    await shared.name(await taken(shared, 0), {place(0): 5})
    assert broker.named == []


async def test_offsets_name_nobody_between_revocation_and_assignment(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero = await taken(shared, 0)
    await shared.hold()
    naming = asyncio.create_task(shared.name(zero, {place(0): 5}))
    await wait()
    assert broker.named == []
    shared.admit(member(2), ALL, kept=ALL)
    await naming
    assert broker.named == [(2, {place(0): 5})]


async def test_offsets_do_not_name_a_member_that_has_lost_the_partition(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero = await taken(shared, 0)
    shared.admit(member(3), ALL, kept=ALL - {0})
    with pytest.raises(Unavailable):
        await shared.name(zero, {place(0): 5})
    assert broker.named == []


async def test_nothing_is_written_in_a_generation_in_which_offsets_may_still_be_set_back(
    shared: SharedTransactions, broker: Broker
) -> None:
    zero, one = await taken(shared, 0), await shared.take(1)
    broker.naming.append(OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        await shared.name(zero, {place(0): 5})
    writing = write(shared, one, b"a")
    naming = asyncio.create_task(shared.name(zero, {place(0): 5}))
    await wait()
    assert (broker.written, broker.named) == ([], [])
    shared.admit(member(2), ALL, kept=ALL)
    await asyncio.gather(writing, naming)
    assert broker.named == [(2, {place(0): 5})]


async def test_why_offsets_name_nobody_is_told_in_the_ports_words(
    shared: SharedTransactions, broker: Broker
) -> None:
    broker.naming.append(IllegalGenerationError())
    with pytest.raises(Unavailable):
        await shared.name(await taken(shared, 0), {place(0): 5})
