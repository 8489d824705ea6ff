"""Interprets a step's return value; refuses what cannot be stored or done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from surefoot.schemas.payload import BadPayload, dump, dump_own, load, text_of
from surefoot.state.declare.agent import Agent, Step
from surefoot.state.declare.durations import duration_s
from surefoot.state.errors import ConfigError, TerminalError
from surefoot.state.machine.model import (
    AwaitInput,
    Branch,
    Complete,
    GoTo,
    HandOver,
    StartChildren,
    StepResult,
)
from surefoot.state.steps.results import (
    Approve,
    Call,
    Done,
    Handoff,
    Next,
    Parallel,
    Signals,
    Sleep,
    Wait,
)

#: longest wait of any kind, in seconds: 1000 years
FOREVER_S = 1000 * 365.25 * 86_400

RETURNS = "Next, Sleep, Done, Wait, Approve, Parallel, Call or Handoff"


class UnusableResult(TerminalError):
    """A return value without a meaning; `code` is the failure's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def interpret(agent: Agent, step: Step, value: Any) -> tuple[StepResult, bytes | None]:
    """Return (the step's result, what is carried over the wait as strict JSON).

    Raises: UnusableResult; Unserialisable — with the path of what cannot be stored.
    """
    reading = _Reading(agent, step)
    try:
        match value:
            case Next():
                return reading.next(value), None
            case Sleep():
                return reading.sleep(value), None
            case Done():
                return Complete(result=dump_own(value.result)), None
            case Wait():
                return reading.wait(value)
            case Approve():
                return reading.approve(value)
            case Parallel():
                return reading.fork(value)
            case Call():
                return reading.call(value)
            case Handoff():
                return HandOver(to=reading.branch(value.agent, value.payload)), None
    except ConfigError as error:
        raise UnusableResult("bad_return", str(error)) from error
    raise UnusableResult(
        "bad_return",
        f"a step must return {RETURNS}; {step.name!r} returned {type(value).__name__}",
    )


