"""Converts between the core's values and the records of the log. Pure.

Every record of a transaction carries sf-txn, sf-src, sf-run and sf-seq, so that an outsider can
check which transaction it is part of, which input it answers, and which run and step it concerns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from surefoot.schemas import trace
from surefoot.schemas.codec.codec import UndecodableError, decode, encode
from surefoot.schemas.codec.records import (
    AvroAmount,
    AvroCheckpoint,
    AvroFailure,
    AvroMemory,
    AvroParent,
    AvroTask,
    AvroWait,
)
from surefoot.schemas.payload import digest
from surefoot.state.machine.commands import WireCommand, read
from surefoot.state.machine.model import (
    Action,
    Amount,
    Branch,
    ChildDone,
    CommandRecord,
    DeadRecord,
    Decided,
    Effect,
    Entry,
    EventRecord,
    Failure,
    Forget,
    Input,
    Memory,
    OutputPiece,
    Parent,
    PlanItem,
    Record,
    Run,
    StartRun,
    TaskRecord,
    WaitState,
    jsonable,
)
from surefoot.state.names.ids import check_run_id
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import APPLIED_KEY, AgentTopics, dead_topic
from surefoot.state.ports.log import ConsumerRecord, Headers, InputKind, ProducerRecord
from surefoot.state.records.event_headers import event_headers


@dataclass(frozen=True, slots=True)
class Wire:
    """Encodes what one agent writes; `partitions` is the partition count that all agents share."""

    app: str
    topics: AgentTopics
    partitions: int

    def checkpoint(
        self, run: Run, records: int, headers: Headers, partition: int
    ) -> ProducerRecord:
        """Encode the run's state. `records`: count of its decision's records, this one included."""
        value = encode("Checkpoint", jsonable(run) | {"records": records})
        return ProducerRecord(self.topics.state, partition, run.run_id.encode(), value, headers)

    def out(
        self,
        record: Record,
        run_id: str,
        partition: int,
        headers: Headers,
        now_ms: int,
        *,
        number: int = -1,
        traceparent: str | None = None,
    ) -> ProducerRecord:
        """Encode one record of a decision; `number` and `traceparent` are for its events."""
        key = run_id.encode()
        match record:
            case TaskRecord():
                value = encode("Task", jsonable(record))
                return ProducerRecord(self.topics.tasks, partition, key, value, headers)
            case EventRecord():
                # only the log knows the run_id of an event about an unknown run
                value = encode("Event", jsonable(record) | {"run_id": run_id})
                told = event_headers(
                    source=f"{self.app}/{self.topics.agent}",
                    kind=record.type,
                    run_id=run_id,
                    at_ms=record.at_ms,
                    value=value,
                    headers=headers,
                    number=number,
                    traceparent=traceparent,
                )
                return ProducerRecord(self.topics.events, partition, key, value, told)
            case Entry():
                place = entry_key(record.run_id, record.slot)
                value = encode("Entry", jsonable(record))
                return ProducerRecord(self.topics.state, partition, place, value, headers)
            case Forget():
                place = entry_key(run_id, record.slot)
                return ProducerRecord(self.topics.state, partition, place, None, headers)
            case Effect():
                return start_out(
                    self.app,
                    self.partitions,
                    record.agent,
                    record.run_id,
                    record.payload,
                    sent_ms=now_ms,
                    headers=headers,
                    traceparent=record.traceparent,
                    tracestate=record.tracestate,
                    baggage=record.baggage,
                )
            case CommandRecord():
                return command_out(
                    self.app,
                    self.partitions,
                    record.agent,
                    headers=headers,
                    sent_ms=now_ms,
                    **_own_fields(record),
                )
            case DeadRecord():
                value = _command(
                    run_id=record.run_id,
                    kind="start",
                    payload=record.payload,
                    sent_ms=now_ms,
                    step=record.step,
                )
                failure = record.failure
                why = dead_headers(failure.code, failure.message, record.attempts, record.run_id)
                return ProducerRecord(dead_topic(self.app), 0, key, value, (*headers, *why))

    def applied(
        self,
        offsets: dict[str, int | None],
        partition: int,
        headers: Headers,
        answered: Collection[tuple[InputKind, int]] = (),
    ) -> ProducerRecord:
        """Encode the offsets that the state includes.

        Args: offsets: next to read, by input; answered: (input, offset) of records from there on
            that were answered.
        """
        above = {
            field: sorted(offset for kind, offset in answered if kind == of)
            for field, of in (("answered", "commands"), ("answered_tasks", "tasks"))
        }
        return ProducerRecord(
            self.topics.state,
            partition,
            APPLIED_KEY,
            encode("Applied", {**offsets, **above}),
            headers,
        )

    def tombstone(self, key: bytes, partition: int, headers: Headers) -> ProducerRecord:
        """Return the tombstone of a run whose dedup window is over, or of one of its entries."""
        return ProducerRecord(self.topics.state, partition, key, None, headers)

    def dead_input(
        self, record: ConsumerRecord, failure: Failure, headers: Headers
    ) -> ProducerRecord:
        """Encode the dead letter of an input that cannot be used.

        Key, value and headers are copied byte for byte; further headers give the original position.
        """
        told = dead_headers(failure.code, failure.message, 0, None)
        place = (
            ("sf-dead-topic", record.topic.encode()),
            ("sf-dead-partition", b"%d" % record.partition),
            ("sf-dead-offset", b"%d" % record.offset),
            ("sf-dead-timestamp", b"%d" % record.timestamp_ms),
        )
        return ProducerRecord(
            dead_topic(self.app),
            0,
            record.key,
            record.value,
            (*record.headers, *headers, *told, *place),
        )

    def piece(self, agent: str, piece: OutputPiece, now_ms: int) -> ProducerRecord:
        """Encode a piece of partial output."""
        return ProducerRecord(
            AgentTopics(self.app, agent).stream,
            partition_of(piece.run_id, self.partitions),
            piece.run_id.encode(),
            encode("Stream", {**piece._asdict(), "at_ms": now_ms}),
        )

    def is_home(self, run_id: str, partition: int) -> bool:
        """Whether the run lives in that partition."""
        return partition_of(run_id, self.partitions) == partition

    def reroute(self, record: ConsumerRecord, run_id: str, headers: Headers) -> ProducerRecord:
        """Return the record again, for the partition that its run lives in."""
        home = partition_of(run_id, self.partitions)
        return ProducerRecord(
            record.topic, home, run_id.encode(), record.value, (*record.headers, *headers)
        )


def dead_headers(
    code: str, message: str, attempts: int, run_id: str | None
) -> tuple[tuple[str, bytes], ...]:
    """Return headers that say why a record is a dead letter. Bounded, whatever the error says."""
    told = [
        ("sf-dead-code", code.encode()),
        ("sf-dead-message", message.encode("utf-8", "backslashreplace")[:4096]),
        ("sf-dead-attempts", b"%d" % attempts),
    ]
    if run_id is not None:
        told.append(("sf-dead-run", run_id.encode()))
    return tuple(told)


def start_out(
    app: str,
    partitions: int,
    agent: str,
    run_id: str,
    payload: bytes,
    *,
    sent_ms: int,
    headers: Headers = (),
    traceparent: str | None = None,
    tracestate: str | None = None,
    baggage: str | None = None,
    by: str | None = None,
) -> ProducerRecord:
    """Encode a start command, for the partition of its run."""
    return command_out(
        app,
        partitions,
        agent,
        run_id=run_id,
        kind="start",
        payload=payload,
        sent_ms=sent_ms,
        headers=headers,
        traceparent=traceparent,
        tracestate=tracestate,
        baggage=baggage,
        by=by,
    )


def command_out(
    app: str,
    partitions: int,
    agent: str,
    *,
    run_id: str,
    kind: str,
    sent_ms: int,
    payload: bytes = b"null",
    headers: Headers = (),
    **fields: Any,
) -> ProducerRecord:
    """Encode a command, for the partition of its run.

    Args: fields: further fields of schemas/avro/Command.avsc.
    """
    return ProducerRecord(
        AgentTopics(app, agent).commands,
        partition_of(run_id, partitions),
        run_id.encode(),
        _command(run_id=run_id, kind=kind, payload=payload, sent_ms=sent_ms, **fields),
        headers,
    )


_COMMAND: dict[str, object] = {
    "step": None,
    "traceparent": None,
    "tracestate": None,
    "baggage": None,
    "id": None,
    "name": None,
    "by": None,
    "parent": None,
    "carry": None,
    "memory": None,
    "messages": [],
    "failure": None,
    "seq": None,
    "epoch": None,
    "emit": 0,
    "wait": None,
    "due_ms": None,
    "created_ms": None,
    "input_digest": None,
    "repeat": [],
    "actions": [],
}


def _command(**fields: Any) -> bytes:
    return encode("Command", _COMMAND | fields)


def _own_fields(record: CommandRecord) -> Any:
    fields = jsonable(record)
    del fields["agent"]
    return fields


def entry_key(run_id: str, slot: str) -> bytes:
    """Return the key of an entry in the state topic. No run_id contains a bar."""
    return f"{run_id}|{slot}".encode()


def split_key(key: bytes) -> tuple[str, str | None]:
    """Split a key of the state topic into run_id and slot of the entry (None: the checkpoint)."""
    run_id, bar, slot = key.decode("utf-8", "backslashreplace").partition("|")
    return run_id, slot if bar else None


#: a run's counters, and the value that each must stay below so that the next still fits a record
_COUNTS = {
    "seq": 2**63 - 1,
    "version": 2**31 - 1,
    "attempt": 2**31 - 1,
    "epoch": 2**31 - 1,
    "emit": 2**31 - 1,
    "forks": 2**31 - 1,
}


def decode_checkpoint(value: bytes) -> Run:
    """Decode a checkpoint.

    Raises: UndecodableError — also for counters that no run can reach.
    """
    checkpoint: AvroCheckpoint = decode(value, "Checkpoint")[1]
    fields = _own(checkpoint)
    for name, end in _COUNTS.items():
        if not 0 <= fields[name] < end:
            raise UndecodableError(f"Checkpoint.{name} is {fields[name]}")
    del fields["records"]
    fields["failure"] = _failure(checkpoint["failure"])
    fields["reason"] = _failure(checkpoint["reason"])
    fields["wait"] = wait_of(checkpoint["wait"])
    fields["parent"] = _parent(checkpoint["parent"])
    fields["memory"] = memory_of(checkpoint["memory"])
    fields["commands"] = tuple(checkpoint["commands"])
    return Run(**fields)


def decode_entry(value: bytes) -> Entry:
    """Decode an entry.

    Raises: UndecodableError.
    """
    entry = decode(value, "Entry")[1]
    fields = _own(entry)
    fields["failure"] = _failure(entry["failure"])
    fields["cost"] = _amounts(entry["cost"])
    return Entry(**fields)


def _own(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoded record itself, whose fields are about to become those of its value."""
    return cast("dict[str, Any]", record)


