"""The embedded log's file: its tables, and how records are written and read. SQLite, WAL.

Synchronous, for one thread at a time; broker.py provides the threads. Several processes can open
the same file: SQLite lets one of them write at a time, and offsets are assigned inside its
transaction.

A record's rowid is its partition's id times 2**40 plus its offset: a partition is one range of the
table, ordered by offset, and needs no index.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from surefoot.infra.embedded.log import TopicPartition
from surefoot.state.errors import ConfigError, FencedError
from surefoot.state.names.topics import TopicSpec
from surefoot.state.ports.log import ConsumerRecord, Headers, ProducerRecord

#: version of the tables below; a file of another version is refused
SCHEMA_VERSION = 1
#: how long to wait while another process locks the file, in seconds
BUSY_S = 10.0

_SHIFT = 40
#: SQLite's error codes for a file that it cannot read
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_APPLICATION_ID = 0x53460001
_TABLES = """
CREATE TABLE topics (name TEXT PRIMARY KEY, partitions INTEGER, config TEXT) WITHOUT ROWID;
CREATE TABLE places (
    id INTEGER PRIMARY KEY, topic TEXT, partition INTEGER, begin INTEGER, end INTEGER,
    UNIQUE (topic, partition)
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY, timestamp_ms INTEGER, key BLOB, value BLOB, headers BLOB
);
CREATE TABLE offsets (
    grp TEXT, place INTEGER, next INTEGER, PRIMARY KEY (grp, place)
) WITHOUT ROWID;
CREATE TABLE epochs (id TEXT PRIMARY KEY, epoch INTEGER) WITHOUT ROWID;
"""


@dataclass(slots=True)
class OffsetRange:
    """The offsets that exist in a partition."""

    id: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Write:
    """Records that become visible together, with the offsets to commit."""

    outs: Sequence[ProducerRecord]
    now_ms: int
    #: None: the records are not part of a transaction
    transactional_id: str | None = None
    epoch: int = 0
    group: str = ""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


class _Batch:
    """What one transaction of the file writes; only the last value of every place and offset."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, bytes | None, bytes | None, bytes]] = []
        self.touched: dict[int, OffsetRange] = {}
        #: by group and partition id
        self.offsets: dict[tuple[str, int], int] = {}
        self.epochs: dict[str, int | None] = {}

    def ends(self) -> Iterator[tuple[int, int]]:
        return ((span.end, span.id) for span in self.touched.values())

    def next(self) -> Iterator[tuple[str, int, int]]:
        return ((group, place, offset) for (group, place), offset in self.offsets.items())


#: `make`: create the file if it is missing; `read`: write nothing to it
Access = Literal["make", "write", "read"]
_MODES: Mapping[Access, str] = {"make": "rwc", "write": "rw", "read": "ro"}


def _nothing_there(path: Path) -> ConfigError:
    return ConfigError(
        "SF3186",
        f"there is no embedded log at {path.absolute()}; check SUREFOOT_LOG, and the folder that "
        "the command is run in. `surefoot serve` and `surefoot topics apply` make one",
    )


def _unusable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        "SF3101",
        f"{path} cannot be used as an embedded log ({error}); name a file of a local disk "
        "that can be written to, in a folder that is there, with SUREFOOT_LOG",
    )


