"""One run, taken through decisions as the committer does it, without a log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.state.machine.decide import decide
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import (
    AwaitInput,
    Branch,
    ChildDone,
    CommandRecord,
    Complete,
    Decision,
    Entry,
    EntryRecorded,
    EventRecord,
    Failure,
    Forget,
    GoTo,
    Input,
    Record,
    Run,
    StartChildren,
    StartRun,
    State,
    StepFailed,
    StepResult,
    StepReturned,
    TaskRecord,
    Work,
)
from surefoot.state.machine.operations import DeliverSignal, Rewind

NOW = 1_700_000_000_000
STEPS = frozenset({"a", "b", "c", "pooled", "undo", "sorry"})
PLAIN = Rules(agent="x", steps=STEPS)
POOLED = replace(PLAIN, pools={"pooled": "gpu"})
FAILURE = Failure(code="step_raised", message="no", kind="ValueError", step="a")
START = StartRun(run_id="r", agent="x", version=3, step="a", payload=b"1", input_digest=b"d")
REWIND = Rewind(
    id="back",
    epoch=0,
    emit=False,
    seq=0,
    step="a",
    payload=b"1",
    carry=None,
    memory=None,
    messages=(),
    wait=None,
    due_ms=None,
)


def entries_after(entries: dict[str, Entry], records: tuple[Record, ...]) -> dict[str, Entry]:
    made = dict(entries)
    for record in records:
        if isinstance(record, Entry | Forget):
            made.pop(record.slot, None)
        if isinstance(record, Entry):
            made[record.slot] = record
    return made


def work_of(run: Run) -> Work:
    return Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)


def wait_for(*names: str, mode: str = "one", need: int = 1, **fields: Any) -> AwaitInput:
    return AwaitInput(then=fields.pop("then", "b"), names=names, mode=mode, need=need, **fields)


def branches(count: int) -> tuple[Branch, ...]:
    return tuple(Branch(agent=f"y{n}", step=None, payload=b"%d" % n) for n in range(count))


def fork(count: int, mode: str = "join", limit: int = 0) -> StartChildren:
    return StartChildren(branches=branches(count), join="b", mode=mode, limit=limit)


def child_done(number: int, branch: int) -> ChildDone:
    return ChildDone(fork=number, branch=branch, child="?", result=b"1")


@dataclass
class Life:
    rules: Rules = PLAIN
    entries: dict[str, Entry] = field(default_factory=dict)
    now_ms: int = NOW
    maybe: Run | None = None
    #: of the latest input
    records: tuple[Record, ...] = ()
    #: of all inputs
    history: list[EventRecord] = field(default_factory=list)

    @property
    def run(self) -> Run:
        assert self.maybe is not None
        return self.maybe

    @property
    def state(self) -> State:
        return State(self.maybe, self.entries)

    def do(self, event: Input) -> Decision:
        self.now_ms += 10
        before = list(self.entries.items())
        decision = decide(self.rules, self.state, event, self.now_ms)
        assert list(self.entries.items()) == before
        self.maybe = decision.run
        self.entries = entries_after(self.entries, decision.records)
        self.records = decision.records
        self.history += [each for each in decision.records if isinstance(each, EventRecord)]
        return decision

    def legal(self, event: Input) -> Run:
        assert self.do(event).refused is None
        return self.run

    def refused(self, event: Input) -> str:
        """Code of the refusal; nothing has moved."""
        before = self.maybe, dict(self.entries)
        refusal = self.do(event).refused
        assert refusal is not None
        assert (self.maybe, self.entries) == before
        return refusal.code

    def returned(self, then: StepResult, **fields: Any) -> Run:
        return self.legal(StepReturned(work=work_of(self.run), then=then, **fields))

    def goes(self, step: str = "b", payload: bytes = b"2", **fields: Any) -> Run:
        return self.returned(GoTo(step=step, payload=payload), **fields)

    def ends(self, result: bytes = b"3", **fields: Any) -> Run:
        return self.returned(Complete(result=result), **fields)

    def raised(self, retry_in_ms: int | None = None, **fields: Any) -> Run:
        return self.legal(
            StepFailed(work=work_of(self.run), failure=FAILURE, retry_in_ms=retry_in_ms, **fields)
        )

    def journaled(self, slot: str, kind: Any = "call", **fields: Any) -> Run:
        return self.legal(EntryRecorded(work=work_of(self.run), slot=slot, kind=kind, **fields))

    def signal(self, name: str, payload: bytes = b"null", *, as_: str | None = None) -> Decision:
        return self.do(
            DeliverSignal(id=as_ or name, run_id="r", name=name, payload=payload, by="ann")
        )

    def child(self, branch: int, result: bytes = b"7", failure: Failure | None = None) -> Decision:
        wait = self.run.wait
        fork = wait.fork if wait is not None else 0
        return self.do(
            ChildDone(
                fork=fork,
                branch=branch,
                child=f"r~{fork}~{branch}",
                result=None if failure else result,
                failure=failure,
            )
        )

    @property
    def told(self) -> list[str]:
        """Types of the events of the latest input."""
        return [each.type for each in self.records if isinstance(each, EventRecord)]

    def event(self, kind: str) -> EventRecord:
        """The only event of that type among those of the latest input."""
        (found,) = [e for e in self.records if isinstance(e, EventRecord) and e.type == kind]
        return found

    @property
    def tasks(self) -> list[str]:
        return [each.step for each in self.records if isinstance(each, TaskRecord)]

    def commands(self, kind: str) -> list[CommandRecord]:
        """Commands to other runs, of the latest input."""
        return [e for e in self.records if isinstance(e, CommandRecord) and e.kind == kind]

    def sent(self, kind: str) -> list[str]:
        """run_ids that the latest input sends such a command to."""
        return [each.run_id for each in self.commands(kind)]


def started(rules: Rules = PLAIN, **changes: Any) -> Life:
    life = Life(rules=rules)
    life.legal(replace(START, **changes))
    return life
