"""Maps one event to one start command, one dead letter, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from surefoot.consumers.attempts.claim_check import ClaimCheck
from surefoot.schemas import trace
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.foreign.event_avro import AvroReader, BadSchema
from surefoot.schemas.foreign.event_codec import Framed, SchemaRef, framed
from surefoot.schemas.payload import Unserialisable, dump
from surefoot.schemas.pointer import Pointer, escaped
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.topics import EventTrigger, Unusable
from surefoot.state.machine.model import Failure
from surefoot.state.names.ids import run_id_for, told_by
from surefoot.state.ports.log import ConsumerRecord, Headers, ProducerRecord
from surefoot.state.ports.sources import LostEvents, Received, SchemaMissing, SchemaSource
from surefoot.state.records.encoding import Wire, start_out
from surefoot.state.records.sizes import record_size

#: most parsed schemas that are kept; hostile bytes can name any number of them
SCHEMAS_MAX = 1_000


class Mapped(NamedTuple):
    """The result of one event."""

    #: the record to write, if any
    out: ProducerRecord | None
    #: the reason, if it is a dead letter
    failure: Failure | None = None
    #: the payload that the record points to; store it before writing the record
    claimed: tuple[Pointer, bytes] | None = None


class NotYet(Exception):
    """The registry does not have the event's schema, or not yet."""

    def __init__(self, ref: SchemaRef, why: str) -> None:
        super().__init__(f"{ref}: {why}")
        self.ref = ref


