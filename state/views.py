"""Runs as the outside sees them: pure projections of the state and events topics.

A RunIndex folds every partition of an agent's state topic into one small entry a run, so that a
million runs can be listed without holding a million payloads. Where the rest stands in the topic is
in the entry.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.schemas.codec import UndecodableError
from surefoot.schemas.payload import parse_json
from surefoot.state.model import TERMINAL, Run, Status, jsonable
from surefoot.state.ports import In, RunView
from surefoot.state.wire import decode_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is kept in memory of a run."""

    run_id: str
    version: int
    status: Status
    seq: int
    step: str
    attempt: int
    created_ms: int
    updated_ms: int
    due_ms: int | None
    #: code of the failure, if there is one
    failure: str | None
    #: where its checkpoint stands in the partition of the state topic
    offset: int
    #: why the checkpoint cannot be read; the other fields are then guesses for people
    broken: str | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


class RunIndex:
    """The runs of one agent, by run_id. Feed it committed records in the order of their offsets."""

    def __init__(self) -> None:
        self.runs: dict[str, RunSummary] = {}

    def apply(self, record: In) -> str | None:
        """Take in one record of the state topic. Returns the reason when it cannot be decoded: the
        run is then shown as needing attention."""
        if record.key is None or record.key.startswith(b"@"):
            return None
        run_id = record.key.decode("utf-8", "backslashreplace")
        if record.value is None:
            self.runs.pop(run_id, None)
            return None
        try:
            self.runs[run_id] = _summary(decode_checkpoint(record.value), record.offset)
        except UndecodableError as error:
            self.runs[run_id] = _broken(run_id, record, str(error))
            return str(error)
        return None

    def recent(self, status: Status | None, limit: int) -> list[RunSummary]:
        """Most recently updated first."""
        wanted = (run for run in self.runs.values() if status is None or run.status == status)
        return heapq.nlargest(limit, wanted, key=lambda run: (run.updated_ms, run.run_id))


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
        offset=offset,
    )


def _broken(run_id: str, record: In, reason: str) -> RunSummary:
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
        offset=record.offset,
        broken=reason,
    )


def listed(agent: str, run: RunSummary) -> RunView:
    """A run as it stands in a list: payload and result are left out (empty), and of a failure only
    the code is told, unless the checkpoint itself is what cannot be read."""
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
    )


def shown(run: Run) -> RunView:
    """A run with everything that its checkpoint holds."""
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
    )


def ends_run(event: Mapping[str, Any]) -> bool:
    """Whether the run's history is over with this event; a repeated start may still be noted."""
    return event["status"] in TERMINAL and event["type"] != "start.ignored"


def run_json(run: RunView) -> dict[str, Any]:
    """JSON values of one run. Integers are exact, also those beyond 2**53."""
    fields = {name: getattr(run, name) for name in RunView.__slots__}
    fields["payload"] = _parsed(run.payload)
    fields["result"] = _parsed(run.result)
    fields["failure"] = dict(run.failure) if run.failure is not None else None
    return fields


def run_list_json(run: RunView) -> dict[str, Any]:
    """The same, without what a list leaves out."""
    fields = run_json(run)
    del fields["payload"], fields["result"]
    return fields


def event_json(event: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values of one event."""
    return {**event, "result": _parsed(event["result"])}


def _parsed(data: bytes | None) -> Any:
    """None for what is not kept: a finished run has no payload."""
    return parse_json(data) if data else None
