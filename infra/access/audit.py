"""The audit trail on the log: written by gateways and the command line, read by the latter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import structlog

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Appender, Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import CodecError, UndecodableError
from surefoot.state.access.audit import AuditEntry, audit_out, read_audit
from surefoot.state.errors import RecordTooLarge, Unavailable
from surefoot.state.names.topics import audit_topic

log = structlog.get_logger(__name__)

_READ_S = 30.0


class AuditWriter:
    """Implements AuditLog. What cannot be written is an error in the process's log, in full."""

    def __init__(self, settings: Settings, appender: Appender) -> None:
        self._settings, self._appender = settings, appender

    async def record(self, entry: AuditEntry) -> None:
        settings = self._settings
        try:
            out = audit_out(settings.app, settings.partitions, entry)
            start_s = settings.deadlines.start_s
            await self._appender.append(out, "a record of the audit trail", deadline_s=start_s)
        except (CodecError, RecordTooLarge, Unavailable) as error:
            log.error("audit_not_recorded", reason=str(error), **asdict(entry))  # noqa: TRY400

    async def stop(self) -> None:
        """Close, within a deadline. Safe to call twice."""
        await self._appender.stop()


class AuditReader:
    """Reads the audit trail."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self._partitions = range(settings.partitions)
        self._topic = audit_topic(settings.app)
        self._offsets = backend.offsets()
        self._lookups = backend.lookups(self._topic)

    async def entries(
        self, since_ms: int, wanted: Callable[[AuditEntry], bool]
    ) -> list[AuditEntry]:
        """Return the wanted entries from that time on (epoch ms), oldest first.

        Raises: Unavailable — the log cannot be read now.
        """
        found: dict[str, AuditEntry] = {}
        async with bounded(_READ_S):
            ends = await self._offsets.stables(self._topic, self._partitions)
            for partition in self._partitions:
                start = await self._offsets.at(self._topic, partition, since_ms)
                while start is not None and start < ends[partition]:
                    page, start = await self._lookups.page(
                        partition, start, ends[partition], lambda _: True
                    )
                    for record in page:
                        try:
                            entry = read_audit(record.value)
                        except UndecodableError as error:
                            log.warning("audit_unreadable", offset=record.offset, error=str(error))
                            continue
                        if entry.at_ms >= since_ms and wanted(entry):
                            found[entry.id] = entry
        return sorted(found.values(), key=lambda entry: entry.id)

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await self._lookups.stop()
        await self._offsets.stop()
