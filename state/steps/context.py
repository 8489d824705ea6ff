"""The Context of a step's body: which run it is, and what it wants to happen when it commits.

Effects, messages and the plan are only collected: none of them exists before the step's commit.
Calls are recorded while the step runs (state.steps.journal).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from surefoot.schemas.payload import dump, strict_json
from surefoot.schemas.trace import Carried, carried_on
from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import (
    NO_MEMORY,
    Amounts,
    CommandRecord,
    Effect,
    Entry,
    Memory,
    Work,
)
from surefoot.state.names.topics import OUTBOX
from surefoot.state.steps.effects import HTTP, EffectKind, T
from surefoot.state.steps.engine import Engine
from surefoot.state.steps.http_effect import (
    AnswerStatuses,
    HttpEffect,
    check_request,
    check_texts,
    parse_statuses,
)
from surefoot.state.steps.inbox import Inbox
from surefoot.state.steps.journal import Cost, ErrorKinds, Journal
from surefoot.state.steps.partial_output import Stream
from surefoot.state.steps.results import Signal
from surefoot.state.steps.thread import Plan, Thread


def idempotency_key(
    agent: str, run_id: str, seq: int, index: int, *, emit: int = 0, compensation: bool = False
) -> str:
    """Return the key of effect `index` of step `seq`: the same on every attempt, redrive and
    replay.

    Two exceptions: a replay that somebody asked to send its effects again (`emit`, the run's epoch)
    has new keys, and so has compensation, since the run may be rewound and reach that seq again.
    """
    marks = (f"~e{emit}" if emit else "") + ("~c" if compensation else "")
    return f"{agent}:{run_id}{marks}:{seq}:{index}"


@dataclass(slots=True)
class Outbox:
    """Side effects of the step, delivered only after its commit."""

    _key: Callable[[int], str]
    _carried: Carried = field(default_factory=Carried)
    _effects: list[Effect] = field(default_factory=list)

    def http(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_on: Iterable[AnswerStatuses] | None = None,
        keep_body: bool = False,
    ) -> str:
        """Send an HTTP request once this step has committed. Returns its idempotency key.

        It is delivered at least once, always with the same Idempotency-Key header and body. The
        effects of a run are delivered in the order in which it asked for them.

        Args:   json: strict JSON. retry_on: the statuses, such as 404 or "5xx", after which it is
                sent again for as long as an outage may last, instead of the default ones; any other
                status but 2xx is then final. keep_body: on failure, show the beginning of the
                target's answer to everybody who may see the run; without it, only the status
        Raises: BadArgument - it can never be sent; a bug in the step, so not retried
        """
        check_texts(method=method, url=url, body="" if body is None else body)
        method, sent = method.upper(), dict(headers or {})
        check_request(method, url, sent)
        if json is not None and body is not None:
            raise BadArgument("SF1206", "outbox.http: give json or body, not both")
        if json is not None:
            body = strict_json(json).decode()
            if all(name.lower() != "content-type" for name in sent):
                sent["Content-Type"] = "application/json"
        effect = HttpEffect(
            method=method,
            url=url,
            headers=sent,
            body=body or "",
            keep_body=keep_body,
            retry_on=None if retry_on is None else parse_statuses(retry_on),
        )
        return self._add(HTTP, effect)

    def _add(self, kind: EffectKind[T], effect: T) -> str:
        key, payload = self._key(len(self._effects)), dump(kind.stored, effect)
        self._effects.append(Effect(agent=OUTBOX, run_id=key, payload=payload, **self._carried))
        return key


@dataclass(slots=True, kw_only=True)
class Context:
    """Passed to every attempt of a step; unusable once the attempt is over.

    It says which run and step this is, and collects what the step asks for: effects in `outbox`,
    messages in `thread`, to-do items in `plan`. `call` and `once` make work durable within a step.
    """

    agent: str
    run_id: str
    #: number of this step in the run, from 0
    seq: int
    step: str
    #: number of this attempt, from 0
    attempt: int
    engine: Engine
    #: see model.Run
    epoch: int = 0
    emit: int = 0
    #: this step is the compensation of a cancelled or failed run
    compensation: bool = False
    #: W3C trace context, to pass on to whatever the step calls; None: the run has no trace
    traceparent: str | None = None
    #: W3C: what accompanies it, unchanged
    tracestate: str | None = None
    baggage: str | None = None
    #: what earlier attempts of this step recorded, by slot
    journal: Mapping[str, Entry] = field(default_factory=dict)
    #: the run's thread so far
    messages: Sequence[bytes] = ()
    #: signals that no step has taken yet
    signals: Sequence[Entry] = ()
    memory: Memory = NO_MEMORY
    #: commands to other runs, sent with this step's commit; for the built-in agents
    commands: list[CommandRecord] = field(default_factory=list)
    outbox: Outbox = field(init=False)
    #: the run's conversation, to read and append to
    thread: Thread = field(init=False)
    #: the run's to-do list
    plan: Plan = field(init=False)
    _inbox: Inbox = field(init=False)
    _work: Work = field(init=False)
    _effects: list[Effect] = field(init=False, default_factory=list)
    _calls: Journal = field(init=False)

    def __post_init__(self) -> None:
        self._work = Work(seq=self.seq, attempt=self.attempt, epoch=self.epoch)
        self.outbox = Outbox(
            lambda index: idempotency_key(
                self.agent,
                self.run_id,
                self.seq,
                index,
                emit=self.emit,
                compensation=self.compensation,
            ),
            carried_on(self.traceparent, self.tracestate, self.baggage),
            self._effects,
        )
        self.thread = Thread(self.messages)
        self.plan = Plan(self.memory.plan, self.seq)
        self._inbox = Inbox(self.signals)
        self._calls = Journal(self.journal, self._work, self.memory, self.engine)

    def lease_left_s(self) -> float:
        """Return the seconds for which this worker may still act as the owner of the run."""
        return self.engine.lease_left_s()

    def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        permanent: ErrorKinds = (),
        reserve: Cost | None = None,
        cost: Callable[[Any], Cost | Awaitable[Cost]] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call `fn(*args)` and record its result. Durable when it returns.

        After a crash the step runs again, and this returns the recorded result without a call.

        Args:    name: repeating a name in one attempt means its next occurrence, counted in call
                 order; give concurrent calls different names. fn: async, or sync (then run in a
                 thread). args: plain data; if they differ from the recorded ones, the run goes to
                 `attention`. permanent: exceptions to record, as TerminalError always is. reserve:
                 the most it can use, set aside before the call; cost: maps its result to what it
                 used
        Raises:  CallFailed - a recorded failure, without its original exception; whatever else `fn`
                 raises, unrecorded
        Under cancellation: nothing is recorded; the next attempt calls again
        """
        return self._calls.call(name, fn, *args, permanent=permanent, reserve=reserve, cost=cost)

    def once(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        probe: Callable[..., Any] | None = None,
        permanent: ErrorKinds = (),
    ) -> Coroutine[Any, Any, Any]:
        """Call `fn(*args)` at most once, whatever crashes. Its intent is committed before the call,
        its outcome after.

        If a crash left only the intent, `probe(*args)` decides: None or False, it did not happen
        (and is done now); True, it did; any other value, it did, with that result. Without a probe
        the run goes to `attention`. An exception of `fn` leaves the call in doubt too, unless it is
        NotDone (certainly nothing happened; retried), TerminalError or one of `permanent` (both
        recorded, and raised as CallFailed).

        This holds across rewinds: the same call of the same step, with the same arguments, returns
        the recorded outcome. In a copy of the run (`surefoot runs fork`) it is in doubt.
        """
        return self._calls.once(name, fn, *args, probe=probe, permanent=permanent)

    def inbox(self, name: str) -> list[Signal]:
        """Take the signals of that name that arrived before this attempt and that no step has
        taken, such as a message in the middle of a run. This step's commit removes them."""
        return self._inbox.take(name)

    def stream(self, name: str) -> Stream:
        """Return the partial output of that name: `async with ctx.stream("draft") as draft`."""
        return Stream(self.run_id, name, self._work, self.journal, self.engine)

    def effects(self) -> tuple[Effect, ...]:
        """Return the effects asked for so far."""
        return tuple(self._effects)

    def taken(self) -> tuple[str, ...]:
        """Return the ids of the signals that this attempt took from the inbox."""
        return self._inbox.taken()

    @property
    def spent(self) -> Amounts:
        """What this step's calls used, in all its attempts."""
        return self._calls.spent
