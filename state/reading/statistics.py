"""Statistics of an agent's runs: a fold of its events topic. Pure.

Each partition of the topic is folded by itself, into a few small values by key:

    r|RUN_ID        where the run stands: status, since when, its step, whether a person is needed
    w|MINUTE|STEP   results of a step in that minute: how many, how long, failures, tokens, money
    a               offset of the latest event that is included

Every value has the offset of the latest event in it, and applying an event again changes nothing.
`PartitionStatistics.fold` returns windows first, then runs, then `a`. If a process dies after
storing any prefix of these, folding the same events again yields the values that the whole would
have. (Windows come first since a step's cost is the difference from what its run had spent.)

Whatever follows from the values is not stored: counts by status and age, and the runs that need a
person, are computed when a partition is opened.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, Protocol, Self, TypedDict

from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.machine.model import TERMINAL

MINUTE_MS = 60_000
_HOUR_MS = 60 * MINUTE_MS
#: in event time: how long windows are kept, and finished runs
WINDOWS_KEPT_MS = 24 * _HOUR_MS
RUNS_KEPT_MS = 7 * 24 * _HOUR_MS

APPLIED = b"a"

#: events that do not change where the run stands: an answer to a sender, or about another start
_NO_NEWS = frozenset({"start.ignored", "signal.unread", "command.repeated", "command.refused"})
#: events that leave the run's wait as it was
_STILL_WAITS = frozenset(
    {
        "run.paused",
        "run.resumed",
        "run.attention",
        "run.retried",
        "signal.received",
        "child.finished",
    }
)
_COMMITTED = frozenset({"step.completed", "run.completed"})
_FAILED = frozenset({"run.failed", "run.failing", "run.attention"})
#: kinds of wait that a person ends
_ASKS = frozenset({"approval", "budget"})


class Values(Protocol):
    """The stored values of one partition."""

    def get(self, key: bytes) -> bytes | None: ...

    def items(self) -> Iterable[tuple[bytes, bytes]]: ...


@dataclass(slots=True)
class RunStanding:
    """Where a run stands."""

    #: offset of the latest event included
    offset: int
    status: str
    #: when it entered this status, for this reason
    since_ms: int
    updated_ms: int
    step: str
    seq: int
    version: int
    #: kind of its current wait: approval, budget, signal, children, pool
    wait: str | None
    #: code of the failure, or id of the question
    about: str | None
    tokens: int
    money: int

    @property
    def person(self) -> str | None:
        """Why a person is needed; None: nobody is."""
        if self.status == "attention":
            return self.about or "attention"
        return self.wait if self.status == "waiting" and self.wait in _ASKS else None

    def encode(self) -> bytes:
        return _dump([getattr(self, name) for name in RunStanding.__slots__])

    @classmethod
    def decode(cls, value: bytes) -> Self:
        return cls(*json.loads(value))


@dataclass(slots=True)
class Window:
    """Results of the attempts of one step in one minute. Windows of several partitions add up."""

    offset: int = -1
    #: attempts that were committed as steps of their runs
    steps: int = 0
    #: attempts that failed: with another attempt to come, or without
    retries: int = 0
    failures: int = 0
    tokens: int = 0
    #: in millionths
    money: int = 0
    #: number of attempts by duration, see `bucket_of`
    took: dict[int, int] = field(default_factory=dict)

    def add(self, other: Window) -> None:
        self.steps += other.steps
        self.retries += other.retries
        self.failures += other.failures
        self.tokens += other.tokens
        self.money += other.money
        for bucket, count in other.took.items():
            self.took[bucket] = self.took.get(bucket, 0) + count

    def encode(self) -> bytes:
        return _dump(
            [
                self.offset,
                self.steps,
                self.retries,
                self.failures,
                self.tokens,
                self.money,
                sorted(self.took.items()),
            ]
        )

    @classmethod
    def decode(cls, value: bytes) -> Self:
        window = cls(*json.loads(value))
        window.took = dict(window.took)
        return window


# How long ------------------------------------------------------------------------------------


def bucket_of(ms: int) -> int:
    """Return the bucket of a duration: exact below 8 ms, else an eighth of a power of two wide."""
    ms = max(ms, 0)
    if ms < 8:  # noqa: PLR2004
        return ms
    shift = ms.bit_length() - 4
    return (shift << 3) + (ms >> shift)


def bucket_ms(bucket: int) -> int:
    """Return the middle of a bucket, in ms: within 6.25 % of every duration in it."""
    if bucket < 16:  # noqa: PLR2004
        return bucket
    shift = (bucket >> 3) - 1
    return ((bucket - (shift << 3)) << shift) + (1 << shift >> 1)


def percentile(took: Mapping[int, int], per_cent: int) -> int | None:
    """Return the duration, in ms, that `per_cent` percent of attempts do not exceed."""
    rank = -(-sum(took.values()) * per_cent // 100)
    for bucket, count in sorted(took.items()):
        rank -= count
        if rank <= 0:
            return bucket_ms(bucket)
    return None


# The fold ------------------------------------------------------------------------------------


class PartitionStatistics:
    """The statistics of one partition, for one writer.

    Store what `fold` returns, in its order, before calling it again. If storing fails, open a new
    PartitionStatistics.
    """

    def __init__(self, values: Values) -> None:
        """Not usable until `open` has been iterated to its end."""
        self._values = values
        #: offset of the latest event included
        self.applied = -1
        #: number of runs by (status, minute in which they entered it)
        self.counts: Counter[tuple[str, int]] = Counter()
        #: runs that need a person
        self.people: dict[str, RunStanding] = {}
        self.windows: dict[tuple[int, str], Window] = {}
        #: newest time of any event
        self._newest_ms = 0

    def open(self, at_a_time: int = 1_000) -> Iterator[None]:
        """Read the stored values; each iteration reads `at_a_time` of them."""
        for number, (key, value) in enumerate(self._values.items(), 1):
            if key == APPLIED:
                self.applied, self._newest_ms = json.loads(value)
            elif key.startswith(b"r|"):
                self._count(key[2:].decode(), None, RunStanding.decode(value))
            else:
                minute, step = _window_of(key)
                self.windows[minute, step] = Window.decode(value)
            if number % at_a_time == 0:
                yield

    def run(self, run_id: str) -> RunStanding | None:
        value = self._values.get(_run_key(run_id))
        return RunStanding.decode(value) if value is not None else None

    def fold(
        self, events: Iterable[tuple[int, AvroEvent | None]]
    ) -> list[tuple[bytes, bytes | None]]:
        """Apply (offset, event) in order, with None for an event that cannot be decoded.

        Returns what to store, in that order: (key, value), or (key, None) to delete."""
        before = self.applied
        runs: dict[str, RunStanding | None] = {}
        places: dict[tuple[int, str], None] = {}
        for offset, event in events:
            if offset <= self.applied:
                continue
            self.applied = offset
            if event is None or event["type"] in _NO_NEWS or not event["version"]:
                continue
            if event["at_ms"] // _HOUR_MS > self._newest_ms // _HOUR_MS:
                self._newest_ms = event["at_ms"]
                self._forget(runs, places)
            self._newest_ms = max(self._newest_ms, event["at_ms"])
            run_id = event["run_id"]
            was = runs[run_id] if run_id in runs else self.run(run_id)
            if was is not None and was.offset >= offset:
                continue
            now = _moved(was, event, offset)
            runs[run_id] = now
            self._count(run_id, was, now)
            if (place := self._measure(was, now, event)) is not None:
                places[place] = None
        if self.applied == before:
            return []
        changes: list[tuple[bytes, bytes | None]] = []
        for place in places:
            window = self.windows.get(place)
            changes.append((_window_key(*place), window.encode() if window else None))
        for run_id, run in runs.items():
            changes.append((_run_key(run_id), run.encode() if run else None))
        changes.append((APPLIED, _dump([self.applied, self._newest_ms])))
        return changes

    def _forget(
        self, runs: dict[str, RunStanding | None], places: dict[tuple[int, str], None]
    ) -> None:
        """Drop what is too old. Done at the first event of an hour, anywhere in a batch."""
        for place in list(self.windows):
            if self._is_late(place[0]):
                del self.windows[place]
                places[place] = None
        oldest_ms = self._newest_ms - RUNS_KEPT_MS
        kept = {
            key[2:].decode(): RunStanding.decode(value)
            for key, value in self._values.items()
            if key.startswith(b"r|")
        }
        for run_id, run in (kept | runs).items():
            if run is not None and run.status in TERMINAL and run.since_ms < oldest_ms:
                self._count(run_id, run, None)
                runs[run_id] = None

    def _is_late(self, minute: int) -> bool:
        return minute * MINUTE_MS < self._newest_ms - WINDOWS_KEPT_MS

    def _count(self, run_id: str, was: RunStanding | None, now: RunStanding | None) -> None:
        if was is not None:
            place = (was.status, was.since_ms // MINUTE_MS)
            self.counts[place] -= 1
            if not self.counts[place]:
                del self.counts[place]
            self.people.pop(run_id, None)
        if now is not None:
            self.counts[now.status, now.since_ms // MINUTE_MS] += 1
            if now.person is not None:
                self.people[run_id] = now

    def _measure(
        self, was: RunStanding | None, now: RunStanding, event: AvroEvent
    ) -> tuple[int, str] | None:
        """Add what an event says of an attempt to its window. Returns the window's place."""
        kind, step = event["type"], event["step"]
        tokens = money = 0
        if was is not None and kind != "run.started":
            tokens, money = max(now.tokens - was.tokens, 0), max(now.money - was.money, 0)
        place = (event["at_ms"] // MINUTE_MS, step or now.step)
        if not (step or tokens or money) or self._is_late(place[0]):
            return None
        window = self.windows.setdefault(place, Window())
        if window.offset >= now.offset:
            return None
        window.offset = now.offset
        window.steps += bool(step) and kind in _COMMITTED
        window.retries += kind == "step.retrying"
        window.failures += kind in _FAILED
        window.tokens += tokens
        window.money += money
        if event["started_ms"] is not None:
            bucket = bucket_of(event["at_ms"] - event["started_ms"])
            window.took[bucket] = window.took.get(bucket, 0) + 1
        return place


def _moved(was: RunStanding | None, event: AvroEvent, offset: int) -> RunStanding:
    status, kind, wait = event["status"], event["type"], event["wait"]
    waits = wait["kind"] if wait else was.wait if was and kind in _STILL_WAITS else None
    about = was.about if was and (waits or status == was.status) else None
    if wait:
        about = wait["question"]
    if status in ("attention", "failed") and event["failure"]:
        about = event["failure"]["code"]
    tokens, money = (was.tokens, was.money) if was else (0, 0)
    if event["memory"] is not None:
        spent = {each["what"]: each["amount"] for each in event["memory"]["spent"]}
        tokens, money = spent.get("tokens", 0), spent.get("money", 0)
    now = RunStanding(
        offset=offset,
        status=status,
        since_ms=event["at_ms"],
        updated_ms=event["at_ms"],
        step=event["next_step"] or event["step"] or (was.step if was else ""),
        seq=event["seq"] + (kind == "step.completed"),
        version=event["version"],
        wait=waits,
        about=about,
        tokens=tokens,
        money=money,
    )
    if was is not None and (was.status, was.person) == (now.status, now.person):
        now.since_ms = was.since_ms
    return now


# Answers -------------------------------------------------------------------------------------

#: upper bounds of the ages that runs are counted by; the last one has none
AGES: tuple[tuple[str, int | None], ...] = (
    ("1m", MINUTE_MS),
    ("10m", 10 * MINUTE_MS),
    ("1h", _HOUR_MS),
    ("1d", 24 * _HOUR_MS),
    ("older", None),
)


class LagJson(TypedDict):
    """How many events a view does not include yet, and how long ago the oldest was written."""

    events: int
    ms: int


class StatusJson(TypedDict):
    """The runs of one status."""

    runs: int
    #: the minute in which the oldest entered it
    oldest_ms: int
    #: number of runs by age, see AGES
    ages: dict[str, int]


class StandingJson(TypedDict):
    """Where a run stands: the fields of RunStanding, with money in units."""

    run_id: str
    offset: int
    status: str
    since_ms: int
    updated_ms: int
    step: str
    seq: int
    version: int
    wait: str | None
    about: str | None
    tokens: int
    money: float
    #: why a person is needed
    person: str | None


class _Results(TypedDict):
    steps: int
    steps_s: float
    attempts: int
    retries: int
    failures: int
    p50_ms: int | None
    p99_ms: int | None
    tokens: int
    money: float


class StepResultsJson(_Results):
    """The results of one step."""

    step: str


class WindowJson(StepResultsJson):
    """The results of one step in one minute."""

    at_ms: int


class SummaryJson(TypedDict):
    agent: str
    lag: LagJson
    statuses: dict[str, StatusJson]


class AttentionJson(TypedDict):
    agent: str
    lag: LagJson
    total: int
    runs: list[StandingJson]


class WindowsJson(TypedDict):
    agent: str
    lag: LagJson
    windows: list[WindowJson]
    steps: list[StepResultsJson]


class RunStandingJson(TypedDict):
    agent: str
    lag: NotRequired[LagJson]
    run: StandingJson | None


def summary(partitions: Iterable[PartitionStatistics], now_ms: int) -> dict[str, StatusJson]:
    """Return by status: number of runs, ages, and the minute of the oldest."""
    found: dict[str, StatusJson] = {}
    for partition in partitions:
        for (status, minute), count in partition.counts.items():
            told = found.setdefault(
                status, {"runs": 0, "oldest_ms": now_ms, "ages": {name: 0 for name, _ in AGES}}
            )
            told["runs"] += count
            told["oldest_ms"] = min(told["oldest_ms"], minute * MINUTE_MS)
            age_ms = now_ms - minute * MINUTE_MS
            name = next(name for name, most in AGES if most is None or age_ms < most)
            told["ages"][name] += count
    return found


def add_summaries(parts: Iterable[dict[str, StatusJson]]) -> dict[str, StatusJson]:
    """Add up the summaries of several instances."""
    total: dict[str, StatusJson] = {}
    for part in parts:
        for status, told in part.items():
            if (mine := total.get(status)) is None:
                total[status] = told
                continue
            mine["runs"] += told["runs"]
            mine["oldest_ms"] = min(mine["oldest_ms"], told["oldest_ms"])
            for name, count in told["ages"].items():
                mine["ages"][name] += count
    return dict(sorted(total.items()))


def attention(partitions: Iterable[PartitionStatistics], limit: int) -> list[StandingJson]:
    """Return the runs that need a person, longest waiting first."""
    found = [
        run_standing_json(run_id, run)
        for partition in partitions
        for run_id, run in partition.people.items()
    ]
    return oldest_first(found)[:limit]


def oldest_first(runs: Iterable[StandingJson]) -> list[StandingJson]:
    return sorted(runs, key=lambda run: (run["since_ms"], run["run_id"]))


def run_standing_json(run_id: str, run: RunStanding) -> StandingJson:
    return {
        "run_id": run_id,
        "offset": run.offset,
        "status": run.status,
        "since_ms": run.since_ms,
        "updated_ms": run.updated_ms,
        "step": run.step,
        "seq": run.seq,
        "version": run.version,
        "wait": run.wait,
        "about": run.about,
        "tokens": run.tokens,
        "money": run.money / 1e6,
        "person": run.person,
    }


Windows = dict[tuple[int, str], Window]


def windows(partitions: Iterable[PartitionStatistics], since_minute: int) -> Windows:
    """Return the windows by (minute, step), from `since_minute` on."""
    return add_windows(
        {place: each for place, each in partition.windows.items() if place[0] >= since_minute}
        for partition in partitions
    )


def add_windows(parts: Iterable[Windows]) -> Windows:
    total: Windows = {}
    for part in parts:
        for place, window in part.items():
            total.setdefault(place, Window()).add(window)
    return dict(sorted(total.items()))


def pack_windows(found: Windows) -> list[list[Any]]:
    """Return the windows as JSON values, to be added up elsewhere."""
    return [[minute, step, each.encode().decode()] for (minute, step), each in found.items()]


def unpack_windows(found: Iterable[Iterable[Any]]) -> Windows:
    return {(minute, step): Window.decode(each) for minute, step, each in found}


def windows_json(found: Windows) -> list[WindowJson]:
    return [
        {"at_ms": minute * MINUTE_MS, "step": step, **_came_to(window, 1)}
        for (minute, step), window in found.items()
    ]


def steps_json(found: Windows, minutes: int) -> list[StepResultsJson]:
    """Return the results of each step over all these minutes."""
    total: dict[str, Window] = {}
    for (_, step), window in found.items():
        total.setdefault(step, Window()).add(window)
    return [{"step": step, **_came_to(window, minutes)} for step, window in sorted(total.items())]


def _came_to(window: Window, minutes: int) -> _Results:
    return {
        "steps": window.steps,
        "steps_s": round(window.steps / (60 * minutes), 3),
        "attempts": sum(window.took.values()),
        "retries": window.retries,
        "failures": window.failures,
        "p50_ms": percentile(window.took, 50),
        "p99_ms": percentile(window.took, 99),
        "tokens": window.tokens,
        "money": window.money / 1e6,
    }


def digest_values(values: Values) -> str:
    """Digest everything stored of a partition: equal for equal events, in any batches."""
    of = hashlib.sha256()
    for key, value in sorted(values.items()):
        of.update(b"%d:%b%d:%b" % (len(key), key, len(value), value))
    return of.hexdigest()


def _run_key(run_id: str) -> bytes:
    return b"r|" + run_id.encode()


def _window_key(minute: int, step: str) -> bytes:
    return b"w|%d|%b" % (minute, step.encode())


def _window_of(key: bytes) -> tuple[int, str]:
    _, minute, step = key.decode().split("|", 2)
    return int(minute), step


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
