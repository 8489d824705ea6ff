"""What a step may return, and what the steps after it receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from surefoot.schemas.payload import JsonObject
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError

StepFn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Next:
    """Continue with another step of the same agent."""

    #: the step function, as decorated with @agent.step
    step: StepFn
    #: input of that step, of the type it declares
    payload: Any
    #: earliest start, from now ("10m" or seconds); None: at once
    after: str | float | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Continue with another step later: at an aware datetime, or after a time ("3d", or seconds).

    The time is wall-clock time in UTC, and survives restarts and takeovers.
    """

    until: datetime | str | float
    then: StepFn
    payload: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The run is finished. Its receipt keeps `result`."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Signals:
    """Several signals in one wait; built by all_of, any_of and n_of."""

    names: tuple[str, ...]
    mode: str
    need: int


def all_of(*names: str) -> Signals:
    """Wait for one signal of each name."""
    return Signals(_unique(names), "all", len(names))


def any_of(*names: str) -> Signals:
    """Wait for the first signal with any of these names."""
    return Signals(_unique(names), "any", 1)


def n_of(need: int, *names: str) -> Signals:
    """Wait for `need` signals with any of these names; a name may count more than once."""
    if need < 1:
        raise ConfigError("SF1119", f"n_of: the number must be 1 or more; got {need!r}")
    return Signals(_unique(names), "count", need)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names) or not all(names):
        raise ConfigError("SF1119", f"give at least one signal name, and each once; got {names!r}")
    return names


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for one or several signals. Signals that arrived earlier count.

    With one name, the input of `then` is the signal's payload, and a signal whose payload has the
    wrong type is refused. With all_of, any_of and n_of it is a list of Signal, in order of arrival.
    `timeout` is an aware datetime, or a time from now ("3d", or seconds). When it is over, the run
    fails, or continues with `on_timeout`, whose input is `carry`.
    """

    signal: str | Signals
    then: StepFn
    timeout: datetime | str | float | None = None
    on_timeout: StepFn | None = None
    #: third argument of `then`
    carry: Any = None


@dataclass(frozen=True, slots=True)
class Approve:
    """Ask a person for a decision.

    `then` receives an Approval, and `what` as its third argument; the answer is bound to a digest
    of `what`. `by` names who may answer; empty: anybody. If nobody answers within `expires`, the
    run fails, or continues with `on_timeout`, whose input is `what`.
    """

    what: Any
    then: StepFn
    expires: str | float | None = None
    on_timeout: StepFn | None = None
    by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run branches concurrently, each as a run of its own, and continue when all are over.

    A branch is (step function or Agent or agent name, payload). With on_error="fail", the input of
    `join` is the list of results in the order of the branches; the first branch that fails makes
    this run fail and cancels the others. With "collect" it is a list of BranchResult.
    """

    branches: Sequence[tuple[StepFn | Agent | str, Any]]
    join: StepFn
    on_error: str = "fail"
    #: how many run at a time; None: all
    limit: int | None = None
    #: third argument of `join`
    carry: Any = None


@dataclass(frozen=True, slots=True)
class Call:
    """Run another agent, and continue with its result as the input of `then`."""

    agent: Agent | str
    payload: Any
    then: StepFn
    #: third argument of `then`
    carry: Any = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """Let another agent replace this run: whoever waits for this run gets that agent's result."""

    agent: Agent | str
    payload: Any


# What steps are given after a wait ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that arrived."""

    id: str
    name: str
    payload: Any
    by: str | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to a question."""

    approved: bool
    by: str | None
    note: str | None
    at_ms: int
    question: str


@dataclass(frozen=True, slots=True)
class BranchResult:
    """Outcome of a branch."""

    ok: bool
    result: Any = None
    #: code and message of the failure; None if ok
    failure: JsonObject | None = field(default=None)
