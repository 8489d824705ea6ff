"""What a step's body is given: who it is, and what it wants to happen when it commits.

Effects, messages and the plan are only collected: nothing of them exists before the step's commit.
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
    HttpEffect,
    Statuses,
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
    """Key of effect `index` of step `seq`: the same on every attempt, redrive and replay, unless
    somebody asked for a replay whose effects are sent anew (`emit`, the epoch of the run). What
    compensation sends has keys of its own: the run may be sent back and come to that seq again."""
    marks = (f"~e{emit}" if emit else "") + ("~c" if compensation else "")
    return f"{agent}:{run_id}{marks}:{seq}:{index}"


@dataclass(slots=True)
class Outbox:
    """Side effects of the step, delivered after its commit and only then."""

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
        retry_on: Iterable[Statuses] | None = None,
        keep_body: bool = False,
    ) -> str:
        """Send an HTTP request once this step has committed. Returns its idempotency key.

        It is delivered at least once, always with the same Idempotency-Key header and body, in the
        order in which this run asked for it.

        Args:   json: strict JSON. retry_on: the statuses, such as 404 or "5xx", after which it is
                sent again for as long as an outage may last, instead of the usual ones; any other
                but 2xx is final then. keep_body: if it fails, show the beginning of what the target
                answered to everybody who may see the run; the status only otherwise
        Raises: BadArgument (a bug in the step, so not retried) for what can never be sent.
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
    """Handed to every attempt of a step; dead once the attempt is over."""

    agent: str
    run_id: str
    #: number of this step in the run, from 0
    seq: int
    step: str
    #: attempts of this step that are over, from 0
    attempt: int
    engine: Engine
    #: see model.Run
    epoch: int = 0
    emit: int = 0
    #: this step is what a cancelled or failed run still does
    compensation: bool = False
    #: W3C trace context, to hand on to whatever the step calls; None: its run belongs to no trace
    traceparent: str | None = None
    #: W3C: what goes on with it, as it came
    tracestate: str | None = None
    baggage: str | None = None
    #: what earlier attempts of this step have recorded, by slot
    journal: Mapping[str, Entry] = field(default_factory=dict)
    #: the run's thread so far
    messages: Sequence[bytes] = ()
    #: signals that nobody has taken yet
    signals: Sequence[Entry] = ()
    memory: Memory = NO_MEMORY
    #: to other runs, with this step's commit; for the built-in agents
    commands: list[CommandRecord] = field(default_factory=list)
    outbox: Outbox = field(init=False)
    #: the run's conversation, to read and to append to
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
        """Seconds for which this worker may still act as the owner of the run."""
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
        """Call `fn(*args)` and record its result: after a crash the step runs again and this gives
        the recorded result without calling. Durable when it returns.

        Args:    name: the same name again in one attempt is the next occurrence, counted in the
                 order of the calls: name what runs side by side apart. fn: async, or sync (then in
                 a thread). args: data; with other ones than recorded the run goes to `attention`.
                 permanent: exceptions that are recorded too, like TerminalError. reserve: what it
                 uses at most, set aside before; cost: of its result, what it used
        Raises:  CallFailed for a recorded failure, without the exception that it was made of;
                 what `fn` raises otherwise, unrecorded
        Under cancellation nothing is recorded, and it is called again.
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
        """Call `fn(*args)` at most once, whatever crashes: the intent is committed before, the
        outcome after.

        When only the intent is there, `probe(*args)` decides: None or False, it did not happen (and
        is done now); True, it did; anything else, it did, and that is its result. Without a probe
        the run goes to `attention`. An exception of `fn` leaves it in doubt too, unless it is
        NotDone (certainly nothing happened; retried), TerminalError or one of `permanent`
        (recorded, raised as CallFailed).

        It holds over rewinds: the same call of the same step, with the same arguments, gets the
        recorded outcome back. In a copy of the run (`surefoot runs fork`) it is in doubt.
        """
        return self._calls.once(name, fn, *args, probe=probe, permanent=permanent)

    def inbox(self, name: str) -> list[Signal]:
        """The signals of that name that had come when this attempt began and that nobody has
        taken: a message in the middle of a run, for one. They are gone with this step's commit."""
        return self._inbox.take(name)

    def stream(self, name: str) -> Stream:
        """Partial output under that name: `async with ctx.stream("draft") as draft`."""
        return Stream(self.run_id, name, self._work, self.journal, self.engine)

    def effects(self) -> tuple[Effect, ...]:
        """What has been asked for so far."""
        return tuple(self._effects)

    def taken(self) -> tuple[str, ...]:
        """Ids of the signals that this attempt has taken out of the inbox."""
        return self._inbox.taken()

    @property
    def spent(self) -> Amounts:
        """What this step's calls have used, in all its attempts."""
        return self._calls.spent
