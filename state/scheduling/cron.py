"""Ticks of a cron expression in a time zone with daylight saving time. Pure.

cronsim parses the expression and iterates over local wall-clock times. This module maps them to
instants as Debian's cron does:

- A job with a fixed time (neither minute nor hour begins with `*`) runs once per local day. If the
  clock is put forward over its time, it runs at the first moment after the gap; if the clock is put
  back over its time, it runs the first time.
- Every other job follows the wall clock: nothing in the gap, and both occurrences of a repeated
  hour. `*/15 * * * *` therefore ticks every 15 real minutes.

A job with a leading seconds field, which Debian does not have, is of the second kind.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from surefoot.state.errors import ConfigError

_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
#: cron's own abbreviations
_NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EXAMPLE = '"0 9 * * 1-5" is 9:00 from Monday to Friday'
_FIELDS_WITHOUT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone. Make one with `parse_cron`."""

    expression: str
    zone: ZoneInfo
    fixed: bool
    _sim: CronSim = field(repr=False, compare=False)

    def after(self, instant: datetime) -> datetime | None:
        """Return the first tick after an aware time, in UTC; None: none within 50 years."""
        instant = instant.astimezone(UTC)
        return self._fixed(instant) if self.fixed else self._wall(instant)

    def _next(self, wall: datetime) -> datetime | None:
        """Return the expression's first wall-clock time after this one."""
        sim = copy(self._sim)
        sim.dt = wall.replace(microsecond=0)
        return next(sim, None)

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self.zone).utcoffset() or timedelta()

    def _local(self, instant: datetime) -> datetime:
        return instant.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _instant(self, wall: datetime) -> tuple[datetime, bool]:
        """Return (first instant with that wall-clock time, whether there is such an instant)."""
        instant = wall.replace(tzinfo=self.zone).astimezone(UTC)
        return instant, self._local(instant) == wall

    def _fixed(self, after: datetime) -> datetime | None:
        wall = self._next(self._local(after))
        while wall is not None:
            moved = wall
            instant, real = self._instant(moved)
            while not real:
                moved += _MINUTE
                instant, real = self._instant(moved)
            if instant > after:  # false if the repeated hour was at its first pass
                return instant
            wall = self._next(wall)
        return None

    def _wall(self, after: datetime) -> datetime | None:
        at, passed = after, self._local(after)
        while (wall := self._next(passed)) is not None:
            offset = self._offset(at)
            instant = (wall - offset).replace(tzinfo=UTC)
            change = self._change(at, min(instant, at + _DAY))
            if change is not None:  # go no further than where the clock is put forward or back
                at, passed = change, self._local(change) - _SECOND
                continue
            instant, real = self._instant(wall) if instant > at + _DAY else (instant, True)
            if real:
                return instant
            at, passed = instant, wall
        return None

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """Return when the clock is put forward or back in (start, end], at most a day apart."""
        offset = self._offset(start)
        if self._offset(end) == offset:
            return None
        while end - start > _SECOND:
            middle = start + (end - start) / 2
            if self._offset(middle) == offset:
                start = middle
            else:
                end = middle
        return end.replace(microsecond=0)


@lru_cache(maxsize=1024)
def parse_cron(expression: str, zone: str) -> Cron:
    """Parse a cron expression.

    Raises: ConfigError - what is wrong with the expression or the time zone, and an example
    """
    try:
        tz = ZoneInfo(zone)
    except (KeyError, OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ConfigError(
            "SF1127",
            f'unknown time zone {zone!r}; use a name of the IANA database, such as "Europe/Berlin"',
        ) from error
    told = expression.strip()
    fields = _NAMES.get(told.lower(), told)
    try:
        sim = CronSim(fields, datetime(2000, 1, 1))  # noqa: DTZ001  (a wall-clock time)
    except CronSimError as error:
        raise ConfigError(
            "SF1127",
            f"cron expression {expression!r}: {error}; the fields are minute, hour, day of month, "
            f"month and day of week, optionally after one for seconds: {_EXAMPLE}",
        ) from error
    parts = fields.split()
    fixed = len(parts) == _FIELDS_WITHOUT_SECONDS and not any(
        part.startswith("*") for part in parts[:2]
    )
    return Cron(expression, tz, fixed, sim)


def ticks(
    cron: Cron, after: datetime, most: int, goes_on: Callable[[datetime], bool] = lambda _: True
) -> list[datetime]:
    """Return the ticks after an aware time, in UTC, in order: at most `most`, and only while
    `goes_on` accepts them."""
    found: list[datetime] = []
    at: datetime | None = after
    while len(found) < most and at is not None:
        at = cron.after(at)
        if at is None or not goes_on(at):
            break
        found.append(at)
    return found
