"""Anything that can happen to runs, most of it legal, and a partition that takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from surefoot.state.machine.decide import TABLE, decide
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import (
    TERMINAL,
    Amount,
    AwaitInput,
    Branch,
    BudgetExceeded,
    CarryForward,
    ChildDone,
    CommandRecord,
    Complete,
    Decision,
    Defer,
    Effect,
    Entry,
    EntryRecorded,
    EventRecord,
    Failure,
    Forget,
    GoTo,
    HandOver,
    Input,
    Memory,
    Operation,
    Parent,
    Park,
    PlanItem,
    Record,
    Run,
    StartChildren,
    StartRun,
    State,
    StepFailed,
    StepResult,
    StepReturned,
    TaskRecord,
    TimedOut,
    WaitState,
    Work,
)
from surefoot.state.machine.operations import (
    AnswerQuestion,
    Cancel,
    DeliverSignal,
    Pause,
    ResolveCall,
    Resume,
    RetryRun,
    Rewind,
)
from surefoot.state.machine.pooled_step import encode_outcome
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.records.encoding import Wire
from surefoot.state.records.run_store import RunStore
from tests.support.run_driver import entries_after

WIRE = Wire("app", AgentTopics("app", "x"), 1)
RUN_IDS = ("a", "b", "c")
STEPS = ("first", "second", "pooled", "undo", "sorry")
NAMES = ("s", "t")
READ = ("1", "?")
Arrow = tuple[Any, type[Input], Any]


def _accepts(step: str, payload: bytes) -> str | None:
    return "no text" if payload.startswith(b'"') else None


#: an agent that can do everything, and one that can do little
RULES = (
    Rules(
        agent="x",
        steps=frozenset(STEPS),
        pools={"pooled": "gpu"},
        on_cancel="undo",
        on_failure="sorry",
        accepts=_accepts,
        budget=(Amount("ms", 40), Amount("steps", 3), Amount("tokens", 9)),
    ),
    Rules(agent="x", steps=frozenset(STEPS), pools={"pooled": "gpu"}),
)


@dataclass
class Chance:
    """Draws inputs that fit a run, and now and then ones that do not."""

    random: Random

    def of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def rarely(self) -> bool:
        return self.random.random() < 0.08

    def payload(self) -> bytes:
        odd = (b"{", b"\xff", b"[" * 200 + b"]" * 200) if self.rarely() else ()
        return self.of(b"null", b"1", '{"k":"é"}'.encode(), b'"text"', *odd)  # type: ignore[no-any-return]

    def failure(self) -> Failure:
        return Failure(code=self.of("step_raised", "timeout"), message="m", step=self.of(None, "a"))

    def identity(self) -> str:
        return f"{self.random.getrandbits(40)}" if self.of(True, True, False) else self.of("1", "2")

    def memory(self) -> Memory | None:
        plan = (PlanItem(id="1", text="t"),)
        return self.of(None, Memory(plan=plan, thread=self.random.randint(0, 2)))  # type: ignore[no-any-return]

    def messages(self) -> tuple[bytes, ...]:
        return tuple(b"%d" % n for n in range(self.of(0, 0, 1, 3)))

    def cost(self) -> tuple[Amount, ...]:
        return self.of((), (Amount("tokens", 4),))  # type: ignore[no-any-return]

    def start(self, run_id: str) -> StartRun:
        parent = Parent(agent="p", run_id="up", fork=1, branch=self.random.randint(0, 9))
        return StartRun(
            run_id=run_id,
            agent="x",
            version=self.of(1, 2),
            step=self.of(*STEPS[:3]),
            payload=self.payload(),
            input_digest=self.of(b"\0" * 8, b"\xff" * 8),
            traceparent=self.of(None, "00-1"),
            parent=self.of(None, parent),
            carry=self.of(None, b"1"),
            memory=self.memory(),
            messages=self.messages(),
        )

    def work(self, run: Run) -> Work:
        if self.rarely():
            return Work(seq=self.of(0, 1), attempt=self.of(0, 1), epoch=self.of(0, 1))
        return Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)

    def branches(self, least: int = 0) -> tuple[Branch, ...]:
        return tuple(
            Branch(agent="y", step=self.of(None, "s"), payload=b"%d" % n)
            for n in range(self.random.randint(least, 3))
        )

    def outlook(self) -> StepResult:
        step, then = self.of(*STEPS, "pooled", "pooled"), self.of("second", "gone")
        timeout: dict[str, Any] = {
            "timeout_ms": self.of(None, 5, 20),
            "on_timeout": self.of(None, "second", "pooled"),
        }
        waits = [
            AwaitInput(then=then, names=(self.of(*NAMES),), mode="one", need=1, **timeout),
            AwaitInput(then="pooled", names=(self.of(*NAMES),), mode="one", need=1, **timeout),
            AwaitInput(then=then, names=NAMES, mode="all", need=2, **timeout),
            AwaitInput(then=then, names=NAMES, mode="any", need=1, **timeout),
            AwaitInput(then=then, names=NAMES, mode="count", need=2, **timeout),
            AwaitInput(then="pooled", about=self.payload(), by=self.of((), ("ann",)), **timeout),
        ]
        forks = [
            StartChildren(
                branches=self.branches(),
                join=then,
                mode=self.of("join", "collect"),
                limit=self.of(0, 1, 2),
            ),
            StartChildren(branches=self.branches(1)[:1], join="pooled", mode="one"),
        ]
        after = {"after_ms": self.of(None, None, None, 5), "at_ms": None}
        return self.of(  # type: ignore[no-any-return]
            *(GoTo(step=step, payload=self.payload(), **after) for _ in range(5)),
            *waits,
            *forks,
            *forks,
            Complete(result=b"3"),
            Complete(result=b"3"),
            HandOver(to=Branch(agent="y", step=None, payload=b"1")),
        )

    def returned(self, run: Run) -> StepReturned:
        return StepReturned(
            work=self.work(run),
            then=self.outlook(),
            carry=self.of(None, b"2"),
            effects=self.of((), (Effect(agent="outbox", run_id="x:a:0:0", payload=b"{}"),)),
            messages=self.messages(),
            plan=self.of(None, (), (PlanItem(id="2", text="u"),)),
            cost=self.cost(),
            read=self.of((), READ),
            took_ms=self.of(0, 3),
            version=self.of(None, 2),
        )

    def overspent(self, run: Run) -> BudgetExceeded:
        return BudgetExceeded(work=self.work(run), what="tokens", message="m")

    def journaled(self, run: Run) -> EntryRecorded:
        kind = self.of("call", "reserved", "intent", "intent", "partial")
        return EntryRecorded(
            work=self.work(run),
            slot=f"c:{self.of('x', 'y')}#0",
            kind=kind,
            digest=b"d",
            value=self.of(None, b"1"),
            failure=self.of(None, self.failure()),
            cost=self.cost(),
            action=self.of(True, False),
            takes=self.of(None, "o:0:0:x#0"),
        )

    def child(self, run: Run) -> ChildDone:
        fork, result, count = self.of(0, 1), b"7", 1
        if run.wait is not None:
            fork, count = run.wait.fork, len(run.wait.branches)
            if run.wait.kind == "pool" and not self.of(True, *(False,) * 5):
                outcome = self.of(
                    *(self.returned(run) for _ in range(3)),
                    replace(self.returned(run), then=Complete(result=b"3")),
                    self.overspent(run),
                )
                with_text = replace(outcome, work=Work(seq=0, attempt=0))
                try:
                    result = encode_outcome(with_text)
                except ValueError:
                    result = b"null"
        branch = self.random.randint(0, max(count - 1, 0)) + self.rarely()
        failure = self.of(None, None, None, self.failure())
        return ChildDone(
            fork=fork, branch=branch, child="c", result=None if failure else result, failure=failure
        )

    def answer(self, run: Run | None) -> AnswerQuestion:
        asked = run.wait.question if run is not None and run.wait is not None else None
        question = "?" if asked is None or self.rarely() else asked
        return AnswerQuestion(
            id=self.identity(),
            question=question,
            approved=self.of(True, True, False),
            note=self.of(None, "n"),
            by=self.of(None, "ann", "ann"),
        )

    def rewind(self, run: Run | None, now_ms: int) -> Rewind:
        seq, epoch = (run.seq, run.epoch) if run is not None else (0, 0)
        wait = self.of(
            None,
            None,
            None,
            WaitState(kind="signal", since_ms=1, then="second", names=("s",), mode="one", need=1),
            WaitState(kind="approval", since_ms=1, then="second", question="q"),
            WaitState(kind=self.of("pool", "budget"), since_ms=1),
        )
        return Rewind(
            id=self.identity(),
            epoch=epoch + self.rarely(),
            emit=self.of(True, False),
            seq=self.random.randint(0, seq) + self.rarely(),
            step="gone" if self.rarely() else self.of(*STEPS),
            payload=self.payload(),
            carry=self.of(None, b"1"),
            memory=self.memory(),
            messages=self.messages(),
            wait=wait,
            due_ms=self.of(None, None, now_ms + 5),
            created_ms=self.of(None, 5),
            input_digest=self.of(None, b"d"),
        )

    def resolve(self) -> ResolveCall:
        choice = "?" if self.rarely() else self.of("happened", "did_not", "give_up")
        return ResolveCall(id=self.identity(), choice=choice, result=b"9")

    def command(self, run_id: str, run: Run | None, now_ms: int) -> Operation:
        makers: list[Callable[[], Operation]] = [
            lambda: DeliverSignal(
                id=self.identity(), run_id=run_id, name=self.of(*NAMES), payload=self.payload()
            ),
            lambda: self.answer(run),
            lambda: self.answer(run),
            lambda: Pause(id=self.identity()),
            lambda: Resume(id=self.identity()),
            lambda: Cancel(id=self.identity(), by=self.of(None, "ann")),
            lambda: RetryRun(id=self.identity()),
            self.resolve,
            lambda: self.rewind(run, now_ms),
        ]
        return self.of(*makers)()  # type: ignore[no-any-return]

    def input(self, run_id: str, run: Run | None, now_ms: int) -> Input:
        if run is None or self.rarely():
            return self.of(self.start(run_id), self.command(run_id, run, now_ms))  # type: ignore[no-any-return]
        makers: list[Callable[[], Input]] = [
            lambda: self.returned(run),
            lambda: self.returned(run),
            lambda: self.returned(run),
            lambda: StepFailed(
                work=self.work(run),
                failure=self.failure(),
                retry_in_ms=self.of(None, 0, 5),
                took_ms=self.of(0, 50),
            ),
            lambda: self.overspent(run),
            lambda: self.journaled(run),
            lambda: self.journaled(run),
            lambda: Park(failure=self.failure(), work=self.of(None, self.work(run))),
            Defer,
            CarryForward,
        ]
        if run.due_ms is not None or self.rarely():
            makers += [lambda: TimedOut(due_ms=run.due_ms or now_ms)] * 4
        if run.wait is not None and run.wait.branches:
            makers += [lambda: self.child(run)] * 8
        if run.ending is not None:  # what is rare needs help
            further: tuple[StepResult, ...] = (
                GoTo(step="pooled", payload=b"1"),
                Complete(result=b"3"),
            )
            makers += [lambda: replace(self.returned(run), then=self.of(*further))] * 6
            makers += [Defer, lambda: Pause(id=self.identity())] * 2
            makers += [lambda: Park(failure=self.failure())]
        if run.attempt:
            makers += [lambda: replace(self.journaled(run), kind="intent", value=b"1")] * 3
            makers += [lambda: Park(failure=self.failure())] * 2
        if run.status == "paused":
            makers += [lambda: Resume(id=self.identity())] * 6
        if run.status == "attention":
            makers += [lambda: RetryRun(id=self.identity()), self.resolve] * 4
        makers += [lambda: self.command(run_id, run, now_ms)] * (
            6 if run.status == "running" else 9
        )
        return self.of(*makers)()  # type: ignore[no-any-return]


@dataclass
class Partition:
    """One partition as its owner has it: memory, and the log that memory must be equal to."""

    rules: Rules = RULES[0]
    memory: RunStore = field(default_factory=RunStore)
    log: list[ConsumerRecord] = field(default_factory=list)
    #: the decisions, each with what it was about
    decided: list[tuple[State, Input, Decision]] = field(default_factory=list)
    now_ms: int = 1_700_000_000_000

    def happen(self, dice: int) -> None:
        """A commit: up to three inputs of one run, or the end of its receipt's dedup window."""
        chance = Chance(Random(dice))
        run_id = chance.of(*RUN_IDS)
        self.now_ms += chance.of(0, 1, 10)
        if run_id in self.memory.receipts and chance.rarely():
            self._append(WIRE.tombstone(key, 0, ()) for key in list(self.memory.keys(run_id)))
            self.memory.forget(run_id)
            return
        before = after = self.memory.state(run_id, "x")
        written: list[Record] = []
        for _ in range(chance.of(1, 1, 2, 3)):
            event = chance.input(run_id, after.run, self.now_ms)
            frozen = dict(after.entries)
            decision = decide(self.rules, after, event, self.now_ms)
            assert dict(after.entries) == frozen
            self.decided.append((after, event, decision))
            check(after, event, decision)
            entries = entries_after(dict(after.entries), decision.records)
            after = State(decision.run, entries)
            written += decision.records
        outs = [WIRE.out(record, run_id, 0, (), self.now_ms) for record in written]
        if after.run is not None and after.run is not before.run:
            outs.insert(0, WIRE.checkpoint(after.run, len(outs) + 1, (), 0))
            self.memory.put(after.run)
        self.memory.put_records(run_id, written)
        self._append(out for out in outs if out.topic == WIRE.topics.state)

    def _append(self, outs: Iterable[ProducerRecord]) -> None:
        for out in outs:
            self.log.append(ConsumerRecord(out.topic, 0, len(self.log), 0, out.key, out.value))

    def arrows(self) -> set[Arrow]:
        """status x input -> next status, of all that was neither refused nor a repetition."""
        return {
            (state.run.status if state.run else None, type(event), next_status(decision))
            for state, event, decision in self.decided
            if decision.refused is None and not repeated(decision)
        }