class Schemas:
    """The Avro readers of one trigger, by schema reference."""

    def __init__(self, trigger: EventTrigger, source: SchemaSource | None) -> None:
        self._trigger = trigger
        self._source = source
        self._readers: dict[SchemaRef, AvroReader] = {}
        #: what the registry was asked for and lacks
        self._missing: dict[SchemaRef, str] = {}

    def ask_again(self) -> None:
        """Ask again for missing schemas from now on; between calls each is asked for once."""
        self._missing.clear()

    async def reader(self, ref: SchemaRef) -> AvroReader:
        """Return the reader of a schema.

        Raises: UndecodableError — there is no such schema, or it cannot be used; NotYet;
        Unavailable."""
        if ref in self._missing:
            raise NotYet(ref, self._missing[ref])
        found = self._readers.get(ref)
        if found is None:
            if len(self._readers) >= SCHEMAS_MAX:
                self._readers.clear()
            try:
                found = AvroReader(
                    await self._look_up(ref),
                    self._trigger.reader_schema,
                    branches=self._trigger.by_branch is not None,
                )
            except BadSchema as error:
                raise UndecodableError(f"{ref}: {error}") from None
            self._readers[ref] = found
        return found

    async def _look_up(self, ref: SchemaRef) -> Any:
        if ref.kind == "fingerprint":
            if ref.name not in self._trigger.schemas:
                raise UndecodableError(f"{ref} is not among those of schema=")
            return self._trigger.schemas[bytes(ref.name)]  # type: ignore[arg-type]
        if self._source is None:
            raise UndecodableError(f"{ref} is in a schema registry; set SUREFOOT_REGISTRY_URL")
        try:
            if isinstance(ref.name, int):
                return await self._source.by_id(ref.name)
            return await self._source.by_guid(str(ref.name))
        except LookupError as error:
            raise UndecodableError(f"{ref}: {error}") from None
        except SchemaMissing as error:
            self._missing[ref] = str(error)
            raise NotYet(ref, self._missing[ref]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FramedEvent:
    """A record with its parsed frame, and the reader of its body."""

    record: ConsumerRecord
    received: Received
    framed: Framed
    reader: AvroReader | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMapping:
    """Maps the events of one trigger of one agent."""

    agent: Agent
    trigger: EventTrigger
    wire: Wire
    schemas: Schemas
    #: size of the largest record, in bytes, key and headers included
    record_bytes: int
    claims: ClaimCheck | None = None
    #: how long events wait for a schema that the registry lacks, in seconds
    schema_wait_s: float = 0.0

    async def prepare(self, record: ConsumerRecord) -> FramedEvent | Mapped:
        """Parse the frame and look up the schema; the only step that may wait.

        Raises: Unavailable — the registry does not answer; NotYet — it lacks the schema.
        """
        told: Any = record.headers  # Kafka has headers without a value
        headers = {name: text for name, text in told if text is not None}
        try:
            frame = Framed("bytes", record.value or b"")
            if self.trigger.event_type is not bytes or record.value is None:
                frame = framed(record.value, headers)
            reader = None if frame.schema is None else await self.schemas.reader(frame.schema)
        except UndecodableError as error:
            return self.dead(record, Failure(code="undecodable", message=str(error)))
        received = Received(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            headers=headers,
            attributes=frame.attributes,
            odd=frame.odd,
        )
        return FramedEvent(record=record, received=received, framed=frame, reader=reader)

    def map(self, event: FramedEvent, now_ms: int) -> Mapped:
        """Decode the event and call the author's functions. They may be slow: not on the loop."""
        record, trigger = event.record, self.trigger
        try:
            if event.framed.kind == "null" and not trigger.takes_null:
                return Mapped(None)
            started = trigger.begin(self._typed(event), event.received)
            if started is None:
                return Mapped(None)
            payload = dump(self.agent.start_step.adapter, started.payload)
            pointer = None if self.claims is None else self.claims.pointer(payload)
            out = self._start(event, started.run_id, payload, pointer, now_ms)
        except Unusable as error:
            failure = Failure(code=error.code, message=error.message)
        except UndecodableError as error:
            failure = Failure(code="undecodable", message=str(error))
        except Unserialisable as error:
            told = f"payload of {self.agent.start_step.name}: {error}"
            failure = Failure(code="unserialisable", message=told)
        except Exception as error:  # noqa: BLE001  (an author's type; the other events go on)
            told = f"{type(error).__name__}: {error}"
            failure = Failure(code="mapping_raised", message=told)
        else:
            if (size := record_size(out)) <= self.record_bytes:
                return Mapped(out, claimed=None if pointer is None else (pointer, payload))
            told = f"a start command of {size} bytes is over the limit of {self.record_bytes}"
            failure = Failure(code="too_large", message=told)
        return self.dead(record, failure)

    async def store(self, mapped: Mapped) -> None:
        """Store what the record points to. Raises Unavailable — it may have been stored."""
        if mapped.claimed is not None:
            assert self.claims is not None
            await self.claims.store(*mapped.claimed)

    def dead(self, record: ConsumerRecord, failure: Failure, *, bare: bool = False) -> Mapped:
        """Return a dead letter of the event; of its place only, if `bare` or if it does not fit."""
        whose = (("sf-dead-agent", self.agent.name.encode()),)
        out = self.wire.dead_input(record, failure, whose)
        if bare or record_size(out) > 2 * self.record_bytes:
            empty = record._replace(key=None, value=None, headers=())
            size = (("sf-dead-bytes", b"%d" % record_size(out)),)
            out = self.wire.dead_input(empty, failure, (*whose, *size))
        return Mapped(out, failure)

    def lost(self, partition: int, lost: LostEvents, now_ms: int) -> ProducerRecord:
        """Return a dead letter for events lost unseen: their place, and where the gap ends."""
        place = ConsumerRecord(self.trigger.topic, partition, lost.start, now_ms, None, None)
        failure = Failure(code="events_lost", message=lost.message)
        told = (("sf-dead-agent", self.agent.name.encode()), ("sf-dead-until", b"%d" % lost.end))
        return self.wire.dead_input(place, failure, told)

    def _typed(self, event: FramedEvent) -> Any:
        match event.framed.kind:
            case "json":
                return self.trigger.of_json(event.framed.body)
            case "null":
                return self.trigger.of_value(None)
            case "bytes":
                return self.trigger.of_value(event.framed.body)
            case "schema":
                assert event.reader is not None
                value = event.reader.read(event.framed.body, event.framed.start)
                return self.trigger.of_value(value)

    def _start(
        self, event: FramedEvent, run_id: str, payload: bytes, pointer: Pointer | None, now_ms: int
    ) -> ProducerRecord:
        key = run_id
        try:
            named = run_id_for(key)
            run_id = self.agent.name_run(named, payload)
        except ValueError as error:
            raise Unusable("bad_run_id", str(error)) from None
        received = event.received
        source: Headers = (("sf-src", source_header(event.record)),)
        return start_out(
            self.wire.app,
            self.wire.partitions,
            self.agent.name,
            run_id,
            escaped(payload) if pointer is None else pointer.encode(),
            sent_ms=now_ms,
            headers=source,
            **trace.carried(*(_told(received, name) for name in trace.HEADERS)),
            by=told_by(key, named),
        )


def _told(received: Received, name: str) -> list[str]:
    """Return a header of the trace context, or the CloudEvent's attribute of that name."""
    header = received.headers.get(name)
    if header is not None:
        return [header.decode("utf-8", "replace")]
    attribute = received.attributes.get(name)
    return [] if attribute is None else [str(attribute)]


def source_header(record: ConsumerRecord) -> bytes:
    """Return the place of the record that asks for something."""
    return f"{record.topic}/{record.partition}/{record.offset}".encode()
