"""What a schedule does next: pure functions over its book.

A schedule is a run of the built-in agent `AGENT.schedules`, and its book is that run's state: what
was declared, up to when ticks are decided, what is under way and what waits for its turn. A tick is
decided in the commit that starts its run, under a run_id that is made of the tick; so it has one
run, whoever is killed when.

    look(book, now)     the ticks that have come since, by the misfire and the overlap policy
    told(book, ask)     what a person, the code or the run under way has said
    ready(book)         the run to start now, if any;  started / left_out: what became of it
    wake_ms(book, now)  when to look again

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
from surefoot.state.scheduling.cron import Cron, parse, ticks

Overlap = Literal["skip", "queue", "cancel", "allow"]
Misfire = Literal["all", "latest", "none"]
OVERLAPS: Final = get_args(Overlap)
MISFIRES: Final = get_args(Misfire)

#: name of the signal by which a schedule is told something
ASK: Final = "schedule"
#: what may wait for its turn, and how many ticks one look decides
QUEUE_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a declaration says."""

    cron: str
    tz: str
    jitter_ms: int
    overlap: Overlap
    misfire: Misfire
    #: a tick that is later than this, and its jitter, has been missed
    grace_ms: int

    @property
    def times(self) -> Cron:
        return parse(self.cron, self.tz)


