"""Runs agents in memory, under virtual time, for tests of agents.

Workers, state machine, outbox and records are the real ones; Kafka, the clock and the outside world
are simulated. A run that sleeps for a year takes a few milliseconds, and the same agents with the
same inputs always do the same thing.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

import structlog
from pydantic import TypeAdapter

from surefoot.consumers.builtin.outbox import HttpDelivery, outbox_agent
from surefoot.consumers.builtin.schedules import schedules_agent
from surefoot.infra.simulation.process import Point, Process, World
from surefoot.infra.simulation.time import VirtualClock
from surefoot.producers.commands.operations import rewind_to, start_fields, thread_of
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.codec.records import AvroEvent, AvroFailure
from surefoot.schemas.payload import dump, parse_json, strict_json
from surefoot.schemas.pointer import escaped, unescaped
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.durations import duration_s
from surefoot.state.errors import ConfigError, Numbered, Refused
from surefoot.state.machine import again
from surefoot.state.machine.actions import found_by, inherited_actions
from surefoot.state.machine.commands import row_of, write
from surefoot.state.machine.model import Operation, Run, State
from surefoot.state.machine.operations import (
    AnswerQuestion,
    Cancel,
    DeliverSignal,
    Pause,
    ResolveCall,
    Resume,
    RetryRun,
)
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.names.partitioner import affinity
from surefoot.state.ports.http import HttpRequest, HttpResponse
from surefoot.state.reading.versions import Line, Version
from surefoot.state.records.encoding import command_out, decode_entry, entry_key
from surefoot.state.records.run_store import RunStore
from surefoot.state.scheduling.book import ASK, Spec
from surefoot.state.steps.http_effect import KEY_HEADER

#: an agent, or a function that makes one (or several) for every new process
Given = Agent | Callable[[], Agent | Sequence[Agent]]

#: answer of the outside world: a status, or a whole response; may raise RetryableError
Answering = Callable[[HttpRequest], int | HttpResponse | Awaitable[int | HttpResponse]]

#: virtual seconds allowed for what takes no time: the engine itself waits for milliseconds
_MOMENT_S = 0.1
#: default limit on a run's virtual time
_WITHIN = "1000d"
#: simulations that are not closed yet
_OPEN: dict[Simulation, None] = {}


class SimulationError(Numbered):
    """The simulation cannot continue; the message says what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredEffect:
    """A request that the outside world acted upon: once, however often it was sent."""

    #: the Idempotency-Key
    key: str
    method: str
    url: str
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A run, as it stands when the simulation has nothing more to do."""

    run_id: str
    agent: str
    status: str
    #: result of a completed run; None otherwise
    result: Any
    #: code, message, kind and step of the latest unresolved failure
    failure: AvroFailure | None
    #: committed steps, by name
    steps: list[str]
    #: effects delivered for this run, in order
    effects: list[DeliveredEffect]
    #: names of the signals that it waits for
    waits_for: tuple[str, ...]
    #: id of its open question, and what is to be approved
    question: str | None
    asks: Any
    #: virtual time from its start to its latest event
    elapsed: timedelta
    #: its events, decoded
    history: list[AvroEvent]


@dataclass(slots=True)
class _Outside:
    """The target of all effects: acts once per key, and remembers."""

    answering: Answering | None
    #: every request received
    requests: list[HttpRequest] = field(default_factory=list)
    acted: dict[str, DeliveredEffect] = field(default_factory=dict)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        told: Any = 200 if self.answering is None else self.answering(request)
        if inspect.isawaitable(told):
            told = await told
        if isinstance(told, int):
            told = HttpResponse(status=told, headers={}, body=b"")
        if 200 <= told.status < 300:  # noqa: PLR2004
            effect = _effect(request)
            self.acted.setdefault(effect.key, effect)
        assert isinstance(told, HttpResponse)
        return told


def _effect(request: HttpRequest) -> DeliveredEffect:
    headers = dict(request.headers)
    return DeliveredEffect(
        key=headers.pop(KEY_HEADER),
        method=request.method,
        url=request.url,
        headers=headers,
        body=request.body.decode(),
    )


class Simulation:
    """Runs agents in a world of their own.

        sim = Simulation(agent)
        run = sim.run({"order": 7})
        assert run.status == "waiting"
        run = sim.approve()
        assert run.result == "shipped"

    Pass every agent that takes part. The outbox is included; `deliver` answers what it sends (200
    by default), and `delivered` has it. An agent passed as a function is made again for every
    process, as importing its module would: do that if it holds locks, pools or clients.

    Use it in plain `def` tests: it runs an event loop of its own.

    Args:    deliver: answers effects. start: virtual time at which it begins. on_attention: called
             with each run that comes to wait for a person
    Raises:  ConfigError - no agent given, or used inside a running event loop
    """

    def __init__(
        self,
        *agents: Given,
        deliver: Answering | None = None,
        start: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        seed: int = 0,
        partitions: int = 2,
        on_attention: Callable[[Simulation, SimulatedRun], object] | None = None,
    ) -> None:
        if not agents:
            raise ConfigError("SF7001", "Simulation: give at least one agent")
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigError(
                "SF7001",
                "a Simulation runs an event loop of its own: use it in a plain `def` test, not in "
                "`async def`",
            )
        clock = VirtualClock(start_ms=round(start.timestamp() * 1000), seed=seed)
        self._given = agents
        self._world = World(clock, partitions, on_attempt=self._attempt)
        self._outside = _Outside(deliver)
        self._on_attention = on_attention
        self._graves: list[Process] = []
        self._process: Process | None = None
        self._agents: dict[str, Agent] = {}
        self._started: list[tuple[str, str]] = []
        self._commands = 0
        self._repeated: list[str] = []
        #: runs in `attention` for which on_attention was called: agent, run_id, how often
        self._asked: set[tuple[str, str, int]] = set()
        self._view = _View(self._world)
        self._begin_process()
        _OPEN[self] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that are left. Safe to call twice."""
        _OPEN.pop(self, None)
        process, self._process = self._process, None
        graves, self._graves = self._graves, []
        if process is not None:
            graves.append(process)
        with _quiet():
            for each in graves:
                each.bury()

    # Driving ---------------------------------------------------------------------------------

    def run(
        self,
        payload: Any = None,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        signals: Sequence[tuple[str, Any]] = (),
        within: str | float = _WITHIN,
    ) -> SimulatedRun:
        """Start a run and continue until it is over, or waits for something that does not come.

        `signals` are sent in order, one whenever the run waits for a signal. Time passes as needed
        for timers, retries and sleeps, up to `within`. A wait with a timeout is left waiting;
        `advance` lets its time pass.

        Raises: SimulationError - not over within that time; the message says what it does
        """
        self.start(payload, run_id=run_id, agent=agent)
        found = self.settle(within=within)
        for name, signal in signals:
            if not found.waits_for:
                break
            found = self.signal(name, signal)
        return found

    def start(
        self, payload: Any = None, *, run_id: str | None = None, agent: str | None = None
    ) -> SimulatedRun:
        """Start a run (of the first agent, unless one is named), and do only what takes no time."""
        which = self._agent(agent)
        data = dump(which.start_step.adapter, payload)
        made = f"run-{len(self._started) + 1}"
        run_id = which.name_run(run_id or made, data, given=run_id is not None)
        self._started.append((which.name, run_id))
        self._send(run_id, "start", payload=data)
        return self._now()

    def schedule(self, name: str, *, agent: str | None = None) -> SimulatedRun:
        """Start a schedule, as its first deployment does. Its ticks come with `advance`."""
        which = self._agent(agent)
        if name not in which.schedules:
            raise ConfigError("SF1027", f"agent {which.name!r} has no schedule {name!r}")
        keeper = schedules_agent_name(which.name)
        spec = dump(TypeAdapter(Spec), which.schedules[name].spec)
        self._started.append((keeper, name))
        self._send(name, "start", agent=keeper, payload=spec)
        self._drive(_MOMENT_S, strict=False)
        return self.look(name, agent=keeper)

    def tell_schedule(self, name: str, *, agent: str | None = None, **ask: Any) -> SimulatedRun:
        """Send a message to a schedule: `do="pause"`, `"resume"`, `"trigger"` with an `id`, or
        `"backfill"` with `from_ms` and `to_ms`."""
        keeper = schedules_agent_name(self._agent(agent).name)
        said = DeliverSignal(id=self._new_id(), run_id=name, name=ASK, payload=strict_json(ask))
        self._send(name, row_of(said).word, agent=keeper, **write(said))
        self._drive(_MOMENT_S, strict=False)
        return self.look(name, agent=keeper)

    def settle(self, *, within: str | float = _WITHIN) -> SimulatedRun:
        """Continue until everything is over, or waits for something that does not come."""
        self._drive(_seconds(within), strict=True)
        return self.look()

    def advance(self, duration: str | float) -> SimulatedRun:
        """Let this much time pass ("2d", or seconds), with everything that falls due in it."""
        clock = self._world.clock
        until_s = clock.monotonic_s() + _seconds(duration)
        while True:
            process = self._alive()
            with _quiet():
                ending = process.loop.run_until(lambda: False, deadline_s=until_s)
            if self._went_on(process):
                continue
            if ending == "deadline":
                clock.move_to(until_s)
                return self._now()

    def _now(self) -> SimulatedRun:
        """Do what takes no time."""
        self._drive(_MOMENT_S, strict=False)
        return self.look()

    def _drive(self, within_s: float, *, strict: bool) -> None:
        deadline_s = self._world.clock.monotonic_s() + within_s
        while True:
            process = self._alive()
            with _quiet():
                ending = process.loop.run_until(process.settled, deadline_s=deadline_s)
            if self._went_on(process):
                continue
            if ending == "settled" and self._asked_somebody():
                continue
            if ending == "settled" or not strict:
                return
            raise SimulationError("SF7002", self._stuck(process, within_s))

    def _went_on(self, process: Process) -> bool:
        """Whether the process was killed and another one has replaced it."""
        if process.failure is not None:
            raise process.failure
        if process.killed:
            self._begin_process()
        return process.killed

    def _asked_somebody(self) -> bool:
        """Whether one more run needed a person, and on_attention was called for it."""
        if self._on_attention is None:
            return False
        for run in self.runs():
            times = sum(event["type"] == "run.attention" for event in run.history)
            mark = (run.agent, run.run_id, times)
            if run.status == "attention" and mark not in self._asked:
                self._asked.add(mark)
                self._on_attention(self, run)
                return True
        return False

    def _stuck(self, process: Process, within_s: float) -> str:
        busy = process.busy()
        what = f"the run is not over after {timedelta(seconds=within_s)} of virtual time"
        if busy:
            return (
                f"{what}: {', '.join(busy)} has not returned. It waits for something outside of "
                "virtual time: its own thread or process, or a lock that a killed "
                "process holds (give the agent as a function that makes it)"
            )
        return f"{what}; pass a larger `within`, or `start` the run and `advance` the time"

    # Processes -------------------------------------------------------------------------------

    def _alive(self) -> Process:
        if self._process is None:
            raise SimulationError("SF7002", "the simulation is closed")
        return self._process

    def _begin_process(self) -> None:
        agents: list[Agent] = []
        for given in self._given:
            made = given if isinstance(given, Agent) else given()
            agents += [made] if isinstance(made, Agent) else made
        self._agents = {agent.name: agent for agent in agents}
        pools = [agent.pool(name) for agent in agents for name in agent.pools]
        pools = [pool for pool in pools if pool.name not in self._agents]
        clocks = [schedules_agent(a, self._world.clock) for a in agents if a.schedules]
        outbox = outbox_agent(HttpDelivery(self._outside, self._world.clock))
        if self._process is not None:
            self._graves.append(self._process)
        self._process = Process(self._world, [*agents, *pools, *clocks, outbox])

    def crash(self, *agents: Given) -> SimulatedRun:
        """Kill the process in the middle of its work; another one takes over, with `agents` if
        given, as when a new version is deployed."""
        self._alive().kill()
        self._given = agents or self._given
        self._begin_process()
        return self._now()

    def kill_at(self, commit: int, moment: Literal["before", "after"] = "before") -> None:
        """Kill the process at that commit (see `commits`): `before` it takes effect, or `after` it
        did and before the process knows."""
        self._world.kill_at = Point(commit, moment)

    @property
    def commits(self) -> list[str]:
        """What each commit so far was about, in words."""
        return [_describe(records) for records in self._world.commits]

    def _attempt(self, run: Run) -> None:
        """Record a step that begins although it is committed."""
        known = self._view.run(run.agent, run.run_id)
        if known is not None and (known.epoch, known.seq) > (run.epoch, run.seq):
            self._repeated.append(f"step {run.step!r} (number {run.seq}) of run {run.run_id!r}")

    # Commands --------------------------------------------------------------------------------

    def signal(
        self, name: str, payload: Any = None, *, run_id: str | None = None, by: str | None = None
    ) -> SimulatedRun:
        """Send a signal to a run (by default the last one started), and settle."""
        _, to = self._which(run_id)
        data = strict_json(payload)
        return self._command(
            run_id, DeliverSignal(id=self._new_id(), by=by, run_id=to, name=name, payload=data)
        )

    def approve(
        self,
        approved: bool = True,
        *,
        note: str | None = None,
        by: str | None = None,
        question: str | None = None,
        run_id: str | None = None,
    ) -> SimulatedRun:
        """Answer the question that the run asks, or an older one, and settle."""
        asked = question or self.look(run_id).question
        if asked is None:
            raise SimulationError("SF7002", "the run has no open question to answer")
        answer = AnswerQuestion(
            id=self._new_id(), by=by, question=asked, approved=approved, note=note
        )
        return self._command(run_id, answer)

    def pause(self, run_id: str | None = None) -> SimulatedRun:
        return self._command(run_id, Pause(id=self._new_id()))

    def resume(self, run_id: str | None = None) -> SimulatedRun:
        return self._command(run_id, Resume(id=self._new_id()))

    def cancel(self, run_id: str | None = None, *, by: str | None = None) -> SimulatedRun:
        return self._command(run_id, Cancel(id=self._new_id(), by=by))

    def retry(self, run_id: str | None = None) -> SimulatedRun:
        """Retry a run that failed or waits for a person."""
        return self._command(run_id, RetryRun(id=self._new_id()))

    def resolve(
        self, choice: str, result: Any = None, *, run_id: str | None = None
    ) -> SimulatedRun:
        """Record the outcome of a `ctx.once` in doubt: happened (with its result), did_not or
        give_up."""
        data = strict_json(result)
        return self._command(run_id, ResolveCall(id=self._new_id(), choice=choice, result=data))

    def rewind(
        self, seq: int, *, run_id: str | None = None, repeat: Sequence[str] = ()
    ) -> SimulatedRun:
        """Send a run back to its version `seq`, and settle. `repeat` names the `ctx.once` actions
        that may be done again."""
        agent, run_id = self._which(run_id)
        run, version, messages = self._version(agent, run_id, seq)
        back = rewind_to(
            version,
            messages,
            command_id=self._new_id(),
            by=None,
            epoch=run.epoch,
            emit=False,
            repeat=repeat,
            created_ms=run.created_ms,
            now_ms=self._world.clock.now_ms(),
        )
        return self._command(run_id, back)

    def fork(
        self, seq: int, *, new_id: str, run_id: str | None = None, repeat: Sequence[str] = ()
    ) -> SimulatedRun:
        """Start another run from version `seq` of a run, and settle. It repeats the `ctx.once`
        actions that `repeat` names; for others it asks the probe first."""
        agent, run_id = self._which(run_id)
        run, version, messages = self._version(agent, run_id, seq)
        entries = self._view.state(agent, run_id).entries.values()
        others = again.inherited_doubt(entries, run_id, run.forks - version.forks)
        actions = [*inherited_actions(found_by(entries, run, seq), repeat), *others]
        self._started.append((agent, new_id))
        told = start_fields(version, messages, actions, repeat)
        self._send(new_id, "start", agent=agent, **told)
        return self.settle()

    def _version(self, agent: str, run_id: str, seq: int) -> tuple[Run, Version, tuple[bytes, ...]]:
        state, line = self._view.state(agent, run_id), Line()
        for event in self._view.history(agent, run_id):
            line.apply(event)
        if state.run is None or seq not in line.versions:
            raise SimulationError("SF7002", f"run {run_id!r} has no version {seq}")
        version = line.versions[seq]
        return state.run, version, self._view.messages(agent, run_id, thread_of(version))

    def _new_id(self) -> str:
        self._commands += 1
        return f"test-{self._commands}"

    def _command(self, run_id: str | None, input_: Operation) -> SimulatedRun:
        """Send a command and settle. Raises Refused if it changed nothing."""
        agent, run_id = self._which(run_id)
        self._send(run_id, row_of(input_).word, agent=agent, **write(input_))
        self._drive(_seconds(_WITHIN), strict=True)
        for event in self._view.history(agent, run_id):
            if event["id"] == input_.id and event["type"] == "command.refused":
                assert event["name"] is not None
                assert event["failure"] is not None
                raise Refused(event["name"], event["failure"]["message"])
        return self.look(run_id, agent=agent)

    def _send(
        self,
        run_id: str,
        kind: str,
        *,
        agent: str | None = None,
        payload: bytes = b"null",
        **fields: Any,
    ) -> None:
        world = self._world
        out = command_out(
            world.app,
            world.partitions,
            agent or self._started[-1][0],
            run_id=run_id,
            kind=kind,
            payload=escaped(payload),
            sent_ms=world.clock.now_ms(),
            **fields,
        )
        world.group(agent or self._started[-1][0])
        world.broker.write([out])

    # Looking ---------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return datetime.fromtimestamp(self._world.clock.now_ms() / 1000, UTC)

    @property
    def delivered(self) -> list[DeliveredEffect]:
        """The effects that the outside world acted upon, of all runs, in order."""
        return list(self._outside.acted.values())

    @property
    def requests(self) -> list[HttpRequest]:
        """Every request received, including those repeated or answered with an error."""
        return list(self._outside.requests)

    def runs(self) -> list[SimulatedRun]:
        """Return all runs so far, children included, in the order in which they began."""
        return [
            self.look(run_id, agent=agent)
            for agent in self._agents
            for run_id in self._view.run_ids(agent)
        ]

    def look(self, run_id: str | None = None, *, agent: str | None = None) -> SimulatedRun:
        """Return a run as it is now: the last one started, or the one named."""
        agent, run_id = self._which(run_id, agent)
        history = self._view.history(agent, run_id)
        run = self._view.run(agent, run_id)
        last = history[-1] if history else None
        wait = run.wait if run is not None and not run.terminal else None
        result = next((e["result"] for e in reversed(history) if e["result"] is not None), None)
        status = str(last["status"]) if last is not None else "pending"
        own = [event for event in history if event["type"] not in _OTHERS_FAIL]
        return SimulatedRun(
            run_id=run_id,
            agent=agent,
            status=status,
            result=None if status != "completed" else _value(result),
            failure=own[-1]["failure"] if own else None,
            steps=list(_steps(history)),
            effects=[e for e in self.delivered if _belongs(e.key, agent, run_id)],
            waits_for=wait.names if wait is not None and wait.kind == "signal" else (),
            question=wait.question if wait is not None else None,
            asks=_asked(run) if wait is not None and wait.kind == "approval" else None,
            elapsed=_elapsed(history),
            history=history,
        )

    def _which(self, run_id: str | None, agent: str | None = None) -> tuple[str, str]:
        if run_id is None:
            if not self._started:
                raise SimulationError("SF7002", "no run has been started")
            return self._started[-1]
        if agent is not None:
            return agent, run_id
        for started in self._started:
            if started[1] == run_id:
                return started
        for name in self._agents:
            if run_id in self._view.run_ids(name):
                return name, run_id
        return next(iter(self._agents)), run_id

    def _agent(self, name: str | None) -> Agent:
        if name is None:
            return next(iter(self._agents.values()))
        try:
            return self._agents[name]
        except KeyError:
            raise ConfigError(
                "SF7001",
                f"agent {name!r} is not part of the simulation; give it to Simulation(...)",
            ) from None


