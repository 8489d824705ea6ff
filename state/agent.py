"""What an author declares: agents and their steps.

Everything that can be wrong with a declaration is an error here, at import: an unknown target, a
payload of the wrong type, a second start step, a name that could not be a topic.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, overload

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from surefoot.schemas.payload import BadPayload, load
from surefoot.state.errors import ConfigError
from surefoot.state.model import Amount, Amounts
from surefoot.state.retry import Retry
from surefoot.state.turn import Rules, pool_agent_name

_AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
#: of a run_id, whole
RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,255}$"
_RUN_ID = re.compile(RUN_ID_PATTERN)
_POOL_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DEFAULT_RETRY = Retry()

F = TypeVar("F", bound=Callable[..., Any])


def check_run_id(run_id: object) -> str:
    """Return `run_id` when it can name a run; ValueError says what is allowed otherwise."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            "run_id must be 1 to 256 characters of A-Z a-z 0-9 . _ : ~ = + - and begin with a "
            f"letter or a digit; got {str(run_id)[:80]!r}"
        )
    return run_id


def duration_s(value: str | float | None) -> float | None:
    """Seconds of "250ms", "30s", "2m", "1h", "2d" or of a plain number; None stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ConfigError(f'a duration looks like "30s", "2m" or "1h"; got {value!r}')
        value = float(match[1]) * _UNIT_S[match[2]]
    if not value > 0:
        raise ConfigError(f"a duration must be greater than 0 seconds; got {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One verified delivery, as a webhook mapping sees it."""

    source: str
    #: the sender's own id of the delivery, equal on every redelivery
    id: str
    event: str
    headers: Mapping[str, str]
    #: the raw bytes that the signature was verified over
    body: bytes
    json: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTrigger:
    """Starts a run from a delivery when `fn` returns a payload rather than None."""

    source: str
    event: str | None
    fn: Callable[[Webhook], Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an agent: the unit of commit."""

    name: str
    fn: Callable[..., Any]
    payload_type: Any
    #: type of the third argument, which comes from before a wait; None: the step takes two
    carry_type: Any
    retry: Retry
    timeout_s: float | None
    is_async: bool
    #: the pool whose workers run it; None: the owner of the run does
    pool: str | None = None
    #: how many of it one worker of the pool runs at a time
    concurrency: int | None = None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.payload_type)

    @cached_property
    def carry_adapter(self) -> TypeAdapter[Any] | None:
        return None if self.carry_type is None else TypeAdapter(self.carry_type)


RESULT: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one run may use; when it runs out, the run waits for somebody to grant as much again."""

    #: as told by `ctx.call(..., cost=...)`
    tokens: int | None = None
    #: the same, in your currency
    money: float | None = None
    #: of step bodies, all attempts
    seconds: float | None = None
    #: committed steps
    steps: int | None = None

    def amounts(self) -> Amounts:
        """In the units that are kept: money in millionths, time in milliseconds.

        Raises: ConfigError for what is not above 0.
        """
        made = []
        units = (
            ("money", self.money, 1e6), ("ms", self.seconds, 1e3), ("steps", self.steps, 1),
            ("tokens", self.tokens, 1),
        )  # fmt: skip
        for what, value, unit in units:
            if value is None:
                continue
            if not 0 < value * unit < 2**63:
                name = "seconds" if what == "ms" else what
                raise ConfigError(f"Budget: {name} must be above 0; got {value!r}")
            made.append(Amount(what, round(value * unit)))
        return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a compensation step is given: the step that did not happen, and why."""

    step: str
    payload: Any
    code: str
    message: str
    #: `ctx.once` calls whose outcome nobody knows
    in_doubt: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """What a verify hook is given: the run as it is about to go on."""

    run_id: str
    seq: int
    step: str
    payload: Any


@dataclass
class Agent:
    """A named, versioned set of steps; owns its topics and its consumer group.

    `ordered` makes the runs of one affinity (see state.partitioner) take turns, in the order in
    which they were started; the built-in outbox uses it to keep the order of a run's effects.
    `home` is set on the agent of a pool: the agent whose steps it runs.
    """

    name: str
    version: int = 1
    ordered: bool = False
    budget: Budget | None = None
    steps: dict[str, Step] = field(default_factory=dict, init=False)
    webhooks: list[WebhookTrigger] = field(default_factory=list, init=False)
    verifiers: list[Callable[[Resuming], Any]] = field(default_factory=list, init=False)
    upcasters: dict[int, Callable[[str, Any], tuple[str, Any]]] = field(
        default_factory=dict, init=False
    )
    compensations: dict[str, str] = field(default_factory=dict, init=False)
    home: Agent | None = field(default=None, init=False)
    _start: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not _AGENT_NAME.fullmatch(self.name):
            raise ConfigError(
                f"agent name {self.name!r}: use a lower-case letter, then up to 62 of a-z 0-9 -; "
                "it names topics and a consumer group"
            )
        if self.version < 1:
            raise ConfigError(f"agent {self.name}: version must be 1 or more")

    @overload
    def step(self, fn: F, /) -> F: ...
    @overload
    def step(
        self,
        /,
        *,
        start: bool = ...,
        retry: Retry = ...,
        timeout: str | float | None = ...,
        pool: str | None = ...,
        concurrency: int | None = ...,
    ) -> Callable[[F], F]: ...
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        start: bool = False,
        retry: Retry = _DEFAULT_RETRY,
        timeout: str | float | None = None,
        pool: str | None = None,
        concurrency: int | None = None,
    ) -> Any:
        """Declare a step: `async def name(ctx: Context, payload: T) -> Next | Done | Wait | ...`.

        A plain `def` runs in a thread. `timeout` is per attempt ("2m" or seconds). The first step
        declared is the start step unless another says start=True. A step that goes on after a wait
        may take a third argument: what the waiting step gave as `carry`. A step with `pool` is run
        by the workers of that pool (`surefoot worker --pool`), `concurrency` at a time in each.

        Raises: ConfigError at import when the declaration cannot work.
        """

        def declare(fn: F) -> F:
            step = self._declare(fn, retry, duration_s(timeout), pool, concurrency)
            if start and self._start is not None:
                raise ConfigError(
                    f"step {step.name!r} of agent {self.name!r}: the agent already starts with "
                    f"{self._start!r}"
                )
            if start:
                self._start = step.name
            return fn

        return declare if fn is None else declare(fn)

    def _declare(
        self,
        fn: Callable[..., Any],
        retry: Retry,
        timeout_s: float | None,
        pool: str | None = None,
        concurrency: int | None = None,
    ) -> Step:
        name = fn.__name__
        where = f"step {name!r} of agent {self.name!r}"
        if name in self.steps:
            raise ConfigError(f"{where} is declared twice; give one of them another name")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigError(f"{where} is a generator; return Next(...) or Done(...) instead")
        if pool is not None and not _POOL_NAME.fullmatch(pool):
            raise ConfigError(f"{where}: pool {pool!r}: use a-z 0-9 -, up to 31 characters")
        if concurrency is not None and (pool is None or concurrency < 1):
            raise ConfigError(f"{where}: concurrency is a number from 1, and needs pool=...")
        payload_type, carry_type = _argument_types(fn, where)
        step = Step(
            name=name,
            fn=fn,
            payload_type=payload_type,
            carry_type=carry_type,
            retry=retry,
            timeout_s=timeout_s,
            is_async=inspect.iscoroutinefunction(fn),
            pool=pool,
            concurrency=concurrency,
        )
        try:
            _ = step.adapter, step.carry_adapter
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ConfigError(
                f"{where}: its payload type {step.payload_type!r} cannot be stored; use a "
                f"dataclass, a pydantic model, a TypedDict or plain JSON types ({error})"
            ) from error
        self.steps[name] = step
        return step

    def on_cancel(self, fn: F) -> F:
        """Declare the step that a cancelled run still does: `async def undo(ctx, ended: Ended)`.
        The run is `cancelled` when it returns Done (or the last step that it leads to does)."""
        return self._compensate("cancelled", fn)

    def on_failure(self, fn: F) -> F:
        """Declare the step that a run does before it is `failed`; see on_cancel."""
        return self._compensate("failed", fn)

    def _compensate(self, ending: str, fn: F) -> F:
        if ending in self.compensations:
            raise ConfigError(
                f"agent {self.name!r}: {self.compensations[ending]!r} is already what a run does "
                f"before it is {ending}"
            )
        step = self._declare(fn, _DEFAULT_RETRY, None)
        if step.payload_type is not Ended or step.carry_type is not None:
            raise ConfigError(f"step {step.name!r} of agent {self.name!r} must take (ctx, Ended)")
        self.compensations[ending] = step.name
        return fn

    def verify(self, fn: F) -> F:
        """Declare a check of a run that is about to go on after a wait or a takeover:
        `async def check(run: Resuming) -> None`. What it raises parks the run for a person."""
        self.verifiers.append(fn)
        return fn

    def upcast(self, *, from_version: int) -> Callable[[F], F]:
        """Declare how state of an older version becomes that of the next one:
        `def up(step: str, payload: Any) -> tuple[str, Any]`, on plain JSON values."""

        def declare(fn: F) -> F:
            if not 1 <= from_version < self.version or from_version in self.upcasters:
                raise ConfigError(
                    f"agent {self.name!r}: upcast(from_version={from_version}) must be below "
                    f"version {self.version}, and declared once"
                )
            self.upcasters[from_version] = fn
            return fn

        return declare

    def webhook(self, source: str, *, event: str | None = None) -> Callable[[F], F]:
        """Start a run from a verified delivery: `def f(delivery: Webhook) -> payload | None`.

        None says that the delivery is not for this agent. `event` filters by the sender's event
        name (GitHub: X-GitHub-Event).
        """

        def declare(fn: F) -> F:
            if inspect.iscoroutinefunction(fn):
                raise ConfigError(
                    f"webhook {fn.__name__!r} of agent {self.name!r}: a mapping is a plain "
                    "function; do the work in a step"
                )
            self.webhooks.append(WebhookTrigger(source=source, event=event, fn=fn))
            return fn

        return declare

    @property
    def start_step(self) -> Step:
        """The step that a new run begins with; ConfigError when there is none."""
        ordinary = [name for name in self.steps if name not in self.compensations.values()]
        if not ordinary:
            raise ConfigError(f"agent {self.name!r} has no steps; declare one with @agent.step")
        return self.steps[self._start or ordinary[0]]

    def step_of(self, fn: Callable[..., Any]) -> Step | None:
        """The step that was declared with this function, if it is one of this agent."""
        step = self.steps.get(getattr(fn, "__name__", ""))
        return step if step is not None and step.fn is fn else None

    @cached_property
    def rules(self) -> Rules:
        """What the machine has to know of the agent. Declare everything first."""
        return Rules(
            agent=self.name,
            steps=frozenset(self.steps),
            pools={step.name: step.pool for step in self.steps.values() if step.pool},
            on_cancel=self.compensations.get("cancelled"),
            on_failure=self.compensations.get("failed"),
            budget=self.budget.amounts() if self.budget is not None else (),
            accepts=self._accepts,
        )

    def _accepts(self, step: str, payload: bytes) -> str | None:
        """Why that step cannot take that input; None when it can."""
        try:
            load(self.steps[step].adapter, payload)
        except BadPayload as error:
            return str(error)
        return None

    @property
    def pools(self) -> list[str]:
        """The pools that its steps name."""
        return sorted({step.pool for step in self.steps.values() if step.pool})

    def pool(self, name: str) -> Agent:
        """The agent that runs the steps of one pool: a pooled step is a child run of it, so that
        it has a consumer group and topics of its own. ConfigError when there is no such pool."""
        if name not in self.pools:
            raise ConfigError(
                f"agent {self.name!r} has no pool {name!r}; it has: {', '.join(self.pools) or '-'}"
            )
        made = Agent(self.name, version=self.version)
        made.name = pool_agent_name(self.name, name)
        made.home = self
        made.steps = {
            step.name: replace(step, pool=None) for step in self.steps.values() if step.pool == name
        }
        return made


def _argument_types(fn: Callable[..., Any], where: str) -> tuple[Any, Any]:
    """(type of the payload, type of the carry or None)."""
    parameters = list(inspect.signature(fn).parameters.values())
    if len(parameters) not in (2, 3):
        raise ConfigError(
            f"{where} must take two arguments, (ctx: Context, payload: YourType), or a third one: "
            "what is carried over a wait"
        )
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{where}: {error}; declare the types of a step at module level, above it"
        ) from error
    for parameter in parameters[1:]:
        if parameter.name not in hints:
            raise ConfigError(
                f"{where}: annotate {parameter.name!r} with the type of the payload, so that it "
                "can be checked and stored"
            )
    types = [hints[parameter.name] for parameter in parameters[1:]]
    return types[0], types[1] if len(types) > 1 else None
