"""The archive: the names and contents of its objects, and runs read back from it. Pure.

    agent=A/kind=events/date=2026-01-31/p=03/FIRST.avro   events of one partition, in order
    agent=A/kind=runs/date=2026-01-31/p=03/FIRST.avro     those of them that end a run
    agent=A/kind=index/p=03/date=2026-01-31/FIRST         which runs the events belong to
    agent=A/kind=index/p=03/date=2026-01-31/day           the same for all files of a past day

FIRST is the offset of the first record, and the date is that record's. The end of one file thus
determines the name of the next, whoever writes it. A file is created, never replaced: of two
writers of the same file, one finds that it exists and continues after it. The files of a partition
therefore follow each other without overlap, whatever crashes or wakes up again.

An index is sorted rows of 16 bytes: 8 of the SHA-256 of a run_id, 8 of a FIRST.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.schemas.codec.container import (
    FINGERPRINT,
    OFFSET,
    SEALED,
    TIME,
    ArchivedRow,
    read_rows,
    write_rows,
)
from surefoot.schemas.codec.payload_fields import is_sealed, readable_without_key
from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.names.topics import DAY_MS
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.ports import RunView
from surefoot.state.reading.runs import ends_run, is_history
from surefoot.state.records.encoding import memory_of

#: the last day with a four-digit year, epoch ms
_LATEST_MS = 253_402_214_400_000
_HALF = 8
_ROW = 16
DAY = "day"
_INDEX_KEY = re.compile(r"date=(\d{4}-\d\d-\d\d)/(\d{20}|day)")

#: returns a record as a reader of the log sees it, who may have the key of an encrypted one
ShowRecord = Callable[[ConsumerRecord], ConsumerRecord]

#: (offset, event)
ArchivedEvent = tuple[int, AvroEvent]


def date_of(time_ms: int) -> str:
    """Return the day in UTC; an impossible time counts as the first or the last possible day."""
    at = datetime.fromtimestamp(min(max(time_ms, 0), _LATEST_MS) / 1000, UTC)
    return at.date().isoformat()


@dataclass(frozen=True, slots=True)
class Shelf:
    """One partition of an agent in the archive."""

    agent: str
    partition: int

    def _file(self, kind: str, date: str, first: int) -> str:
        return f"agent={self.agent}/kind={kind}/date={date}/p={self.partition:02}/{first:020}.avro"

    def events(self, date: str, first: int) -> str:
        return self._file("events", date, first)

    def runs(self, date: str, first: int) -> str:
        return self._file("runs", date, first)

    @property
    def indexes(self) -> str:
        """Prefix of the names of all its indexes."""
        return f"agent={self.agent}/kind=index/p={self.partition:02}/"

    def index(self, date: str, first: int) -> str:
        return f"{self.indexes}date={date}/{first:020}"

    def day(self, date: str) -> str:
        return f"{self.indexes}date={date}/{DAY}"

    def by_date(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """Return those keys that are indexes of this shelf, by date, the latest date first."""
        found: dict[str, list[str]] = {}
        for key in keys:
            if match := _INDEX_KEY.fullmatch(key.removeprefix(self.indexes)):
                found.setdefault(match[1], []).append(key)
        return {date: sorted(found[date]) for date in sorted(found, reverse=True)}


# Files ----------------------------------------------------------------------------------------


def day_end_ms(time_ms: int) -> int:
    """Return the end of the day of that time, epoch ms."""
    return (time_ms // DAY_MS + 1) * DAY_MS


def cut(records: Sequence[ConsumerRecord], bytes_most: int) -> int:
    """Return how many records, from the first on, go into one file.

    A later day starts a new file. A record of an earlier day does not: workers' clocks differ."""
    until_ms, size = day_end_ms(records[0].timestamp_ms), 0
    for count, record in enumerate(records):
        size += len(record.value or b"")
        if count and (size > bytes_most or record.timestamp_ms >= until_ms):
            return count
    return len(records)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Consecutive records of one partition, as the archive keeps them."""

    date: str
    first: int
    last: int
    #: (time, key) of the first record; tells whether two files come from the same log
    mark: str
    events: bytes
    #: None: none of the events ends a run
    runs: bytes | None
    index: bytes
    #: number of events, and (offset, reason) of each record that is not an event
    count: int
    unread: tuple[tuple[int, str], ...] = ()


def pack(
    topic: str,
    partition: int,
    records: Sequence[ConsumerRecord],
    gap: tuple[int, int] | None = None,
) -> File:
    """Make the file of these records.

    Args: gap: (from, to): the offsets before the first record that retention deleted before they
          could be archived
    """
    first, last = records[0].offset, records[-1].offset
    rows, unread = [], []
    for record in records:
        try:
            event = decode(readable_without_key(record.value), "Event")[1]
        except UndecodableError as error:
            unread.append((record.offset, str(error)))
        else:
            row = cast("ArchivedRow", event)
            row[OFFSET], row[TIME] = record.offset, record.timestamp_ms
            row[SEALED] = record.value if is_sealed(record.value) else None
            rows.append(row)
    metadata = {
        "surefoot.topic": topic,
        "surefoot.partition": str(partition),
        "surefoot.first": str(first),
        "surefoot.last": str(last),
        "surefoot.mark": _mark(records[0]),
        "surefoot.fingerprint": FINGERPRINT,
    }
    if unread:
        metadata["surefoot.unread"] = ",".join(str(offset) for offset, _ in unread)
    if gap is not None:
        metadata["surefoot.gap"] = f"{gap[0]}-{gap[1] - 1}"
    return _file(
        metadata, rows, write_rows(rows, metadata), date_of(records[0].timestamp_ms), unread
    )


def unpack(date: str, events: bytes) -> File:
    """Read a file of the archive. Raises UndecodableError."""
    metadata, rows = read_rows(events)
    try:
        return _file(metadata, rows, events, date, [])
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"not a file of the archive: {error!r}") from error


def _file(
    metadata: Mapping[str, str],
    rows: Sequence[ArchivedRow],
    events: bytes,
    date: str,
    unread: Sequence[tuple[int, str]],
) -> File:
    first = int(metadata["surefoot.first"])
    ends = [row for row in rows if ends_run(row)]
    told = {name: value for name, value in metadata.items() if name.startswith("surefoot.")}
    return File(
        date=date,
        first=first,
        last=int(metadata["surefoot.last"]),
        mark=metadata["surefoot.mark"],
        events=events,
        runs=write_rows(ends, told) if ends else None,
        index=index_of({row["run_id"] for row in rows}, first),
        count=len(rows),
        unread=tuple(unread),
    )


def _mark(record: ConsumerRecord) -> str:
    return f"{record.timestamp_ms}:{hashlib.sha256(record.key or b'').hexdigest()[:16]}"


def same_log(file: File, record: ConsumerRecord) -> bool:
    """Whether the file begins with this record, and not with one of another log."""
    return file.first == record.offset and file.mark == _mark(record)


# Indexes --------------------------------------------------------------------------------------


def _digest(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()[:_HALF]


def index_of(run_ids: Iterable[str], first: int) -> bytes:
    """Return the index of one file."""
    place = first.to_bytes(_HALF, "big")
    return b"".join(sorted(_digest(run_id) + place for run_id in run_ids))


def merged(indexes: Iterable[bytes]) -> bytes:
    """Merge indexes into one. Each may be given more than once."""
    rows = {
        index[at : at + _ROW]
        for index in indexes
        for at in range(0, len(index) - len(index) % _ROW, _ROW)
    }
    return b"".join(sorted(rows))


def files_of(index: bytes, run_id: str) -> list[int]:
    """Return FIRST of each file with events of the run, or, once in 2**64, of another run."""
    wanted = _digest(run_id)
    rows = range(len(index) // _ROW)
    at = bisect_left(rows, wanted, key=lambda row: index[row * _ROW : row * _ROW + _HALF])
    found = []
    while at < len(rows) and index[at * _ROW : at * _ROW + _HALF] == wanted:
        found.append(int.from_bytes(index[at * _ROW + _HALF : (at + 1) * _ROW], "big"))
        at += 1
    return found


def newest(index: bytes) -> int | None:
    """Return FIRST of the latest file of the index."""
    places = (index[at + _HALF : at + _ROW] for at in range(0, len(index), _ROW))
    latest = max(places, default=None)
    return None if latest is None else int.from_bytes(latest, "big")


# Runs -----------------------------------------------------------------------------------------


def events_of(
    rows: Iterable[ArchivedRow], run_id: str, topic: str, show: ShowRecord
) -> list[ArchivedEvent]:
    """Return the events of one run in the rows of a file of that topic.

    Raises: UndecodableError.
    """
    return [(row[OFFSET], _event(row, topic, show)) for row in rows if row["run_id"] == run_id]


def _event(row: ArchivedRow, topic: str, show: ShowRecord) -> AvroEvent:
    if row[SEALED] is not None:
        key = row["run_id"].encode()
        record = show(ConsumerRecord(topic, 0, row[OFFSET], row[TIME], key, row[SEALED]))
        return decode(record.value, "Event")[1]
    fields: Mapping[str, Any] = row
    return cast("AvroEvent", {n: fields[n] for n in fields if n not in (OFFSET, TIME, SEALED)})


def latest_life(items: Sequence[ArchivedEvent]) -> list[ArchivedEvent]:
    """Return the history of a run, by offset, each event once. If the run_id was used again after
    its first run was forgotten, it is the history of the latest run."""
    ordered = [item for _, item in sorted({offset: (offset, e) for offset, e in items}.items())]
    starts = [at for at, (_, event) in enumerate(ordered) if event["type"] == "run.started"]
    return ordered[starts[-1] :] if starts else ordered


def run_of(history: Sequence[ArchivedEvent]) -> RunView | None:
    """Return the run as its history leaves it, without its input and its steps' payloads, which the
    history has."""
    told = [event for _, event in history if is_history(event)]
    if not told:
        return None
    last = told[-1]
    return RunView(
        run_id=last["run_id"],
        agent=last["agent"],
        version=last["version"],
        status=last["status"],
        seq=last["seq"] + (last["type"] == "run.completed"),
        step=last["step"] or last["next_step"] or "",
        attempt=last["attempt"],
        created_ms=history[0][1]["at_ms"],
        updated_ms=last["at_ms"],
        due_ms=None,
        payload=b"",
        result=last["result"] if ends_run(last) else None,
        failure=last["failure"],
        epoch=last["epoch"],
        memory=memory_of(last["memory"]),
        archived=True,
    )
