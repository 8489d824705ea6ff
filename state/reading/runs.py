"""Runs as the outside sees them: pure projections of the state and events topics.

A RunIndex folds every partition of an agent's state topic into one small summary per run, so that
a million runs can be listed without a million payloads in memory. The summary says where in the
topic the checkpoint stands.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict, cast

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.records import AvroEvent, AvroFailure, AvroParent, AvroPlanItem
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.schemas.pointer import unescaped
from surefoot.state.errors.catalogue import number_of, numbered
from surefoot.state.machine.model import (
    TERMINAL,
    Amount,
    Memory,
    Run,
    Status,
    WaitKind,
    WaitState,
    jsonable,
)
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.ports import RunView
from surefoot.state.records.encoding import decode_checkpoint, memory_of, split_key, wait_of

_ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})
#: an author's name for each budget amount, and how many stored units make one of the author's
_UNITS = {"ms": ("seconds", 1e3), "money": ("money", 1e6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The part of a run that is kept in memory."""

    run_id: str
    version: int
    status: Status
    seq: int
    step: str
    attempt: int
    created_ms: int
    updated_ms: int
    due_ms: int | None
    #: code of the failure, if any
    failure: str | None
    epoch: int
    #: a parent run waits for it
    child: bool
    #: kind of its wait, if it waits for more than a time
    waits: WaitKind | None
    #: offset of its checkpoint in the partition of the state topic
    offset: int
    #: why the checkpoint cannot be read; the other fields are then placeholders
    broken: str | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


class RunIndex:
    """The runs of one agent, by run_id; with `only`, those of that status. Feed it committed
    records in offset order."""

    def __init__(self, only: Status | None = None) -> None:
        self._only = only
        self.runs: dict[str, RunSummary] = {}
        #: number of runs by (version of the agent, status)
        self.counts: Counter[tuple[int, Status]] = Counter()

    def apply(self, record: ConsumerRecord) -> str | None:
        """Apply one record of the state topic. Returns the reason if it cannot be decoded; the run
        then counts as needing attention."""
        if record.key is None or record.key.startswith(b"@"):
            return None
        run_id, slot = split_key(record.key)
        if slot is not None:
            return None
        if record.value is None:
            self._put(run_id, None)
            return None
        try:
            self._put(run_id, _summary(decode_checkpoint(record.value), record.offset))
        except UndecodableError as error:
            self._put(run_id, _broken(run_id, record, str(error)))
            return str(error)
        return None

    def _put(self, run_id: str, run: RunSummary | None) -> None:
        if (was := self.runs.pop(run_id, None)) is not None:
            self.counts[was.version, was.status] -= 1
            if not self.counts[was.version, was.status]:
                del self.counts[was.version, was.status]
        if run is not None and self._only in (None, run.status):
            self.runs[run_id] = run
            self.counts[run.version, run.status] += 1


def _summary(run: Run, offset: int) -> RunSummary:
    return RunSummary(
        run_id=run.run_id,
        version=run.version,
        status=run.status,
        seq=run.seq,
        step=sys.intern(run.step),
        attempt=run.attempt,
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        due_ms=run.due_ms,
        failure=sys.intern(run.failure.code) if run.failure else None,
        epoch=run.epoch,
        child=run.parent is not None,
        waits=run.wait.kind if run.wait is not None else None,
        offset=offset,
    )


def _broken(run_id: str, record: ConsumerRecord, reason: str) -> RunSummary:
    return RunSummary(
        run_id=run_id,
        version=0,
        status="attention",
        seq=0,
        step="",
        attempt=0,
        created_ms=record.timestamp_ms,
        updated_ms=record.timestamp_ms,
        due_ms=None,
        failure="undecodable",
        epoch=0,
        child=False,
        waits=None,
        offset=record.offset,
        broken=reason,
    )


