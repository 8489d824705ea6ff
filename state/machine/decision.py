"""One decision in the making: the records it writes, and the rules of the agent."""

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


class DecisionBuilder:
    """One decision in the making: the records it writes, and the entries after it."""

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
        **told: Any,
    ) -> None:
        """Append an event to the history.

        `of` is the run before the step ended; the event carries its seq and attempt. With
        `version`, the event holds all that is needed to return to this run.
        """
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
