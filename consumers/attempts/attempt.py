"""One attempt of one step: its input and its outcome.

A step's input is decoded and its result encoded on the steps' loop, where the author's code runs: a
value that cannot be stored is refused before the result counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.consumers.attempts.frames import frames
from surefoot.consumers.attempts.interpret import UnusableResult, interpret
from surefoot.schemas.payload import BadPayload, Unserialisable, load, parse_json, strict_json
from surefoot.state.declare.agent import Agent, Resuming, Step
from surefoot.state.declare.callables import label
from surefoot.state.declare.retry import FINAL, Retry, worth_retrying
from surefoot.state.errors import (
    BudgetSpent,
    ModelFailed,
    OwnershipLost,
    Parked,
    RetryableError,
)
from surefoot.state.machine.model import (
    NO_MEMORY,
    BudgetExceeded,
    Complete,
    Entry,
    EntryRecorded,
    Failure,
    OutputPiece,
    Run,
    StepReturned,
    Work,
)
from surefoot.state.machine.pooled_step import decode_input, encode_outcome, step_input
from surefoot.state.steps.context import Context
from surefoot.state.steps.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """The attempt failed.

    `retryable` False: another attempt cannot help. `park`: a person can, so the run waits instead
    of failing."""

    failure: Failure
    retryable: bool
    #: the step's policy; the step may have had another name when the run reached it
    retry: Retry
    park: bool = False
    retry_after_s: float | None = None
    started_ms: int | None = None
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """The engine gave up the attempt. It does not count, whatever its result."""


AttemptOutcome = StepReturned | BudgetExceeded | AttemptFailed | AttemptLost


def word_of(outcome: AttemptOutcome) -> str:
    """Return the outcome's name in metrics and traces."""
    match outcome:
        case StepReturned():
            return "completed"
        case AttemptFailed():
            return "failed"
        case BudgetExceeded():
            return "overspent"
        case AttemptLost():
            return "lost"


@dataclass(slots=True, kw_only=True, eq=False)
class StepCall:
    """One attempt of one step. Callbacks run on the engine's loop."""

    agent: Agent
    run: Run
    partition: int
    #: what earlier attempts of the step recorded, by slot
    journal: Mapping[str, Entry] = field(default_factory=dict)
    messages: Sequence[bytes] = ()
    #: signals in the run's inbox that nothing has taken yet
    signals: Sequence[Entry] = ()
    #: the run continues after a wait or a takeover: the author's checks run first
    resumed: bool = False
    lease_left_s: Callable[[], float]
    #: time from which no former owner can still believe it owns the run; monotonic seconds
    exclusive_from_s: float
    #: called once
    on_done: Callable[[AttemptOutcome], None]
    #: called to have something committed while the step runs; `Executor.recorded` confirms it
    on_note: Callable[[EntryRequest], None]
    #: called for each piece of partial output
    on_output: Callable[[OutputPiece], None]
    #: called when this attempt begins beside the given one, which was given up and has not ended
    on_beside: Callable[[StepCall], None]
    #: on the steps' loop
    task: asyncio.Task[AttemptOutcome] | None = field(default=None, init=False)
    #: whether its outcome is to be dropped
    given_up: bool = field(default=False, init=False)

    @property
    def key(self) -> tuple[str, str, int]:
        """Identifies the work: calls with the same key never run at the same time."""
        return (self.run.agent, self.run.run_id, self.run.seq)

    @property
    def work(self) -> Work:
        return Work(seq=self.run.seq, attempt=self.run.attempt, epoch=self.run.epoch)

    def describe(self) -> str:
        return f"{self.run.agent}.{self.run.step} of run {self.run.run_id}"


@dataclass(slots=True, eq=False)
class EntryRequest:
    """An entry that an attempt wants committed, and waits for."""

    call: StepCall
    journaled: EntryRecorded
    committed: asyncio.Future[None]


@dataclass(slots=True, kw_only=True)
class Body:
    """A step with its arguments, ready to be called."""

    call: StepCall
    step: Step
    context: Context
    payload: Any
    args: tuple[Any, ...]
    #: the agent that declares the step
    agent: Agent

    def outcome(self, value: Any, started_ms: int, took_ms: int) -> StepReturned:
        """Convert the step's return value. Raises what interpret raises."""
        then, carry = interpret(self.agent, self.step, value)
        returned = StepReturned(
            work=self.call.work,
            then=then,
            carry=carry,
            effects=self.context.effects(),
            commands=tuple(self.context.commands),
            messages=self.context.thread.appended(),
            read=self.context.taken(),
            plan=self.context.plan.changed(),
            started_ms=started_ms,
            took_ms=took_ms,
            version=self.agent.version,
        )
        if self.call.agent.home is None:
            return returned
        return self.told(replace(returned, cost=self.context.spent))

    def told(self, outcome: StepReturned | BudgetExceeded) -> StepReturned:
        """In a pool: wrap the outcome of the other run's step as the result of the pool's run."""
        return StepReturned(work=self.call.work, then=Complete(result=encode_outcome(outcome)))