def listed(agent: str, run: RunSummary) -> RunView:
    """Return a run as it stands in a list: without payload, result and what it carries, and with
    only the code of a failure, unless the checkpoint itself cannot be read."""
    failure = {"code": run.failure, "message": run.broken or ""} if run.failure else None
    return RunView(
        run_id=run.run_id,
        agent=agent,
        version=run.version,
        status=run.status,
        seq=run.seq,
        step=run.step,
        attempt=run.attempt,
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        due_ms=run.due_ms,
        payload=b"",
        result=None,
        failure=failure,
        epoch=run.epoch,
    )


def shown(run: Run) -> RunView:
    """Return a run with everything in its checkpoint."""
    return RunView(
        run_id=run.run_id,
        agent=run.agent,
        version=run.version,
        status=run.status,
        seq=run.seq,
        step=run.step,
        attempt=run.attempt,
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        due_ms=run.due_ms,
        payload=run.payload,
        result=run.result,
        failure=jsonable(run.failure) if run.failure else None,
        epoch=run.epoch,
        wait=run.wait,
        carry=run.carry,
        memory=run.memory,
        parent=run.parent,
        ending=run.ending,
        input_digest=run.input_digest,
        forks=run.forks,
    )


def ends_run(event: Mapping[str, Any]) -> bool:
    """Whether this event ends the run. It may still be rewound or retried later."""
    return event["type"] in _ENDS


def is_history(event: AvroEvent) -> bool:
    """Whether a watcher of the run sees it: not if it refuses a request to a finished run."""
    over = event["status"] in TERMINAL
    return not over or ends_run(event) or event["type"] == "signal.unread"


# As JSON --------------------------------------------------------------------------------------


class FailureJson(TypedDict):
    #: what `surefoot explain` takes; None for a code of another version
    number: str | None
    code: str
    message: str
    #: this field and the following are left out in a list
    kind: NotRequired[str]
    step: NotRequired[str | None]
    attempt: NotRequired[int]
    frames: NotRequired[list[str]]


class WaitJson(TypedDict):
    kind: WaitKind
    since_ms: int
    then: str | None
    on_timeout: str | None
    names: list[str]
    mode: str
    need: int
    question: str | None
    by: list[str]
    fork: int
    limit: int
    #: their number
    branches: int


class DecidedJson(TypedDict):
    question: str
    approved: bool
    by: str | None
    at_ms: int


class MemoryJson(TypedDict):
    plan: list[AvroPlanItem]
    thread: int
    #: the budget, by name, in the author's units
    spent: dict[str, float]
    granted: dict[str, float]
    decided: list[DecidedJson]


class RunListJson(TypedDict):
    """A run in a list."""

    run_id: str
    agent: str
    version: int
    status: Status
    seq: int
    step: str
    attempt: int
    created_ms: int
    updated_ms: int
    due_ms: int | None
    failure: FailureJson | None
    epoch: int
    #: True, or left out
    archived: NotRequired[bool]


class RunJson(RunListJson):
    """One run. Its payload, result and carry are JSON values."""

    payload: Any
    result: Any
    wait: WaitJson | None
    carry: Any
    memory: MemoryJson | None
    parent: AvroParent | None
    ending: Status | None


class EventJson(TypedDict):
    """One event. Its result, payload and carry are JSON values."""

    run_id: str
    agent: str
    version: int
    type: str
    status: Status
    seq: int
    step: str | None
    next_step: str | None
    attempt: int
    at_ms: int
    started_ms: int | None
    due_ms: int | None
    effects: list[str]
    result: Any
    failure: AvroFailure | None
    epoch: int
    id: str | None
    name: str | None
    by: str | None
    payload: Any
    carry: Any
    memory: MemoryJson | None
    wait: WaitJson | None
    children: int


class CountsJson(TypedDict):
    """Numbers of runs: in total, by status, and by status for each agent version."""

    runs: int
    statuses: dict[str, int]
    versions: dict[str, dict[str, int]]


