"""`surefoot top` and `surefoot topics lag`: what is shown, on a terminal and as JSON."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from surefoot.commands.admin.lag import lag_rows, lag_table
from surefoot.commands.admin.top import Snapshot, Working, screen, shown_next, snapshot_json
from surefoot.state.errors import Unavailable
from surefoot.state.reading.lag import AgentStanding, Member, PartitionStanding, behind, owner_of
from surefoot.state.reading.query import Waiting

HOSTILE = "[red]x[/red]\x1b[2J"


def place(kind: str, partition: int, lag: int | None, *, exact: bool = True) -> PartitionStanding:
    return PartitionStanding(
        topic=f"app.a.{kind}",
        partition=partition,
        start=0,
        end=9,
        stable=9,
        committed=1,
        lag=lag,
        exact=exact,
        owner=HOSTILE if partition == 0 else None,
    )


def standing(partitions: int = 2) -> AgentStanding:
    worker = Member(name=HOSTILE, host="10.0.0.7", partitions=frozenset({0}))
    places = [
        place(kind, number, lag, exact=number != 1)
        for kind, lag in (("commands", 2), ("tasks", 3), ("state", None))
        for number in range(partitions)
    ]
    return AgentStanding(agent="a", group="app.a", members=(worker,), partitions=tuple(places))


def snapshot(partitions: int = 2) -> Snapshot:
    waiting = Waiting(run_id="r-1", step=HOSTILE, since_ms=1_000, runs=4)
    working = Working(
        agent="a",
        statuses={"waiting": 4, "failed": 1},
        versions={},
        steps_per_s=2.5,
        failures_per_s=0.1,
        oldest={"waiting": waiting},
    )
    return Snapshot(
        at_ms=7_201_000,
        log="Kafka at broker:9092",
        agents=[working],
        standings=[standing(partitions)],
    )


def drawn(shown: object, *, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=terminal, width=160, markup=False, highlight=False).print(
        shown
    )
    return out.getvalue()


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_screen_tells_runs_rates_the_oldest_wait_lag_and_workers() -> None:
    told = lines(drawn(screen(snapshot())))
    assert ["AGENT", "WAITING", "FAILED", "STEPS/S", "FAILURES/S"] in told
    assert ["a", "4", "1", "2.5", "0.1"] in told
    [oldest] = [line for line in told if line[:3] == ["a", "waiting", "r-1"]]
    assert oldest[-2:] == ["2", "h"]
    assert ["a", "1", "nobody", "~2", "~3"] in told
    assert [line[-2:] for line in told if "10.0.0.7" in line] == [["10.0.0.7", "1"]]


@pytest.mark.parametrize("terminal", [True, False])
def test_no_text_from_outside_is_markup_or_moves_the_terminal(terminal: bool) -> None:
    text = drawn(screen(snapshot()), terminal=terminal)
    assert "\x1b[2J" not in text
    assert text.count("[red]x[/red]\\x1b[2J") == 3


async def test_a_log_that_is_away_is_told_and_asked_again() -> None:
    class Away:
        async def look(self) -> Snapshot:
            raise Unavailable("SF3002", f"no answer {HOSTILE}")

    text = drawn(await shown_next(Away()))
    assert "SF3002" in text
    assert "trying again" in text
    assert "\x1b[2J" not in text


def test_a_screen_has_an_end_and_says_what_it_leaves_out() -> None:
    text = drawn(screen(snapshot(partitions=20)))
    assert "and 4 more partitions" in text


def test_the_snapshot_as_json_has_everything() -> None:
    told = json.loads(json.dumps(snapshot_json(snapshot(partitions=20))))
    assert told["agents"][0]["oldest"]["waiting"] == {
        "run_id": "r-1",
        "step": HOSTILE,
        "since_ms": 1_000,
    }
    assert len(told["topics"][0]["topics"]) == 60
    assert (told["topics"][0]["lag"], told["topics"][0]["exact"]) == (100, False)


def test_the_most_lag_comes_first_and_topics_that_nobody_reads_are_left_out() -> None:
    one = AgentStanding(
        agent="a", group="g", partitions=(place("tasks", 0, 1), place("state", 0, None))
    )
    two = AgentStanding(agent="b", group="g", partitions=(place("tasks", 3, 5),))
    rows = lag_rows([one, two])
    assert [(row.agent, row.partition, row.lag) for row in rows] == [("b", 3, 5), ("a", 0, 1)]
    assert "\x1b" not in drawn(lag_table(rows))


@pytest.mark.parametrize(
    ("committed", "start", "stable", "stretch"),
    [(None, 3, 9, (3, 9)), (5, 3, 9, (5, 9)), (1, 3, 9, (3, 9)), (9, 3, 7, (9, 9))],
)
def test_what_retention_has_deleted_and_what_is_done_is_no_backlog(
    committed: int | None, start: int, stable: int, stretch: tuple[int, int]
) -> None:
    assert behind(committed, start, stable) == stretch


def test_a_partition_that_is_being_shared_out_has_no_owner() -> None:
    [worker] = standing().members
    assert owner_of([worker], 0) == HOSTILE
    assert owner_of([worker], 1) is None
