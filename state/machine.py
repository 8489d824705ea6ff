"""What a run does next: one pure function over one table.

    decide(rules, state, input, now_ms) -> Decision(run', records, refused)

No I/O, no clock, no randomness. An input that is not legal in the run's status moves nothing: the
decision has the same run and the reason; if it was somebody's command, one event tells them. The
checkpoint itself is not among the records; the committer writes the decision's run. Decisions
compose: several inputs of one run may be applied one after the other, and only the last run be
committed, with the records of all of them.

A run that waits for its time only (backoff, sleep) stays `waiting` with `due_ms`; the owner runs
its step when that time has come, and the outcome is applied to the waiting run directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never, get_args

from surefoot.schemas.payload import BadPayload, Unserialisable, parse_json, strict_json
from surefoot.state import waits
from surefoot.state.model import (
    COMMANDS_KEPT,
    DECIDED_KEPT,
    NO_MEMORY,
    TERMINAL,
    Amount,
    Amounts,
    Answer,
    Await,
    Branch,
    Cancel,
    ChildDone,
    CommandRecord,
    DeadRecord,
    Decided,
    Decision,
    End,
    Entry,
    EventRecord,
    EventType,
    Failure,
    Forget,
    Forward,
    Go,
    HandOver,
    Input,
    Journaled,
    Memory,
    Operation,
    Overspent,
    Parent,
    Pause,
    Quarantine,
    Queue,
    Raised,
    Record,
    Refusal,
    Resolve,
    Resume,
    RetryRun,
    Returned,
    Rewind,
    Run,
    Signal,
    Spawn,
    Start,
    State,
    Status,
    TaskRecord,
    TimedOut,
    Wait,
    Work,
    over,
    total,
)
from surefoot.state.outcome import decode_outcome, encode_input

#: signals that one run keeps for later
SIGNALS_KEPT = 1_000

_OPERATIONS: Final = get_args(Operation)
_ENDS: Final[frozenset[Status | None]] = frozenset(TERMINAL)
_ON: Final[frozenset[Status | None]] = frozenset({"running", "waiting"})
_PARKED: Final[frozenset[Status | None]] = frozenset({"paused"})


def _table() -> dict[tuple[Status | None, type[Input]], frozenset[Status | None]]:
    """status (None: no such run) x input -> the statuses that can follow."""
    can_work: tuple[Status, ...] = ("pending", "running", "waiting", "paused")
    alive: tuple[Status, ...] = (*can_work, "attention")
    table: dict[tuple[Status | None, type[Input]], frozenset[Status | None]] = {
        (None, Start): _ON,
        (None, Signal): frozenset({None}),
        ("running", Queue): frozenset({"pending"}),
        ("running", Forward): frozenset({"running"}),
        ("waiting", TimedOut): _ON | {"failed"},
        ("waiting", Answer): _ON | {"failed"},
        ("waiting", ChildDone): _ON | _ENDS | {"attention"},
        ("paused", Resume): _ON | _ENDS | {"attention"},
        ("attention", RetryRun): _ON | _ENDS | {"attention"},
        ("failed", RetryRun): _ON,
        ("attention", Resolve): _ON | {"failed"},
    }
    for status in can_work:
        on = _PARKED if status == "paused" else _ON
        table[status, Returned] = on | _ENDS
        table[status, Raised] = on | {"failed"}
        table[status, Overspent] = on - {"running"}
        table[status, Journaled] = frozenset({status})
        table[status, Quarantine] = frozenset({"attention"})
    for status in alive:
        table[status, Cancel] = frozenset({"running", "cancelled"})
        table[status, Signal] = frozenset({status}) | (_ON if status == "waiting" else frozenset())
    for status in ("paused", "attention"):
        table[status, ChildDone] = frozenset({status})
    for status in ("running", "waiting"):
        table[status, Pause] = _PARKED
    for status in (*alive, *sorted(TERMINAL)):
        table[status, Rewind] = _ON
    return table


#: What is not here is refused. A command that was taken before, or asks for what is already so, is
#: answered as repeated, and moves nothing.
TABLE: Final = _table()


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
    accepts: waits.Accepts = waits.anything


def pool_agent_name(agent: str, pool: str) -> str:
    """Name of the agent that runs the steps of a pool. No declared agent has a dot in its name."""
    return f"{agent}.{pool}"


class _Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


def decide(rules: Rules, state: State, event: Input, now_ms: int) -> Decision:
    """Apply one input to one run. Pure: `state` is not changed."""
    run = state.run
    turn = _Turn(rules, dict(state.entries), now_ms)
    status = run.status if run is not None else None
    try:
        if isinstance(event, _OPERATIONS) and _repeated(run, state, event):
            turn.tell(run, "command.repeated", id=event.id, by=event.by)
            return Decision(run, tuple(turn.records))
        if isinstance(event, Answer) and run is not None:
            _refuse_decided(run, event)
        if (status, type(event)) not in TABLE:
            raise _illegal(status, event)
        after = _apply(turn, run, event)
    except _Refused as error:
        if not isinstance(event, _OPERATIONS):
            return Decision(run, refused=error.refusal)
        turn = _Turn(rules, {}, now_ms)
        turn.refuse(run, event, error.refusal)
        return Decision(run, tuple(turn.records), error.refusal)
    if after is not None and isinstance(event, _OPERATIONS):
        kept = (*after.commands, event.id)[-COMMANDS_KEPT:]
        after = replace(after, commands=kept)
    return Decision(after, tuple(turn.records))


def ignored_start(start: Start, now_ms: int) -> tuple[Record, ...]:
    """For the history: another start with a run_id in use was ignored, the first one holds. A
    parent is told that this child will not come."""
    turn = _Turn(Rules(agent=start.agent), {}, now_ms)
    run = _new_run(turn, start)
    turn.tell(run, "start.ignored")
    if run.parent is not None:
        message = f"there is another run {run.run_id} of agent {run.agent} already"
        _tell_parent(turn, run, run.parent, None, Failure(code="run_exists", message=message))
    return tuple(turn.records)


def _apply(turn: _Turn, run: Run | None, event: Input) -> Run | None:
    if isinstance(event, Start):
        return _start(turn, event)
    if isinstance(event, Signal):
        return _signal(turn, run, event)
    assert run is not None
    match event:
        case Queue():
            run = turn.moved(run, status="pending")
            turn.tell(run, "run.accepted")
        case Forward():
            turn.task(run)
        case Returned():
            run = _returned(turn, _at_work(run, event.work), event)
        case Raised():
            run = _raised(turn, _at_work(run, event.work), event)
        case Overspent():
            run = replace(_at_work(run, event.work), due_ms=None)
            run = _overspent(turn, run, event.what, event.message, event.cost)
        case Journaled():
            _journaled(turn, _at_work(run, event.work), event)
        case Quarantine():
            if event.work is not None:
                run = _at_work(run, event.work)
            run = turn.moved(run, status="attention", failure=event.failure)
            turn.tell(run, "run.attention", step=run.step)
        case TimedOut():
            run = _timed_out(turn, run, event)
        case ChildDone():
            run = _child_done(turn, run, event)
        case Answer():
            run = _answer(turn, run, event)
        case Pause():
            run = turn.moved(run, status="paused")
            turn.tell(run, "run.paused", id=event.id, by=event.by)
        case Resume():
            run = _resume(turn, run, event)
        case Cancel():
            run = _cancel(turn, run, event)
        case RetryRun():
            run = _retry(turn, run, event)
        case Resolve():
            run = _resolve(turn, run, event)
        case Rewind():
            run = _rewind(turn, run, event)
        case _:
            assert_never(event)
    return run


class _Turn:
    """One decision while it is being made: what it writes, and the entries as they will be."""

    def __init__(self, rules: Rules, entries: dict[str, Entry], now_ms: int) -> None:
        self.rules = rules
        self.entries = entries
        self.now_ms = now_ms
        self.records: list[Record] = []

    def moved(self, run: Run, **changes: Any) -> Run:
        return replace(run, updated_ms=self.now_ms, **changes)

    def put(self, entry: Entry) -> None:
        self.entries[entry.slot] = entry
        self.records.append(entry)

    def forget(self, slot: str) -> None:
        del self.entries[slot]
        self.records.append(Forget(slot=slot))

    def forget_all(self, *, keep: frozenset[str] = frozenset()) -> None:
        """Of kinds other than those in `keep`."""
        for entry in list(self.entries.values()):
            if entry.kind not in keep:
                self.forget(entry.slot)

    def task(self, run: Run) -> None:
        self.records.append(TaskRecord(run_id=run.run_id, seq=run.seq, step=run.step))

    def tell(
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
                "version": run.version, "status": run.status, "seq": (of or run).seq,
                "attempt": (of or run).attempt, "due_ms": run.due_ms, "failure": run.failure,
                "epoch": run.epoch,
            }  # fmt: skip
            if version:
                about |= {
                    "next_step": run.step, "payload": run.payload, "carry": run.carry,
                    "memory": run.memory, "wait": run.wait,
                }  # fmt: skip
        self.records.append(
            EventRecord(
                type=kind, run_id=run_id, agent=self.rules.agent, at_ms=self.now_ms, **about | told
            )
        )

    def refuse(self, run: Run | None, event: Operation, refusal: Refusal) -> None:
        """Tell whoever sent the command that it moved nothing."""
        self.tell(
            run, "command.refused", id=event.id, by=event.by, name=refusal.code,
            failure=Failure(code=refusal.code, message=refusal.message),
        )  # fmt: skip


def _repeated(run: Run | None, state: State, event: Operation) -> bool:
    """The command was taken before, or asks for what is already so."""
    if isinstance(event, Signal) and f"s:{event.id}" in state.entries:
        return True
    if run is None:
        return False
    if event.id in run.commands:
        return True
    match event:
        case Pause():
            return run.status == "paused"
        case Resume():
            return run.status in ("running", "waiting")
        case Cancel():
            ending = None if run.terminal else run.ending
            return "cancelled" in (run.status, ending)
    return False


def _illegal(status: Status | None, event: Input) -> _Refused:
    name = type(event).__name__.lower()
    if status is None:
        return _Refused("unknown_run", f"{name} is not possible: there is no such run")
    if status in TERMINAL:
        return _Refused("too_late", f"{name} comes too late: the run is {status}")
    return _Refused("not_possible", f"{name} is not possible: the run is {status}")


def _at_work(run: Run, work: Work) -> Run:
    """The run, if it still is where that attempt began."""
    if (run.seq, run.attempt, run.epoch) != (work.seq, work.attempt, work.epoch):
        raise _Refused("stale", "the run has moved on since that attempt began")
    if run.wait is not None:
        raise _Refused("stale", f"the run waits for {run.wait.kind} now")
    return run


# Starting and stepping -----------------------------------------------------------------------


def _new_run(turn: _Turn, event: Start) -> Run:
    memory = event.memory
    if turn.rules.budget and (memory is None or not memory.granted):
        memory = replace(memory or NO_MEMORY, granted=turn.rules.budget)
    if event.messages or memory is not None:
        memory = replace(memory or NO_MEMORY, thread=len(event.messages))
    early = [signal.id for signal in waits.signals(turn.entries) if signal.id is not None]
    return Run(
        run_id=event.run_id,
        agent=event.agent,
        version=event.version,
        status="running",
        seq=0,
        step=event.step,
        attempt=0,
        payload=event.payload,
        created_ms=turn.now_ms,
        updated_ms=turn.now_ms,
        input_digest=event.input_digest,
        traceparent=event.traceparent,
        parent=event.parent,
        carry=event.carry,
        memory=memory,
        commands=tuple(early[-COMMANDS_KEPT:]),
    )


def _start(turn: _Turn, event: Start) -> Run:
    run = _new_run(turn, event)
    _say(turn, run.run_id, 0, event.messages)
    turn.tell(run, "run.started", version=True)
    return _go_on(turn, run, task=False)


def _go_on(turn: _Turn, run: Run, *, task: bool = True) -> Run:
    """The step that the run names is next: ask for it, here or in its pool, unless its time has
    not come or the budget has no step left for it."""
    if run.status == "paused":
        return run
    short = _used_up(run)
    if short is not None:
        return _overspent(turn, run, short, f"the run has used up its {short}")
    if run.due_ms is not None:
        return turn.moved(run, status="waiting")
    pool = turn.rules.pools.get(run.step)
    if pool is None:
        run = turn.moved(run, status="running")
        if task:
            turn.task(run)
        return run
    branch = Branch(
        agent=pool_agent_name(run.agent, pool),
        step=run.step,
        payload=encode_input(run, turn.entries),
    )
    return _spawn(turn, run, Wait(kind="pool", since_ms=turn.now_ms, branches=(branch,)))


def _used_up(run: Run) -> str | None:
    """What the run's budget has too little of for one more step. Compensation is not limited."""
    if run.memory is None or not run.memory.granted or run.ending is not None:
        return None
    return over(total(run.memory.spent, (Amount("steps", 1),)), run.memory.granted)


