"""The record of one delivery: what was received, whether it was verified, and its outcome.

It serves people, and mapping a delivery again. It has no credentials: what a mapping must not see
is not here either. An unsigned delivery leaves little, since anybody can send one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict, get_args

from surefoot.schemas.codec.codec import UndecodableError, decode, encode
from surefoot.schemas.codec.payload_fields import is_concealed
from surefoot.schemas.codec.records import AvroRunName
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import deliveries_topic
from surefoot.state.ports.log import ProducerRecord

#: started: it started its runs; ignored: no agent wants it; answered: it only asked for an answer;
#: failed: it does not fit an agent; refused: not verified, or not readable; unavailable: the log
#: did not accept it
DeliveryOutcome = Literal["started", "ignored", "answered", "failed", "refused", "unavailable"]
OUTCOMES: tuple[DeliveryOutcome, ...] = get_args(DeliveryOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """See schemas/avro/Delivery.avsc."""

    id: str
    source: str
    at_ms: int
    outcome: DeliveryOutcome
    status: int
    reason: str | None = None
    verified: bool = False
    delivery: str | None = None
    event: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    body_bytes: int = 0
    #: (agent, run_id)
    runs: tuple[tuple[str, str], ...] = ()
    errors: tuple[str, ...] = ()
    unrecorded: int = 0


class DeliveryLog(Protocol):
    def offer(self, delivery: Delivery) -> None:
        """Queue it to be written some time. Never waits or raises, and may drop it."""


def delivery_out(app: str, partitions: int, delivery: Delivery) -> ProducerRecord:
    """Return the record to write."""
    fields = {name: getattr(delivery, name) for name in delivery.__slots__}
    fields["verified"] = int(delivery.verified)
    fields["headers"] = [{"name": name, "value": value} for name, value in delivery.headers]
    fields["runs"] = [{"agent": agent, "run_id": run_id} for agent, run_id in delivery.runs]
    fields["errors"] = list(delivery.errors)
    return ProducerRecord(
        deliveries_topic(app),
        partition_of(delivery.id, partitions),
        delivery.id.encode(),
        encode("Delivery", fields),
    )


def read_delivery(value: bytes | None) -> Delivery:
    """Decode a delivery; one that could not be opened has no body. Raises UndecodableError."""
    fields = decode(value, "Delivery")[1]
    if fields["outcome"] not in OUTCOMES:
        raise UndecodableError(f"Delivery.outcome is {fields['outcome']!r}")
    return Delivery(
        id=fields["id"],
        source=fields["source"],
        at_ms=fields["at_ms"],
        outcome=fields["outcome"],
        status=fields["status"],
        reason=fields["reason"],
        verified=bool(fields["verified"]),
        delivery=fields["delivery"],
        event=fields["event"],
        headers=tuple((each["name"], each["value"]) for each in fields["headers"]),
        body=None if is_concealed(fields["body"]) else fields["body"],
        body_bytes=fields["body_bytes"],
        runs=tuple((each["agent"], each["run_id"]) for each in fields["runs"]),
        errors=tuple(fields["errors"]),
        unrecorded=fields["unrecorded"],
    )


class DeliveryJson(TypedDict):
    """A delivery as the API and the command line show it."""

    id: str
    source: str
    at_ms: int
    outcome: DeliveryOutcome
    status: int
    reason: str | None
    verified: bool
    delivery: str | None
    event: str | None
    runs: list[AvroRunName]
    errors: list[str]
    unrecorded: int
    headers: dict[str, str]
    body_bytes: int
    body: str | None


def delivery_json(delivery: Delivery) -> DeliveryJson:
    """Return its JSON values for display, with the body as text."""
    body = None if delivery.body is None else delivery.body.decode("utf-8", "backslashreplace")
    return {
        "id": delivery.id,
        "source": delivery.source,
        "at_ms": delivery.at_ms,
        "outcome": delivery.outcome,
        "status": delivery.status,
        "reason": delivery.reason,
        "verified": delivery.verified,
        "delivery": delivery.delivery,
        "event": delivery.event,
        "runs": [{"agent": agent, "run_id": run_id} for agent, run_id in delivery.runs],
        "errors": list(delivery.errors),
        "unrecorded": delivery.unrecorded,
        "headers": dict(delivery.headers),
        "body_bytes": delivery.body_bytes,
        "body": body,
    }
