"""Ticks over the changes of the clock, in 2026: Berlin, New York, Lord Howe (half an hour), Cairo
(at midnight). Times are local, with the offset, so that the two times of a repeated hour differ."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from surefoot.state.errors import ConfigError
from surefoot.state.scheduling.cron import parse_cron, ticks

ROOT = Path(__file__).parents[3]
BERLIN, NEW_YORK, LORD_HOWE, CAIRO = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
)

#: expression, zone, after (local), ticks (month-day, time, offset)
TABLE = [
    # fixed times: once a local day; in the gap, right after it; in the repeated hour, the first
    ("30 2 * * *", BERLIN, "2026-03-28T03", ["03-29 03:00+02", "03-30 02:30+02"]),
    ("30 2 * * *", BERLIN, "2026-10-24T03", ["10-25 02:30+02", "10-26 02:30+01"]),
    ("30 2 * * *", NEW_YORK, "2026-03-07T03", ["03-08 03:00-04", "03-09 02:30-04"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31T03", ["11-01 01:30-04", "11-02 01:30-05"]),
    ("15 2 * * *", LORD_HOWE, "2026-10-03T03", ["10-04 02:30+11", "10-05 02:15+11"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04T03", ["04-05 01:45+11", "04-06 01:45+10:30"]),
    ("0 0 * * *", CAIRO, "2026-04-23T01", ["04-24 01:00+03", "04-25 00:00+03"]),
    # two fixed times in one gap come to one moment, and that is one tick
    ("15,45 2 * * *", BERLIN, "2026-03-28T03", ["03-29 03:00+02", "03-30 02:15+02"]),
    # the others follow the clock on the wall
    ("*/30 * * * *", BERLIN, "2026-03-29T01:15", ["03-29 01:30+01", "03-29 03:00+02"]),
    (
        "*/30 * * * *",
        BERLIN,
        "2026-10-25T02:15",
        ["10-25 02:30+02", "10-25 02:00+01", "10-25 02:30+01", "10-25 03:00+01"],
    ),
    ("*/30 2 * * *", BERLIN, "2026-03-28T03", ["03-30 02:00+02", "03-30 02:30+02"]),
    ("0 */2 * * *", NEW_YORK, "2026-03-08T01", ["03-08 04:00-04", "03-08 06:00-04"]),
    (
        "*/30 1 * * *",
        NEW_YORK,
        "2026-10-31T03",
        ["11-01 01:00-04", "11-01 01:30-04", "11-01 01:00-05", "11-01 01:30-05"],
    ),
    (
        "*/15 * * * *",
        LORD_HOWE,
        "2026-04-05T01:40",
        ["04-05 01:45+11", "04-05 01:30+10:30", "04-05 01:45+10:30", "04-05 02:00+10:30"],
    ),
    # the hour after a change of half an hour begins at its beginning
    ("*/30 3 * * *", LORD_HOWE, "2026-04-04T04", ["04-05 03:00+10:30", "04-05 03:30+10:30"]),
    ("*/30 3 * * *", LORD_HOWE, "2026-10-03T04", ["10-04 03:00+11", "10-04 03:30+11"]),
    # seconds
    ("*/20 59 1 * * *", BERLIN, "2026-03-29T01:59:10", ["03-29 01:59:20+01", "03-29 01:59:40+01"]),
    ("0 30 2 * * *", BERLIN, "2026-03-28T03", ["03-30 02:30+02"]),
    # far away
    ("0 12 29 2 *", BERLIN, "2026-03-01T00", ["02-29 12:00+01"]),
    ("@daily", NEW_YORK, "2026-10-31T12", ["11-01 00:00-04", "11-02 00:00-05"]),
]


def told(at: datetime, zone: str) -> str:
    local = at.astimezone(ZoneInfo(zone))
    time = f"{local:%m-%d %H:%M:%S}".removesuffix(":00")
    offset = local.isoformat()[19:].removesuffix(":00")
    return time + offset


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), TABLE)
def test_ticks_over_a_change_of_the_clock(
    expression: str, zone: str, after: str, expected: Sequence[str]
) -> None:
    start = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    found = ticks(parse_cron(expression, zone), start, len(expected))
    assert [told(at, zone) for at in found] == expected


def test_who_starts_again_within_the_repeated_hour_does_not_run_a_fixed_time_twice() -> None:
    second_time_round = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo(BERLIN))
    (found,) = ticks(parse_cron("30 2 * * *", BERLIN), second_time_round, 1)
    assert told(found, BERLIN) == "10-26 02:30+01"


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        (BERLIN, datetime(2026, 3, 28, tzinfo=UTC)),
        (BERLIN, datetime(2026, 10, 24, tzinfo=UTC)),
        (NEW_YORK, datetime(2026, 3, 7, tzinfo=UTC)),
        (NEW_YORK, datetime(2026, 10, 31, tzinfo=UTC)),
        (LORD_HOWE, datetime(2026, 4, 3, tzinfo=UTC)),
        (LORD_HOWE, datetime(2026, 10, 2, tzinfo=UTC)),
    ],
)
def test_a_quarter_of_an_hour_is_one_of_real_time(zone: str, start: datetime) -> None:
    found = ticks(parse_cron("*/15 * * * *", zone), start, 3 * 96)
    assert ZoneInfo(zone).utcoffset(found[0]) != ZoneInfo(zone).utcoffset(found[-1])
    gaps = {later - earlier for earlier, later in pairwise(found)}
    assert gaps == {timedelta(minutes=15)}


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, CAIRO])
@pytest.mark.parametrize("hour", [0, 1, 2, 3])
def test_a_fixed_time_ticks_once_on_each_local_day(zone: str, hour: int) -> None:
    start = datetime(2026, 2, 20, 12, tzinfo=ZoneInfo(zone))
    found = ticks(parse_cron(f"20 {hour} * * *", zone), start, 260)
    days = [at.astimezone(ZoneInfo(zone)).date() for at in found]
    assert days == [start.date() + timedelta(days=n) for n in range(1, 261)]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, CAIRO, "Asia/Kolkata"])
@pytest.mark.parametrize(
    "expression",
    ["7 */3 */5 * *", "*/17 1-4 * * 0", "5,50 0-2 * * 0,5", "0 2 * * 0", "59 23 L * *"],
)
def test_where_the_clock_changes_by_whole_hours_cronsim_says_the_same(
    expression: str, zone: str
) -> None:
    start = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo(zone))
    theirs = CronSim(expression, start)
    year = ticks(parse_cron(expression, zone), start, 400, lambda at: at.year == 2026)
    assert year == [next(theirs).astimezone(UTC) for _ in year]


@pytest.mark.parametrize(
    ("expression", "zone", "said"),
    [
        ("0 9 * *", "UTC", "Wrong number of fields"),
        ("0 25 * * *", "UTC", "Bad hour"),
        ("0 0 31 2 *", "UTC", "Bad day-of-month"),
        ("0 0 * 2 MON#6", "UTC", "Bad day-of-week"),
        ("0 9 * * *", "Europe/Bielefeld", "unknown time zone 'Europe/Bielefeld'"),
        ("0 9 * * *", "../etc/passwd", "unknown time zone"),
        ("0 9 * * *", "", "unknown time zone"),
    ],
)
def test_what_cannot_be_meant_is_refused(expression: str, zone: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_cron(expression, zone)


def test_time_zones_are_there_where_the_system_has_none() -> None:
    """zoneinfo falls back to the package tzdata, which has to be declared for that. In a process of
    its own: zones are told apart by identity, and looked up once."""
    asked = "import zoneinfo; print(zoneinfo.ZoneInfo('America/Punta_Arenas'))"
    found = subprocess.run(
        [sys.executable, "-c", asked],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "America/Punta_Arenas\n"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert any(line.startswith("tzdata") for line in declared)