async def prepare(call: StepCall, engine: Engine, traceparent: str | None = None) -> Body:
    """Find the step, upcast its input to this version of the agent, and decode it.

    Raises: Parked — the agent's code and the run's state do not fit; BadPayload.
    """
    run, agent = call.run, call.agent.home or call.agent
    given = step_input(run, call.messages, call.signals)
    if call.agent.home is not None:
        try:
            given = decode_input(run.payload)
        except ValueError as error:
            raise BadPayload("$", f"this is not the input of a pool's run: {error}") from error
    name, payload = await _upcast(agent, engine, given.version, run.step, given.payload)
    step = agent.steps.get(name)
    if step is None:
        failure = unknown_step(agent, name, given.version)
        raise Parked(failure.code, failure.message)
    context = Context(
        agent=agent.name,
        run_id=given.run_id,
        seq=given.seq,
        step=name,
        attempt=run.attempt,
        engine=engine,
        epoch=given.epoch,
        emit=given.emit,
        compensation=given.compensation,
        traceparent=traceparent,
        tracestate=run.tracestate,
        baggage=run.baggage,
        journal=call.journal,
        messages=given.messages,
        signals=given.signals,
        memory=given.memory or NO_MEMORY,
    )
    value = load(step.adapter, payload)
    args: tuple[Any, ...] = (context, value)
    if step.carry_adapter is not None:
        args = (*args, load(step.carry_adapter, given.carry or b"null"))
    return Body(call=call, step=step, context=context, payload=value, args=args, agent=agent)


def unknown_step(agent: Agent, name: str, version: int) -> Failure:
    """Return the failure for a step that this version of the agent does not have."""
    return Failure(
        code="unknown_step",
        message=f"agent {agent.name!r} version {agent.version} has no step {name!r}, where the run "
        f"(version {version}) stands; it has {', '.join(sorted(agent.steps))}. Declare "
        f"@agent.upcast(from_version={version}) to map the step, or deploy a version that has it, "
        "and then `surefoot runs retry`; or `surefoot runs rewind` it to an existing step, or "
        "cancel it",
        step=name,
    )


async def _upcast(
    agent: Agent, engine: Engine, version: int, step: str, payload: bytes
) -> tuple[str, bytes]:
    """Upcast (step, payload) to this version of the agent."""
    for number in range(version, agent.version):
        up = agent.upcasters.get(number)
        if up is None:
            continue
        try:
            step, value = await engine.invoke(up, (step, parse_json(payload)))
            payload = strict_json(value)
        except Exception as error:  # the author's code
            raise Parked(
                "upcast_failed",
                f"upcast from version {number} to {number + 1}, step {step!r}: "
                f"{type(error).__name__}: {error}",
            ) from error
    return step, payload


async def verify(body: Body, engine: Engine) -> None:
    """Run the author's own checks.

    Raises: Parked — with the message of the first check that fails, whatever it raises: only a
    check that returns has passed."""
    run = body.call.run
    resuming = Resuming(run_id=run.run_id, seq=run.seq, step=body.step.name, payload=body.payload)
    for check in body.agent.verifiers:
        try:
            await engine.invoke(check, (resuming,))
        except BaseException as error:
            if body.call.given_up:
                raise
            raise Parked("verify_failed", f"{label(check)}: {_text(error)}") from error


class StepTimeout(RetryableError):
    """An attempt took longer than its step allows."""


def classify(
    error: BaseException, call: StepCall, body: Body | None, started_ms: int, took_ms: int
) -> AttemptOutcome:
    """Return the outcome of an attempt that raised."""
    retry = body.step.retry if body is not None else Retry()
    meant = (OwnershipLost, Parked, BudgetSpent, *FINAL, *retry.give_up_on)
    for kind in (*meant, RetryableError, *(retry.on or ())):  # also from inside a TaskGroup's group
        found = error.subgroup(kind) if isinstance(error, BaseExceptionGroup) else error
        while isinstance(found, BaseExceptionGroup):
            error = found = found.exceptions[0]
    if call.given_up or isinstance(error, OwnershipLost):
        return AttemptLost()
    code, park, message = "step_raised", False, _text(error)
    match error:
        case BudgetSpent():
            spent = BudgetExceeded(work=call.work, what=error.what, message=message)
            if body is not None and call.agent.home is not None:
                return body.told(replace(spent, cost=body.context.spent))
            return spent
        case Parked():
            code, park = error.code, True
        case UnusableResult() | ModelFailed():
            code = error.code
        case StepTimeout():
            code = "timeout"
        case Unserialisable():
            code = "unserialisable"
        case BadPayload():
            code, park = "bad_payload", call.run.seq > 0 and body is None
    final = park or isinstance(error, Unserialisable | BadPayload)
    return AttemptFailed(
        failure=Failure(
            code=code,
            message=message,
            kind="" if isinstance(error, Parked | UnusableResult) else type(error).__name__,
            step=call.run.step,
            attempt=call.run.attempt,
            frames=frames(error, _package(body)),
        ),
        retryable=not final and worth_retrying(retry, error),
        retry=retry,
        park=park,
        retry_after_s=error.retry_after_s if isinstance(error, RetryableError) else None,
        started_ms=started_ms,
        took_ms=took_ms,
    )


def _package(body: Body | None) -> str:
    """Return the author's top-level package; empty before the step is known."""
    module = "" if body is None else getattr(body.step.fn, "__module__", None) or ""
    return module.partition(".")[0]


def _text(error: BaseException) -> str:
    """Return the text of an author's exception; its class, if the text is empty or raises."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  (user code)
        return type(error).__name__
