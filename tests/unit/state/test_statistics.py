"""Views as folds of events: what they say, and that it is the same however events come in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.schemas.codec.codec import decode, encode
from surefoot.state.machine.model import Amount, EventRecord, Failure, Memory, WaitState, jsonable
from surefoot.state.reading import statistics as projections
from surefoot.state.reading.statistics import (
    MINUTE_MS,
    RUNS_KEPT_MS,
    WINDOWS_KEPT_MS,
    PartitionStatistics,
    Window,
    bucket_ms,
    bucket_of,
    percentile,
)

T = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
HOUR = 60 * MINUTE_MS


class Kept:
    """Values in memory, kept one after the other; a crash leaves a prefix of them."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return list(self.values.items())

    def keep(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in changes:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value


def opened(kept: Kept) -> PartitionStatistics:
    view = PartitionStatistics(kept)
    for _ in view.open(at_a_time=1):
        pass
    return view


def event(kind: Any, run_id: str = "r", status: Any = "running", at: int = 0, **more: Any) -> Any:
    record = EventRecord(
        type=kind,
        run_id=run_id,
        agent="a",
        version=more.pop("version", 1),
        status=status,
        seq=more.pop("seq", 0),
        at_ms=T + at,
        **more,
    )
    return decode(encode("Event", jsonable(record)), "Event")[1]


def folded(*events: Any) -> tuple[PartitionStatistics, Kept]:
    kept = Kept()
    view = opened(kept)
    kept.keep(view.fold(enumerate(events)))
    return view, kept


def spent(tokens: int, money: int = 0) -> Memory:
    amounts = (Amount("tokens", tokens), Amount("money", money))
    return Memory(spent=amounts, granted=(Amount("tokens", 1_000),))


def test_runs_are_counted_by_status_and_age() -> None:
    view, _ = folded(
        event("run.started", "a"),
        event("run.started", "b", at=30 * MINUTE_MS),
        event("run.started", "c"),
        event("run.completed", "c", "completed", at=59 * MINUTE_MS, step="s"),
    )
    told = projections.summary([view], T + HOUR)
    assert told["running"]["runs"] == 2
    assert told["running"]["oldest_ms"] == T
    assert told["running"]["ages"] == {"1m": 0, "10m": 0, "1h": 1, "1d": 1, "older": 0}
    assert told["completed"]["ages"]["10m"] == 1


def test_since_when_is_not_moved_by_events_that_change_nothing() -> None:
    view, _ = folded(
        event("run.started"), event("step.completed", at=5_000, step="one", next_step="two")
    )
    run = view.run("r")
    assert run is not None
    assert (run.since_ms, run.updated_ms, run.step, run.seq) == (T, T + 5_000, "two", 1)


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (
            event(
                "run.attention", status="attention", failure=Failure(code="in_doubt", message="")
            ),
            "in_doubt",
        ),
        (
            event(
                "step.completed",
                status="waiting",
                wait=WaitState(kind="approval", since_ms=T, question="q1"),
            ),
            "approval",
        ),
        (
            event("budget.spent", status="waiting", wait=WaitState(kind="budget", since_ms=T)),
            "budget",
        ),
        (
            event("step.completed", status="waiting", wait=WaitState(kind="signal", since_ms=T)),
            None,
        ),
        (event("step.retrying", status="waiting", step="s"), None),
        (
            event("run.failed", status="failed", failure=Failure(code="step_raised", message="")),
            None,
        ),
    ],
)
def test_who_needs_a_person_and_why(last: Any, why: str | None) -> None:
    view, kept = folded(event("run.started"), last)
    found = projections.attention([view], 10)
    assert [run["person"] for run in found] == ([why] if why else [])
    assert opened(kept).people.keys() == view.people.keys()


def test_a_question_is_still_asked_after_a_pause_and_a_signal_and_not_after_its_answer() -> None:
    wait = WaitState(kind="approval", since_ms=T, question="q1")
    asked = event("step.completed", status="waiting", wait=wait, step="s")
    paused, resumed = (event("run.paused", status="paused"), event("run.resumed", status="waiting"))
    signal = event("signal.received", status="waiting", name="hello")
    view, _ = folded(event("run.started"), asked, paused)
    assert not view.people
    view, _ = folded(event("run.started"), asked, paused, resumed, signal)
    assert view.people["r"].about == "q1"
    view, _ = folded(event("run.started"), asked, event("approval.decided", next_step="t"))
    assert not view.people


