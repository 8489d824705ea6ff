"""What an author declares: agents and their steps.

Everything that can be wrong with a declaration is an error here, at import: an unknown target, a
payload of the wrong type, a second start step, a name that could not be a topic.
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
from surefoot.state.declare.webhooks import Provider, Webhook, WebhookTrigger, declare
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
    #: type of the third argument, which comes from before a wait; None: the step takes two
    carry_type: Any
    retry: Retry
    timeout_s: float | None
    is_async: bool
    #: the pool whose workers run it; None: the owner of the run does
    pool: str | None = None
    #: how many of it one worker of the pool runs at a time
    concurrency: int | None = None
    #: how often it is run for the runs of one key
    rate: Rate | None = None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.payload_type)

    @cached_property
    def carry_adapter(self) -> TypeAdapter[Any] | None:
        return None if self.carry_type is None else TypeAdapter(self.carry_type)


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

    `flow` says when its runs may begin (see state.declare.flow_control); the built-in outbox uses
    it to keep the order of a run's effects. `home` is set on the agent of a pool: the agent whose
    steps it runs.
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
    #: who is told of the events of its runs, by name
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

        A plain `def` runs in a thread, and what it gives is awaited if it can be. The step is
        called as the function; a partial, or an object that can be called, needs `name`. `timeout`
        is per attempt ("2m" or seconds). The first step declared is the start step unless another
        says start=True. A step that goes on after a wait may take a third argument: what the
        waiting step gave as `carry`. A step with `pool` is run by the workers of that pool
        (`surefoot worker --pool`), `concurrency` at a time in each. `rate` limits how often it is
        run for all runs of one key of the agent's flow.

        Raises: ConfigError at import when the declaration cannot work.
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
                f"agent {self.name!r}: {label(fn)} has no name of its own; say "
                '@agent.step(name="..."), or write a def around it',
            )
        where = f"step {name!r} of agent {self.name!r}"
        if name in self.steps:
            raise ConfigError("SF1107", f"{where} is declared twice; give one of them another name")
        if (same := self.step_of(fn)) is not None:
            raise ConfigError(
                "SF1107",
                f"{where} is the same function as step {same.name!r}, and Next(...) could not tell "
                "them apart; give it another one, such as a partial",
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
                "SF1110", f"{where}: the name {SCHEDULES!r} is that of its schedules' topics"
            )
        if concurrency is not None and (pool is None or concurrency < 1):
            raise ConfigError(
                "SF1110", f"{where}: concurrency is a number from 1, and needs pool=..."
            )
        if rate is not None and (self.flow is None or pool is not None):
            raise ConfigError(
                "SF1125",
                f"{where}: a rate holds for the runs of one key, and not in a pool: declare "
                "Agent(..., flow=Flow(key=...)), or flow=Flow() for all runs of the agent",
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
        """Declare the step that a cancelled run still does: `async def undo(ctx, ended: Ended)`.
        The run is `cancelled` when it returns Done (or the last step that it leads to does)."""
        return self._compensate("cancelled", fn)

    def on_failure(self, fn: F) -> F:
        """Declare the step that a run does before it is `failed`; see on_cancel."""
        return self._compensate("failed", fn)

    def _compensate(self, ending: str, fn: F) -> F:
        if ending in self.compensations:
            raise ConfigError(
                "SF1114",
                f"agent {self.name!r}: {self.compensations[ending]!r} is already what a run does "
                f"before it is {ending}",
            )
        step = self._declare(fn, _DEFAULT_RETRY, None)
        if step.payload_type is not Ended or step.carry_type is not None:
            raise ConfigError(
                "SF1114", f"step {step.name!r} of agent {self.name!r} must take (ctx, Ended)"
            )
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
                    "SF1115",
                    f"agent {self.name!r}: upcast(from_version={from_version}) must be below "
                    f"version {self.version}, and declared once",
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

        None says that the delivery is not for this agent; a list of `Start` makes a run of each.
        Served at /webhooks/<source>. `provider` is who sends there, and need not be said where the
        source is called after it. `event` is a name that the sender gives (GitHub: X-GitHub-Event),
        or several; `where` sees the rest of the delivery.
        """

        def add(fn: F) -> F:
            self.webhooks.append(
                declare(self.name, fn, source, provider=provider, event=event, where=where)
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
        """Start a run from each record of a Kafka topic: `def f(event: T) -> payload | None`. Each
        of the three functions may take a second argument, `received: Received`.

        None says that the event is not for this agent, as does `where`. `key` is a function or a
        field of T that names the run; one run an event without it. `schema` is what Avro is read
        as: an .avsc file beside the agent's. `start` is where a new trigger begins.
        """

        def declare(fn: F) -> F:
            if topic in self.event_triggers:
                raise ConfigError(
                    "SF1126",
                    f"agent {self.name!r} listens to topic {topic!r} twice; take a union of the "
                    "types of its events instead",
                )
            self.event_triggers[topic] = declare_event(
                self.name, fn, topic=topic, schema=schema, key=key, where=where, start=start
            )
            return fn

        return declare

    def sqs(self, queue: str) -> Callable[[F], F]:
        """Start runs from the messages of an SQS queue (its name or URL):
        `def f(message: S3Object | EventBridgeEvent | QueueMessage) -> payload | None`; which of
        them it takes is what its argument is annotated with. None: not for this agent."""

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

        None says that there is nothing to do this time. The schedule's name is that of the
        function unless another is given. `jitter` puts each start off by up to so long. `overlap`
        says what happens to a tick while the run of an earlier one is not over: skip it, queue it,
        cancel the earlier run, or allow both. `misfire` says which ticks are run that are more
        than `grace` late: all, the latest, or none.

        Raises: ConfigError at import when the declaration cannot work.
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
        """Start a run from each file that comes into a folder ("inbox/*.json", from where the
        command is run): `def f(file: WatchedFile) -> payload | None`."""

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
        """Send a signed webhook to `url` of each of these events of the agent's runs for which
        `where` says so. `data` makes what is sent of an event, as JSON; without it, what a RunEvent
        has. `start` is where a new subscription begins. SUREFOOT_HOOK_<NAME>_SECRET signs.

        Raises: ConfigError at import when the declaration cannot work.
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
        """The step that a new run begins with; ConfigError when there is none."""
        ordinary = [name for name in self.steps if name not in self.compensations.values()]
        if not ordinary:
            raise ConfigError(
                "SF1106", f"agent {self.name!r} has no steps; declare one with @agent.step"
            )
        return self.steps[self._start or ordinary[0]]

    def name_run(self, run_id: str, payload: bytes, *, given: bool = False) -> str:
        """What a run that starts with that payload is called: whoever starts one has to ask.
        `run_id` is its name otherwise; `given` by somebody who wants it to be called so.

        Raises: BadArgument when the flow's functions fail, or what comes out cannot name a run.
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
        """Of a run that waits, by its stored payload; 0 when the flow does not say, or fails."""
        if self.flow is None or self.flow.priority is None:
            return 0
        try:
            return int(self.flow.priority(load(self.start_step.adapter, unescaped(payload))))
        except Exception:  # noqa: BLE001  (the author's code: it orders runs, and loses none)
            return 0

    def step_of(self, fn: Callable[..., Any]) -> Step | None:
        """The step that was declared with this function, if it is one of this agent."""
        return next((step for step in self.steps.values() if step.fn is fn), None)

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
        """Why that step cannot take that stored input; None when it can, or when that is seen only
        once the input is fetched."""
        if pointers(payload):
            return None
        try:
            load(self.steps[step].adapter, unescaped(payload))
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
                "SF1110",
                f"agent {self.name!r} has no pool {name!r}; it has: {', '.join(self.pools) or '-'}",
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
            "SF1108",
            f"{where} must take two arguments, (ctx: Context, payload: YourType), or a third one: "
            f"what is carried over a wait{why_hidden(fn)}",
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
