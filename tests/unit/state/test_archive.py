"""The archive's names, files and indexes, and runs read back from it."""

from __future__ import annotations

import pytest

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.container import FINGERPRINT, read_rows
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.archive import (
    Shelf,
    cut,
    date_of,
    events_of,
    files_of,
    index_of,
    latest_life,
    merged,
    newest,
    pack,
    run_of,
    same_log,
    unpack,
)
from tests.support.archived import (
    DAY_MS,
    NOON_MS,
    event,
    life,
    metadata,
    offsets_by_any_reader,
    records,
)

TOPIC = "app.shop.events"
SHELF = Shelf("shop", 3)


def as_it_is(record: ConsumerRecord) -> ConsumerRecord:
    return record


def test_names_are_those_of_a_partitioned_table() -> None:
    assert SHELF.events("2026-01-31", 17) == (
        "agent=shop/kind=events/date=2026-01-31/p=03/00000000000000000017.avro"
    )
    assert date_of(NOON_MS) == "2026-01-31"
    assert (date_of(-5), date_of(2**62)) == ("1970-01-01", "9999-12-31")


def test_a_file_ends_when_it_is_full_or_when_a_later_day_begins() -> None:
    some = records([b"x" * 100] * 10)
    assert cut(some, 10_000) == 10
    assert cut(some, 350) == 3
    assert cut(some, 1) == 1
    next_day = records([b"y"], first=20, at_ms=NOON_MS + DAY_MS)
    late = records([b"z"], first=22, at_ms=NOON_MS - DAY_MS)
    assert cut(some + late + next_day, 10_000) == 11


def test_a_file_is_read_by_any_reader_and_says_where_it_is_from() -> None:
    some = records([*life("r1"), *life("r2")], first=8)
    file = pack(TOPIC, 3, some)
    assert offsets_by_any_reader([file.events]) == [8, 10, 12, 14]
    assert file.runs is not None
    assert offsets_by_any_reader([file.runs]) == [10, 14]
    told = metadata(file.events)
    assert told["surefoot.topic"] == TOPIC
    assert (told["surefoot.partition"], told["surefoot.first"], told["surefoot.last"]) == (
        "3",
        "8",
        "14",
    )
    assert told["surefoot.fingerprint"] == FINGERPRINT
    assert told["avro.codec"] == "deflate"
    assert (file.first, file.last, file.count, file.date) == (8, 14, 4, "2026-01-31")


def test_what_is_derived_is_the_same_from_the_file_as_from_the_records() -> None:
    some = records([*life("r1"), *life("r2")], first=8)
    file = pack(TOPIC, 3, some)
    assert pack(TOPIC, 3, some) == file
    assert unpack(file.date, file.events) == file
    assert same_log(file, some[0])
    assert not same_log(file, some[0]._replace(timestamp_ms=NOON_MS + 1))
    assert not same_log(file, some[0]._replace(key=b"another"))


def test_a_record_that_is_no_event_is_told_and_keeps_no_other_out() -> None:
    file = pack(TOPIC, 3, records([b"garbage", None, *life("r1")]))
    assert [offset for offset, _ in file.unread] == [0, 2]
    assert metadata(file.events)["surefoot.unread"] == "0,2"
    assert offsets_by_any_reader([file.events]) == [4, 6]
    assert (file.first, file.last) == (0, 6)


def test_events_that_retention_has_deleted_are_in_the_metadata() -> None:
    file = pack(TOPIC, 3, records(life("r1"), first=100), gap=(40, 100))
    assert metadata(file.events)["surefoot.gap"] == "40-99"


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"x" + b, lambda b: b[:0]])
def test_a_damaged_file_is_refused(damage: object) -> None:
    file = pack(TOPIC, 3, records(life("r1")))
    with pytest.raises(UndecodableError):
        unpack(file.date, damage(file.events))  # type: ignore[operator]


def test_an_index_knows_the_files_of_a_run() -> None:
    indexes = [index_of([f"r{n}" for n in range(k, k + 50)], k) for k in range(0, 100, 10)]
    day = merged([*indexes, indexes[3]])
    assert files_of(day, "r35") == [0, 10, 20, 30]
    assert files_of(day, "nobody") == []
    assert newest(day) == 90
    assert merged([day, *indexes]) == day
    assert (files_of(b"", "r"), newest(b"")) == ([], None)


def test_indexes_are_told_by_date_the_latest_first_and_nothing_else_is_one() -> None:
    keys = [
        SHELF.index("2026-01-30", 5),
        SHELF.day("2026-01-30"),
        SHELF.index("2026-01-31", 9),
        SHELF.indexes + "date=2026-01-31/note.txt",
    ]
    assert SHELF.by_date(keys) == {"2026-01-31": [keys[2]], "2026-01-30": [keys[0], keys[1]]}


def test_a_run_is_what_its_history_leaves() -> None:
    values = [
        event("r", "run.started", next_step="a", payload=b"1"),
        event("r", "step.completed", seq=0, step="a", next_step="ship", at_ms=NOON_MS + 3),
        event(
            "r",
            "run.completed",
            seq=1,
            step="ship",
            status="completed",
            result=b"42",
            at_ms=NOON_MS + 9,
        ),
        # asked in vain, once it was over
        event("r", "command.refused", seq=2, status="completed", at_ms=NOON_MS + 99),
    ]
    rows = read_rows(pack(TOPIC, 3, records([*values, *life("other")])).events)[1]
    history = latest_life(
        [
            *events_of(rows, "r", TOPIC, as_it_is),
            *events_of(rows, "r", TOPIC, as_it_is),
        ]
    )
    assert [offset for offset, _ in history] == [0, 2, 4, 6]
    run = run_of(history)
    assert run is not None
    assert (run.status, run.result, run.seq, run.step) == ("completed", b"42", 2, "ship")
    assert (run.created_ms, run.updated_ms, run.archived) == (NOON_MS, NOON_MS + 9, True)
    assert run_of([]) is None


def test_of_a_name_that_was_used_again_the_latest_run_is_told() -> None:
    rows = read_rows(
        pack(TOPIC, 3, records([*life("r"), *life("r", at_ms=NOON_MS + DAY_MS)])).events
    )[1]
    history = latest_life(events_of(rows, "r", TOPIC, as_it_is))
    assert [offset for offset, _ in history] == [4, 6]