class _Reading:
    def __init__(self, agent: Agent, step: Step) -> None:
        self._agent = agent
        self._step = step

    def next(self, value: Next) -> GoTo:
        target = self._plain(value.step, "Next")
        return GoTo(
            step=target.name,
            payload=dump(target.adapter, value.payload),
            after_ms=_ms(value.after),
        )

    def sleep(self, value: Sleep) -> GoTo:
        target = self._plain(value.then, "Sleep")
        payload = dump(target.adapter, value.payload)
        if not isinstance(value.until, datetime):
            return GoTo(step=target.name, payload=payload, after_ms=_ms(value.until))
        return GoTo(step=target.name, payload=payload, at_ms=_at_ms(value.until, "Sleep"))

    def wait(self, value: Wait) -> tuple[AwaitInput, bytes | None]:
        then = self._target(value.then, "Wait")
        carry = self._carry(then, value.carry, "Wait", value.on_timeout)
        if isinstance(value.signal, Signals):
            names, mode, need = value.signal.names, value.signal.mode, value.signal.need
        elif value.signal:
            names, mode, need = (value.signal,), "one", 1
        else:
            raise UnusableResult("bad_return", "Wait needs the name of a signal; it is empty")
        until_ms, timeout = None, value.timeout
        if isinstance(timeout, datetime):
            until_ms, timeout = _at_ms(timeout, "Wait"), None
        return AwaitInput(
            then=then.name,
            names=tuple(text_of(name) for name in names),
            mode=mode,
            need=need,
            timeout_ms=_ms(timeout),
            until_ms=until_ms,
            on_timeout=self._on_timeout(value.on_timeout, carry, "Wait"),
        ), carry

    def approve(self, value: Approve) -> tuple[AwaitInput, bytes | None]:
        then = self._target(value.then, "Approve")
        if then.carry_adapter is None:
            raise UnusableResult(
                "bad_return",
                f"step {then.name!r} follows Approve, so it must take (ctx, approval, what)",
            )
        about = dump(then.carry_adapter, value.what)
        by = [value.by] if isinstance(value.by, str) else value.by
        return AwaitInput(
            then=then.name,
            about=about,
            by=tuple(text_of(each) for each in by),
            timeout_ms=_ms(value.expires),
            on_timeout=self._on_timeout(value.on_timeout, about, "Approve"),
        ), about

    def fork(self, value: Parallel) -> tuple[StartChildren, bytes | None]:
        join = self._target(value.join, "Parallel")
        if value.on_error not in ("fail", "collect"):
            raise UnusableResult(
                "bad_return", f'on_error must be "fail" or "collect"; got {value.on_error!r}'
            )
        if value.limit is not None and value.limit < 1:
            raise UnusableResult(
                "bad_return", f"Parallel: limit must be 1 or more; got {value.limit!r}"
            )
        branches = tuple(self.branch(target, payload) for target, payload in value.branches)
        mode = "join" if value.on_error == "fail" else "collect"
        carry = self._carry(join, value.carry, "Parallel", None)
        return StartChildren(
            branches=branches, join=join.name, mode=mode, limit=value.limit or 0
        ), carry

    def call(self, value: Call) -> tuple[StartChildren, bytes | None]:
        then = self._target(value.then, "Call")
        branch = self.branch(value.agent, value.payload)
        carry = self._carry(then, value.carry, "Call", None)
        return StartChildren(branches=(branch,), join=then.name, mode="one"), carry

    def branch(self, target: Callable[..., Any] | Agent | str, payload: Any) -> Branch:
        if isinstance(target, Agent):
            data = dump(target.start_step.adapter, payload)
            return Branch(agent=target.name, step=None, payload=data)
        if isinstance(target, str):
            return Branch(agent=text_of(target), step=None, payload=dump_own(payload))
        step = self._plain(target, "a branch")
        return Branch(agent=self._agent.name, step=step.name, payload=dump(step.adapter, payload))

    def _target(self, fn: Callable[..., Any], what: str) -> Step:
        target = self._agent.step_of(fn)
        if target is None:
            name = getattr(fn, "__name__", repr(fn))
            raise UnusableResult(
                "unknown_step",
                f"{what} names {name!r}, which is not a step of agent {self._agent.name!r}",
            )
        return target

    def _plain(self, fn: Callable[..., Any], what: str) -> Step:
        target = self._target(fn, what)
        if target.carry_type is not None:
            raise UnusableResult(
                "bad_return",
                f"{what} names {target.name!r}, which takes a carry; only a wait has one",
            )
        return target

    def _carry(
        self, then: Step, carry: Any, what: str, on_timeout: Callable[..., Any] | None
    ) -> bytes | None:
        adapter: TypeAdapter[Any] | None = then.carry_adapter
        if adapter is None and on_timeout is not None:
            adapter = self._target(on_timeout, what).adapter
        if adapter is not None:
            return dump(adapter, carry)
        if carry is not None:
            raise UnusableResult(
                "bad_return",
                f"{what} has a carry, but step {then.name!r} has no third argument for it",
            )
        return None

    def _on_timeout(
        self, fn: Callable[..., Any] | None, carry: bytes | None, what: str
    ) -> str | None:
        if fn is None:
            return None
        step = self._plain(fn, what)
        try:
            load(step.adapter, carry or b"null")
        except BadPayload as error:
            raise UnusableResult(
                "bad_return",
                f"{what}: on_timeout={step.name} cannot take the carry as its payload: {error}",
            ) from error
        return step.name


def _at_ms(time: datetime, what: str) -> int:
    if time.tzinfo is None:
        raise UnusableResult("bad_return", f"{what} needs a time zone; got {time!r}")
    return round(time.timestamp() * 1000)


def _ms(duration: str | float | None) -> int | None:
    seconds = duration_s(duration)
    if seconds is not None and seconds > FOREVER_S:
        raise ConfigError("SF1111", f"a duration must be at most 1000 years; got {duration!r}")
    return None if seconds is None else max(1, round(seconds * 1000))
