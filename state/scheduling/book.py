"""What a schedule does next: pure functions over its book.

A schedule is a run of the built-in agent `AGENT.schedules`, and its book is that run's state: its
declaration, the time up to which ticks are decided, the run in progress, and what is queued. A tick
is decided in the commit that starts its run, under a run_id made of the tick; it therefore has
exactly one run, whenever a process is killed.

    decide_ticks(book, now)        the ticks since the last time, by the policies
    apply_command(book, ask, now)  a command from a person, the code or the run in progress
    ready(book)                    the run to start now, if any;  started / left_out: its outcome
    wake_ms(book, now)             when to decide again

Times are epoch milliseconds, UTC. A tick is a whole second; its run starts a jitter later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from surefoot.state.errors import ConfigError
from surefoot.state.machine.model import State
from surefoot.state.machine.wait_rules import ENDED, signals
from surefoot.state.scheduling.cron import Cron, parse_cron, ticks

Overlap = Literal["skip", "queue", "cancel", "allow"]
Misfire = Literal["all", "latest", "none"]
OVERLAPS: Final = get_args(Overlap)
MISFIRES: Final = get_args(Misfire)

#: name of the signal that carries messages to a schedule
ASK: Final = "schedule"
#: most entries of the queue, and most ticks that are decided at once
QUEUE_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A schedule's declaration."""

    cron: str
    tz: str
    jitter_ms: int
    overlap: Overlap
    misfire: Misfire
    #: a tick that is later than this plus its jitter has been missed
    grace_ms: int

    @property
    def times(self) -> Cron:
        return parse_cron(self.cron, self.tz)


