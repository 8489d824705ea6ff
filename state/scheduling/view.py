"""A schedule as JSON values for a person. Pure."""

from __future__ import annotations

from typing import Any

from surefoot.state.machine.model import Run
from surefoot.state.scheduling.book import Book, Spec, instant, next_ticks


def unknown_json(name: str, spec: Spec | None, state: str) -> dict[str, Any]:
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


def schedule_json(run: Run, book: Book | None, now_ms: int, *, ticks: int = 1) -> dict[str, Any]:
    """Describe a schedule with its next ticks, in its own time zone."""
    if book is None:
        return unknown_json(run.run_id, None, run.status)
    zone = book.spec.times.zone
    rests = book.paused or book.removed
    found = [] if rests else next_ticks(book.spec, max(book.until_ms, now_ms), ticks)
    coming = [instant(at_ms).astimezone(zone).isoformat() for at_ms in found]
    return unknown_json(book.name, book.spec, _state(run, book)) | {
        "paused": book.paused,
        "last": book.last and instant(book.last.at_ms).astimezone(zone).isoformat(),
        "next": coming[0] if coming else None,
        "coming": coming,
        "runs": book.runs,
        "skipped": book.skipped,
        "waiting": len(book.queue),
        "under_way": book.under_way and book.under_way.run_id,
    }


def _state(run: Run, book: Book) -> str:
    if run.failure is not None:
        return f"{run.status}: {run.failure.message}"
    if run.status not in ("waiting", "running", "pending"):
        return run.status
    if book.removed:
        return "removed: the code has it no more"
    told = "paused" if book.paused else "active"
    if book.under_way is not None:
        told += f", {book.under_way.run_id} is under way"
    if book.queue:
        told += f", {len(book.queue)} wait for their turn"
    return told
