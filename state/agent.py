"""What an author declares: agents, their steps, and what a step may return.

Everything that can be wrong with a declaration is an error here, at import: an unknown target, a
payload of the wrong type, a second start step, a name that could not be a topic.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, overload

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from surefoot.state.errors import ConfigError
from surefoot.state.retry import Retry

_AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,255}")
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


@dataclass(frozen=True, slots=True)
class Next:
    """Go on with another step of the same agent."""

    #: the step function (as decorated with @agent.step)
    step: Callable[..., Any]
    #: its input; of the type that the step declares
    payload: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The run is finished; `result` is kept in its receipt."""

    result: Any = None


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
    retry: Retry
    timeout_s: float | None
    is_async: bool

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.payload_type)


RESULT: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass
class Agent:
    """A named, versioned set of steps; owns its topics and its consumer group.

    `ordered` makes the runs of one affinity (see state.partitioner) take turns, in the order in
    which they were started; the built-in outbox uses it to keep the order of a run's effects.
    """

    name: str
    version: int = 1
    ordered: bool = False
    steps: dict[str, Step] = field(default_factory=dict, init=False)
    webhooks: list[WebhookTrigger] = field(default_factory=list, init=False)
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
        self, /, *, start: bool = ..., retry: Retry = ..., timeout: str | float | None = ...
    ) -> Callable[[F], F]: ...
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        start: bool = False,
        retry: Retry = _DEFAULT_RETRY,
        timeout: str | float | None = None,
    ) -> Any:
        """Declare a step: `async def name(ctx: Context, payload: T) -> Next | Done`.

        A plain `def` runs in a thread. `timeout` is per attempt ("2m" or seconds). The first step
        declared is the start step unless another says start=True.

        Raises: ConfigError at import when the declaration cannot work.
        """

        def declare(fn: F) -> F:
            self._declare(fn, start, retry, duration_s(timeout))
            return fn

        return declare if fn is None else declare(fn)

    def _declare(
        self, fn: Callable[..., Any], start: bool, retry: Retry, timeout_s: float | None
    ) -> None:
        name = fn.__name__
        where = f"step {name!r} of agent {self.name!r}"
        if name in self.steps:
            raise ConfigError(f"{where} is declared twice; give one of them another name")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigError(f"{where} is a generator; return Next(...) or Done(...) instead")
        step = Step(
            name=name,
            fn=fn,
            payload_type=_payload_type(fn, where),
            retry=retry,
            timeout_s=timeout_s,
            is_async=inspect.iscoroutinefunction(fn),
        )
        try:
            _ = step.adapter
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ConfigError(
                f"{where}: its payload type {step.payload_type!r} cannot be stored; use a "
                f"dataclass, a pydantic model, a TypedDict or plain JSON types ({error})"
            ) from error
        if start and self._start is not None:
            raise ConfigError(f"{where}: agent {self.name!r} already starts with {self._start!r}")
        if start:
            self._start = name
        self.steps[name] = step

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
        if not self.steps:
            raise ConfigError(f"agent {self.name!r} has no steps; declare one with @agent.step")
        return self.steps[self._start or next(iter(self.steps))]

    def step_of(self, fn: Callable[..., Any]) -> Step | None:
        """The step that was declared with this function, if it is one of this agent."""
        step = self.steps.get(getattr(fn, "__name__", ""))
        return step if step is not None and step.fn is fn else None


def _payload_type(fn: Callable[..., Any], where: str) -> Any:
    parameters = list(inspect.signature(fn).parameters.values())
    if len(parameters) != 2:  # noqa: PLR2004  (ctx and payload)
        raise ConfigError(f"{where} must take two arguments: (ctx: Context, payload: YourType)")
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{where}: {error}; declare the types of a step at module level, above it"
        ) from error
    if parameters[1].name not in hints:
        raise ConfigError(
            f"{where}: annotate {parameters[1].name!r} with the type of the payload, so that it "
            "can be checked and stored"
        )
    return hints[parameters[1].name]