#: tick: on time; missed: late, run by the misfire policy; the others were asked for
TickKind = Literal["tick", "missed", "trigger", "backfill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A run that the schedule has to start."""

    at_ms: int
    kind: TickKind = "tick"
    #: id of a trigger
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Input of a schedule's function: the moment that its run is for."""

    name: str
    #: in the schedule's time zone, without jitter
    at: datetime
    kind: TickKind


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """The run in progress, which the next one must not overlap."""

    run_id: str
    number: int
    kind: TickKind
    #: cancelled, but its end has not been reported yet
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Everything that a schedule knows."""

    name: str
    spec: Spec
    #: exactly the ticks up to here are decided
    until_ms: int
    paused: bool = False
    #: the code no longer has this schedule
    removed: bool = False
    under_way: UnderWay | None = None
    #: in the order in which they run; backfills last
    queue: tuple[Due, ...] = ()
    #: runs started so far
    runs: int = 0
    #: ticks without a run: missed, blocked by another run, or left out by the function
    skipped: int = 0
    last: Due | None = None


BOOK: TypeAdapter[Book] = TypeAdapter(Book)


# Messages to a schedule -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """Set the schedule's current declaration."""

    spec: Spec
    do: Literal["declare"] = "declare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Pause, resume or remove the schedule; `remove`: the code no longer has it."""

    do: Literal["pause", "resume", "remove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Start a run now."""

    id: str
    do: Literal["trigger"] = "trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Start the runs of the ticks in [from_ms, to_ms)."""

    from_ms: int
    to_ms: int
    do: Literal["backfill"] = "backfill"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run with that number is over (the signal `ended`)."""

    number: int


ScheduleCommand = Declare | Say | Trigger | Backfill | RunEnded
_RUN_ENDED: Final[TypeAdapter[RunEnded]] = TypeAdapter(RunEnded)
#: by name of the signal
ASKS: Final[dict[str, TypeAdapter[Any]]] = {
    ASK: TypeAdapter(Annotated[Declare | Say | Trigger | Backfill, Field(discriminator="do")]),
    ENDED: _RUN_ENDED,
}


def book_of(state: State) -> Book | None:
    """Return a schedule's book, including ends of runs that it has not looked at yet.

    None before it has begun, after it was cancelled, and if the run is not a schedule."""
    run = state.run
    data = None if run is None else run.carry or run.payload
    if run is None or run.seq == 0 or not data:
        return None
    try:
        book = BOOK.validate_json(data)
        for signal in signals(state.entries):
            if signal.name == ENDED:
                ended = _RUN_ENDED.validate_json(signal.value or b"null")
                book = apply_command(book, ended, book.until_ms)
    except ValidationError:
        return None
    return book


# Ticks --------------------------------------------------------------------------------------


def spec_of(
    cron: str,
    tz: str,
    *,
    jitter_s: float | None,
    overlap: Overlap,
    misfire: Misfire,
    grace_s: float | None,
) -> Spec:
    """Check a schedule's declaration. Raises ConfigError with what is wrong."""
    parse_cron(cron, tz)
    for name, value, known in (("overlap", overlap, OVERLAPS), ("misfire", misfire, MISFIRES)):
        if value not in known:
            raise ConfigError("SF1127", f"{name} must be one of {', '.join(known)}; got {value!r}")
    return Spec(
        cron=cron,
        tz=tz,
        jitter_ms=round((jitter_s or 0) * 1000),
        overlap=overlap,
        misfire=misfire,
        grace_ms=round((grace_s or 0) * 1000),
    )


def instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def tick_run_id(name: str, due: Due) -> str:
    """Return the run_id of a tick's run: the same for everybody who asks, every time."""
    if due.kind == "trigger":
        return f"schedule~{name}~now~{due.id}"
    return f"schedule~{name}~{instant(due.at_ms):%Y-%m-%dT%H:%M:%SZ}"


def tick_of(book: Book, due: Due) -> Tick:
    at = instant(due.at_ms).astimezone(book.spec.times.zone)
    return Tick(name=book.name, at=at, kind=due.kind)


def jitter_ms(name: str, at_ms: int, most_ms: int) -> int:
    """Return how long after its tick a run starts: in [0, most_ms), the same in every process."""
    if not most_ms:
        return 0
    digest = hashlib.sha256(f"{name}|{at_ms}".encode()).digest()
    return int.from_bytes(digest[:8]) % most_ms


def starts_ms(book: Book, at_ms: int) -> int:
    """Return when the run of a tick is to start."""
    return at_ms + jitter_ms(book.name, at_ms, book.spec.jitter_ms)


def next_ticks(spec: Spec, after_ms: int, most: int) -> list[int]:
    return [_ms(at) for at in ticks(spec.times, instant(after_ms), most)]


def ticks_between(spec: Spec, from_ms: int, to_ms: int, most: int) -> list[int]:
    """Return the ticks in [from_ms, to_ms), in order, at most `most`."""
    end = instant(to_ms)
    found = ticks(spec.times, instant(from_ms - 1), most, lambda at: at < end)
    return [_ms(at) for at in found if _ms(at) >= from_ms]


def _come(book: Book, now_ms: int, most: int) -> Iterator[int]:
    """Yield the ticks after `until_ms` that are due to start, in order, at most `most`."""
    at: datetime | None = instant(book.until_ms)
    for _ in range(most):
        assert at is not None
        at = book.spec.times.after(at)
        if at is None or starts_ms(book, _ms(at)) > now_ms:
            return
        yield _ms(at)


# Decisions ----------------------------------------------------------------------------------


def decide_ticks(book: Book, now_ms: int) -> Book:
    """Decide the ticks that are due."""
    if book.paused or book.removed:
        return replace(book, until_ms=max(book.until_ms, now_ms))
    room = QUEUE_MAX - len(book.queue)
    come = list(_come(book, now_ms, room + 1))
    more, come = len(come) > room, come[:room]
    if not come:
        return book
    latest_ms = now_ms - book.spec.jitter_ms - book.spec.grace_ms
    missed = [at for at in come if at < latest_ms]
    in_time = [Due(at_ms=at) for at in come if at not in missed]
    follow = replace(book, until_ms=come[-1])
    match book.spec.misfire:
        case "all":
            follow = _queued(follow, *(Due(at_ms=at, kind="missed") for at in missed))
            missed = []
        case "latest" if missed and not in_time and not more:
            in_time = [Due(at_ms=missed.pop(), kind="missed")]
    follow = replace(follow, skipped=follow.skipped + len(missed))
    for due in in_time:
        follow = _in_turn(follow, due)
    return follow


def _in_turn(book: Book, due: Due) -> Book:
    """Queue or skip a tick by the overlap policy."""
    ticks = ("tick",) if book.spec.misfire == "all" else ("tick", "missed")
    in_the_way = book.under_way is not None and book.under_way.kind in ticks
    match book.spec.overlap:
        case "skip" if in_the_way or any(each.kind in ticks for each in book.queue):
            return replace(book, skipped=book.skipped + 1)
        case "cancel":
            kept = tuple(each for each in book.queue if each.kind not in ticks)
            gone = len(book.queue) - len(kept)
            book = replace(book, queue=kept, skipped=book.skipped + gone)
            if in_the_way and book.under_way is not None:
                book = replace(book, under_way=replace(book.under_way, cancelled=True))
    return _queued(book, due)


def _queued(book: Book, *dues: Due) -> Book:
    """Queue before the backfills and after everything else."""
    place = sum(each.kind != "backfill" for each in book.queue)
    return replace(book, queue=(*book.queue[:place], *dues, *book.queue[place:]))


def apply_command(book: Book, ask: ScheduleCommand, now_ms: int) -> Book:
    """Apply a command. Call `decide_ticks` first: due ticks go by the declaration so far."""
    match ask:
        case Declare():
            if ask.spec == book.spec and not book.removed:
                return book
            return replace(book, spec=ask.spec, removed=False, until_ms=max(book.until_ms, now_ms))
        case Say(do="pause"):
            return _drop_ticks(replace(book, paused=True))
        case Say(do="resume"):
            return replace(book, paused=False)
        case Say():
            return _drop_ticks(replace(book, removed=True))
        case Trigger():
            return _queued(book, Due(at_ms=now_ms, kind="trigger", id=ask.id))
        case Backfill():
            room = QUEUE_MAX - len(book.queue)
            found = ticks_between(book.spec, ask.from_ms, ask.to_ms, room)
            dues = (Due(at_ms=at, kind="backfill") for at in found)
            return replace(book, queue=(*book.queue, *dues))
        case RunEnded():
            if book.under_way is not None and book.under_way.number == ask.number:
                return replace(book, under_way=None)
            return book


def _drop_ticks(book: Book) -> Book:
    """Drop queued ticks, but not what somebody has asked for."""
    kept = tuple(due for due in book.queue if due.kind in ("trigger", "backfill"))
    return replace(book, queue=kept, skipped=book.skipped + len(book.queue) - len(kept))


def ready(book: Book) -> Due | None:
    """Return the run to start now, if any."""
    if not book.queue or (book.under_way is not None and book.spec.overlap != "allow"):
        return None
    return book.queue[0]


def started(book: Book, due: Due) -> Book:
    """Record that a run is started, as number `runs`; its end is reported unless runs may
    overlap."""
    number = book.runs + 1
    under_way = book.under_way
    if book.spec.overlap != "allow":
        under_way = UnderWay(run_id=tick_run_id(book.name, due), number=number, kind=due.kind)
    return replace(book, queue=book.queue[1:], runs=number, last=due, under_way=under_way)


def left_out(book: Book) -> Book:
    """Record that the schedule's function wants no run for the first entry of the queue."""
    return replace(book, queue=book.queue[1:], skipped=book.skipped + 1)


def wake_ms(book: Book, now_ms: int) -> int | None:
    """Return when to decide again; None: not before the next command."""
    if ready(book) is not None:
        return now_ms
    if book.paused or book.removed or len(book.queue) >= QUEUE_MAX:
        return None
    following = next_ticks(book.spec, book.until_ms, 1)
    return starts_ms(book, following[0]) if following else None