def _make(path: Path) -> None:
    """Make the file, for its user alone, if there is none; SQLite gives those beside it its mode.

    One that is there is not opened: closing it would end the locks that SQLite has on it in this
    process. Source: sqlite.org/howtocorrupt.html, 2.2
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise _unusable(path, error) from error


class EmbeddedFile:
    """One connection. Raises sqlite3.Error unless noted otherwise; nothing is changed then."""

    def __init__(self, path: Path, access: Access = "make") -> None:
        """Raises: ConfigError — it cannot be opened, is not an embedded log, or does not exist."""
        self.path = path
        self._access = access
        #: by partition, as of the latest `look`
        self.spans: dict[TopicPartition, OffsetRange] = {}
        self._seen = -1
        if access != "make" and not path.exists():
            raise _nothing_there(path)
        if access == "make":
            _make(path)
        try:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={_MODES[access]}",
                uri=True,
                timeout=BUSY_S,
                check_same_thread=False,
            )
            self._db.isolation_level = None  # transactions begin and end explicitly
            self._set_up()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                raise ConfigError(
                    "SF3101",
                    f"{path} is damaged, or no SQLite file ({error}); put a copy of it in its "
                    "place, with the files beside it gone, or name another one with SUREFOOT_LOG",
                ) from error
            raise _unusable(path, error) from error

    def _set_up(self) -> None:
        db = self._db
        (found,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if found != _APPLICATION_ID and tables:
            raise ConfigError(
                "SF3102",
                f"{self.path} is a database of something else; name another file with SUREFOOT_LOG",
            )
        if not tables and self._access != "make":
            raise _nothing_there(self.path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone stops at the disk's cache
        db.execute("PRAGMA wal_autocheckpoint = 4000")
        if not tables:
            self._make()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise ConfigError(
                "SF3103",
                f"{self.path} was written by another version of surefoot (its format is {version}, "
                f"this one reads {SCHEMA_VERSION}); use that version, or name another file",
            )
        self.look()
        self.topics()  # report damage here, not in the middle of work

    def _make(self) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    # Topics ----------------------------------------------------------------------------------

    def look(self) -> dict[TopicPartition, OffsetRange]:
        """Reload the spans."""
        rows = self._db.execute("SELECT topic, partition, id, begin, end FROM places")
        self.spans = {(row[0], row[1]): OffsetRange(*row[2:]) for row in rows}
        return self.spans

    def changes(self) -> int:
        """Return a number that changes whenever another connection writes to the file."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def create(self, specs: Iterable[TopicSpec]) -> list[str]:
        db, made = self._db, []
        db.execute("BEGIN IMMEDIATE")
        for spec in specs:
            row = (spec.name, spec.partitions, json.dumps(spec.config))
            if db.execute("INSERT OR IGNORE INTO topics VALUES (?, ?, ?)", row).rowcount:
                made.append(spec.name)
                places = [(spec.name, number) for number in range(spec.partitions)]
                db.executemany(
                    "INSERT INTO places (topic, partition, begin, end) VALUES (?, ?, 0, 0)", places
                )
        db.execute("COMMIT")
        self.look()
        return made

    def topics(self) -> dict[str, TopicSpec]:
        return {
            name: TopicSpec(name=name, partitions=partitions, config=json.loads(config))
            for name, partitions, config in self._db.execute("SELECT * FROM topics")
        }

    def alter(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Change these configs of existing topics, by topic."""
        rows = [(json.dumps(changed), name) for name, changed in configs.items()]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(
            "UPDATE topics SET config = json_patch(config, ?) WHERE name = ?", rows
        )
        self._db.execute("COMMIT")

    # Writing ---------------------------------------------------------------------------------

    def take(self, transactional_id: str) -> int:
        """Return a new epoch of that id; durable."""
        row = self._db.execute(
            "INSERT INTO epochs VALUES (?, 0) ON CONFLICT DO UPDATE SET epoch = epoch + 1 "
            "RETURNING epoch",
            (transactional_id,),
        ).fetchall()
        return int(row[0][0])

    def write(self, writes: Sequence[Write]) -> list[list[int] | FencedError]:
        """Write all of them in one transaction of the file, durable on return.

        Returns: for each, the offsets of its records, or why it was not written."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            self._catch_up()
            batch = _Batch()
            done = [self._add(batch, write) for write in writes]
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", batch.rows)
            db.executemany("UPDATE places SET end = ? WHERE id = ?", batch.ends())
            db.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", batch.next())
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self.look()
            raise
        return done

    def _catch_up(self) -> None:
        """Reload the spans if another connection has written since."""
        changes = self.changes()
        if changes != self._seen:
            self.look()
            self._seen = changes

    def _add(self, batch: _Batch, write: Write) -> list[int] | FencedError:
        owner = write.transactional_id
        if owner is not None and (newest := self._epoch(batch, owner)) != write.epoch:
            return FencedError(f"{owner}: epoch {write.epoch} is over, {newest} holds")
        offsets: list[int] = []
        for out in write.outs:
            span = self.spans[out.topic, out.partition]
            headers = _packed(out.headers)
            batch.rows.append(
                (span.id << _SHIFT | span.end, write.now_ms, out.key, out.value, headers)
            )
            offsets.append(span.end)
            span.end += 1
            batch.touched[span.id] = span
        for place, offset in write.offsets.items():
            batch.offsets[write.group, self.spans[place].id] = offset
        return offsets

    def _epoch(self, batch: _Batch, transactional_id: str) -> int | None:
        """Return the id's epoch; None if it was never taken. It cannot change during the batch."""
        if transactional_id not in batch.epochs:
            row = self._db.execute("SELECT epoch FROM epochs WHERE id = ?", (transactional_id,))
            (batch.epochs[transactional_id],) = row.fetchone() or (None,)
        return batch.epochs[transactional_id]

    def delete(
        self, place: TopicPartition, offsets: Iterable[int], *, begin: int | None = None
    ) -> None:
        """Delete these records; with `begin`, the partition starts there from now on."""
        db, span = self._db, self.spans[place]
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "DELETE FROM records WHERE id = ?", [(span.id << _SHIFT | n,) for n in offsets]
        )
        if begin is not None:
            db.execute("UPDATE places SET begin = max(begin, ?) WHERE id = ?", (begin, span.id))
        db.execute("COMMIT")
        self.look()

    # Reading ---------------------------------------------------------------------------------

    def read(self, place: TopicPartition, position: int, most: int) -> list[ConsumerRecord]:
        """Read records from that offset on."""
        span = self.spans[place]
        rows = self._db.execute(
            "SELECT * FROM records WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
            (span.id << _SHIFT | max(position, span.begin), span.id << _SHIFT | span.end - 1, most),
        )
        topic, partition = place
        mask = (1 << _SHIFT) - 1
        return [
            ConsumerRecord(
                topic, partition, row[0] & mask, row[1], row[2], row[3], _unpacked(row[4])
            )
            for row in rows
        ]

    def keys(
        self, place: TopicPartition, position: int, most: int
    ) -> list[tuple[int, int, bytes | None, bool]]:
        """Return (offset, timestamp, key, whether it is a tombstone) from that offset on."""
        span = self.spans[place]
        rows = self._db.execute(
            "SELECT id, timestamp_ms, key, value IS NULL FROM records WHERE id BETWEEN ? AND ? "
            "ORDER BY id LIMIT ?",
            (span.id << _SHIFT | position, span.id << _SHIFT | span.end - 1, most),
        )
        mask = (1 << _SHIFT) - 1
        return [(row[0] & mask, row[1], row[2], bool(row[3])) for row in rows]

    def begin_within(self, place: TopicPartition, most: int) -> int:
        """Return the first offset from which the remaining values take at most `most` bytes."""
        span = self.spans[place]
        mask = (1 << _SHIFT) - 1
        begin, size = span.end, 0
        for row in self._db.execute(
            "SELECT id, coalesce(length(value), 0) FROM records WHERE id BETWEEN ? AND ? "
            "ORDER BY id DESC",
            (span.id << _SHIFT | span.begin, span.id << _SHIFT | span.end - 1),
        ):
            size += row[1]
            if size > most:
                break
            begin = row[0] & mask
        return begin

    def offset_at(self, place: TopicPartition, time_ms: int) -> int | None:
        """Return the offset of the first record at or after that time; None if there is none."""
        span = self.spans[place]
        row = self._db.execute(
            "SELECT id FROM records WHERE id BETWEEN ? AND ? AND timestamp_ms >= ? "
            "ORDER BY id LIMIT 1",
            (span.id << _SHIFT, span.id << _SHIFT | span.end - 1, time_ms),
        ).fetchone()
        return None if row is None else row[0] & ((1 << _SHIFT) - 1)

    def committed(self, group: str, place: TopicPartition) -> int | None:
        row = self._db.execute(
            "SELECT next FROM offsets WHERE grp = ? AND place = ?", (group, self.spans[place].id)
        ).fetchone()
        return None if row is None else int(row[0])