#: tick: in time; missed: late, by the misfire policy; the others were asked for
TickKind = Literal["tick", "missed", "trigger", "backfill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A run that the schedule owes."""

    at_ms: int
    kind: TickKind = "tick"
    #: of a trigger
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a schedule's function is given: the moment that its run is for."""

    name: str
    #: in the time zone of the schedule, without its jitter
    at: datetime
    kind: TickKind


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """The run that the next one must not overlap."""

    run_id: str
    number: int
    kind: TickKind
    #: its end is waited for
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """All that a schedule knows."""

    name: str
    spec: Spec
    #: ticks up to here, and those only, are decided
    until_ms: int
    paused: bool = False
    #: the code has no such schedule any more
    removed: bool = False
    under_way: UnderWay | None = None
    #: in the order in which they are run; backfills come last
    queue: tuple[Due, ...] = ()
    #: runs started so far
    runs: int = 0
    #: ticks that had no run: missed, in the way of another run, or left out by the function
    skipped: int = 0
    last: Due | None = None


BOOK: TypeAdapter[Book] = TypeAdapter(Book)


# What a schedule is told --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """This is what the code says by now."""

    spec: Spec
    do: Literal["declare"] = "declare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """`remove`: the code has no such schedule any more."""

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
    """The run that was started as that number is over (the signal `ended`)."""

    number: int


ScheduleCommand = Declare | Say | Trigger | Backfill | RunEnded
ENDS: Final[TypeAdapter[RunEnded]] = TypeAdapter(RunEnded)
#: by the name of the signal
ASKS: Final[dict[str, TypeAdapter[Any]]] = {
    ASK: TypeAdapter(Annotated[Declare | Say | Trigger | Backfill, Field(discriminator="do")]),
    ENDED: ENDS,
}


def book_of(state: State) -> Book | None:
    """The book of a schedule, with the ends that it has been told of and has not looked at; None
    while it has not begun, once it has been cancelled, and of what is no schedule's run."""
    run = state.run
    data = None if run is None else run.carry or run.payload
    if run is None or run.seq == 0 or not data:
        return None
    try:
        book = BOOK.validate_json(data)
        for signal in signals(state.entries):
            if signal.name == ENDED:
                ended = ENDS.validate_json(signal.value or b"null")
                book = told(book, ended, book.until_ms)
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
    """Raises: ConfigError — what is wrong with the declaration."""
    parse(cron, tz)
    for name, value, known in (("overlap", overlap, OVERLAPS), ("misfire", misfire, MISFIRES)):
        if value not in known:
            raise ConfigError("SF1127", f"{name} is one of {', '.join(known)}; got {value!r}")
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


def run_id_of(name: str, due: Due) -> str:
    """Of the run of a tick: the same whoever asks for it, and however often."""
    if due.kind == "trigger":
        return f"schedule~{name}~now~{due.id}"
    return f"schedule~{name}~{instant(due.at_ms):%Y-%m-%dT%H:%M:%SZ}"


def tick_of(book: Book, due: Due) -> Tick:
    at = instant(due.at_ms).astimezone(book.spec.times.zone)
    return Tick(name=book.name, at=at, kind=due.kind)


def jitter_ms(name: str, at_ms: int, most_ms: int) -> int:
    """How long after its tick a run starts: in [0, most_ms), and everywhere the same."""
    if not most_ms:
        return 0
    digest = hashlib.sha256(f"{name}|{at_ms}".encode()).digest()
    return int.from_bytes(digest[:8]) % most_ms


def starts_ms(book: Book, at_ms: int) -> int:
    """When the run of a tick is to start."""
    return at_ms + jitter_ms(book.name, at_ms, book.spec.jitter_ms)


def next_ticks(spec: Spec, after_ms: int, most: int) -> list[int]:
    return [_ms(at) for at in ticks(spec.times, instant(after_ms), most)]


def ticks_between(spec: Spec, from_ms: int, to_ms: int, most: int) -> list[int]:
    """Those in [from_ms, to_ms), in their order; `most` of them."""
    end = instant(to_ms)
    found = ticks(spec.times, instant(from_ms - 1), most, lambda at: at < end)
    return [_ms(at) for at in found if _ms(at) >= from_ms]


def _come(book: Book, now_ms: int, most: int) -> Iterator[int]:
    """The ticks after `until_ms` whose time to start has come, in their order."""
    at: datetime | None = instant(book.until_ms)
    for _ in range(most):
        assert at is not None
        at = book.spec.times.after(at)
        if at is None or starts_ms(book, _ms(at)) > now_ms:
            return
        yield _ms(at)


# Decisions ----------------------------------------------------------------------------------


def look(book: Book, now_ms: int) -> Book:
    """Decide the ticks that have come."""
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
    """By the overlap policy."""
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
    """Behind all but the backfills."""
    place = sum(each.kind != "backfill" for each in book.queue)
    return replace(book, queue=(*book.queue[:place], *dues, *book.queue[place:]))


def told(book: Book, ask: ScheduleCommand, now_ms: int) -> Book:
    """Take in what was said. Look first: what has come before is decided as it was declared."""
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
    """What waits for its turn goes, unless somebody has asked for it."""
    kept = tuple(due for due in book.queue if due.kind in ("trigger", "backfill"))
    return replace(book, queue=kept, skipped=book.skipped + len(book.queue) - len(kept))


def ready(book: Book) -> Due | None:
    """The run to start now."""
    if not book.queue or (book.under_way is not None and book.spec.overlap != "allow"):
        return None
    return book.queue[0]


def started(book: Book, due: Due) -> Book:
    """Its run is started, as number `runs`; unless they may overlap, its end will be told."""
    number = book.runs + 1
    under_way = book.under_way
    if book.spec.overlap != "allow":
        under_way = UnderWay(run_id=run_id_of(book.name, due), number=number, kind=due.kind)
    return replace(book, queue=book.queue[1:], runs=number, last=due, under_way=under_way)


def left_out(book: Book) -> Book:
    """The schedule's function wants no run for the first one in the queue."""
    return replace(book, queue=book.queue[1:], skipped=book.skipped + 1)


def wake_ms(book: Book, now_ms: int) -> int | None:
    """When there is something to decide; None: not before somebody says something."""
    if ready(book) is not None:
        return now_ms
    if book.paused or book.removed or len(book.queue) >= QUEUE_MAX:
        return None
    following = next_ticks(book.spec, book.until_ms, 1)
    return starts_ms(book, following[0]) if following else None
