"""One decision while it is being made: what it writes, and what the machine knows of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from surefoot.state.machine import wait_rules
from surefoot.state.machine.model import (
    Amounts,
    Entry,
    EntryKind,
    EventRecord,
    EventType,
    Failure,
    Forget,
    Operation,
    Record,
    Refusal,
    Run,
    Status,
    TaskRecord,
    Work,
)

#: kinds of entries that last as long as the run
_LASTING: Final = frozenset({"message", "done", "past", "again"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the machine has to know of an agent. All of it is fixed when the agent is declared."""

    agent: str
    steps: frozenset[str] = frozenset()
    #: pooled steps, and the pool of each
    pools: Mapping[str, str] = field(default_factory=dict)
    on_cancel: str | None = None
    on_failure: str | None = None
    budget: Amounts = ()
    #: (step, payload) -> why the step cannot take that input; a pure function
    accepts: wait_rules.Accepts = wait_rules.anything


class InputRefused(Exception):
    """The input moves nothing; `code` and `message` are for whoever sent it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


class DecisionBuilder:
    """One decision while it is being made: what it writes, and the entries as they will be."""

    def __init__(self, rules: Rules, entries: dict[str, Entry], now_ms: int) -> None:
        self.rules = rules
        self.entries = entries
        self.now_ms = now_ms
        self.records: list[Record] = []

    def update(self, run: Run, **changes: Any) -> Run:
        return replace(run, updated_ms=self.now_ms, **changes)

    def write_entry(self, entry: Entry) -> None:
        self.entries[entry.slot] = entry
        self.records.append(entry)

    def forget(self, slot: str) -> None:
        del self.entries[slot]
        self.records.append(Forget(slot=slot))

    def forget_all(self, *keep: EntryKind) -> None:
        """What is not of such a kind, and does not last as long as the run."""
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
        **told: Any,
    ) -> None:
        """One entry of the history. `of` is the run before the step ended: its seq and attempt are
        what the event is about. With `version`, all that is needed to come back to this run."""
        if run is None:
            about: dict[str, Any] = {"version": 0, "status": "pending", "seq": 0}
        else:
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
        self.records.append(
            EventRecord(
                type=kind, run_id=run_id, agent=self.rules.agent, at_ms=self.now_ms, **about | told
            )
        )

    def refuse(self, run: Run | None, input_: Operation, refusal: Refusal) -> None:
        """Tell whoever sent the command that it moved nothing."""
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
    """The run, if it still is where that attempt began."""
    if (run.seq, run.attempt, run.epoch) != (work.seq, work.attempt, work.epoch):
        raise InputRefused("stale", "the run has moved on since that attempt began")
    if run.wait is not None:
        raise InputRefused("stale", f"the run waits for {run.wait.kind} now")
    return run
