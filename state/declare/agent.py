"""Agents and their steps, as an author declares them.

A mistake in a declaration is an error at import: a second start step, a type that cannot be stored,
a name that cannot be a topic. Targets and their payloads are checked once the whole agent is loaded
(state.inspect.lint).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, overload

from pydantic import TypeAdapter

from surefoot.schemas.foreign.event_avro import SchemaFile
from surefoot.schemas.payload import BadPayload, load
from surefoot.schemas.pointer import pointers, unescaped
from surefoot.state.declare.annotations import MISSING, annotation, why_hidden
from surefoot.state.declare.callables import is_async, label
from surefoot.state.declare.durations import duration_s
from surefoot.state.declare.flow_control import Flow, Rate
from surefoot.state.declare.retry import Retry
from surefoot.state.declare.sources import (
    FolderTrigger,
    QueueTrigger,
    folder_trigger,
    queue_trigger,
)
from surefoot.state.declare.stored_types import adapter_of
from surefoot.state.declare.subscriptions import RunEvent, Subscription, subscription
from surefoot.state.declare.topics import EventTrigger, declare_event
from surefoot.state.declare.webhooks import Provider, Webhook, WebhookTrigger, declare_webhook
from surefoot.state.errors import BadArgument, ConfigError
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import Amount, Amounts
from surefoot.state.names.agents import SCHEDULES, pool_agent_name
from surefoot.state.names.ids import RUN_ID_MAX, _made_of, check_run_id
from surefoot.state.ports.sources import StartPosition
from surefoot.state.scheduling.book import Misfire, Overlap, Spec, Tick, spec_of

_AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_POOL_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_SCHEDULE_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")

_DEFAULT_RETRY = Retry()

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Starts a run at each tick for which `fn` returns a payload rather than None."""

    name: str
    spec: Spec
    fn: Callable[[Tick], Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an agent: the unit of commit."""

    name: str
    fn: Callable[..., Any]
    payload_type: Any
    #: type of the third argument, carried over a wait; None: the step takes two arguments
    carry_type: Any
    retry: Retry
    timeout_s: float | None
    is_async: bool
    #: the pool whose workers run it; None: the owner of the run does
    #: the pool whose workers run the step; None: the owner of the run does
    pool: str | None = None
    #: how many of this step one worker of the pool runs at a time
    concurrency: int | None = None
    #: limit on how often the step runs for the runs of one key
    rate: Rate | None = None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.payload_type)

    @cached_property
    def carry_adapter(self) -> TypeAdapter[Any] | None:
        return None if self.carry_type is None else TypeAdapter(self.carry_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one run may use. When it is spent, the run waits until somebody grants as much again."""

    #: as reported by `ctx.call(..., cost=...)`
    tokens: int | None = None
    #: also as reported by calls, in your currency
    money: float | None = None
    #: seconds in step bodies, all attempts together
    seconds: float | None = None
    #: committed steps
    steps: int | None = None

    def amounts(self) -> Amounts:
        """Return the limits in stored units: money in millionths, time in milliseconds.

        Raises: ConfigError - a value is not above 0
        """
        made = []
        units = (
            ("money", self.money, 1e6),
            ("ms", self.seconds, 1e3),
            ("steps", self.steps, 1),
            ("tokens", self.tokens, 1),
        )
        for what, value, unit in units:
            if value is None:
                continue
            if not 0 < value * unit < 2**63:
                name = "seconds" if what == "ms" else what
                raise ConfigError("SF1113", f"Budget: {name} must be above 0; got {value!r}")
            made.append(Amount(what, round(value * unit)))
        return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Input of a compensation step: the step that did not complete, and why."""

    step: str
    payload: Any
    code: str
    message: str
    #: `ctx.once` calls with an unknown outcome
    in_doubt: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """Input of a verify hook: the run that is about to continue."""

    run_id: str
    seq: int
    step: str
    payload: Any


@dataclass
class Agent:
    """A named, versioned set of steps; owns its topics and its consumer group.

    Create it at module level and declare everything with its decorators: steps, triggers,
    schedules. `flow` limits when its runs may begin (see state.declare.flow_control); the built-in
    outbox uses it to deliver a run's effects in order. `home` is set only on the agent of a pool:
    the agent whose steps the pool runs.

    Raises: ConfigError - the name cannot be a topic, or the version is below 1
    """

    name: str
    version: int = 1
    flow: Flow | None = None
    budget: Budget | None = None
    steps: dict[str, Step] = field(default_factory=dict, init=False)
    webhooks: list[WebhookTrigger] = field(default_factory=list, init=False)
    #: by topic
    event_triggers: dict[str, EventTrigger] = field(default_factory=dict, init=False)
    schedules: dict[str, Schedule] = field(default_factory=dict, init=False)
    queues: list[QueueTrigger] = field(default_factory=list, init=False)
    folders: list[FolderTrigger] = field(default_factory=list, init=False)
    #: outgoing webhooks for the events of its runs, by name
    subscriptions: dict[str, Subscription] = field(default_factory=dict, init=False)
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
                "SF1103",
                f"agent name {self.name!r}: use a lower-case letter, then up to 62 of a-z 0-9 -; "
                "it names topics and a consumer group",
            )
        if self.version < 1:
            raise ConfigError("SF1105", f"agent {self.name}: version must be 1 or more")

    @overload
    def step(self, fn: F, /) -> F: ...
    @overload
    def step(
        self,
        /,
        *,
        name: str | None = ...,
        start: bool = ...,
        retry: Retry = ...,
        timeout: str | float | None = ...,
        pool: str | None = ...,
        concurrency: int | None = ...,
        rate: Rate | None = ...,
    ) -> Callable[[F], F]: ...
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        start: bool = False,
        retry: Retry = _DEFAULT_RETRY,
        timeout: str | float | None = None,
        pool: str | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
    ) -> Any:
        """Declare a step: `async def name(ctx: Context, payload: T) -> Next | Done | Wait | ...`.

        A plain `def` runs in a thread; an awaitable that it returns is awaited. The step has the
        name of the function; a partial or a callable object needs `name`. The first step declared
        is the start step, unless another one has start=True. A step that continues after a wait
        may take a third argument: the `carry` of the step that waited.

        Args:    start: whether runs begin with this step. retry: its retry policy. timeout: for
                 one attempt, "2m" or seconds. pool: the pool whose workers run it (`surefoot
                 worker --pool`); concurrency: how many of it each of them runs at a time. rate:
                 how often it runs for all runs of one key of the agent's flow
        Raises:  ConfigError - at import, when the declaration cannot work
        """

        def declare(fn: F) -> F:
            step = self._declare(fn, retry, duration_s(timeout), pool, concurrency, rate, name)
            if start and self._start is not None:
                raise ConfigError(
                    "SF1107",
                    f"step {step.name!r} of agent {self.name!r}: the agent already starts with "
                    f"{self._start!r}",
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
        rate: Rate | None = None,
        name: str | None = None,
    ) -> Step:
        name = getattr(fn, "__name__", None) if name is None else name
        if not name:
            raise ConfigError(
                "SF1108",
                f"agent {self.name!r}: {label(fn)} has no name; write "
                '@agent.step(name="..."), or wrap it in a def',
            )
        where = f"step {name!r} of agent {self.name!r}"
        if name in self.steps:
            raise ConfigError("SF1107", f"{where} is declared twice; give one of them another name")
        if (same := self.step_of(fn)) is not None:
            raise ConfigError(
                "SF1107",
                f"{where} is the same function as step {same.name!r}, so Next(...) cannot tell "
                "them apart; use another function, such as a functools.partial",
            )
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigError(
                "SF1108", f"{where} is a generator; return Next(...) or Done(...) instead"
            )
        if pool is not None and not _POOL_NAME.fullmatch(pool):
            raise ConfigError(
                "SF1110", f"{where}: pool {pool!r}: use a-z 0-9 -, up to 31 characters"
            )
        if pool == SCHEDULES:
            raise ConfigError(
                "SF1110", f"{where}: pool name {SCHEDULES!r} is reserved; choose another one"
            )
        if concurrency is not None and (pool is None or concurrency < 1):
            raise ConfigError(
                "SF1110", f"{where}: concurrency must be 1 or more, and needs pool=..."
            )
        if rate is not None and (self.flow is None or pool is not None):
            raise ConfigError(
                "SF1125",
                f"{where}: a rate needs a flow and cannot be used in a pool; declare "
                "Agent(..., flow=Flow(key=...)) for a rate per key, or flow=Flow() for one of "
                "all runs",
            )
        payload_type, carry_type = _argument_types(fn, where)
        step = Step(
            name=name,
            fn=fn,
            payload_type=payload_type,
            carry_type=carry_type,
            retry=retry,
            timeout_s=timeout_s,
            is_async=is_async(fn),
            pool=pool,
            concurrency=concurrency,
            rate=rate,
        )
        for kind in (payload_type, carry_type):
            adapter_of(kind, where)
        self.steps[name] = step
        return step

    def on_cancel(self, fn: F) -> F:
        """Declare the compensation of a cancelled run: `async def undo(ctx, ended: Ended)`.

        The run becomes `cancelled` when this step, or the last step it leads to, returns Done.
        """
        return self._compensate("cancelled", fn)

    def on_failure(self, fn: F) -> F:
        """Declare the compensation that runs before a run becomes `failed`; see on_cancel."""
        return self._compensate("failed", fn)

    def _compensate(self, ending: str, fn: F) -> F:
        if ending in self.compensations:
            raise ConfigError(
                "SF1114",
                f"agent {self.name!r} already has a compensation for {ending} runs: "
                f"{self.compensations[ending]!r}; remove one of them",
            )
        step = self._declare(fn, _DEFAULT_RETRY, None)
        if step.payload_type is not Ended or step.carry_type is not None:
            raise ConfigError(
                "SF1114", f"step {step.name!r} of agent {self.name!r} must take (ctx, Ended)"
            )
        self.compensations[ending] = step.name
        return fn

    def verify(self, fn: F) -> F:
        """Declare a check of a run that continues after a wait or a takeover.

        `async def check(run: Resuming) -> None`. Any exception it raises parks the run for a
        person.
        """
        self.verifiers.append(fn)
        return fn

    def upcast(self, *, from_version: int) -> Callable[[F], F]:
        """Declare how state of an older version becomes state of the next one.

        `def up(step: str, payload: Any) -> tuple[str, Any]`, on plain JSON values.

        Raises: ConfigError - `from_version` is not below the agent's version, or declared twice
        """

        def declare(fn: F) -> F:
            if not 1 <= from_version < self.version or from_version in self.upcasters:
                raise ConfigError(
                    "SF1115",
                    f"agent {self.name!r}: upcast(from_version={from_version}) must be 1 or more, "
                    f"below version {self.version}, and declared once",
                )
            self.upcasters[from_version] = fn
            return fn

        return declare

    def webhook(
        self,
        source: str,
        *,
        provider: Provider | None = None,
        event: str | Iterable[str] | None = None,
        where: Callable[[Webhook], Any] | None = None,
    ) -> Callable[[F], F]:
        """Start runs from a verified delivery: `def f(delivery: Webhook) -> payload | None`.

        Return None to ignore the delivery, or a list of `Start` to start several runs. The route
        is /webhooks/<source>.

        Args:    provider: who sends, and so how a delivery is verified; needless where `source` is
                 the name of a built-in one. event: the sender's event name (GitHub:
                 X-GitHub-Event), or several; None: all. where: filters on the rest of the delivery
        Raises:  ConfigError - at import, when the declaration cannot work
        """

        def add(fn: F) -> F:
            self.webhooks.append(
                declare_webhook(self.name, fn, source, provider=provider, event=event, where=where)
            )
            return fn

        return add

    def on_event(
        self,
        *,
        topic: str,
        schema: SchemaFile | None = None,
        key: Callable[..., Any] | str | None = None,
        where: Callable[..., Any] | None = None,
        start: str = "latest",
    ) -> Callable[[F], F]:
        """Start a run from each record of a Kafka topic: `def f(event: T) -> payload | None`.

        Return None to ignore the event. `fn`, `where` and `key` may each take a second argument,
        `received: Received`.

        Args:    schema: the schema that Avro is read with: an .avsc file beside the agent's. key:
                 a function, or a field of T, that gives the run_id; without it, each event starts
                 a run of its own. where: filters events. start: where a new trigger begins,
                 "latest" or "earliest"
        Raises:  ConfigError - at import, when the declaration cannot work
        """

        def declare(fn: F) -> F:
            if topic in self.event_triggers:
                raise ConfigError(
                    "SF1126",
                    f"agent {self.name!r} listens to topic {topic!r} twice; declare one on_event "
                    "with a union of the event types",
                )
            self.event_triggers[topic] = declare_event(
                self.name, fn, topic=topic, schema=schema, key=key, where=where, start=start
            )
            return fn

        return declare

    def sqs(self, queue: str) -> Callable[[F], F]:
        """Start runs from the messages of an SQS queue, given by name or URL.

        `def f(message: S3Object | EventBridgeEvent | QueueMessage) -> payload | None`: annotate
        the argument with the one type the function takes. Return None to ignore the message.

        Raises: ConfigError - at import, when the declaration cannot work
        """

        def declare(fn: F) -> F:
            self.queues.append(queue_trigger(self.name, queue, fn))
            return fn

        return declare

    def schedule(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        jitter: str | float | None = None,
        overlap: Overlap = "skip",
        misfire: Misfire = "latest",
        grace: str | float = "1m",
    ) -> Callable[[F], F]:
        """Start a run at each tick of a cron expression: `def f(tick: Tick) -> payload | None`.

        Return None to start nothing at this tick.

        Args:    name: default: the function's name. jitter: delays each start by up to this long.
                 overlap: what happens to a tick while an earlier run is unfinished: skip it, queue
                 it, cancel the earlier run, or allow both. misfire: which ticks still run when
                 they are more than `grace` late: all, the latest, or none
        Raises:  ConfigError - at import, when the declaration cannot work
        """

        def declare(fn: F) -> F:
            known = label(fn).replace("_", "-") if name is None else name
            where = f"schedule {known!r} of agent {self.name!r}"
            if not _SCHEDULE_NAME.fullmatch(known):
                raise ConfigError(
                    "SF1127",
                    f"{where}: name it with a lower-case letter, then up to 62 of a-z 0-9 -",
                )
            if known in self.schedules:
                raise ConfigError(
                    "SF1127", f"{where} is declared twice; give one of them another name"
                )
            try:
                spec = spec_of(
                    cron,
                    tz,
                    jitter_s=duration_s(jitter),
                    overlap=overlap,
                    misfire=misfire,
                    grace_s=duration_s(grace),
                )
            except ConfigError as error:
                raise ConfigError("SF1127", f"{where}: {error}") from error
            self.schedules[known] = Schedule(name=known, spec=spec, fn=fn)
            return fn

        return declare

    def files(self, pattern: str) -> Callable[[F], F]:
        """Start a run from each file that appears in a folder.

        `def f(file: WatchedFile) -> payload | None`. `pattern` is a folder and a file name, such
        as "inbox/*.json", relative to the working directory of the command. Return None to ignore
        the file.

        Raises: ConfigError - at import, when the declaration cannot work
        """

        def declare(fn: F) -> F:
            self.folders.append(folder_trigger(self.name, pattern, fn))
            return fn

        return declare

    def subscribe(
        self,
        name: str,
        *,
        url: str,
        events: str | Iterable[str] = ("run.completed", "run.failed", "run.cancelled"),
        where: Callable[[RunEvent], Any] | None = None,
        data: Callable[[RunEvent], Any] | None = None,
        start: StartPosition = "latest",
    ) -> None:
        """Send a signed webhook to `url` for each of these events of the agent's runs.

        The secret in SUREFOOT_HOOK_<NAME>_SECRET signs it.

        Args:    events: event types. where: filters events. data: makes the JSON to send; default:
                 the fields of RunEvent. start: where a new subscription begins
        Raises:  ConfigError - at import, when the declaration cannot work
        """
        if name in self.subscriptions:
            raise ConfigError(
                "SF1138",
                f"subscription {name!r} of agent {self.name!r} is declared twice; give one of them "
                "another name",
            )
        self.subscriptions[name] = subscription(
            self.name, name, url=url, events=events, where=where, data=data, start=start
        )

    @property
    def start_step(self) -> Step:
        """The step that a new run begins with. Raises ConfigError when the agent has no steps."""
        ordinary = [name for name in self.steps if name not in self.compensations.values()]
        if not ordinary:
            raise ConfigError(
                "SF1106", f"agent {self.name!r} has no steps; declare one with @agent.step"
            )
        return self.steps[self._start or ordinary[0]]

    def name_run(self, run_id: str, payload: bytes, *, given: bool = False) -> str:
        """Return the run_id of a run that starts with that payload. Everything that starts one
        calls this.

        Args:    run_id: its id without a flow. given: somebody asked for exactly this id
        Raises:  BadArgument - the flow's functions fail, or their result cannot name a run
        """
        if self.flow is None:
            return check_run_id(run_id)
        try:
            value = load(self.start_step.adapter, payload)
            name = self.flow.name(run_id, value, given=given)
        except Exception as error:
            message = f"flow of agent {self.name!r}: {type(error).__name__}: {error}"
            raise BadArgument("SF1129", message) from error
        if len(name) > RUN_ID_MAX:
            key, _, run_id = name.partition("=")
            name = f"{key}={_made_of(run_id)}"
        return check_run_id(name)

    def priority_of(self, payload: bytes) -> int:
        """Return the priority of a waiting run, by its stored payload; 0 if unset or failing."""
        if self.flow is None or self.flow.priority is None:
            return 0
        try:
            return int(self.flow.priority(load(self.start_step.adapter, unescaped(payload))))
        except Exception:  # noqa: BLE001  (the author's code; only the order depends on it)
            return 0

    def step_of(self, fn: Callable[..., Any]) -> Step | None:
        """Return this agent's step that was declared with `fn`, or None."""
        return next((step for step in self.steps.values() if step.fn is fn), None)

    @cached_property
    def rules(self) -> Rules:
        """What the state machine needs to know of the agent. Cached: declare everything first."""
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
        """Say why a step cannot take a stored input.

        None when it can, or when only fetching the input (a blob) can tell."""
        if pointers(payload):
            return None
        try:
            load(self.steps[step].adapter, unescaped(payload))
        except BadPayload as error:
            return str(error)
        return None

    @property
    def pools(self) -> list[str]:
        """Names of the pools that the steps use, sorted."""
        return sorted({step.pool for step in self.steps.values() if step.pool})

    def pool(self, name: str) -> Agent:
        """Return the agent that runs the steps of one pool.

        A pooled step is a child run of that agent, which has its own topics and consumer group.

        Raises: ConfigError - no step names this pool
        """
        if name not in self.pools:
            raise ConfigError(
                "SF1110",
                f"agent {self.name!r} has no pool {name!r}; its pools: "
                f"{', '.join(self.pools) or 'none'}",
            )
        made = Agent(self.name, version=self.version)
        made.name = pool_agent_name(self.name, name)
        made.home = self
        made.steps = {
            step.name: replace(step, pool=None) for step in self.steps.values() if step.pool == name
        }
        return made


def _argument_types(fn: Callable[..., Any], where: str) -> tuple[Any, Any]:
    """Return (type of the payload, type of the carry or None)."""
    parameters = list(inspect.signature(fn).parameters.values())
    if len(parameters) not in (2, 3):
        raise ConfigError(
            "SF1108",
            f"{where} must take (ctx: Context, payload: YourType), and optionally a third argument "
            f"for the carry of a wait{why_hidden(fn)}",
        )
    types = [annotation(fn, parameter.name, where) for parameter in parameters[1:]]
    for parameter, kind in zip(parameters[1:], types, strict=True):
        if kind is MISSING:
            raise ConfigError(
                "SF1108",
                f"{where}: annotate {parameter.name!r} with the type of the payload, so that it "
                f"can be checked and stored{why_hidden(fn)}",
            )
    return types[0], types[1] if len(types) > 1 else None
