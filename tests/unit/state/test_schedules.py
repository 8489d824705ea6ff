"""What becomes of ticks: under virtual time, with real workers on a log in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from surefoot import Agent, ConfigError, Context, Done, Next, Sleep, Tick
from surefoot.cli import app
from surefoot.consumers.builtin.schedules import schedules_agent
from surefoot.infra.simulation.time import VirtualClock
from surefoot.producers.commands.schedules import update_schedules
from surefoot.schemas.payload import dump, parse_json
from surefoot.state.machine.model import Run, State
from surefoot.state.scheduling import book as schedule
from surefoot.state.scheduling.book import (
    BOOK,
    QUEUE_MAX,
    Book,
    Declare,
    Due,
    Misfire,
    Overlap,
    Say,
    TickKind,
    UnderWay,
    apply_command,
    decide_ticks,
    jitter_ms,
    next_ticks,
    ready,
    spec_of,
    starts_ms,
    wake_ms,
)
from surefoot.testing.simulation import SimulatedRun, Simulation

#: a Thursday
START = datetime(2026, 1, 1, 8, 59, 30, tzinfo=UTC)
KEEPER = "report.schedules"


def at(text: str) -> int:
    return round(datetime.fromisoformat(f"2026-01-01T{text}+00:00").timestamp() * 1000)


def report(takes: str = "1s", **declared: Any) -> Agent:
    """An agent that starts every minute, and whose runs take so long."""
    agent = Agent("report")

    @agent.step
    async def begin(ctx: Context, minute: str) -> Sleep:
        return Sleep(takes, then=end, payload=minute)

    @agent.step
    async def end(ctx: Context, minute: str) -> Done:
        return Done(minute)

    @agent.schedule(declared.pop("cron", "* * * * *"), name="minutely", **declared)
    def minutely(tick: Tick) -> str:
        return f"{tick.at:%H:%M}"

    return agent


@pytest.fixture
def simulate() -> Iterator[Callable[..., Simulation]]:
    made: list[Simulation] = []

    def simulate(*agents: Any, start: datetime = START) -> Simulation:
        made.append(Simulation(*agents, start=start))
        return made[-1]

    yield simulate
    for sim in made:
        sim.close()


def runs(sim: Simulation) -> list[SimulatedRun]:
    return [run for run in sim.runs() if run.agent == "report"]


def book_of(sim: Simulation) -> Book:
    book = schedule.book_of(sim._view._store(KEEPER).state("minutely", KEEPER))
    assert book is not None
    return book


def ids(sim: Simulation) -> list[str]:
    return [run.run_id.removeprefix("schedule~minutely~") for run in runs(sim)]


# One run a tick -----------------------------------------------------------------------------


def test_a_tick_starts_a_run_that_is_named_after_it(simulate) -> None:
    sim = simulate(report())
    sim.schedule("minutely")
    sim.advance("2m")
    first, second = runs(sim)
    assert first.run_id == "schedule~minutely~2026-01-01T09:00:00Z"
    assert first.result == "09:00"
    assert second.run_id == "schedule~minutely~2026-01-01T09:01:00Z"
    assert first.history[0]["at_ms"] - at("09:00:00") < 50


def test_there_is_no_tick_before_the_schedule_was_declared(simulate) -> None:
    sim = simulate(report(cron="0 * * * *", misfire="all"))
    sim.schedule("minutely")
    assert runs(sim) == []


def test_a_tick_has_one_run_wherever_the_process_is_killed(simulate) -> None:
    calm = simulate(report)
    calm.schedule("minutely")
    calm.advance("2m")
    expected, commits = ids(calm), len(calm.commits)
    assert len(expected) == 2
    for commit in range(1, commits + 1):
        for moment in ("before", "after"):
            with Simulation(report, start=START) as sim:
                sim.kill_at(commit, moment)
                sim.schedule("minutely")
                sim.advance("2m")
                assert ids(sim) == expected, (commit, moment)
                assert {run.status for run in runs(sim)} == {"completed"}


def test_a_function_may_be_async_or_wrapped_by_a_plain_decorator(simulate) -> None:
    async def minutely(tick: Tick) -> str:
        await asyncio.sleep(0)
        return f"{tick.at:%H:%M}"

    def given(tick: Tick) -> Any:
        return minutely(tick)

    for fn in (minutely, given):
        agent = Agent("report")
        agent.step(report().steps["end"].fn)
        agent.schedule("* * * * *", name="minutely")(fn)
        sim = simulate(agent)
        sim.schedule("minutely")
        sim.advance("2m")
        assert [run.result for run in runs(sim)] == ["09:00", "09:01"]


def test_a_function_that_returns_none_wants_no_run(simulate) -> None:
    agent = report()
    every_other = Agent("report")
    every_other.step(start=True)(agent.steps["end"].fn)

    @every_other.schedule("* * * * *", name="minutely")
    def even(tick: Tick) -> str | None:
        return None if tick.at.minute % 2 else f"{tick.at:%H:%M}"

    sim = simulate(every_other)
    sim.schedule("minutely")
    sim.advance("4m")
    assert [run.result for run in runs(sim)] == ["09:00", "09:02"]
    assert book_of(sim).skipped == 2


def test_a_function_that_raises_is_tried_again_and_its_tick_is_late_and_not_lost(simulate) -> None:
    agent, broken = report(), [True]

    @agent.schedule("* * * * *", name="other")
    def other(tick: Tick) -> str:
        if broken:
            raise ValueError("no database")
        return f"{tick.at:%H:%M}"

    sim = simulate(agent)
    sim.schedule("other")
    sim.advance("40s")
    assert sim.look("other", agent=KEEPER).failure["message"] == "no database"
    broken.clear()
    sim.advance("20s")
    assert [run.result or run.status for run in runs(sim)] == ["09:00"]


def test_a_schedule_steered_as_a_run_goes_on_where_it_stood(simulate) -> None:
    sim = simulate(report(misfire="all", overlap="queue"))
    sim.schedule("minutely")
    sim.pause("minutely")
    sim.advance("150s")
    assert ids(sim) == []
    sim.resume("minutely")
    sim.advance("30s")
    assert len(ids(sim)) == 3


def test_the_next_ticks_of_a_file_are_told_where_nothing_runs(tmp_path: Path) -> None:
    file = tmp_path / "report.py"
    file.write_text(FILE)
    done = CliRunner().invoke(app, ["schedules", "next", str(file), "nightly", "-n", "400"])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert len(lines) == 400
    # 400 days have one change to summer time or, in late winter, two
    assert len([line for line in lines if " 03:00:00 CEST " in line]) in (1, 2)
    assert all(", starts 0" in line for line in lines)
    as_json = ["schedules", "next", str(file), "nightly", "-n", "1", "--json"]
    told = json.loads(CliRunner().invoke(app, as_json).stdout)
    assert told["run_id"].startswith("schedule~nightly~")
    assert told["starts"] > told["run_id"][-20:-1]


FILE = """
from surefoot import Agent, Context, Done, Tick

