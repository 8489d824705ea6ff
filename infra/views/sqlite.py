"""Views of an embedded log: the same projections, stored in a SQLite file beside it.

A process that runs no agents reads them from the log's file. Each batch is stored in one
transaction; losing the file costs one more read of the log.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from surefoot.infra.log.ports import Backend
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.views.shard import Shard
from surefoot.state.errors import Unavailable
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: how often to poll the log, in seconds
_LOOK_S = 0.1


class ViewsFile:
    """Values by (agent, partition, key)."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.isolation_level = None  # transactions begin and end explicitly
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # what a power cut loses is read again
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS views (agent TEXT, partition INTEGER, key BLOB, value BLOB,"
            " PRIMARY KEY (agent, partition, key)) WITHOUT ROWID"
        )

    def get(self, agent: str, partition: int, key: bytes) -> bytes | None:
        row = self._db.execute(
            "SELECT value FROM views WHERE agent = ? AND partition = ? AND key = ?",
            (agent, partition, key),
        ).fetchone()
        return row[0] if row else None

    def items(self, agent: str, partition: int) -> Iterable[tuple[bytes, bytes]]:
        query = "SELECT key, value FROM views WHERE agent = ? AND partition = ?"
        return self._db.execute(query, (agent, partition))

    def keep(
        self, agent: str, partition: int, changes: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(
                "REPLACE INTO views VALUES (?, ?, ?, ?)",
                [(agent, partition, key, value) for key, value in changes if value is not None],
            )
            self._db.executemany(
                "DELETE FROM views WHERE agent = ? AND partition = ? AND key = ?",
                [(agent, partition, key) for key, value in changes if value is None],
            )
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class _Kept:
    """Values of one partition."""

    def __init__(self, file: ViewsFile, agent: str, partition: int) -> None:
        self._file = file
        self._agent = agent
        self._partition = partition

    def get(self, key: bytes) -> bytes | None:
        return self._file.get(self._agent, self._partition, key)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return self._file.items(self._agent, self._partition)


class SqliteViews(Shard):
    """All partitions of one agent."""

    def __init__(
        self, agent: str, settings: Settings, backend: Backend, clock: Clock, file: ViewsFile
    ) -> None:
        super().__init__(agent, settings, backend, clock)
        self._file = file

    def values(self, partition: int) -> _Kept:
        return _Kept(self._file, self.agent, partition)

    async def keep(self, partition: int, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._file.keep(self.agent, partition, changes)

    def owners(self) -> Mapping[str | None, Iterable[int]]:
        return {None: range(self.partitions)}

    async def run(self) -> None:
        """Follow the log until cancelled."""
        while True:
            try:
                for partition in range(self.partitions):
                    await self.catch_up(partition)
            except (Unavailable, sqlite3.Error) as error:
                log.warning("views_interrupted", agent=self.agent, error=str(error))
            await asyncio.sleep(_LOOK_S)
