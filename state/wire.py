"""Between the values of the core and the records of the log. Pure.

Every record of a transaction carries sf-txn, sf-src, sf-run and sf-seq, so that an outsider can
check it: which transaction, which input it answers, which run and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.schemas.codec import UndecodableError, decode, encode
from surefoot.state.agent import check_run_id
from surefoot.state.model import (
    DeadRecord,
    Effect,
    EventRecord,
    Failure,
    Record,
    Run,
    TaskRecord,
    jsonable,
)
from surefoot.state.partitioner import partition_of
from surefoot.state.ports import Headers, In, Out
from surefoot.state.topics import APPLIED_KEY, AgentTopics, dead_topic


@dataclass(frozen=True, slots=True)
class Wire:
    """Encodes what one agent writes; `partitions` is the count that all agents share."""

    app: str
    topics: AgentTopics
    partitions: int

    def outs(
        self, run: Run, records: Sequence[Record], headers: Headers, partition: int, now_ms: int
    ) -> list[Out]:
        """The checkpoint of `run` first, then its records; all of one decision."""
        key = run.run_id.encode()
        value = encode("Checkpoint", jsonable(run) | {"records": len(records) + 1})
        checkpoint = Out(self.topics.state, partition, key, value, headers)
        return [
            checkpoint,
            *(self.out(record, key, partition, headers, now_ms) for record in records),
        ]

    def out(self, record: Record, key: bytes, partition: int, headers: Headers, now_ms: int) -> Out:
        """One record that is not a checkpoint."""
        match record:
            case TaskRecord():
                value = encode("Task", jsonable(record))
                return Out(self.topics.tasks, partition, key, value, headers)
            case EventRecord():
                value = encode("Event", jsonable(record))
                return Out(self.topics.events, partition, key, value, headers)
            case Effect():
                return start_out(
                    self.app, self.partitions, record.agent, record.run_id, record.payload,
                    sent_ms=now_ms, headers=headers,
                )  # fmt: skip
            case DeadRecord():
                value = _start_command(
                    record.run_id, record.payload, now_ms, step=record.step, traceparent=None
                )
                failure = record.failure
                told = dead_headers(failure.code, failure.message, record.attempts, record.run_id)
                return Out(dead_topic(self.app), 0, key, value, (*headers, *told))

    def applied(self, offsets: dict[str, int | None], partition: int, headers: Headers) -> Out:
        """The record that says up to where the inputs have been applied."""
        return Out(self.topics.state, partition, APPLIED_KEY, encode("Applied", offsets), headers)

    def tombstone(self, run_id: str, partition: int, headers: Headers) -> Out:
        """Forget a run whose dedup window is over."""
        return Out(self.topics.state, partition, run_id.encode(), None, headers)

    def dead_input(self, record: In, failure: Failure, headers: Headers) -> Out:
        """An input that cannot be used: key, value, headers byte for byte, and where it stood."""
        told = dead_headers(failure.code, failure.message, 0, None)
        place = (
            ("sf-dead-topic", record.topic.encode()),
            ("sf-dead-partition", b"%d" % record.partition),
            ("sf-dead-offset", b"%d" % record.offset),
            ("sf-dead-timestamp", b"%d" % record.timestamp_ms),
        )
        return Out(
            dead_topic(self.app),
            0,
            record.key,
            record.value,
            (*record.headers, *headers, *told, *place),
        )

    def is_home(self, run_id: str, partition: int) -> bool:
        """Whether the run lives in that partition."""
        return partition_of(run_id, self.partitions) == partition

    def reroute(self, record: In, run_id: str, headers: Headers) -> Out:
        """The record again, on the partition that its run lives in."""
        home = partition_of(run_id, self.partitions)
        return Out(record.topic, home, run_id.encode(), record.value, (*record.headers, *headers))


def dead_headers(
    code: str, message: str, attempts: int, run_id: str | None
) -> tuple[tuple[str, bytes], ...]:
    """Why a record is on the dead letter topic; bounded, whatever the error said."""
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
) -> Out:
    """A start command, on the partition of its run."""
    return Out(
        AgentTopics(app, agent).commands,
        partition_of(run_id, partitions),
        run_id.encode(),
        _start_command(run_id, payload, sent_ms, step=None, traceparent=traceparent),
        headers,
    )


def _start_command(
    run_id: str, payload: bytes, sent_ms: int, *, step: str | None, traceparent: str | None
) -> bytes:
    return encode(
        "Command",
        {
            "run_id": run_id,
            "kind": "start",
            "step": step,
            "payload": payload,
            "sent_ms": sent_ms,
            "traceparent": traceparent,
        },
    )


def decode_checkpoint(value: bytes) -> Run:
    """Raises UndecodableError."""
    fields = decode(value, "Checkpoint")[1]
    del fields["records"]
    failure = fields["failure"]
    fields["failure"] = Failure(**failure) if failure is not None else None
    return Run(**fields)


def decode_applied(value: bytes | None) -> dict[str, int | None]:
    """Next offsets to read by input; none known when the record is unreadable."""
    try:
        return decode(value, "Applied")[1]
    except UndecodableError:
        return {}


def decode_command(record: In) -> dict[str, Any]:
    """Raises UndecodableError, also for a run_id that cannot be one."""
    return _with_run_id(decode(record.value, "Command")[1])


def decode_task(record: In) -> dict[str, Any]:
    """Raises UndecodableError, also for a run_id that cannot be one."""
    return _with_run_id(decode(record.value, "Task")[1])


def _with_run_id(fields: dict[str, Any]) -> dict[str, Any]:
    try:
        check_run_id(fields["run_id"])
    except ValueError as error:
        raise UndecodableError(str(error)) from error
    return fields
