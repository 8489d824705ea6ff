"""One decision in the making: the records it writes, and the rules of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Required, TypedDict, Unpack

from surefoot.state.machine import wait_rules
from surefoot.state.machine.model import (
    Amounts,
    Entry,
    EntryKind,
    EventRecord,
    EventType,
    Failure,
    Forget,
    Memory,
    Operation,
    Parent,
    Record,
    Refusal,
    Run,
    Status,
    TaskRecord,
    WaitState,
    Work,
)

#: kinds of entries that last as long as the run
_LASTING: Final = frozenset({"message", "done", "past", "again"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the machine needs to know of an agent, fixed when the agent is declared."""

    agent: str
    steps: frozenset[str] = frozenset()
    #: pooled step -> its pool
    pools: Mapping[str, str] = field(default_factory=dict)
    on_cancel: str | None = None
    on_failure: str | None = None
    budget: Amounts = ()
    #: (step, payload) -> why the step cannot take that input, or None; a pure function
    accepts: wait_rules.Accepts = wait_rules.anything


class InputRefused(Exception):
    """The input changes nothing; `code` and `message` are for its sender."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


class RunChanges(TypedDict, total=False):
    """Fields of a run that a decision may change, besides `updated_ms`."""

    version: int
    status: Status
    seq: int
    step: str
    attempt: int
    payload: bytes
    created_ms: int
    input_digest: bytes
    due_ms: int | None
    result: bytes | None
    failure: Failure | None
    epoch: int
    emit: int
    forks: int
    wait: WaitState | None
    carry: bytes | None
    parent: Parent | None
    memory: Memory | None
    ending: Status | None
    reason: Failure | None
    commands: tuple[str, ...]


class EventFields(TypedDict, total=False):
    """Fields of an event besides those that it takes from the run."""

    step: str | None
    next_step: str | None
    started_ms: int | None
    effects: tuple[str, ...]
    result: bytes | None
    failure: Failure | None
    id: str | None
    name: str | None
    by: str | None
    payload: bytes | None
    memory: Memory | None
    wait: WaitState | None
    children: int


class _About(EventFields, total=False):
    """All fields of an event besides its type, run_id, agent and time."""

    version: Required[int]
    status: Required[Status]
    seq: Required[int]
    attempt: int
    due_ms: int | None
    carry: bytes | None
    epoch: int


class EventDetails(EventFields, total=False):
    """What DecisionBuilder.emit takes besides the run and the type of the event."""

    of: Run | None
    version: bool


class DecisionBuilder:
    """One decision in the making: the records it writes, and the entries after it."""

    def __init__(self, rules: Rules, entries: dict[str, Entry], now_ms: int) -> None:
        self.rules = rules
        self.entries = entries
        self.now_ms = now_ms
        self.records: list[Record] = []

    def update(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        return run._replace(updated_ms=self.now_ms, **changes)

    def write_entry(self, entry: Entry) -> None:
        self.entries[entry.slot] = entry
        self.records.append(entry)

    def forget(self, slot: str) -> None:
        del self.entries[slot]
        self.records.append(Forget(slot=slot))

    def forget_all(self, *keep: EntryKind) -> None:
        """Delete the entries that neither are of a kind in `keep` nor last as long as the run."""
        for entry in list(self.entries.values()):
            if entry.kind not in _LASTING and entry.kind not in keep:
                self.forget(entry.slot)

    def task(self, run: Run) -> None:
        self.records.append(TaskRecord(run_id=run.run_id, seq=run.seq, step=run.step))

    def emit(
        self,
        run: Run | None,
        kind: EventType,
        *,
        of: Run | None = None,
        version: bool = False,
        run_id: str = "",
        **told: Unpack[EventFields],
    ) -> None:
        """Append an event to the history.

        `of` is the run before the step ended; the event carries its seq and attempt. With
        `version`, the event holds all that is needed to return to this run.
        """
        about: _About = {"version": 0, "status": "pending", "seq": 0}
        if run is not None:
            run_id = run.run_id
            about = {
                "version": run.version,
                "status": run.status,
                "seq": (of or run).seq,
                "attempt": (of or run).attempt,
                "due_ms": run.due_ms,
                "failure": run.failure,
                "epoch": run.epoch,
            }
            if version:
                about |= {
                    "next_step": run.step,
                    "payload": run.payload,
                    "carry": run.carry,
                    "memory": run.memory,
                    "wait": run.wait,
                }
        about = {**about, **told}
        self.records.append(
            EventRecord(
                type=kind, run_id=run_id, agent=self.rules.agent, at_ms=self.now_ms, **about
            )
        )

    def refuse(self, run: Run | None, input_: Operation, refusal: Refusal) -> None:
        """Record that the command changed nothing, and why."""
        self.emit(
            run,
            "command.refused",
            id=input_.id,
            by=input_.by,
            name=refusal.code,
            failure=Failure(code=refusal.code, message=refusal.message),
        )


def unless_paused(run: Run, status: Status) -> Status:
    """Return the status that follows; a paused run stays paused until it is resumed."""
    return "paused" if run.status == "paused" else status


def at_work(run: Run, work: Work) -> Run:
    """Return the run if it is still at that attempt.

    Raises: InputRefused — the run has moved on, or waits.
    """
    if (run.seq, run.attempt, run.epoch) != (work.seq, work.attempt, work.epoch):
        raise InputRefused("stale", "the run has moved on since that attempt began")
    if run.wait is not None:
        raise InputRefused("stale", f"the run waits for {run.wait.kind} now")
    return run