def _returned(turn: _Turn, run: Run, event: Returned) -> Run:
    before = run
    follow = turn.moved(
        run,
        status="paused" if run.status == "paused" else "running",
        version=event.version or run.version,
        seq=run.seq + 1,
        attempt=0,
        due_ms=None,
        wait=None,
        failure=None,
        carry=event.carry,
        memory=_remembered(turn, run, event),
    )
    _say(turn, run.run_id, run.memory.thread if run.memory else 0, event.messages)
    told: dict[str, Any] = {
        "of": before,
        "step": before.step,
        "effects": tuple(effect.run_id for effect in event.effects),
        "started_ms": event.started_ms,
    }
    turn.records.extend(event.effects)
    for identity in event.read:
        if f"s:{identity}" in turn.entries:
            turn.forget(f"s:{identity}")
    match event.then:
        case End():
            return _complete(turn, follow, event.then.result, told)
        case HandOver():
            return _hand_over(turn, follow, event.then, told)
        case Go():
            follow = _next_step(turn, follow, event.then)
            turn.tell(follow, "step.completed", version=True, **told)
            return _go_on(turn, follow)
        case Await():
            follow = _begin_wait(turn, follow, event.then)
            turn.tell(follow, "step.completed", version=True, **told)
            return _look(turn, follow)
        case Spawn():
            wait = Wait(
                kind="children", since_ms=turn.now_ms, then=event.then.join, mode=event.then.mode,
                limit=event.then.limit, branches=event.then.branches,
            )  # fmt: skip
            follow = replace(follow, step=event.then.join, payload=b"null")
            told["version"] = True
            return _look(turn, _spawn_and_tell(turn, follow, wait, "step.completed", told))
    assert_never(event.then)