def next_status(decision: Decision) -> Any:
    return decision.run.status if decision.run is not None else None


def events(decision: Decision) -> list[EventRecord]:
    return [record for record in decision.records if isinstance(record, EventRecord)]


def repeated(decision: Decision) -> bool:
    return [event.type for event in events(decision)] == ["command.repeated"]


def lived(dice: Iterable[int]) -> Partition:
    dice = list(dice)
    partition = Partition(rules=RULES[dice[0] % 2] if dice else RULES[0])
    for each in dice:
        partition.happen(each)
    return partition


def actions(entries: Mapping[str, Entry], run: Run) -> Counter[tuple[int, int, bytes | None]]:
    """What the run has done, or begun, with ctx.once: never lost, whatever becomes of it."""
    found: Counter[tuple[int, int, bytes | None]] = Counter()
    for e in entries.values():
        known = e.kind == "intent" or (e.kind == "call" and e.name and e.failure is None)
        mine = known and (e.seq, e.epoch) == (run.seq, run.epoch)
        if mine or e.kind in ("done", "past"):
            found[e.seq, e.epoch, e.digest] += 1
    return found


def check(state: State, event: Input, decision: Decision) -> None:
    """What holds of any one decision."""
    before, after, records = state.run, decision.run, decision.records
    told = events(decision)
    if isinstance(event, Operation):
        answers = [e for e in told if e.id == event.id and e.type != "signal.unread"]
        assert len(answers) == 1
        assert answers[0].status == (before.status if before else "pending") or after is not before
    if decision.refused is not None or repeated(decision):
        assert after is before
        assert len(records) == len(told) <= 1
        return
    status = before.status if before is not None else None
    assert next_status(decision) in TABLE[status, type(event)]
    signals = {slot for slot, entry in state.entries.items() if entry.kind == "signal"}
    gone = {record.slot for record in records if isinstance(record, Forget)} & signals
    unread = {f"s:{e.id}" for e in told if e.type == "signal.unread"}
    in_pool = isinstance(event, ChildDone | Resume | RetryRun)
    identities = event.read if isinstance(event, StepReturned) else READ if in_pool else ()
    if "wait.over" not in {e.type for e in told}:
        assert gone <= unread | {f"s:{identity}" for identity in identities}
    if after is None:
        return
    entries = entries_after(dict(state.entries), records)
    lasting = {"message", "done", "past", "again"}
    assert {e.kind for e in entries.values()} <= lasting or after.status not in (
        "completed",
        "cancelled",
    )
    if before is not None and not isinstance(event, EntryRecorded | ResolveCall):
        assert actions(entries, after) == actions(state.entries, before)
    if not after.terminal or after.status == "failed":
        count = after.memory.thread if after.memory is not None else 0
        assert {slot for slot in entries if slot.startswith("m:")} == {
            f"m:{n}" for n in range(count)
        }
    if after.status in ("pending", "running", "completed", "cancelled"):
        assert (after.wait, after.due_ms) == (None, None)
    if after.status == "waiting":
        assert after.wait is not None or after.due_ms is not None
    tasks = [(r.seq, r.step) for r in records if isinstance(r, TaskRecord)]
    if after.status == "running" and after is not before and not isinstance(event, StartRun):
        assert tasks[-1:] == [(after.seq, after.step)] or isinstance(
            event, EntryRecorded | DeliverSignal
        )
    assert len(tasks) <= 1
    ends = after.status in TERMINAL and status != after.status
    to_parent = [r for r in records if isinstance(r, CommandRecord) and r.kind == "child"]
    heirs = [r for r in records if isinstance(r, CommandRecord) and r.parent == after.parent]
    assert len(to_parent) == (1 if ends and after.parent is not None else 0) or heirs
    if before is not None:
        assert after.epoch == before.epoch + isinstance(event, Rewind)
        assert isinstance(event, Rewind) or after.seq >= before.seq
        assert after.forks >= before.forks