def wait_of(fields: AvroWait | None) -> WaitState | None:
    """Build a WaitState from its decoded fields."""
    if fields is None:
        return None
    return WaitState(
        **_own(fields)
        | {
            "names": tuple(fields["names"]),
            "by": tuple(fields["by"]),
            "branches": tuple(Branch(**branch) for branch in fields["branches"]),
        }
    )


def memory_of(fields: AvroMemory | None) -> Memory | None:
    """Build a Memory from its decoded fields."""
    if fields is None:
        return None
    return Memory(
        plan=tuple(PlanItem(**item) for item in fields["plan"]),
        thread=fields["thread"],
        spent=_amounts(fields["spent"]),
        granted=_amounts(fields["granted"]),
        decided=tuple(Decided(**item) for item in fields["decided"]),
    )


def _failure(fields: AvroFailure | None) -> Failure | None:
    if fields is None:
        return None
    return Failure(**_own(fields) | {"frames": tuple(fields["frames"])})


def _parent(fields: AvroParent | None) -> Parent | None:
    return Parent(**fields) if fields is not None else None


def _amounts(items: list[AvroAmount]) -> tuple[Amount, ...]:
    return tuple(Amount(**item) for item in items)


def decode_applied(
    value: bytes | None,
) -> tuple[dict[str, int | None], frozenset[tuple[InputKind, int]]]:
    """Decode the record of the applied offsets.

    Returns: (next offsets to read by input, (input, offset) of records from there on that were
        answered); both empty if the record is unreadable.
    """
    try:
        fields = decode(value, "Applied")[1]
    except UndecodableError:
        return {}, frozenset()
    commands: list[tuple[InputKind, int]] = [("commands", o) for o in fields["answered"]]
    tasks: list[tuple[InputKind, int]] = [("tasks", o) for o in fields["answered_tasks"]]
    offsets = {"commands": fields["commands"], "tasks": fields["tasks"]}
    return offsets, frozenset([*commands, *tasks])


