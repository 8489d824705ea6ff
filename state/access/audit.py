"""The audit trail: who did, or tried to do, what. See schemas/avro/Audit.avsc."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol, cast

from surefoot.schemas.codec.codec import decode, encode
from surefoot.schemas.codec.records import AvroAudit
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import audit_topic
from surefoot.state.ports.log import ProducerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action that an account took, or was refused."""

    #: unique, ordered by time
    id: str
    at_ms: int
    #: the account; None: nobody signed in
    who: str | None
    #: the command's word, `start`, `read`, `tokens create` ...
    action: str
    #: of the HTTP answer; 200 for what a command line did
    status: int
    agent: str | None = None
    run_id: str | None = None
    #: the client's address, or the machine of a command line
    origin: str | None = None
    #: why it was refused, or what was done
    note: str | None = None
    #: tries of strangers since the last one that was recorded
    unrecorded: int = 0


class AuditLog(Protocol):
    async def record(self, entry: AuditEntry) -> None:
        """Write the entry; returns once it is durable, or given up and logged. Never raises.

        Under cancellation: it may have been written.
        """


def audit_json(entry: AuditEntry) -> AvroAudit:
    """Return the fields of an entry, as its record has them and the command line shows them."""
    return cast("AvroAudit", asdict(entry))


def audit_out(app: str, partitions: int, entry: AuditEntry) -> ProducerRecord:
    """Return the record to write."""
    return ProducerRecord(
        audit_topic(app),
        partition_of(entry.id, partitions),
        entry.id.encode(),
        encode("Audit", audit_json(entry)),
    )


def read_audit(value: bytes | None) -> AuditEntry:
    """Decode an entry. Raises UndecodableError."""
    return AuditEntry(**decode(value, "Audit")[1])
