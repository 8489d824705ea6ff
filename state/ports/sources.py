"""What a trigger on a Kafka topic needs from the outside world, as Protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from surefoot.state.ports.log import ConsumerRecord, ProducerRecord


class OffsetGone(Exception):
    """A position to read is no longer in the log."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


class SchemaMissing(Exception):
    """The registry answers that it has no such schema. It may have it later, if it lags behind or
    is being restored."""


class SchemaSource(Protocol):
    """Looks up Avro schemas by the names in Confluent's framing."""

    async def by_id(self, id: int, /) -> Any:  # noqa: A002
        """Return the Avro schema.

        Raises: LookupError - never usable, whoever asks and whenever; SchemaMissing - missing for
                now; Unavailable - anything else: ask again
        """

    async def by_guid(self, guid: str, /) -> Any:
        """Like by_id; `guid` is in its usual form, with dashes."""


class SourceLog(Protocol):
    """One topic, as one member of the consumer group that starts an agent's runs from it."""

    async def settle_start(self, start: StartPosition) -> None:
        """Commit where the group begins, in every partition at once, unless it has begun already.
        Waits for a topic that does not exist; "latest" is then the time when the wait began.

        Raises: Unavailable - call again
        """

    async def start(
        self,
        on_assigned: Callable[[frozenset[int]], None],
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        """Join the group.

        Args: on_assigned: called with every partition already paused; must not block.
              on_revoked: awaited before the member joins again
        """

    async def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """Read the records that have arrived, committed ones only. Never cancel it.

        Raises: Unavailable; OffsetGone - take the partition over again
        """

    def pause(self, partition: int) -> None:
        """Stop reading the partition."""

    def resume(self, partition: int, position: int | None = None) -> None:
        """Continue reading, from `position` (next offset to read) if given."""

    def position(self, partition: int) -> int | None:
        """Return the next offset to read of a partition that has been read to its end, past
        transaction markers; None: there is more to read."""

    async def own(self, partition: int) -> SourceOwnership:
        """Take the partition over: fence the former owner and settle its open transaction.

        Raises: Unavailable - call again
        """

    async def stop(self) -> None:
        """Leave the group and close."""


class SourceOwnership(Protocol):
    """One partition of the topic, held under one producer epoch."""

    async def standing(self) -> SourceOffsets:
        """Return the partition's offsets, as the broker has them now. Raises Unavailable."""

    async def commit(self, records: Sequence[ProducerRecord], offset: int) -> None:
        """Write `records` and the offset (next to read) in one transaction, or nothing.

        Raises: FencedError, RecordRefused, OutcomeUnknown, as Ownership.commit in state.ports.log
        Under cancellation: the transaction continues; its outcome is unknown
        """

    async def close(self) -> None:
        """Give the partition up; an open transaction is left to be fenced. Safe to call twice."""


StartPosition = Literal["latest", "earliest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Where an event came from: the optional second argument of a trigger's functions."""

    topic: str
    partition: int
    offset: int
    #: the record's timestamp, epoch ms UTC
    timestamp_ms: int
    key: bytes | None = None
    #: headers; of several with the same name, the last
    headers: Mapping[str, bytes] = field(default_factory=dict)
    #: attributes of a CloudEvent: id, source, type and any others
    attributes: Mapping[str, Any] = field(default_factory=dict)
    #: attributes that violate the CloudEvents specification, unchanged: a time without a zone, say
    odd: Mapping[str, Any] = field(default_factory=dict)


class SourceOffsets(NamedTuple):
    """Where one partition of a topic stands, in offsets."""

    #: next to read, as committed by the trigger; None: never committed
    committed: int | None
    #: offset of the first record that is kept
    first: int
    #: offset after the last record
    end: int


class LostEvents(NamedTuple):
    """A range of offsets, from `start` to before `end`, whose events are gone unread."""

    start: int
    end: int
    message: str
