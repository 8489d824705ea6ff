"""The load of the closed-loop benchmark: what it starts, what it counts, and what it refuses."""

from __future__ import annotations

import pytest

from benchmarks.closed import IN_FLIGHT, PROCESSES, compared, setups
from benchmarks.load import Load
from surefoot.state.ports.log import ConsumerRecord


def event(run_id: str, seq: int, kind: str = "step.completed") -> ConsumerRecord:
    headers = (("sf-seq", b"%d" % seq), ("ce_type", f"surefoot.{kind}".encode()))
    return ConsumerRecord("events", 0, 0, 0, run_id.encode(), b"", headers)


@pytest.fixture
def started() -> list[str]:
    return []


@pytest.fixture
def load(started: list[str]) -> Load:
    return Load(2, started.append)


def see_run(load: Load, run_id: str, begun_s: float) -> None:
    load.see(event(run_id, 0, "run.started"), begun_s)
    load.see(event(run_id, 0), begun_s)
    load.see(event(run_id, 1, "run.completed"), begun_s + 0.25)


def test_a_run_begins_when_another_has_ended_and_not_before(load: Load, started: list[str]) -> None:
    load.begin(2)
    load.see(event(started[0], 0, "run.started"), 1.0)
    load.see(event(started[0], 0), 1.0)
    assert len(started) == 2
    load.see(event(started[0], 1, "run.completed"), 1.25)
    assert len(set(started)) == 3
    assert (load.in_progress, load.steps, load.ended) == (2, 2, 1)


def test_the_last_runs_end_without_a_successor(load: Load, started: list[str]) -> None:
    load.begin(1)
    load.goes_on = False
    see_run(load, started[0], 1.0)
    assert (len(started), load.in_progress) == (1, 0)


def test_a_period_is_between_steps_of_one_run(load: Load, started: list[str]) -> None:
    load.begin(2)
    first, second = started
    load.see(event(first, 0), 1.0)
    load.see(event(second, 0), 1.125)
    load.see(event(first, 1), 1.25)
    load.see(event(second, 1), 1.5)
    assert load.periods_ms == [250.0, 375.0]


@pytest.mark.parametrize("seqs", [(0, 0), (1,), (0, 1, 1)], ids=["twice", "omitted", "after"])
def test_a_step_that_is_not_due_is_wrong(
    load: Load, started: list[str], seqs: tuple[int, ...]
) -> None:
    load.begin(1)
    run_id = started[0]
    for seq in seqs:
        load.see(event(run_id, seq), 1.0)
    assert load.wrong is not None
    assert run_id in load.wrong


def test_every_row_of_an_engine_is_compared_with_both_yardsticks() -> None:
    found = setups(IN_FLIGHT, PROCESSES, 6)
    rows = [
        {
            "kind": each.kind,
            "in_flight": each.in_flight,
            "partitions": each.partitions,
            "steps_per_s": each.in_flight * (each.partitions or 1) / each.processes,
            "ms_p50": each.in_flight,
        }
        for each in found
    ]
    engines = [row for row in compared(rows) if row["kind"] == "engine"]
    assert len(engines) == len(IN_FLIGHT) * len(PROCESSES) + 1  # and one on one partition
    assert {row["steps_per_s_over_bare"] for row in engines} == {1.0, 0.5, 0.25}
    assert {row["steps_per_s_over_fsync"] for row in engines} == {6.0, 3.0, 1.5, 1.0}
    assert {row["ms_p50_over_bare"] for row in engines} == {1.0}
    assert {row["ms_p50_over_fsync"] for row in engines} == {1.0}


def test_no_process_is_without_a_partition() -> None:
    found = setups([64], [1, 2, 4], 2)
    assert all(each.processes <= each.partitions for each in found if each.partitions)
    assert {each.processes for each in found if each.kind == "engine"} == {1, 2}
