"""Selects and counts summaries of an agent's runs. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from surefoot.state.machine.model import TERMINAL, Status
from surefoot.state.reading.query import Activity, Bucket, PageCursor, RunQuery, Waiting
from surefoot.state.reading.runs import RunSummary

#: kinds of wait that only a person can end
_ASKS = frozenset({"approval", "budget"})


def needs_person(run: RunSummary) -> bool:
    return run.status == "attention" or (run.status == "waiting" and run.waits in _ASKS)


def place(run: RunSummary) -> PageCursor:
    return PageCursor(run.updated_ms, run.run_id)


def select(runs: Iterable[RunSummary], query: RunQuery) -> tuple[list[RunSummary], int]:
    """Return the runs of a page, latest first, plus one more; and how many match in all."""
    fit = [run for run in runs if _fits(run, query)]
    before = query.before
    rest = fit if before is None else [run for run in fit if place(run) < before]
    return heapq.nlargest(query.limit + 1, rest, key=place), len(fit)


def _fits(run: RunSummary, query: RunQuery) -> bool:
    return (
        (query.status is None or run.status == query.status)
        and (query.version is None or run.version == query.version)
        and (query.step is None or run.step == query.step)
        and run.run_id.startswith(query.prefix)
        and (not query.needs_person or needs_person(run))
    )


def activity(runs: Collection[RunSummary], now_ms: int, bucket_ms: int, buckets: int) -> Activity:
    """Count the runs that began and ended in each of the latest `buckets` periods."""
    first = now_ms // bucket_ms - buckets + 1
    tally: dict[str, list[int]] = {
        kind: [0] * buckets for kind in ("started", "completed", "failed", "cancelled")
    }
    oldest: dict[Status, RunSummary] = {}
    standing: dict[Status, int] = {}
    waiting = 0
    for run in runs:
        if 0 <= (at := run.created_ms // bucket_ms - first) < buckets:
            tally["started"][at] += 1
        status = run.status
        if status in TERMINAL:
            if 0 <= (at := run.updated_ms // bucket_ms - first) < buckets:
                tally[status][at] += 1
            continue
        standing[status] = standing.get(status, 0) + 1
        waiting += needs_person(run)
        if (was := oldest.get(status)) is None or run.updated_ms < was.updated_ms:
            oldest[status] = run
    return Activity(
        bucket_ms=bucket_ms,
        buckets=[
            Bucket((first + at) * bucket_ms, *(tally[kind][at] for kind in tally))
            for at in range(buckets)
        ],
        oldest={
            status: Waiting(
                run_id=run.run_id, step=run.step, since_ms=run.updated_ms, runs=standing[status]
            )
            for status, run in oldest.items()
        },
        needs_person=waiting,
    )
