"""A schedule as JSON values for a person. Pure."""

from __future__ import annotations

from datetime import tzinfo
from typing import TypedDict

from surefoot.state.machine.model import Run
from surefoot.state.scheduling.book import Book, Spec, instant, next_ticks


class ScheduleJson(TypedDict):
    """A schedule; its ticks as ISO 8601 with its own time zone."""

    schedule: str
    cron: str
    tz: str
    state: str
    paused: bool
    last: str | None
    next: str | None
    coming: list[str]
    runs: int
    skipped: int
    waiting: int
    #: run_id of the run that has begun and not ended
    under_way: str | None


def unknown_json(name: str, spec: Spec | None, state: str) -> ScheduleJson:
    """Describe a schedule without a book: not begun, or cancelled."""
    return {
        "schedule": name,
        "cron": spec.cron if spec else "",
        "tz": spec.tz if spec else "",
        "state": state,
        "paused": False,
        "last": None,
        "next": None,
        "coming": [],
        "runs": 0,
        "skipped": 0,
        "waiting": 0,
        "under_way": None,
    }


def schedule_json(run: Run, book: Book | None, now_ms: int, *, ticks: int = 1) -> ScheduleJson:
    """Describe a schedule with its next ticks, in its own time zone."""
    if book is None:
        return unknown_json(run.run_id, None, run.status)
    zone = book.spec.times.zone
    rests = book.paused or book.removed
    found = [] if rests else next_ticks(book.spec, max(book.until_ms, now_ms), ticks)
    coming = [_local(at_ms, zone) for at_ms in found]
    return unknown_json(book.name, book.spec, _state(run, book)) | {
        "paused": book.paused,
        "last": None if book.last is None else _local(book.last.at_ms, zone),
        "next": coming[0] if coming else None,
        "coming": coming,
        "runs": book.runs,
        "skipped": book.skipped,
        "waiting": len(book.queue),
        "under_way": None if book.under_way is None else book.under_way.run_id,
    }


def _local(at_ms: int, zone: tzinfo) -> str:
    return instant(at_ms).astimezone(zone).isoformat()


def _state(run: Run, book: Book) -> str:
    if run.failure is not None:
        return f"{run.status}: {run.failure.message}"
    if run.status not in ("waiting", "running", "pending"):
        return run.status
    if book.removed:
        return "removed: the code no longer declares it"
    told = "paused" if book.paused else "active"
    if book.under_way is not None:
        told += f", run {book.under_way.run_id} is in progress"
    if book.queue:
        told += f", {len(book.queue)} wait for their turn"
    return told
