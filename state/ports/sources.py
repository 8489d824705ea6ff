"""What starting runs from a Kafka topic needs from the outside world, as Protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from surefoot.state.ports.log import ConsumerRecord, ProducerRecord


class OffsetGone(Exception):
    """A position that was to be read is not in the log any more."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


class SchemaMissing(Exception):
    """A registry that answers, and has no such schema: one that lags behind, or is being restored,
    may have it later."""


class SchemaSource(Protocol):
    """Where Avro schemas are looked up by the names that Confluent's framing gives them."""

    async def by_id(self, id: int, /) -> Any:  # noqa: A002
        """The Avro schema. Raises LookupError — it is none that could be used, whoever asks and
        whenever; SchemaMissing — there is none just now; Unavailable — anything else: ask
        again."""

    async def by_guid(self, guid: str, /) -> Any:
        """As by_id; `guid` is in its usual form, with dashes."""


class SourceLog(Protocol):
    """One topic, as one member of the consumer group that starts an agent's runs from it."""

    async def settle_start(self, start: StartPosition) -> None:
        """Commit where the group begins, in every partition at once, unless it has begun already.
        Waits for a topic that does not exist; "latest" is then when that wait began.

        Raises: Unavailable — call again.
        """

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        """Join the group. `on_revoked` is awaited before the member joins anew; `on_assigned` is
        called with every partition already paused, and must not block."""

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """Read what has come in, committed records only. Never cancel it.

        Raises: Unavailable; OffsetGone — the partition has to be taken over again.
        """

    def pause(self, partition: int) -> None:
        """Stop reading the partition."""

    def resume(self, partition: int, position: int | None = None) -> None:
        """Read on; from `position` (next offset to read) where given."""

    def position(self, partition: int) -> int | None:
        """Next offset to read of a partition that has been read to its end, transaction markers
        stepped over; None: there is more to read."""

    async def own(self, partition: int) -> SourceOwnership:
        """Take the partition over: fences the former owner and settles its open transaction.

        Raises: Unavailable — call again.
        """

    async def stop(self) -> None:
        """Leave the group and close."""


class SourceOwnership(Protocol):
    """One partition of the topic, held under one producer epoch."""

    async def standing(self) -> SourceOffsets:
        """Where it stands, as the broker has it now. Raises Unavailable."""

    async def commit(self, records: Sequence[ProducerRecord], offset: int) -> None:
        """Write `records` and the offset (next to read) in one transaction, or nothing. Cancelling
        it does not stop the transaction.

        Raises: FencedError, RecordRefused, OutcomeUnknown, as ports.Ownership.commit.
        """

    async def close(self) -> None:
        """Give it up; an open transaction is left to be fenced. Safe to call twice."""


StartPosition = Literal["latest", "earliest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Where an event came from: what a trigger's function may take beside the event."""

    topic: str
    partition: int
    offset: int
    #: as the record says it; epoch ms UTC
    timestamp_ms: int
    key: bytes | None = None
    #: of several with one name, the last
    headers: Mapping[str, bytes] = field(default_factory=dict)
    #: of a CloudEvent: id, source, type and whatever else it has
    attributes: Mapping[str, Any] = field(default_factory=dict)
    #: and what of it is not as CloudEvents has it, a time without a zone say: as it came
    odd: Mapping[str, Any] = field(default_factory=dict)


class SourceOffsets(NamedTuple):
    """Where one partition of a topic stands, in offsets."""

    #: the next to read, as the trigger has committed it; None: never
    committed: int | None
    #: of the first record that is still there
    first: int
    #: after the last one
    end: int


class LostEvents(NamedTuple):
    """Offsets from which on, and up to which, events are gone that have not been read."""

    start: int
    end: int
    message: str
