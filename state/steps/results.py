"""What a step may return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError

StepFn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Next:
    """Go on with another step of the same agent."""

    #: the step function (as decorated with @agent.step)
    step: StepFn
    #: its input; of the type that the step declares
    payload: Any
    #: not before this long from now ("10m" or seconds)
    after: str | float | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Go on with another step at a time: an aware datetime, or so long from now ("3d", seconds).
    The time is of the wall clock, in UTC, and survives everything."""

    until: datetime | str | float
    then: StepFn
    payload: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The run is finished; `result` is kept in its receipt."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Signals:
    """Several signals in one wait; made by all_of, any_of, n_of."""

    names: tuple[str, ...]
    mode: str
    need: int


def all_of(*names: str) -> Signals:
    """One signal of each name."""
    return Signals(_unique(names), "all", len(names))


def any_of(*names: str) -> Signals:
    """The first signal of any of these names."""
    return Signals(_unique(names), "any", 1)


def n_of(need: int, *names: str) -> Signals:
    """The first `need` signals of these names, each as often as it comes."""
    if need < 1:
        raise ConfigError("SF1119", f"n_of: wait for at least one signal; got {need!r}")
    return Signals(_unique(names), "count", need)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names) or not all(names):
        raise ConfigError("SF1119", f"name signals, each once; got {names!r}")
    return names


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a signal, or for several. Signals that came earlier count.

    With one name the input of `then` is the payload of the signal, and a signal whose payload does
    not fit is refused; with all_of, any_of and n_of it is a list of Signal, in the order in which
    they came. Without `on_timeout` the run fails when the time is over; with it, that step goes on
    and its input is `carry`. `timeout` is so long from now, or a time: an aware datetime.
    """

    signal: str | Signals
    then: StepFn
    timeout: datetime | str | float | None = None
    on_timeout: StepFn | None = None
    #: third argument of `then`
    carry: Any = None


@dataclass(frozen=True, slots=True)
class Approve:
    """Ask a person. The answer is bound to a digest of `what`, which is also the third argument of
    `then`; the second one is an Approval. `by` names who may answer; empty: anybody.
    `on_timeout` goes on with `what` when nobody has answered within `expires`."""

    what: Any
    then: StepFn
    expires: str | float | None = None
    on_timeout: StepFn | None = None
    by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run branches side by side, each a run of its own, and go on when all are over.

    A branch is (step function or Agent or agent name, payload). With on_error="fail" the input of
    `join` is the list of results, in the order of the branches, and the first branch that fails
    fails this run and cancels the others; with "collect" it is a list of BranchResult.
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
    """Run another agent, and go on with its result as the input of `then`."""

    agent: Agent | str
    payload: Any
    then: StepFn
    #: third argument of `then`
    carry: Any = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """Another agent goes on in this run's place: whoever waits for this run gets that one's
    result."""

    agent: Agent | str
    payload: Any


# What steps are given after a wait ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal that has come."""

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
    """What became of a branch."""

    ok: bool
    result: Any = None
    #: code and message, when it is not ok
    failure: dict[str, Any] | None = field(default=None)