def _remembered(turn: _Turn, run: Run, event: Returned) -> Memory | None:
    """The run's memory once this step is committed; None while there is nothing in it."""
    if run.memory is None and not event.messages and event.plan is None:
        return None
    was = run.memory or NO_MEMORY
    spent = was.spent
    if was.granted:
        mine = (Amount("ms", event.took_ms), Amount("steps", 1))
        spent = total(spent, _journaled_cost(turn, run), event.cost, mine)
    return replace(
        was,
        plan=was.plan if event.plan is None else event.plan,
        thread=was.thread + len(event.messages),
        spent=spent,
    )


def _journaled_cost(turn: _Turn, run: Run) -> Amounts:
    """Of the calls of the step in work."""
    mine = (run.seq, run.epoch)
    return total(*(e.cost for e in turn.entries.values() if (e.seq, e.epoch) == mine))


def _say(turn: _Turn, run_id: str, first: int, messages: tuple[bytes, ...]) -> None:
    """Append to the run's thread."""
    for number, message in enumerate(messages, first):
        turn.put(
            Entry(
                run_id=run_id, slot=f"m:{number}", kind="message", value=message,
                at_ms=turn.now_ms,
            )
        )  # fmt: skip


def _next_step(turn: _Turn, run: Run, go: Go) -> Run:
    due_ms = go.at_ms
    if go.after_ms is not None:
        due_ms = turn.now_ms + go.after_ms
    run = replace(run, step=go.step, payload=go.payload, due_ms=due_ms)
    if due_ms is None or run.status == "paused":
        return run
    return replace(run, status="waiting")