def decode_command(record: ConsumerRecord) -> WireCommand:
    """Decode a command.

    Raises: UndecodableError — also for an invalid run_id.
    """
    command = decode(record.value, "Command")[1]
    _check_run_id(command["run_id"])
    fields = _own(command)
    fields["parent"] = _parent(command["parent"])
    fields["memory"] = memory_of(command["memory"])
    fields["messages"] = tuple(command["messages"])
    fields["failure"] = _failure(command["failure"])
    fields["wait"] = wait_of(command["wait"])
    fields["repeat"] = tuple(command["repeat"])
    fields["actions"] = tuple(Action(**action) for action in command["actions"])
    return WireCommand(**fields)


def input_of(command: WireCommand) -> Input:
    """Return the input that a command, other than a start, gives its run.

    Raises: UndecodableError — the kind is unknown, or fields are missing.
    """
    if command.kind != "child":
        return read(command)
    parent: Parent = command.needed("parent")
    command.parsed()
    return ChildDone(
        fork=parent.fork,
        branch=parent.branch,
        child=command.id or "",
        result=command.payload,
        failure=command.failure,
    )


def start_of(command: WireCommand, agent: str, version: int, first: str) -> StartRun:
    """Return the start of this version of the agent that a command requests.

    Args: first: the step to begin with if the command names none.
    """
    came = trace.carried_by({name: getattr(command, name) for name in trace.HEADERS})
    return StartRun(
        run_id=command.run_id,
        agent=agent,
        version=version,
        step=command.step or first,
        payload=command.payload,
        input_digest=digest(command.payload),
        traceparent=came.get("traceparent"),
        tracestate=came.get("tracestate"),
        baggage=came.get("baggage"),
        parent=command.parent,
        carry=command.carry,
        memory=command.memory,
        messages=command.messages,
        by=command.by,
        actions=command.actions,
        repeat=command.repeat,
    )


def decode_task(record: ConsumerRecord) -> AvroTask:
    """Decode a task.

    Raises: UndecodableError — also for an invalid run_id.
    """
    task = decode(record.value, "Task")[1]
    _check_run_id(task["run_id"])
    return task


def _check_run_id(run_id: str) -> None:
    try:
        check_run_id(run_id)
    except ValueError as error:
        raise UndecodableError(str(error)) from error
