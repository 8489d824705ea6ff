"""Whatever happens to runs: what is restored from what was written is what was in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from surefoot.state.machine import TABLE, decide
from surefoot.state.model import (
    Effect,
    EventRecord,
    Failure,
    Forward,
    Input,
    Quarantine,
    Queue,
    Raised,
    Record,
    Returned,
    Run,
    Start,
    Status,
    TaskRecord,
)
from surefoot.state.ports import In
from surefoot.state.store import RunStore
from surefoot.state.topics import AgentTopics
from surefoot.state.wire import Wire

WIRE = Wire("app", AgentTopics("app", "x"), 1)
RUN_IDS = ("a", "b", "c")
STEPS = st.sampled_from(["first", "second"])
PAYLOADS = st.sampled_from([b"null", b"1", b'{"k":"\xc3\xa9"}'])
FAILURES = st.builds(
    Failure,
    code=st.sampled_from(["step_raised", "timeout"]),
    message=st.text(max_size=5),
    kind=st.sampled_from(["", "ValueError"]),
    step=st.none() | STEPS,
    attempt=st.integers(0, 5),
)
STARTED_MS = st.sampled_from([None, 0, 2**53])


STARTS: st.SearchStrategy[Start] = st.builds(
    Start,
    run_id=st.just("a"),
    agent=st.just("x"),
    version=st.integers(1, 3),
    step=STEPS,
    payload=PAYLOADS,
    input_digest=st.sampled_from([b"\0" * 8, b"\xff" * 8]),
    traceparent=st.sampled_from([None, "00-1-2-00"]),
)
EFFECTS = st.builds(
    Effect, agent=st.just("outbox"), run_id=st.just("x:a:0:0"), payload=st.just(b"{}")
)


def returned(step: st.SearchStrategy[str | None]) -> st.SearchStrategy[Input]:
    return st.builds(
        Returned,
        step=step,
        payload=PAYLOADS,
        effects=st.lists(EFFECTS, max_size=2).map(tuple),
        started_ms=STARTED_MS,
    )


def raised(retry_in_ms: st.SearchStrategy[int | None]) -> st.SearchStrategy[Input]:
    return st.builds(Raised, failure=FAILURES, retry_in_ms=retry_in_ms, started_ms=STARTED_MS)


OTHERS: st.SearchStrategy[Input] = st.one_of(
    st.just(Queue()),
    st.just(Forward()),
    returned(STEPS),
    raised(st.integers(0, 1000)),
    returned(STEPS),
    raised(st.integers(0, 1000)),
    returned(st.none()),
    raised(st.none()),
    st.builds(Quarantine, failure=FAILURES),
)
#: what comes to a run: a start, which is refused when there is such a run, and then another input
#: or None: its receipt is tombstoned, if it has one
Happening = tuple[str, Start, Input | None]
HAPPENINGS = st.tuples(st.sampled_from(RUN_IDS), STARTS, OTHERS | st.none())
#: short and long ones: left alone, hypothesis makes them of five on average
HISTORIES = st.lists(HAPPENINGS, max_size=4) | st.lists(HAPPENINGS, min_size=10, max_size=18)
#: a slow machine is no failure
QUICK = settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@dataclass
class Partition:
    """One partition as its owner has it: memory, and the log that memory must be equal to."""

    memory: RunStore = field(default_factory=RunStore)
    log: list[In] = field(default_factory=list)
    written: list[tuple[Run, Record]] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    now_ms: int = 1_700_000_000_000

    def happen(self, run_id: str, event: Input | None) -> None:
        self.now_ms += 7
        if event is None:
            if run_id in self.memory.receipts:
                self.memory.forget(run_id)
                del self.runs[run_id]
                self._append(WIRE.tombstone(run_id, 0, ()))
            return
        decision = decide(self.runs.get(run_id), event, self.now_ms)
        if decision.refused is not None:
            return
        assert decision.run is not None
        self._append(WIRE.outs(decision.run, decision.records, (), 0, self.now_ms)[0])
        self.memory.put(decision.run)
        self.runs[run_id] = decision.run
        self.written += [(decision.run, record) for record in decision.records]

    def _append(self, out: Any) -> None:
        self.log.append(In(out.topic, 0, len(self.log), 0, out.key, out.value))


def lived(history: Iterable[Happening]) -> Partition:
    partition = Partition()
    for run_id, start, event in history:
        partition.happen(run_id, replace(start, run_id=run_id))
        partition.happen(run_id, event)
    return partition


def restored(*parts: Iterable[In]) -> RunStore:
    store = RunStore()
    for records in parts:
        store.apply(records)
    return store


def contents(store: RunStore) -> tuple[Any, ...]:
    """All that is in it; receipts in their order, which says who expires first."""
    return store.live, list(store.receipts.items()), store.broken, store.applied


@QUICK
@given(HISTORIES)
def test_replay_is_the_fold(history: list[Happening]) -> None:
    partition = lived(history)
    assert contents(restored(partition.log)) == contents(partition.memory)


@QUICK
@given(HISTORIES, st.integers(0, 50))
def test_a_prefix_and_then_the_tail_is_all(history: list[Happening], cut: int) -> None:
    log = lived(history).log
    assert contents(restored(log[:cut], log[cut:])) == contents(restored(log))


@QUICK
@given(HISTORIES, st.integers(0, 50))
def test_a_tail_that_is_read_again_changes_nothing(history: list[Happening], cut: int) -> None:
    log = lived(history).log
    assert contents(restored(log, log[cut:])) == contents(restored(log))


@QUICK
@given(HISTORIES)
def test_a_compacted_log_restores_the_same(history: list[Happening]) -> None:
    log = lived(history).log
    last = {record.key: record.offset for record in log}
    compacted = [record for record in log if last[record.key] == record.offset]
    without_tombstones = [record for record in compacted if record.value is not None]
    assert contents(restored(compacted)) == contents(restored(log))
    assert contents(restored(without_tombstones)) == contents(restored(log))


@QUICK
@given(HISTORIES, STARTS, OTHERS)
def test_what_is_not_legal_moves_nothing_and_says_why(
    history: list[Happening], start: Input, other: Input
) -> None:
    partition = lived(history)
    for event in (start, other):
        run = partition.runs.get("a")
        decision = decide(run, event, partition.now_ms)
        if (run and run.status, type(event)) in TABLE:
            assert decision.refused is None
        else:
            assert decision.run is run
            assert decision.records == ()
            assert decision.refused


@QUICK
@given(HISTORIES, STARTS, OTHERS)
def test_applied_twice_is_once_or_refused_or_the_next_attempt_and_never_the_same_one(
    history: list[Happening], start: Input, other: Input
) -> None:
    partition = lived(history)
    for event in (start, other):
        once = decide(partition.runs.get("a"), event, partition.now_ms)
        if once.refused is not None or once.run is None:
            continue
        twice = decide(once.run, event, partition.now_ms)
        if twice.refused is None and not isinstance(event, Forward):
            assert isinstance(event, Returned | Raised)
            assert twice.run is not None
            assert position(twice.run) > position(once.run)
        else:
            assert twice.run == once.run


def position(run: Run) -> tuple[int, int]:
    return run.seq, run.attempt


@settings(QUICK, max_examples=250)
@given(HISTORIES)
def test_no_attempt_ends_twice_and_no_step_is_left_out(
    history: list[Happening],
) -> None:
    partition = lived(history)
    lives: dict[str, list[EventRecord]] = {}
    for run, record in partition.written:
        if isinstance(record, TaskRecord):
            assert (record.seq, record.step) == (run.seq, run.step)
        if isinstance(record, EventRecord):
            if record.type == "run.started":
                check_life(lives.pop(run.run_id, []))
            lives.setdefault(run.run_id, []).append(record)
    for events in lives.values():
        check_life(events)


def check_life(events: list[EventRecord]) -> None:
    """Of one life of one run: from its start until it is over."""
    ends = ("step.completed", "run.completed", "step.retrying", "run.failed")
    attempts = [(event.seq, event.attempt) for event in events if event.type in ends]
    assert attempts == sorted(set(attempts))
    for seq in {seq for seq, _ in attempts}:
        of_seq = [attempt for other, attempt in attempts if other == seq]
        assert of_seq == list(range(len(of_seq)))
    done = [e.seq for e in events if e.type in ("step.completed", "run.completed")]
    assert done == list(range(len(done)))
    last = ("run.completed", "run.failed", "run.attention")
    assert not [event for event in events[:-1] if event.type in last]


def test_the_table_names_known_statuses_only() -> None:
    statuses = set(get_args(Status))
    for (status, _), follow in TABLE.items():
        assert status is None or status in statuses
        assert follow <= statuses