def _raised(turn: _Turn, run: Run, event: Raised) -> Run:
    memory = run.memory
    if memory is not None and memory.granted:
        memory = replace(memory, spent=total(memory.spent, (Amount("ms", event.took_ms),)))
    failed = turn.moved(run, attempt=run.attempt + 1, failure=event.failure, memory=memory)
    if event.retry_in_ms is None:
        return _fail(turn, failed, event.failure, of=run, started_ms=event.started_ms)
    status: Status = "paused" if run.status == "paused" else "waiting"
    failed = replace(failed, status=status, due_ms=turn.now_ms + event.retry_in_ms)
    for slot, entry in list(turn.entries.items()):  # what was journaled holds for the next attempt
        if entry.kind == "reserved":
            turn.forget(slot)
    turn.tell(failed, "step.retrying", of=run, step=run.step, started_ms=event.started_ms)
    return failed


def _journaled(turn: _Turn, run: Run, event: Journaled) -> None:
    if event.value is None and event.failure is None and not event.cost:
        if event.slot in turn.entries:
            turn.forget(event.slot)
        return
    turn.put(
        Entry(
            run_id=run.run_id, slot=event.slot, kind=event.kind, seq=run.seq, epoch=run.epoch,
            digest=event.digest, value=event.value, failure=event.failure, cost=event.cost,
            at_ms=turn.now_ms,
        )
    )  # fmt: skip


def _overspent(turn: _Turn, run: Run, what: str, message: str, cost: Amounts = ()) -> Run:
    """Ask for more, each time with a question of its own. `due_ms` stays: it is the time of the
    step that is next."""
    if cost and run.memory is not None:
        run = replace(run, memory=replace(run.memory, spent=total(run.memory.spent, cost)))
    about = b"budget:%s:%d" % (what.encode(), turn.now_ms)
    wait = Wait(
        kind="budget", since_ms=turn.now_ms, names=(what,), question=waits.question(run, about)
    )
    run = turn.moved(
        run,
        status="paused" if run.status == "paused" else "waiting",
        wait=wait,
        failure=Failure(code="budget_spent", message=message, step=run.step),
    )
    turn.tell(run, "budget.spent", name=what, wait=wait)
    return run


# Ending --------------------------------------------------------------------------------------


def _complete(turn: _Turn, run: Run, result: bytes, told: dict[str, Any]) -> Run:
    if run.ending == "failed":
        return _end(turn, replace(run, payload=b""), "failed", told, failure=run.reason)
    if run.ending == "cancelled":
        return _end(turn, run, "cancelled", told)
    return _end(turn, run, "completed", told, result=result)


def _hand_over(turn: _Turn, run: Run, then: HandOver, told: dict[str, Any]) -> Run:
    """The heir answers to this run's parent, unless this run itself has to tell how it ended."""
    heir = waits.child_id(run.run_id, run.forks + 1, 0)
    theirs, ours = (run.parent, None) if run.ending is None else (None, run.parent)
    turn.records.append(
        CommandRecord(
            agent=then.to.agent, run_id=heir, kind="start", step=then.to.step,
            payload=then.to.payload, parent=theirs, traceparent=run.traceparent,
        )
    )  # fmt: skip
    result = strict_json({"handed_to": {"agent": then.to.agent, "run_id": heir}})
    run = replace(run, forks=run.forks + 1, parent=ours)
    return _complete(turn, run, result, told | {"children": 1})