@pytest.mark.parametrize(
    "other",
    [
        event("start.ignored"),
        event("command.refused", status="pending", version=0),
        event("signal.received", status="pending", version=0),
        event("signal.unread"),
    ],
)
def test_what_says_nothing_of_the_run_changes_nothing(other: Any) -> None:
    done = event("run.completed", status="completed", step="s")
    view, kept = folded(event("run.started"), done, other)
    assert view.counts == {("completed", T // MINUTE_MS): 1}
    assert opened(kept).applied == 2


def test_windows_tell_rate_durations_failures_and_cost_by_step_and_minute() -> None:
    view, _ = folded(
        event("run.started", memory=spent(0)),
        event("step.retrying", status="waiting", step="one", at=50, started_ms=T),
        event(
            "step.completed",
            step="one",
            next_step="two",
            at=150,
            started_ms=T + 50,
            memory=spent(40, 2_000_000),
        ),
        event(
            "run.completed",
            status="completed",
            step="two",
            at=MINUTE_MS,
            started_ms=T + MINUTE_MS - 10,
            memory=spent(100, 5_000_000),
        ),
        event("run.started", "x"),
        event(
            "run.failed",
            "x",
            "failed",
            step="one",
            at=400,
            started_ms=T,
            failure=Failure(code="step_raised", message=""),
        ),
    )
    one, two = projections.windows_json(projections.windows([view], 0))
    assert one["step"] == "one"
    assert (one["steps"], one["attempts"], one["retries"], one["failures"]) == (1, 3, 1, 1)
    assert one["p50_ms"] == pytest.approx(100, rel=0.07)
    assert one["p99_ms"] == pytest.approx(400, rel=0.07)
    assert (one["tokens"], one["money"]) == (40, 2.0)
    assert (two["at_ms"], two["tokens"], two["money"]) == (T + MINUTE_MS, 60, 3.0)


def test_of_each_step_it_is_told_what_all_minutes_came_to() -> None:
    """Percentiles are of all attempts: not of what each minute's were."""
    found = {
        (1, "one"): Window(steps=5, took={bucket_of(1): 5}),
        (1, "two"): Window(steps=1, failures=1, took={bucket_of(2): 1}),
        (2, "one"): Window(steps=1, retries=1, took={bucket_of(7): 2}, tokens=9, money=500_000),
    }
    one, two = projections.steps_json(found, minutes=2)
    assert one == {
        "step": "one",
        "steps": 6,
        "steps_s": 0.05,
        "attempts": 7,
        "retries": 1,
        "failures": 0,
        "p50_ms": 1,
        "p99_ms": 7,
        "tokens": 9,
        "money": 0.5,
    }
    assert (two["step"], two["failures"], two["p50_ms"]) == ("two", 1, 2)
    assert found[1, "one"] == Window(steps=5, took={bucket_of(1): 5})


def test_a_run_that_is_sent_back_has_spent_what_it_spends_again() -> None:
    view, _ = folded(
        event("run.started", memory=spent(0)),
        event("step.completed", step="s", next_step="s", memory=spent(40)),
        event("run.rewound", memory=spent(0)),
        event("step.completed", step="s", next_step="s", memory=spent(30)),
    )
    assert view.windows[T // MINUTE_MS, "s"].tokens == 70


def test_durations_are_told_to_a_sixteenth() -> None:
    for ms in [*range(2_000), *(2**n + d for n in range(11, 40) for d in (-1, 0, 1))]:
        assert bucket_of(ms) <= bucket_of(ms + 1)
        assert abs(bucket_ms(bucket_of(ms)) - ms) <= ms / 16
        assert bucket_of(bucket_ms(bucket_of(ms))) == bucket_of(ms)
    assert bucket_of(-5) == 0  # of two clocks
    assert percentile({}, 50) is None
    assert [percentile({bucket_of(1): 98, bucket_of(7): 2}, p) for p in (50, 98, 99)] == [1, 1, 7]


def test_windows_of_several_instances_add_up() -> None:
    mine, theirs = Window(steps=1, took={3: 1}), Window(steps=2, took={3: 1, 5: 2}, tokens=4)
    packed = projections.pack_windows({(1, "s"): theirs})
    total = projections.add_windows([{(1, "s"): mine}, projections.unpack_windows(packed)])
    assert total == {(1, "s"): Window(steps=3, took={3: 2, 5: 2}, tokens=4)}
    assert mine == Window(steps=1, took={3: 1})


def test_what_is_old_is_forgotten_and_what_is_under_way_is_not() -> None:
    view, kept = folded(
        event("run.started", "open"),
        event("run.started", "over"),
        event("run.completed", "over", "completed", step="s", started_ms=T),
        event("run.started", "late", at=WINDOWS_KEPT_MS + 2 * HOUR),
    )
    assert not view.windows
    assert view.run("over") is not None
    kept.keep(view.fold([(9, event("run.started", "later", at=RUNS_KEPT_MS + 2 * HOUR))]))
    for each in (view, opened(kept)):
        assert each.run("over") is None
        assert each.run("open") is not None
        assert {status for status, _ in each.counts} == {"running"}
    late = event("step.completed", "open", step="s", at=MINUTE_MS, started_ms=T)
    kept.keep(view.fold([(10, late)]))
    assert not view.windows


def test_an_event_that_cannot_be_decoded_is_passed_over() -> None:
    view, _ = folded(event("run.started"), None, event("run.completed", status="completed"))
    assert view.counts == {("completed", T // MINUTE_MS): 1}


def test_a_run_does_not_go_back_to_an_event_that_comes_again() -> None:
    events = [event("run.started"), event("run.completed", status="completed", step="s")]
    kept = Kept()
    kept.keep(opened(kept).fold(enumerate(events))[:-1])  # all but up to where it goes
    view = opened(kept)
    assert view.applied == -1
    kept.keep(view.fold([(0, events[0])]))
    assert view.counts == {("completed", T // MINUTE_MS): 1}


# However the events come in ------------------------------------------------------------------


def history(seed: int) -> list[tuple[int, Any]]:
    """Events of some runs over more time than anything is kept, with holes in their offsets."""
    chance = random.Random(seed)
    at = offset = 0
    costs: dict[str, int] = {}
    events = []
    for _ in range(chance.randint(5, 60)):
        at += chance.choice([0, 900, MINUTE_MS, HOUR, 30 * HOUR, RUNS_KEPT_MS])
        offset += chance.randint(1, 3)
        run_id = chance.choice("abcd")
        kind, status = chance.choice(
            [
                ("run.started", "running"),
                ("step.completed", "running"),
                ("run.failed", "failed"),
                ("step.retrying", "waiting"),
                ("run.completed", "completed"),
                ("run.attention", "attention"),
                ("start.ignored", "running"),
            ]
        )
        costs[run_id] = costs.get(run_id, 0) + chance.randint(0, 5)
        late = at - chance.choice([0, 0, 0, 2_000, 2 * HOUR])
        step = chance.choice(["one", "two|three"])
        events.append(
            (
                offset,
                event(
                    kind,
                    run_id,
                    status,
                    late,
                    step=step,
                    started_ms=T + late - 7,
                    memory=spent(costs[run_id]),
                ),
            )
        )
    return events


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_batches_crashes_and_repetitions_come_to_the_same(seed: int) -> None:
    """The same digest as from zero: whatever is in a batch, whatever prefix of it a crash leaves,
    and however far back the events come again."""
    events, chance = history(seed), random.Random(seed + 1)
    zero = Kept()
    zero.keep(opened(zero).fold(events))
    live = Kept()
    view, at = opened(live), 0
    while at < len(events):
        upto = at + chance.randint(1, 7)
        changes = view.fold(events[max(at - chance.randint(0, 9), 0) : upto])
        if chance.random() < 0.4:
            live.keep(changes[: chance.randint(0, len(changes))])
            view = opened(live)
            at = next((n for n, (offset, _) in enumerate(events) if offset > view.applied), at)
        else:
            live.keep(changes)
            at = upto
    # once more, from the middle, with what died in the last batch
    live.keep(opened(live).fold(events))
    assert projections.digest_values(live) == projections.digest_values(zero)
    assert opened(live).counts == opened(zero).counts == view.counts