def run_json(run: RunView) -> RunJson:
    """Return the JSON values of one run. Integers are exact, even beyond 2**53."""
    told: RunJson = {
        "run_id": run.run_id,
        "agent": run.agent,
        "version": run.version,
        "status": run.status,
        "seq": run.seq,
        "step": run.step,
        "attempt": run.attempt,
        "created_ms": run.created_ms,
        "updated_ms": run.updated_ms,
        "due_ms": run.due_ms,
        "payload": _parsed(run.payload),
        "result": _parsed(run.result),
        "failure": _failure_json(run.failure),
        "epoch": run.epoch,
        "wait": _wait_json(run.wait),
        "carry": _parsed(run.carry),
        "memory": _memory_json(run.memory),
        "parent": jsonable(run.parent) if run.parent is not None else None,
        "ending": run.ending,
    }
    if run.archived:
        told["archived"] = True
    return told


#: fields that a list leaves out
_NOT_LISTED: Final = ("payload", "result", "wait", "carry", "memory", "parent", "ending")


def run_list_json(run: RunView) -> RunListJson:
    """Return the JSON values of a run in a list."""
    fields: Any = run_json(run)
    for name in _NOT_LISTED:
        del fields[name]
    return cast("RunListJson", fields)


def failure_text(failure: Mapping[str, Any]) -> str:
    """Return a failure in one line for people: its code, the exception class and its message."""
    kind, message = failure.get("kind") or "", failure["message"]
    told = message if not kind or message.startswith(kind) else f"{kind}: {message}"
    return f"{numbered(failure['code'])}: {told}"


def _failure_json(failure: Mapping[str, Any] | None) -> FailureJson | None:
    """Add the number that `surefoot explain` takes."""
    if failure is None:
        return None
    return cast("FailureJson", {"number": number_of(failure["code"]), **failure})


def counts_json(counts: Mapping[tuple[int, Status], int]) -> CountsJson:
    """Return the number of runs: in total, by status, and by status for each agent version."""
    statuses: Counter[str] = Counter()
    versions: dict[str, dict[str, int]] = {}
    for (version, status), count in sorted(counts.items()):
        statuses[status] += count
        versions.setdefault(str(version), {})[status] = count
    return {"runs": statuses.total(), "statuses": dict(statuses), "versions": versions}


def event_json(event: AvroEvent) -> EventJson:
    """Return the JSON values of one event."""
    return {
        **event,
        "result": _parsed(event["result"]),
        "payload": _parsed(event["payload"]),
        "carry": _parsed(event["carry"]),
        "wait": _wait_json(wait_of(event["wait"])),
        "memory": _memory_json(memory_of(event["memory"])),
    }


def _wait_json(wait: WaitState | None) -> WaitJson | None:
    """Return a wait's JSON values, with only the number of a fork's branches."""
    if wait is None:
        return None
    return {
        "kind": wait.kind,
        "since_ms": wait.since_ms,
        "then": wait.then,
        "on_timeout": wait.on_timeout,
        "names": list(wait.names),
        "mode": wait.mode,
        "need": wait.need,
        "question": wait.question,
        "by": list(wait.by),
        "fork": wait.fork,
        "limit": wait.limit,
        "branches": len(wait.branches),
    }


def _memory_json(memory: Memory | None) -> MemoryJson | None:
    """Return a memory's JSON values, with the budget in the author's units."""
    if memory is None:
        return None
    return {
        "plan": [jsonable(item) for item in memory.plan],
        "thread": memory.thread,
        "spent": amounts_json(memory.spent),
        "granted": amounts_json(memory.granted),
        "decided": [
            {**jsonable(answer), "approved": bool(answer.approved)} for answer in memory.decided
        ],
    }


def amounts_json(amounts: tuple[Amount, ...]) -> dict[str, float]:
    """Return amounts by name, in the units of state.declare.agent.Budget."""
    told: dict[str, float] = {}
    for each in amounts:
        name, unit = _UNITS.get(each.what, (each.what, 1))
        told[name] = each.amount / unit if unit != 1 else each.amount
    return told


def _parsed(data: bytes | None) -> Any:
    """Parse a stored payload. None if it is not kept, as in a finished run; text if it is not JSON,
    since any producer may start a run with anything."""
    if not data:
        return None
    try:
        return parse_json(unescaped(data))
    except BadPayload:
        return data.decode("utf-8", "backslashreplace")