def _end(
    turn: _Turn,
    run: Run,
    status: Status,
    told: dict[str, Any],
    *,
    result: bytes | None = None,
    failure: Failure | None = None,
) -> Run:
    """The run is over. A failed one is kept whole, so that it can be tried again."""
    parked = status == "failed"
    ended = turn.moved(
        run,
        status=status,
        due_ms=run.due_ms if parked else None,
        wait=run.wait if parked else None,
        carry=run.carry if parked else None,
        payload=run.payload if parked else b"",
        result=result,
        failure=failure,
        ending=run.ending if parked else None,
        reason=run.reason if parked else None,
    )
    kind: Mapping[Status, EventType] = {
        "completed": "run.completed", "failed": "run.failed", "cancelled": "run.cancelled"
    }  # fmt: skip
    if not parked:
        for signal in waits.signals(turn.entries):
            turn.tell(
                run, "signal.unread", id=signal.id, name=signal.name, by=signal.by,
                payload=signal.value,
            )  # fmt: skip
        turn.forget_all(keep=frozenset({"message"}))
    turn.tell(ended, kind[status], **{"result": result, **told})
    if run.parent is not None:
        reason = failure
        if status == "cancelled":
            reason = Failure(code="cancelled", message=f"run {run.run_id} was cancelled")
        _tell_parent(turn, run, run.parent, result, reason)
    return ended


def _tell_parent(
    turn: _Turn, run: Run, parent: Parent, result: bytes | None, failure: Failure | None
) -> None:
    turn.records.append(
        CommandRecord(
            agent=parent.agent, run_id=parent.run_id, kind="child", id=run.run_id,
            payload=result or b"null", parent=parent, failure=failure,
        )
    )  # fmt: skip


def _fail(
    turn: _Turn, run: Run, failure: Failure, *, of: Run, started_ms: int | None = None
) -> Run:
    """No way on: compensate if the agent can, else the run is failed."""
    told = {"of": of, "step": of.step, "started_ms": started_ms}
    if run.ending is None:
        turn.records.append(
            DeadRecord(
                run_id=run.run_id, step=run.step, payload=run.payload, failure=failure,
                attempts=run.attempt,
            )
        )  # fmt: skip
    turn.records.extend(waits.cancel_children(run, turn.entries))
    if turn.rules.on_failure is not None and run.ending is None:
        return _compensate(turn, run, turn.rules.on_failure, "failed", failure, told)
    return _end(turn, run, "failed", told, failure=failure)


def _compensate(
    turn: _Turn, run: Run, step: str, ending: Status, why: Failure, told: dict[str, Any]
) -> Run:
    """The compensation is a step of its own, with a seq of its own: what still comes from the
    step that did not happen is not taken for its outcome."""
    doubt = [
        entry.slot.removeprefix("c:")
        for entry in turn.entries.values()
        if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch)
    ]
    payload = _ended(run.payload, step=run.step, code=why.code, message=why.message, in_doubt=doubt)
    memory = run.memory
    if memory is not None and memory.granted:
        memory = replace(memory, spent=total(memory.spent, _journaled_cost(turn, run)))
    turn.forget_all(keep=frozenset({"message", "signal"}))
    follow = turn.moved(
        run,
        status="paused" if run.status == "paused" and ending == "failed" else "running",
        seq=run.seq + 1,
        step=step,
        payload=payload,
        carry=None,
        attempt=0,
        due_ms=None,
        wait=None,
        memory=memory,
        ending=ending,
        reason=why,
        failure=None,
    )
    kind: EventType = "run.cancelling" if ending == "cancelled" else "run.failing"
    turn.tell(follow, kind, **{"next_step": step, "failure": why, **told})
    return _go_on(turn, follow)


def _ended(payload: bytes, **ended: Any) -> bytes:
    """Input of a compensation step. The payload of the step that did not happen is in it as JSON;
    as text if it is none, or nested too deep to stand inside of anything."""
    try:
        return strict_json(ended | {"payload": parse_json(payload) if payload else None})
    except (BadPayload, Unserialisable):
        return strict_json(ended | {"payload": payload.decode("utf-8", "backslashreplace")})


# Waiting -------------------------------------------------------------------------------------


def _begin_wait(turn: _Turn, run: Run, then: Await) -> Run:
    asked = None if then.about is None else waits.question(run, then.about)
    wait = Wait(
        kind="signal" if asked is None else "approval",
        since_ms=turn.now_ms,
        then=then.then,
        on_timeout=then.on_timeout,
        names=then.names,
        mode=then.mode,
        need=then.need,
        question=asked,
        by=then.by,
    )
    due_ms = None if then.timeout_ms is None else turn.now_ms + then.timeout_ms
    status: Status = "paused" if run.status == "paused" else "waiting"
    return replace(run, status=status, step=then.then, payload=b"null", wait=wait, due_ms=due_ms)


def _look(turn: _Turn, run: Run) -> Run:
    """Go on if what the run waits for is there."""
    wait = run.wait
    if run.status != "waiting" or wait is None:
        return run
    match wait.kind:
        case "signal":
            return _look_for_signals(turn, run, wait)
        case "children" | "pool":
            return _look_for_children(turn, run, wait)
    return run


def _look_for_signals(turn: _Turn, run: Run, wait: Wait) -> Run:
    for entry in waits.signals(turn.entries):
        reason = _unfit(turn, wait, entry.name, entry.value or b"null")
        if reason is not None:
            failure = Failure(code="bad_payload", message=reason)
            turn.tell(
                run, "signal.unread", id=entry.id, name=entry.name, by=entry.by,
                payload=entry.value, failure=failure,
            )  # fmt: skip
            turn.forget(entry.slot)
    found = waits.matched(wait, turn.entries)
    if found is None:
        return run
    payload = waits.signals_payload(wait, found)
    for entry in found:
        turn.forget(entry.slot)
    return _wait_over(turn, run, payload)