report = Agent("report")

@report.step
async def write(ctx: Context, day: str) -> Done:
    return Done(day)

@report.schedule("30 2 * * *", tz="Europe/Berlin", jitter="5m")
def nightly(tick: Tick) -> str:
    return str(tick.at)
"""


# Overlap ------------------------------------------------------------------------------------


def test_skip_leaves_out_the_ticks_that_come_while_a_run_is_under_way(simulate) -> None:
    sim = simulate(report("150s", overlap="skip"))
    sim.schedule("minutely")
    sim.advance("6m")
    assert [run.run_id[-9:-4] for run in runs(sim)] == ["09:00", "09:03"]
    assert book_of(sim).skipped == 4


def test_queue_runs_them_one_after_the_other(simulate) -> None:
    sim = simulate(report("90s", overlap="queue"))
    sim.schedule("minutely")
    sim.advance("7m")
    found = runs(sim)
    assert [run.run_id[-9:-4] for run in found] == ["09:00", "09:01", "09:02", "09:03", "09:04"]
    ends = [run.history[-1]["at_ms"] for run in found[:-1]]
    starts = [run.history[0]["at_ms"] for run in found[1:]]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))


def test_cancel_gives_up_the_run_under_way_and_starts_the_new_one_after_it(simulate) -> None:
    sim = simulate(report("150s", overlap="cancel"))
    sim.schedule("minutely")
    sim.advance("150s")
    assert [run.status for run in runs(sim)] == ["cancelled", "cancelled", "waiting"]
    first, second, _ = runs(sim)
    assert first.history[-1]["at_ms"] <= second.history[0]["at_ms"]


def test_allow_runs_them_side_by_side(simulate) -> None:
    sim = simulate(report("150s", overlap="allow"))
    sim.schedule("minutely")
    sim.advance("150s")
    assert [run.status for run in runs(sim)] == ["waiting", "waiting", "waiting"]


def test_a_run_that_fails_or_is_cancelled_is_out_of_the_way(simulate) -> None:
    agent = Agent("report")

    @agent.step
    async def begin(ctx: Context, minute: str) -> Next | Sleep:
        if minute == "09:00":
            raise TypeError("broken")
        return Sleep("10d", then=begin, payload=minute)

    @agent.schedule("* * * * *", name="minutely")
    def minutely(tick: Tick) -> str:
        return f"{tick.at:%H:%M}"

    agent.steps["begin"] = replace(
        agent.steps["begin"], retry=replace(agent.steps["begin"].retry, attempts=1)
    )
    sim = simulate(agent)
    sim.schedule("minutely")
    sim.advance("2m")
    assert [run.status for run in runs(sim)] == ["failed", "waiting"]
    sim.cancel(runs(sim)[1].run_id)
    sim.advance("1m")
    assert [run.status for run in runs(sim)] == ["failed", "cancelled", "waiting"]


# Misfire ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misfire", "made"),
    [
        ("all", ["09:00", "09:01", "09:02", "09:03", "09:04", "09:05"]),
        ("latest", ["09:00", "09:05"]),
        ("none", ["09:00", "09:05"]),
    ],
)
def test_ticks_that_nobody_was_there_for(simulate, misfire: str, made: list[str]) -> None:
    """Down from 09:00:30 to 09:05:30: the last one is still within its grace."""
    sim = simulate(report(misfire=misfire))
    sim.schedule("minutely")
    sim.advance("1m")
    sim._alive().kill()
    sim._world.clock.move_to(sim._world.clock.monotonic_s() + 300)
    sim._begin_process()
    sim.advance("29s")
    assert [run.result for run in runs(sim)] == made
    assert book_of(sim).skipped == 6 - len(made)


def _book(misfire: Misfire = "latest", overlap: Overlap = "skip", **fields: Any) -> Book:
    spec = spec_of(
        "* * * * *", "UTC", jitter_s=None, overlap=overlap, misfire=misfire, grace_s=10.0
    )
    return replace(Book(name="m", spec=spec, until_ms=at("00:00:00")), **fields)


THREE_DAYS = 3 * 86_400_000


def test_three_days_without_a_scheduler_are_one_run_by_default() -> None:
    """C55: 4,320 ticks, and none of the late ones but the last."""
    book, now_ms, looks = _book(), at("00:00:30") + THREE_DAYS, 0
    while (wake := wake_ms(book, now_ms)) is not None and wake <= now_ms and not book.queue:
        book, looks = decide_ticks(book, now_ms), looks + 1
    assert book.queue == (Due(at_ms=at("00:00:00") + THREE_DAYS, kind="missed"),)
    assert book.skipped == 4319
    assert looks == 5


def test_none_runs_no_late_tick() -> None:
    book, now_ms = _book("none"), at("00:05:30")
    book = decide_ticks(book, now_ms)
    assert book.queue == ()
    assert book.skipped == 5


def test_all_takes_as_many_as_have_room_and_loses_none() -> None:
    now_ms, seen = at("00:00:30") + THREE_DAYS, []
    book = _book("all")
    while (wake := wake_ms(book, now_ms)) is not None and wake <= now_ms:
        book = decide_ticks(book, now_ms)
        assert len(book.queue) <= QUEUE_MAX
        seen += [due.at_ms for due in book.queue]
        book = replace(book, queue=())
    assert seen == [at("00:00:00") + 60_000 * n for n in range(1, 4321)]


def test_a_late_tick_within_its_grace_is_in_time() -> None:
    assert decide_ticks(_book("none"), at("00:01:10")).queue == (Due(at_ms=at("00:01:00")),)
    assert decide_ticks(_book("none"), at("00:01:11")).queue == ()


# Jitter -------------------------------------------------------------------------------------


def test_jitter_is_equal_everywhere_and_spread_out() -> None:
    assert jitter_ms("daily", at("09:00:00"), 300_000) == 96_161
    spread = [jitter_ms(f"s{n}", at("09:00:00"), 300_000) for n in range(1000)]
    assert 0 <= min(spread) < 5_000
    assert 295_000 < max(spread) < 300_000
    assert jitter_ms("daily", at("09:00:00"), 0) == 0


def test_a_run_starts_a_jitter_after_its_tick_and_is_named_after_the_tick(simulate) -> None:
    sim = simulate(report(jitter="30s"))
    sim.schedule("minutely")
    starts = starts_ms(book_of(sim), at("09:00:00"))
    assert at("09:00:00") < starts < at("09:00:30")
    sim.advance("1m")
    (run,) = runs(sim)
    assert 0 <= run.history[0]["at_ms"] - starts < 50
    assert run.result == "09:00"


def test_jitter_longer_than_the_gap_between_ticks_keeps_their_order(simulate) -> None:
    sim = simulate(report(jitter="10m", overlap="allow"))
    sim.schedule("minutely")
    sim.advance("30m")
    starts = [run.history[0]["at_ms"] for run in sorted(runs(sim), key=lambda run: run.run_id)]
    assert starts == sorted(starts)
    assert len(starts) >= 20
    assert book_of(sim).skipped == 0


# Told ---------------------------------------------------------------------------------------


def test_what_passes_while_it_is_paused_has_passed(simulate) -> None:
    sim = simulate(report(misfire="all"))
    sim.schedule("minutely")
    sim.advance("1m")
    sim.tell_schedule("minutely", do="pause")
    sim.advance("5m")
    sim.tell_schedule("minutely", do="trigger", id="by-hand")
    sim.advance("5m")
    sim.tell_schedule("minutely", do="resume")
    sim.advance("1m")
    assert [name[-9:] for name in ids(sim)] == ["09:00:00Z", "w~by-hand", "09:11:00Z"]


@pytest.mark.parametrize("do", ["pause", "remove"])
def test_what_waits_for_its_turn_is_dropped_unless_somebody_has_asked_for_it(do: Any) -> None:
    kinds: list[TickKind] = ["missed", "tick", "trigger", "backfill"]
    queue = tuple(Due(at_ms=n, kind=kind) for n, kind in enumerate(kinds))
    rests = apply_command(_book(queue=queue), Say(do=do), at("00:00:00"))
    assert [due.kind for due in rests.queue] == ["trigger", "backfill"]
    assert rests.skipped == 2


def test_a_trigger_asked_for_twice_is_one_run(simulate) -> None:
    sim = simulate(report())
    sim.schedule("minutely")
    for _ in range(2):
        sim.tell_schedule("minutely", do="trigger", id="x")
        sim.advance("5s")
    assert ids(sim) == ["now~x"]
    sim.advance("30s")
    assert len(ids(sim)) == 2, "the end of the repeated one was not told"


def test_backfill_runs_what_has_no_run_yet_one_after_the_other(simulate) -> None:
    sim = simulate(report("5s"))
    sim.schedule("minutely")
    sim.advance("1m")
    sim.tell_schedule("minutely", do="backfill", from_ms=at("08:57:00"), to_ms=at("09:01:00"))
    sim.advance("25s")
    assert sorted(ids(sim)) == [
        f"2026-01-01T{time}:00Z" for time in ("08:57", "08:58", "08:59", "09:00")
    ]
    assert book_of(sim).under_way is None


def test_a_tick_goes_before_a_backfill_and_is_not_skipped_for_it(simulate) -> None:
    sim = simulate(report("20s"))
    sim.schedule("minutely")
    sim.tell_schedule("minutely", do="backfill", from_ms=at("08:00:00"), to_ms=at("08:03:00"))
    sim.advance("95s")
    by_start = sorted(runs(sim), key=lambda run: run.history[0]["at_ms"])
    made = [run.run_id[-9:-4] for run in by_start]
    assert made == ["08:00", "08:01", "09:00", "08:02", "09:01"]


def test_a_tick_behind_what_was_missed_is_not_skipped_where_all_are_to_be_run() -> None:
    book = decide_ticks(_book("all"), at("00:03:05"))
    assert [due.kind for due in book.queue] == ["missed", "missed", "tick"]


def test_a_changed_declaration_holds_from_then_on() -> None:
    book = _book(until_ms=at("09:00:00"))
    hourly = replace(book.spec, cron="0 * * * *")
    changed = apply_command(
        decide_ticks(book, at("09:01:05")), Declare(spec=hourly), at("09:01:05")
    )
    assert wake_ms(replace(changed, queue=()), at("09:01:05")) == at("10:00:00")
    assert [due.at_ms for due in changed.queue] == [at("09:01:00")]
    assert apply_command(changed, Declare(spec=hourly), at("09:30:00")) == changed
    dense = apply_command(
        changed, Declare(spec=replace(hourly, cron="* * * * * *")), at("09:01:30")
    )
    assert wake_ms(replace(dense, queue=()), at("09:01:30")) == at("09:01:31"), "a tick of the past"


def test_a_signal_that_is_none_of_its_own_harms_nothing(simulate) -> None:
    sim = simulate(report())
    sim.schedule("minutely")
    sim.tell_schedule("minutely", do="dance")
    sim.advance("1m")
    assert len(ids(sim)) == 1


def test_a_full_queue_waits_until_there_is_room() -> None:
    full = tuple(Due(at_ms=n, kind="backfill") for n in range(QUEUE_MAX))
    busy = UnderWay(run_id="r", number=1, kind="backfill")
    book = _book(overlap="queue", queue=full, under_way=busy)
    assert decide_ticks(book, at("00:10:00")) == book
    assert ready(book) is None
    assert wake_ms(book, at("00:10:00")) is None


# Declaring ----------------------------------------------------------------------------------


class Sent:
    def __init__(self) -> None:
        self.commands: list[tuple[str, str, Any]] = []

    async def start(self, _agent: str, run_id: str, payload: bytes, **_: Any) -> Any:
        self.commands.append((run_id, "start", parse_json(payload)["cron"]))

    async def send(self, _agent: str, run_id: str, kind: str, **fields: Any) -> Any:
        self.commands.append((run_id, kind, parse_json(fields["payload"])["do"]))


def known(agent: Agent, **fields: Any) -> dict[str, State]:
    spec = agent.schedules["minutely"].spec
    book = replace(Book(name="minutely", spec=spec, until_ms=0), **fields)
    run = Run(
        run_id="minutely",
        agent=KEEPER,
        version=1,
        status="waiting",
        seq=1,
        step="hear",
        attempt=0,
        payload=b"null",
        carry=dump(BOOK, book),
        created_ms=0,
        updated_ms=0,
        input_digest=b"",
    )
    return {"minutely": State(run)}


#: somebody has started a run of the built-in agent by hand
STRANGER = Run(
    run_id="stranger",
    agent=KEEPER,
    version=1,
    status="waiting",
    seq=0,
    step="hear",
    attempt=0,
    payload=b"[1]",
    created_ms=0,
    updated_ms=0,
    input_digest=b"",
)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, [("minutely", "start", "* * * * *")]),
        (known(report()), []),
        (known(report(), paused=True), []),
        (known(report(), removed=True), [("minutely", "signal", "declare")]),
        (known(report(cron="0 * * * *")), [("minutely", "signal", "declare")]),
        (
            known(report()) | {"gone": known(report())["minutely"]},
            [("gone", "signal", "remove")],
        ),
        (known(report()) | {"stranger": State(STRANGER._replace(seq=3))}, []),
        ({**known(report()), "gone": known(report(), removed=True)["minutely"]}, []),
    ],
)
async def test_only_what_differs_is_told(there: dict[str, State], expected: list[Any]) -> None:
    sent = Sent()
    await update_schedules(report(), there, sent, VirtualClock(start_ms=0, seed=0), send_s=10.0)  # type: ignore[arg-type]
    assert sent.commands == expected


def test_a_removed_schedule_ticks_no_more_and_begins_anew_when_it_is_declared_again(
    simulate,
) -> None:
    sim = simulate(report(misfire="all"))
    sim.schedule("minutely")
    sim.advance("1m")
    sim.tell_schedule("minutely", do="remove")
    sim.advance("10m")
    assert len(ids(sim)) == 1
    spec = {**BOOK.dump_python(book_of(sim), mode="json")["spec"]}
    sim.tell_schedule("minutely", do="declare", spec=spec)
    sim.advance("1m")
    assert len(ids(sim)) == 2


def test_a_version_that_does_not_know_the_schedule_leaves_its_tick_to_one_that_does(
    simulate,
) -> None:
    sim = simulate(report())
    sim.schedule("minutely")
    unknowing = report()
    unknowing.schedules.clear()
    unknowing.schedule("0 0 1 1 *", name="other")(str)
    sim.crash(unknowing)
    sim.advance("40s")
    assert ids(sim) == []
    sim.crash(report())
    sim.advance("10s")
    assert [run.result for run in runs(sim)] == ["09:00"]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"tz": "Mars/Olympus"}, "unknown time zone"),
        ({"overlap": "maybe"}, "overlap must be one of skip, queue, cancel, allow"),
        ({"misfire": "some"}, "misfire must be one of all, latest, none"),
        ({"jitter": "soon"}, "a duration must look like"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_at_import(
    declared: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s)schedule 'minutely' of agent 'report': .*{said}"):
        report(**declared)


def test_names_are_checked_and_taken_from_the_function() -> None:
    agent = Agent("report")

    @agent.schedule("@daily")
    def every_day(tick: Tick) -> None: ...

    assert list(agent.schedules) == ["every-day"]
    with pytest.raises(ConfigError, match="declared twice"):
        agent.schedule("@daily", name="every-day")(every_day)
    with pytest.raises(ConfigError, match="name it with"):
        agent.schedule("@daily", name="Every Day")(every_day)


def test_next_ticks_are_told() -> None:
    spec = spec_of(
        "0 9 * * 1-5", "Europe/Berlin", jitter_s=None, overlap="skip", misfire="none", grace_s=1
    )
    friday = round(datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp() * 1000)
    assert [ms - friday for ms in next_ticks(spec, friday, 2)] == [
        round(timedelta(days=2, hours=19).total_seconds() * 1000),
        round(timedelta(days=3, hours=19).total_seconds() * 1000),
    ]


def test_the_keeper_has_a_name_that_no_declared_agent_can_have() -> None:
    assert schedules_agent(report(), VirtualClock(start_ms=0, seed=0)).name == KEEPER

    async def begin(ctx: Context, payload: str) -> Done:
        return Done(payload)

    with pytest.raises(ConfigError, match="schedules"):
        Agent("x").step(pool="schedules")(begin)