#: events whose failure is not that of the run
_OTHERS_FAIL = frozenset({"command.refused", "signal.unread", "child.finished"})


def close_since(before: Sequence[Simulation]) -> None:
    """Close the simulations that were opened since `before`."""
    for sim in [sim for sim in _OPEN if sim not in before]:
        sim.close()


def open_now() -> list[Simulation]:
    """Return the simulations that are not closed yet."""
    return list(_OPEN)


atexit.register(close_since, ())


class _View:
    """The content of the topics, read on demand."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores: dict[str, RunStore] = {}
        self._events: dict[str, list[AvroEvent]] = {}
        self._positions: dict[tuple[str, int], int] = {}

    def run(self, agent: str, run_id: str) -> Run | None:
        return self.state(agent, run_id).run

    def state(self, agent: str, run_id: str) -> State:
        return self._store(agent).state(run_id, agent)

    def messages(self, agent: str, run_id: str, count: int) -> tuple[bytes, ...]:
        """Return the first `count` messages of a run's thread. They come from the log, since the
        store of a finished run has none."""
        keys = [entry_key(run_id, f"m:{number}") for number in range(count)]
        topic = self._world.topics(agent).state
        said: dict[bytes, bytes] = {}
        for partition in range(self._world.partitions):
            records, _ = self._world.broker.partition(topic, partition).read(0)
            for record in records:
                if record.key in keys and record.value is not None:
                    said[record.key] = decode_entry(record.value).value or b"null"
        return tuple(said[key] for key in keys)

    def run_ids(self, agent: str) -> list[str]:
        return list(dict.fromkeys(event["run_id"] for event in self._history(agent)))

    def history(self, agent: str, run_id: str) -> list[AvroEvent]:
        return [event for event in self._history(agent) if event["run_id"] == run_id]

    def _store(self, agent: str) -> RunStore:
        store = self._stores.setdefault(agent, RunStore())
        for records in self._news(self._world.topics(agent).state):
            store.apply(records)
        return store

    def _history(self, agent: str) -> list[AvroEvent]:
        events = self._events.setdefault(agent, [])
        for records in self._news(self._world.topics(agent).events):
            events += [decode(record.value, "Event")[1] for record in records]
        return events

    def _news(self, topic: str) -> Iterator[Any]:
        if not self._world.broker.has(topic):
            return
        for partition in range(self._world.partitions):
            place = (topic, partition)
            records, position = self._world.broker.partition(*place).read(
                self._positions.get(place, 0)
            )
            self._positions[place] = position
            yield records


def _steps(history: Sequence[AvroEvent]) -> Iterator[str]:
    """Yield the names of the committed steps, in order."""
    compensating = False
    for event in history:
        step = event["step"] or ""
        match event["type"]:
            case "step.completed" | "run.completed":
                yield step
            case "run.cancelling" | "run.failing":
                compensating = True
            case "run.cancelled" | "run.failed" if compensating:
                yield step
                compensating = False


def _elapsed(history: Sequence[AvroEvent]) -> timedelta:
    """Return the time from first to last. The first step begins before the run's first event."""
    times = [event["at_ms"] for event in history]
    times += [event["started_ms"] for event in history if event["started_ms"] is not None]
    return timedelta(milliseconds=max(times, default=0) - min(times, default=0))


def _asked(run: Run | None) -> Any:
    """Return what is to be approved."""
    return None if run is None else _value(run.carry)


def _value(stored: bytes | None) -> Any:
    return None if stored is None else parse_json(unescaped(stored))


def _belongs(key: str, agent: str, run_id: str) -> bool:
    """Whether it is the idempotency key of an effect of that run."""
    return affinity(key) == f"{agent}:{run_id}"


def _describe(records: Sequence[Any]) -> str:
    """Describe in words what the records of a commit say."""
    told = []
    for record in records:
        if record.topic.endswith(".events"):
            event = decode(record.value, "Event")[1]
            step = f" {event['step']!r}" if event["step"] else ""
            told.append(f"{event['type']}{step} of {event['agent']} run {event['run_id']!r}")
        elif record.topic.endswith(".state") and b"|" in (record.key or b""):
            run_id, _, slot = (record.key or b"").decode().partition("|")
            told.append(f"{slot} of run {run_id!r}")
    return ", ".join(told) or "offsets only"


def _seconds(duration: str | float) -> float:
    return duration_s(duration) or 0.0


@contextmanager
def _quiet() -> Iterator[None]:
    """Log only warnings, not the engine's every step. Leaves a process alone that has configured
    its own logging."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.reset_defaults()