def _unfit(turn: _Turn, wait: Wait, name: str | None, payload: bytes) -> str | None:
    """Why that signal cannot end the wait although it has the right name."""
    known = wait.then in turn.rules.steps  # of another, whoever is to run it will see
    return waits.refused_by(wait, name, payload, turn.rules.accepts if known else waits.anything)


def _look_for_children(turn: _Turn, run: Run, wait: Wait) -> Run:
    if wait.kind == "pool":
        return _look_for_outcome(turn, run)
    failure = waits.failed_branch(wait, turn.entries)
    if failure is not None:
        return _fail(turn, run, failure, of=run)
    if waits.unfinished(wait, turn.entries):
        return run
    payload = waits.results_payload(wait, turn.entries)
    turn.forget_all(keep=frozenset({"message", "signal", "call"}))
    return _wait_over(turn, run, payload)


def _look_for_outcome(turn: _Turn, run: Run) -> Run:
    """What came of the step in its pool is what came of the step."""
    entry = turn.entries.get(waits.slot_of(0))
    if entry is None:
        return run
    turn.forget(entry.slot)
    here = turn.moved(run, status="running", wait=None)
    if entry.failure is not None:
        failed = replace(here, attempt=run.attempt + 1, failure=entry.failure)
        return _fail(turn, failed, entry.failure, of=run)
    work = Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)
    outcome: Input
    try:
        outcome = decode_outcome(entry.value or b"null", work)
    except ValueError as error:
        outcome = Quarantine(failure=Failure(code="bad_outcome", message=str(error), step=run.step))
    after = _apply(turn, here, outcome)
    assert after is not None
    return after


def _wait_over(turn: _Turn, run: Run, payload: bytes) -> Run:
    run = turn.moved(run, status="running", payload=payload, wait=None, due_ms=None)
    turn.tell(run, "wait.over", next_step=run.step, payload=payload)
    return _go_on(turn, run)


def _signal(turn: _Turn, run: Run | None, event: Signal) -> Run | None:
    if run is not None and run.wait is not None and run.status == "waiting":
        reason = _unfit(turn, run.wait, event.name, event.payload)
        if reason is not None:
            raise _Refused("bad_payload", f"signal {event.name!r} does not fit: {reason}")
    if len(waits.signals(turn.entries)) >= SIGNALS_KEPT:
        raise _Refused("mailbox_full", f"{SIGNALS_KEPT} signals wait for this run already")
    run_id = run.run_id if run is not None else event.run_id
    turn.put(
        Entry(
            run_id=run_id, slot=f"s:{event.id}", kind="signal", value=event.payload, id=event.id,
            name=event.name, by=event.by, at_ms=turn.now_ms,
        )
    )  # fmt: skip
    turn.tell(
        run, "signal.received", run_id=run_id, id=event.id, name=event.name, by=event.by,
        payload=event.payload,
    )  # fmt: skip
    return None if run is None else _look(turn, run)


def _refuse_decided(run: Run, event: Answer) -> None:
    """The first decision holds, whatever the run does by now."""
    for earlier in (run.memory or NO_MEMORY).decided:
        if earlier.question == event.question:
            verdict = "approved" if earlier.approved else "refused"
            raise _Refused(
                "already_decided", f"it was {verdict} by {earlier.by or 'somebody'} before"
            )


def _answer(turn: _Turn, run: Run, event: Answer) -> Run:
    wait, memory = run.wait, run.memory or NO_MEMORY
    if wait is None or wait.question is None or wait.question != event.question:
        asked = f"; it asks {wait.question}" if wait is not None and wait.question else ""
        raise _Refused("unknown_question", f"the run does not ask {event.question!r}{asked}")
    if wait.by and event.by not in wait.by:
        raise _Refused("not_allowed", f"only {', '.join(wait.by)} may answer; not {event.by!r}")
    if wait.kind == "approval" and run.due_ms is not None and turn.now_ms >= run.due_ms:
        raise _Refused("expired", "the time to answer is over")
    decided = Decided(
        question=event.question, approved=int(event.approved), by=event.by, at_ms=turn.now_ms
    )
    kept = (*memory.decided, decided)[-DECIDED_KEPT:]
    run = turn.moved(run, memory=replace(memory, decided=kept))
    told: dict[str, Any] = {"id": event.id, "by": event.by, "name": event.question}
    if wait.kind == "budget":
        return _budget_answer(turn, run, event, told)
    payload = strict_json(
        {
            "approved": event.approved, "by": event.by, "note": event.note,
            "at_ms": turn.now_ms, "question": event.question,
        }
    )  # fmt: skip
    run = replace(run, status="running", payload=payload, wait=None, due_ms=None)
    turn.tell(run, "approval.decided", next_step=run.step, payload=payload, **told)
    return _go_on(turn, run)


