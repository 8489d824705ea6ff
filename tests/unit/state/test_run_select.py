"""Choosing among summaries of runs, paging back through a log, and counting what went on."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.infra.readers.history_pages import latest_before
from surefoot.state.errors import BadArgument
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.query import PageCursor, RunQuery
from surefoot.state.reading.runs import RunSummary
from surefoot.state.reading.select import activity, place, select


def run(run_id: str, updated_ms: int = 0, **fields: Any) -> RunSummary:
    given: dict[str, Any] = {
        "version": 1,
        "status": "running",
        "seq": 0,
        "step": "a",
        "attempt": 0,
        "created_ms": 0,
        "due_ms": None,
        "failure": None,
        "epoch": 0,
        "child": False,
        "waits": None,
        "offset": 0,
    }
    return RunSummary(run_id=run_id, updated_ms=updated_ms, **given | fields)


def ids(runs: list[RunSummary], **query: Any) -> list[str]:
    return [each.run_id for each in select(runs, RunQuery(**query))[0]]


def test_pages_have_every_run_once_the_latest_first() -> None:
    runs = [run(f"r{number:02}", updated_ms=number // 3) for number in range(10)]
    seen: list[str] = []
    before = None
    while True:
        page, matches = select(runs, RunQuery(before=before, limit=4))
        assert matches == 10
        seen += [each.run_id for each in page[:4]]
        if len(page) <= 4:
            break
        before = PageCursor.parse(str(place(page[3])))
    assert seen == [f"r{number:02}" for number in reversed(range(10))]


def test_every_filter_that_is_given_has_to_fit() -> None:
    runs = [
        run("a1", status="failed"),
        run("a2", version=2),
        run("b1", step="b"),
        run("b2", status="waiting", waits="approval"),
        run("b3", status="waiting", waits="signal"),
        run("c1", status="attention"),
        run("c2", status="paused", waits="budget"),
    ]
    assert ids(runs, status="failed") == ["a1"]
    assert ids(runs, version=2) == ["a2"]
    assert ids(runs, step="b") == ["b1"]
    assert ids(runs, prefix="a") == ["a2", "a1"]
    assert ids(runs, needs_person=True) == ["c1", "b2"]
    assert ids(runs, needs_person=True, prefix="c") == ["c1"]


@pytest.mark.parametrize("text", ["", "7", "7~", "x~r", "-1~r", "9" * 19 + "~r", "7~r\n"])
def test_a_place_that_no_page_has_named_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        PageCursor.parse(text)


def test_activity_counts_what_began_and_ended_in_each_stretch() -> None:
    runs = [
        run("a", updated_ms=25, created_ms=5, status="completed"),
        run("b", updated_ms=29, created_ms=21, status="failed"),
        run("c", updated_ms=12, created_ms=11),
        run("d", updated_ms=10, created_ms=10, step="z"),
        run("e", updated_ms=9, created_ms=9, status="attention"),
    ]
    told = activity(runs, 29, 10, 2)
    assert [tuple(bucket) for bucket in told.buckets] == [(10, 2, 0, 0, 0), (20, 1, 1, 1, 0)]
    assert (told.oldest["running"].run_id, told.oldest["running"].runs) == ("d", 2)
    assert told.needs_person == 1
    assert set(told.oldest) == {"running", "attention"}


class Pages:
    """A partition of so many records, of which every `nth` is of the run; read two at a time."""

    topic = "events"

    def __init__(self, count: int, nth: int) -> None:
        self.records = [
            ConsumerRecord("events", 0, offset, 0, b"r" if offset % nth == 0 else b"other", b"")
            for offset in range(count)
        ]
        self.looked_at = 0

    async def page(self, _partition, start, until, wanted):
        end = min(start + 2, until)
        self.looked_at += end - start
        return [each for each in self.records[start:end] if wanted(each.key)], end


@pytest.mark.parametrize("nth", [1, 3, 40])
async def test_going_back_through_a_log_meets_every_record_once(nth: int) -> None:
    pages = Pages(200, nth)
    seen: list[int] = []
    end: int | None = 200
    while end is not None:
        records, end = await latest_before(pages, 0, 0, end, b"r".__eq__, 7)  # type: ignore[arg-type]
        assert len(records) <= 7
        seen += [each.offset for each in records]
    assert seen == [offset for offset in reversed(range(200)) if offset % nth == 0]


async def test_the_latest_page_of_a_long_history_reads_little_of_it() -> None:
    pages = Pages(100_000, 1)
    records, before = await latest_before(pages, 0, 0, 100_000, b"r".__eq__, 100)  # type: ignore[arg-type]
    assert (len(records), before) == (100, 99_900)
    assert pages.looked_at <= 200


async def test_a_page_that_finds_little_ends_all_the_same() -> None:
    pages = Pages(100_000, 100_000)
    records, before = await latest_before(pages, 0, 0, 100_000, b"r".__eq__, 100)  # type: ignore[arg-type]
    assert records == []
    assert before is not None
    assert pages.looked_at < 30_000
