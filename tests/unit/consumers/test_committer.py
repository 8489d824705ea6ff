"""What whoever waits for a commit is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, repeat

import pytest

from surefoot.consumers.deadlines import DEADLINES
from surefoot.consumers.partition.committer import Committer, known_offset
from surefoot.consumers.partition.transaction import PendingInput
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog
from surefoot.infra.embedded.memory import MemoryBroker
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.errors import OutcomeUnknown
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import (
    Complete,
    EntryRecorded,
    GoTo,
    Refusal,
    StartRun,
    StepReturned,
    Work,
)
from surefoot.state.names.topics import AgentTopics, agent_specs
from surefoot.state.ports.log import Assignment, Committed, InputKind, Ownership, ProducerRecord
from surefoot.state.records.encoding import Wire

TOPICS = AgentTopics("app", "a")
START = StartRun(run_id="r", agent="a", version=1, step="s", payload=b"1", input_digest=b"12345678")


@dataclass
class Owned:
    """Partition 0, taken over, in memory."""

    committer: Committer

    def add(self, value: bytes, told: list[Refusal | None], *, seq: int = 0) -> None:
        """A running step wants something kept."""
        note = EntryRecorded(work=Work(seq=seq, attempt=0), slot="c:x#0", kind="call", value=value)
        self.committer.add(PendingInput(run_id="r", inputs=(note,), on_done=told.append))

    async def commit(self) -> list[Refusal | None]:
        """Commit, and tell as the owner does; returns why each item moved nothing."""
        items, _ = await self.committer.commit()
        for item in items:
            if item.on_done is not None:
                item.on_done(item.refused)
        return [item.refused for item in items]


async def owned(
    record_bytes: int,
    *,
    leases: Iterator[float] | None = None,
    committing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Owned:
    """`leases`: what is left of it in seconds, each time that the taker looks."""
    clock = SystemClock()
    broker = MemoryBroker(clock)
    broker.create(agent_specs("app", "a", 1, 1_000_000))
    log = EmbeddedLog(broker=broker, group=EmbeddedGroup(1), topics=TOPICS, slot=0)

    def changed(change: Assignment) -> None:
        del change

    async def rebalancing() -> None: ...

    await log.start(changed, rebalancing)
    await log.poll(0.0)
    if leases is not None:
        log.lease_left_s = lambda: next(leases)  # type: ignore[method-assign]
    committer = Committer(
        rules=Rules(agent="a", steps=frozenset({"s"})),
        partition=0,
        log=log,
        wire=Wire("app", TOPICS, 1),
        clock=clock,
        record_bytes=record_bytes,
        committing=committing,
    )
    await committer.take()
    committer.add(PendingInput(run_id="r", inputs=(START,)))
    await committer.commit()
    return Owned(committer)


async def test_a_takeover_that_waits_for_the_lease_does_not_look_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("surefoot.consumers.partition.committer.asyncio.sleep", sleep)
    it = await owned(100_000, leases=chain([0.0] * 20, repeat(1.0)))
    assert it.committer.progress
    assert waits.count(DEADLINES.lease_poll_s) >= 18
    assert max(waits) == DEADLINES.lease_poll_s


@pytest.mark.parametrize(
    ("committed", "applied", "known"),
    [(5, 9, 5), (0, 9, 0), (None, 9, 9), (None, None, 0)],
    ids=["set back", "set back to the beginning", "expired", "never committed"],
)
def test_whoever_names_itself_beside_an_offset_leaves_it_where_it_is(
    committed: int | None, applied: int | None, known: int
) -> None:
    assert known_offset(committed, applied) == known


async def test_what_is_kept_is_told_and_what_is_stale_is_told_as_refused() -> None:
    it = await owned(100_000)
    kept: list[Refusal | None] = []
    stale: list[Refusal | None] = []
    it.add(b"1", kept)
    it.add(b"2", stale, seq=5)
    await it.commit()
    assert kept == [None]
    assert [refusal and refusal.code for refusal in stale] == ["stale"]
    assert it.committer.store.entries["r"]["c:x#0"].value == b"1"


async def test_a_step_is_not_told_that_its_record_is_kept_when_its_run_was_parked_instead() -> None:
    it = await owned(20_000)
    told: list[Refusal | None] = []
    it.add(b'"%s"' % (b"x" * 30_000), told)
    await it.commit()
    run = it.committer.store.live["r"]
    assert run.failure is not None
    assert (run.status, run.failure.code) == ("attention", "too_large")
    assert told == []


async def going_on(*runs: str) -> Committer:
    """A committer with runs at their first step, which goes to the next one, and with a run that
    ends; the outcomes are ready to be committed."""
    committer = (await owned(100_000)).committer
    committer.add(PendingInput(run_id="over", inputs=(replace(START, run_id="over"),)))
    for run_id in runs:
        committer.add(PendingInput(run_id=run_id, inputs=(replace(START, run_id=run_id),)))
    await committer.commit()
    work = Work(seq=0, attempt=0)
    for run_id in runs:
        on = StepReturned(work=work, then=GoTo(step="s", payload=b"2"))
        committer.add(PendingInput(run_id=run_id, inputs=(on,)))
        end = StepReturned(work=work, then=Complete(result=b"3"))
        committer.add(PendingInput(run_id="over", inputs=(end,)))
    return committer


async def test_the_tasks_of_a_commit_are_begun_before_they_are_read() -> None:
    committer = await going_on("one", "two")
    _, changes = await committer.commit()
    assert {change.run_id: change.tasks for change in changes} == {
        "one": ((1, 0),),
        "over": (),
        "two": ((1, 1),),
    }
    tasks = committer.progress["tasks"]
    assert tasks.watermark() == 0
    assert [tasks.begin(offset) for offset in range(3)] == [False, False, True]


async def test_a_task_read_before_its_commit_was_acknowledged_is_not_begun_again() -> None:
    committer = await going_on("one", "two")
    ownership = committer.ownership
    assert ownership is not None
    commit = ownership.commit

    async def late(
        records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        committed = await commit(records, offsets)
        assert committer.progress["tasks"].begin(0)
        return committed

    ownership.commit = late  # type: ignore[method-assign]
    _, changes = await committer.commit()
    assert [change.tasks for change in changes if change.run_id != "over"] == [(), ((1, 1),)]


async def test_the_tasks_of_a_commit_that_was_looked_up_are_read() -> None:
    committer = await going_on("one")
    ownership = committer.ownership
    assert ownership is not None
    commit = ownership.commit

    async def lost(
        records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        await commit(records, offsets)
        raise OutcomeUnknown("no answer")

    ownership.commit = lost  # type: ignore[method-assign]
    items, changes = await committer.commit()
    assert items
    assert [change.tasks for change in changes] == [(), ()]
    assert committer.progress["tasks"].begin(0)


async def test_no_task_is_begun_of_a_commit_that_did_not_happen() -> None:
    committer = await going_on("one")
    ownership = committer.ownership
    assert ownership is not None

    async def lost(
        records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        raise OutcomeUnknown("no answer")

    ownership.commit = lost  # type: ignore[method-assign]
    assert await committer.commit() == ([], [])
    assert committer.progress["tasks"].begin(0)


async def test_the_others_do_not_wait_while_the_outcome_of_a_commit_is_looked_up() -> None:
    told: list[str] = []

    @contextmanager
    def committing() -> Iterator[None]:
        told.append("begins")
        try:
            yield
        finally:
            told.append("is over")

    it = await owned(100_000, committing=committing)
    ownership = it.committer.ownership
    assert ownership is not None

    async def lost(
        records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        told.append("is lost")
        raise OutcomeUnknown("no answer")

    own = it.committer._log.own

    async def looking(partition: int) -> Ownership:
        told.append("is looked up")
        return await own(partition)

    ownership.commit = lost  # type: ignore[method-assign]
    it.committer._log.own = looking  # type: ignore[method-assign]
    it.add(b"1", [])
    told.clear()
    await it.committer.commit()
    assert told == ["begins", "is lost", "is over", "is looked up"]