def _budget_answer(turn: _Turn, run: Run, event: Answer, told: dict[str, Any]) -> Run:
    assert run.memory is not None
    follow = replace(run, status="running", wait=None, failure=None)
    if not event.approved:
        turn.tell(follow, "approval.decided", **told)
        failure = Failure(code="budget_denied", message="no further budget was granted")
        return _fail(turn, follow, failure, of=follow)
    limited = {each.what for each in turn.rules.budget}
    granted = total(run.memory.granted, turn.rules.budget)
    kept = tuple(each for each in granted if each.what in limited)
    follow = replace(follow, memory=replace(run.memory, granted=kept))
    turn.tell(follow, "approval.decided", next_step=follow.step, **told)
    return _go_on(turn, follow)


def _timed_out(turn: _Turn, run: Run, event: TimedOut) -> Run:
    if run.due_ms != event.due_ms or turn.now_ms < event.due_ms:
        raise _Refused("stale", "the run does not wait for that time")
    wait = run.wait
    if wait is None:
        return _go_on(turn, turn.moved(run, due_ms=None))
    if wait.kind == "budget":  # it has slept as long as it had to; there is no time to answer
        return turn.moved(run, due_ms=None)
    if wait.on_timeout is None:
        what = wait.question or ", ".join(wait.names)
        failure = Failure(code="wait_timeout", message=f"nothing came in time: {wait.kind} {what}")
        return _fail(turn, turn.moved(run), failure, of=run)
    follow = turn.moved(
        run, status="running", step=wait.on_timeout, payload=run.carry or b"null", carry=None,
        wait=None, due_ms=None,
    )  # fmt: skip
    turn.tell(follow, "wait.timed_out", next_step=follow.step, payload=follow.payload)
    return _go_on(turn, follow)


# Children ------------------------------------------------------------------------------------


def _spawn(turn: _Turn, run: Run, wait: Wait) -> Run:
    """Start the branches that have no result yet; those of a paused run when it is resumed."""
    if run.status == "paused":
        return replace(run, wait=wait)
    wait = replace(wait, fork=run.forks + 1)
    run = turn.moved(run, status="waiting", forks=wait.fork, wait=wait)
    for index in waits.started(wait, turn.entries):
        turn.records.append(waits.start_child(run, wait, index))
    return run


def _child_done(turn: _Turn, run: Run, event: ChildDone) -> Run:
    wait = run.wait
    slot = waits.slot_of(event.branch)
    if wait is None or wait.fork != event.fork or not 0 <= event.branch < len(wait.branches):
        raise _Refused("stale", "the run does not wait for that child")
    if slot in turn.entries:
        raise _Refused("stale", "that child has been told of before")
    was_started = waits.started(wait, turn.entries)
    turn.put(
        Entry(
            run_id=run.run_id, slot=slot, kind="branch", seq=run.seq, epoch=run.epoch,
            value=event.result, failure=event.failure, at_ms=turn.now_ms,
        )
    )  # fmt: skip
    turn.tell(run, "child.finished", name=event.child, failure=event.failure)
    for index in waits.started(wait, turn.entries):
        if index not in was_started:
            turn.records.append(waits.start_child(run, wait, index))
    return _look(turn, run)


# Operators -----------------------------------------------------------------------------------


def _resume(turn: _Turn, run: Run, event: Resume) -> Run:
    wait = run.wait
    run = turn.moved(run, status="running" if wait is None and run.due_ms is None else "waiting")
    told: dict[str, Any] = {"id": event.id, "by": event.by}
    if wait is not None and wait.branches and not wait.fork:
        return _look(turn, _spawn_and_tell(turn, run, wait, "run.resumed", told))
    turn.tell(run, "run.resumed", **told)
    return _go_on(turn, run) if wait is None else _look(turn, run)


def _spawn_and_tell(
    turn: _Turn, run: Run, wait: Wait, kind: EventType, told: dict[str, Any]
) -> Run:
    at = len(turn.records)
    run = _spawn(turn, run, wait)
    turn.tell(run, kind, **told | {"children": len(turn.records) - at})
    return run


def _cancel(turn: _Turn, run: Run, event: Cancel) -> Run:
    if run.ending is not None:
        raise _Refused("not_possible", f"{run.step!r} is already doing what a failed run does")
    turn.records.extend(waits.cancel_children(run, turn.entries))
    told = {"of": run, "step": run.step, "id": event.id, "by": event.by}
    if turn.rules.on_cancel is not None:
        why = Failure(code="cancelled", message=f"cancelled by {event.by or 'somebody'}")
        return _compensate(turn, run, turn.rules.on_cancel, "cancelled", why, told)
    return _end(turn, run, "cancelled", told)