# Headers --------------------------------------------------------------------------------------

_LENGTHS = struct.Struct(">HI")


def _packed(headers: Headers) -> bytes:
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        parts += (_LENGTHS.pack(len(encoded), len(value)), encoded, value)
    return b"".join(parts)


def _unpacked(data: bytes) -> tuple[tuple[str, bytes], ...]:
    headers: list[tuple[str, bytes]] = []
    at = 0
    while at < len(data):
        name_size, size = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        value_at = at + name_size
        headers.append((data[at:value_at].decode(), data[value_at : value_at + size]))
        at = value_at + size
    return tuple(headers)


# One owner ------------------------------------------------------------------------------------


class OwnerLock:
    """A lock held by the one process that runs agents on the file, as long as it lives."""

    def __init__(self, path: Path, *, wait_s: float = 1.0) -> None:
        """Acquire the lock. Waits out processes that only test whether it is held.

        Raises: ConfigError — another process has it (the message names it), or the lock file cannot
        be created.
        """
        import fcntl  # noqa: PLC0415  (there is none on Windows)

        try:
            self._fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() < deadline_s:
                    time.sleep(0.02)
                    continue
                holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
                os.close(self._fd)
                raise ConfigError(
                    "SF3104",
                    f"process {holder} runs agents on {path} already, and an embedded log has one "
                    "process; stop that one, name another file with SUREFOOT_LOG, or use Kafka",
                ) from None
            break
        os.truncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def has_owner(path: Path) -> bool:
    """Whether a process runs agents on the file."""
    try:
        OwnerLock(path, wait_s=0.0).release()
    except ConfigError:
        return True
    return False
