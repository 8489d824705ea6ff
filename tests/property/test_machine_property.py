"""Whatever happens to runs: what is restored from what was written is what was in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from surefoot.state.machine.decide import TABLE, decide
from surefoot.state.machine.model import CarryForward, CommandRecord, EventRecord, Status
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.run_store import RunStore
from tests.property.machine_walk import RUN_IDS, Arrow, Partition, lived, repeated

#: a slow machine is no failure
QUICK = settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
#: each number is one commit; see machine_walk
DICE = st.integers(0, 2**32 - 1)
HISTORIES = st.lists(DICE, max_size=6) | st.lists(DICE, min_size=20, max_size=60)


def restored(*parts: Sequence[ConsumerRecord]) -> RunStore:
    store = RunStore()
    for records in parts:
        store.apply(records)
    return store


def contents(store: RunStore) -> tuple[Any, ...]:
    """All that is in it; receipts in their order, which says who expires first, and entries in
    theirs, which says which signal came first."""
    entries = {run_id: list(slots.items()) for run_id, slots in store.entries.items()}
    keys = {run_id: sorted(store.keys(run_id)) for run_id in RUN_IDS}
    return store.live, list(store.receipts.items()), entries, keys, store.broken, store.applied


def compacted(log: list[ConsumerRecord]) -> list[ConsumerRecord]:
    last = {record.key: record.offset for record in log}
    return [record for record in log if last[record.key] == record.offset]


@QUICK
@given(HISTORIES)
def test_replay_is_the_fold(history: list[int]) -> None:
    partition = lived(history)
    assert contents(restored(partition.log)) == contents(partition.memory)


@QUICK
@given(HISTORIES, st.integers(0, 200))
def test_a_prefix_and_then_the_tail_is_all(history: list[int], cut: int) -> None:
    log = lived(history).log
    assert contents(restored(log[:cut], log[cut:])) == contents(restored(log))


@QUICK
@given(HISTORIES, st.integers(0, 200))
def test_a_tail_that_is_read_again_changes_nothing(history: list[int], cut: int) -> None:
    log = lived(history).log
    assert contents(restored(log, log[cut:])) == contents(restored(log))


@QUICK
@given(HISTORIES, st.integers(0, 200))
def test_a_compacted_log_restores_the_same(history: list[int], cut: int) -> None:
    log = lived(history).log
    short = compacted(log)
    without_tombstones = [record for record in short if record.value is not None]
    head_only = [*compacted(log[:cut]), *log[cut:]]
    for part in (short, without_tombstones, head_only):
        assert contents(restored(part)) == contents(restored(log))


@QUICK
@given(HISTORIES)
def test_nothing_is_left_in_the_log_that_no_run_would_tombstone(history: list[int]) -> None:
    partition = lived(history)
    kept = {record.key for record in compacted(partition.log) if record.value is not None}
    named = {key for run_id in RUN_IDS for key in partition.memory.keys(run_id)}
    assert kept <= named


@QUICK
@given(HISTORIES)
def test_applied_twice_is_once_or_refused_or_the_next_attempt_and_never_the_same_one(
    history: list[int],
) -> None:
    partition = lived(history)
    for state, event, once in partition.decided:
        if once.refused is not None or once.run is None or once.run is state.run:
            continue
        entries = dict(state.entries)
        twice = decide(partition.rules, type(state)(once.run, entries), event, partition.now_ms)
        if twice.run is not once.run and not isinstance(event, CarryForward):
            assert twice.run is not None
            assert position(twice.run) > position(once.run) or not at_work(event)


def at_work(event: Any) -> bool:
    return getattr(event, "work", None) is not None


def position(run: Any) -> tuple[int, int, int]:
    return run.epoch, run.seq, run.attempt


@QUICK
@given(HISTORIES)
def test_no_attempt_ends_twice_and_no_child_is_started_twice(history: list[int]) -> None:
    ended: dict[str, set[tuple[int, int, int]]] = {}
    begun: dict[str, set[str]] = {}
    for state, _, decision in lived(history).decided:
        run_id = decision.run.run_id if decision.run is not None else ""
        if state.run is None:  # the beginning of a life
            ended[run_id], begun[run_id] = set(), set()
        for record in decision.records:
            if isinstance(record, EventRecord) and record.type in (
                "step.completed",
                "step.retrying",
            ):
                attempt = record.epoch, record.seq, record.attempt
                if record.type == "step.completed":
                    assert attempt not in ended[run_id]
                    ended[run_id].add(attempt)
            if isinstance(record, CommandRecord) and record.kind == "start":
                assert record.run_id not in begun[run_id]
                begun[run_id].add(record.run_id)


def walks(count: int, length: int) -> Iterable[Partition]:
    """Always the same ones."""
    random = Random(5)
    for _ in range(count):
        yield lived(random.getrandbits(32) for _ in range(length))


def test_every_arrow_of_the_table_is_taken_and_no_other() -> None:
    table = {(status, event, after) for (status, event), next_ in TABLE.items() for after in next_}
    seen: set[Arrow] = set()
    for partition in walks(1000, 100):
        seen |= partition.arrows()
        if seen >= table:
            break
    assert table - seen == set()
    assert seen - table == set()


def test_the_table_names_known_statuses_only() -> None:
    statuses = set(get_args(Status))
    for (status, _), follow in TABLE.items():
        assert status is None or status in statuses
        assert follow <= statuses | {None}
        assert follow


def test_a_walk_repeats_and_refuses_some_commands() -> None:
    decided = [each for partition in walks(10, 60) for each in partition.decided]
    assert [decision for _, _, decision in decided if repeated(decision)]
    codes = {decision.refused.code for _, _, decision in decided if decision.refused is not None}
    assert {"stale", "too_late", "not_possible", "unknown_question"} <= codes