def _retry(turn: _Turn, run: Run, event: RetryRun) -> Run:
    if run.status == "failed" and run.ending is not None and not run.payload:
        raise _Refused(
            "compensated", "its compensation has run; rewind it to an earlier version instead"
        )
    wait = run.wait
    told: dict[str, Any] = {"next_step": run.step, "id": event.id, "by": event.by}
    gave_up = run.status == "failed"  # and has cancelled the children that were under way
    due_ms = None if run.attempt else run.due_ms  # a backoff is cut short, a sleep is not
    run = turn.moved(run, status="running", attempt=0, due_ms=due_ms, failure=None, result=None)
    if gave_up:
        _forget_failures(turn, run)
    if wait is None:
        turn.tell(run, "run.retried", **told)
        return _go_on(turn, run)
    if wait.branches and (gave_up or not wait.fork):
        for slot, entry in list(turn.entries.items()):
            if entry.kind == "branch" and entry.failure is not None:
                turn.forget(slot)
        return _look(turn, _spawn_and_tell(turn, run, wait, "run.retried", told))
    if wait.kind in ("signal", "approval"):
        due_ms = None if due_ms is None else turn.now_ms + due_ms - wait.since_ms
        wait = replace(wait, since_ms=turn.now_ms)
    run = replace(run, status="waiting", wait=wait, due_ms=due_ms)
    turn.tell(run, "run.retried", **told)
    return _look(turn, run)


def _forget_failures(turn: _Turn, run: Run) -> None:
    """What was recorded as failed for good is tried again; what has a result keeps it."""
    for entry in list(turn.entries.values()):
        mine = (entry.seq, entry.epoch) == (run.seq, run.epoch)
        if entry.kind == "call" and entry.failure is not None and mine:
            turn.forget(entry.slot)


def _resolve(turn: _Turn, run: Run, event: Resolve) -> Run:
    doubt = next(
        (
            entry
            for entry in turn.entries.values()
            if entry.kind == "intent" and (entry.seq, entry.epoch) == (run.seq, run.epoch)
        ),
        None,
    )
    if doubt is None:
        raise _Refused("nothing_in_doubt", "no call of this run is in doubt; use retry")
    run = turn.moved(run, status="running")
    told: dict[str, Any] = {
        "id": event.id, "by": event.by, "name": event.choice, "payload": event.result
    }  # fmt: skip
    if event.choice == "give_up":
        turn.tell(run, "run.resolved", **told)
        failure = Failure(code="given_up", message=f"{doubt.slot.removeprefix('c:')} was given up")
        return _fail(turn, run, failure, of=run)
    if event.choice == "happened":
        turn.put(replace(doubt, kind="call", value=event.result, at_ms=turn.now_ms))
    elif event.choice == "did_not":
        turn.forget(doubt.slot)
    else:
        raise _Refused(
            "bad_choice", f"choose happened, did_not or give_up; got {event.choice[:40]!r}"
        )
    run = replace(run, attempt=0, failure=None, due_ms=None, wait=None)
    turn.tell(run, "run.resolved", next_step=run.step, **told)
    return _go_on(turn, run)


def _rewind(turn: _Turn, run: Run, event: Rewind) -> Run:
    if event.epoch != run.epoch:
        raise _Refused("stale_epoch", f"the run is in epoch {run.epoch} by now; look again")
    if event.step not in turn.rules.steps:
        raise _Refused("unknown_step", f"the agent has no step {event.step!r} any more")
    if not 0 <= event.seq <= run.seq:
        raise _Refused("no_such_version", f"the run has versions 0 to {run.seq}")
    if event.wait is not None and event.wait.kind not in ("signal", "approval"):
        raise _Refused(
            "no_such_version",
            f"version {event.seq} waits for {event.wait.kind}; go back to an earlier one, or to "
            "the one after it",
        )
    turn.records.extend(waits.cancel_children(run, turn.entries))
    turn.forget_all(keep=frozenset({"signal", "message"}))
    said = run.memory.thread if run.memory is not None else 0
    for number in range(len(event.messages), said):  # of a run that is over only the log has them
        turn.entries.pop(f"m:{number}", None)
        turn.records.append(Forget(slot=f"m:{number}"))
    epoch = run.epoch + 1
    memory = event.memory
    if event.messages or memory is not None:
        memory = replace(memory or NO_MEMORY, thread=len(event.messages))
    back = turn.moved(
        run,
        status="running",
        seq=event.seq,
        step=event.step,
        attempt=0,
        payload=event.payload,
        carry=event.carry,
        memory=memory,
        wait=event.wait,
        due_ms=event.due_ms,
        parent=None if run.terminal else run.parent,
        result=None,
        failure=None,
        ending=None,
        reason=None,
        epoch=epoch,
        emit=epoch if event.emit else run.emit,
        created_ms=event.created_ms or run.created_ms,
        input_digest=event.input_digest or run.input_digest,
    )
    _say(turn, run.run_id, 0, event.messages)
    if back.wait is not None:
        back = replace(back, status="waiting", wait=_asked_anew(back, back.wait))
    turn.tell(back, "run.rewound", version=True, id=event.id, by=event.by)
    return _go_on(turn, back) if back.wait is None else _look(turn, back)


def _asked_anew(run: Run, wait: Wait) -> Wait:
    """The same question in a later epoch is another one: an answer that is still on its way does
    not count."""
    if wait.question is None:
        return wait
    return replace(wait, question=waits.question(run, wait.question.encode()))
