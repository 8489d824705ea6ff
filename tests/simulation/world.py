"""One life: some worker processes, what chance does to them, and somebody who looks after the runs.

First the faults that the seed has drawn strike; then they stop, everybody is there again, and
everything has to come to its end.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import structlog
from aiokafka import TopicPartition

from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.builtin.outbox import HttpDelivery, outbox_agent
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.kafka.log import KafkaLog, KafkaOwnership
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.simulation.time import VirtualClock, in_thread
from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.schemas.payload import strict_json
from surefoot.state.declare.retry import Retry
from surefoot.state.errors import ConfigError, RecordRefused, RetryableError
from surefoot.state.names.topics import OUTBOX, AgentTopics, agent_specs, dead_spec
from surefoot.state.ports.http import HttpRequest, HttpResponse
from surefoot.state.ports.log import Committed, InputKind, ProducerRecord
from surefoot.state.records.encoding import Wire, command_out
from tests.simulation import clients, workload
from tests.simulation.broker import SimBroker
from tests.simulation.clients import SimConsumer, SimTransactionClient
from tests.simulation.loop import Endless, Process, SimLoop
from tests.simulation.net import Net, Weather
from tests.simulation.workload import AGENT, World

APP, PARTITIONS, SLOTS = "sim", 3, 3
_START_MS = 1_800_000_000_000
#: after the faults have stopped, how long until everything must have come to its end, in seconds
REST_S = 400.0
#: share of the lives whose broker gives each transaction an epoch of its own
_BUMPS = 0.75
#: requests that the network may mistreat; and those of them that decide what a transaction is
_APIS = (
    *("init", "add", "produce", "offsets", "end", "name", "fetch offsets", "ends"),
    *("join", "sync", "heartbeat"),
)
_DECIDING = ("offsets", "end", "name")
#: how far a clock is set forward or back
_JUMP_MS = 600_000
SETTINGS = Settings(
    app=APP,
    partitions=PARTITIONS,
    bootstrap_servers="sim:1",
    instance="sim",
    log="kafka",
    heartbeat_interval_ms=2_000,
    session_timeout_ms=12_000,
    rebalance_timeout_ms=20_000,
)

#: joins that were lost, or came late, may look like another process of the same identity, and
#: count for so long
_OUSTED_S = (SETTINGS.session_timeout_ms + SETTINGS.rebalance_timeout_ms) / 1000

#: loops that were left in the middle of their work: what is collected would run its `finally`
_GRAVES: list[SimLoop] = []

#: what can be drawn
FAULTS = (
    "crash",
    "freeze",
    "drain",
    "spare",
    "jump",
    "compact",
    "lost",
    "answer lost",
    "late",
    "twice",
    "reset",
    "slow net",
    "slow",
    "hang",
    "fail",
    "sink",
    "operator",
    "poison",
    "repeat",
    "twin",
    "markers",
)


#: those by which an owner can be thrown out without knowing it
MAKE_ZOMBIES = {"freeze", "twin", "lost", "answer lost", "reset", "slow net"}


class SimClock:
    """A process's clock: wall time can be set, monotonic time cannot."""

    def __init__(self, clock: VirtualClock, jumps: dict[str, int], name: str) -> None:
        self._clock, self._jumps, self._name = clock, jumps, name
        self.monotonic_s = clock.monotonic_s
        self.random = clock.random
        self.unique = clock.unique

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._jumps.get(self._name, 0)


class _Executor(Executor):
    """Runs steps on the loop of the engine."""

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def start(self) -> None:
        """The loop runs already."""

    def stop(self) -> None:
        """The loop is not its own."""

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        value, error = in_thread(fn, *args)
        if error is not None:
            raise error
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that has reached the target; acted: it did what it was asked for."""

    key: str
    method: str
    url: str
    body: bytes
    acted: bool


class Sink:
    """The target of all effects: acts once on a key, whatever it answers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.requests: list[Request] = []
        self._acted: set[str] = set()
        self.trouble = 0.0

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        key = dict(request.headers)["Idempotency-Key"]
        await asyncio.sleep(self._random.random() * 0.05)
        fate = self._random.random() / self.trouble if self.trouble else 1.0
        acts = key not in self._acted and not 0.5 <= fate < 1.0
        self.requests.append(
            Request(key=key, method=request.method, url=request.url, body=request.body, acted=acts)
        )
        if acts:
            self._acted.add(key)
        if fate < 0.5:  # it has acted, and nobody hears of it
            await asyncio.sleep(1 + self._random.random() * 4)
            raise RetryableError("no answer")
        if fate < 0.75:
            return HttpResponse(status=500, headers={}, body=b"")
        if fate < 1.0:
            return HttpResponse(status=429, headers={"Retry-After": "1"}, body=b"")
        return HttpResponse(status=200, headers={}, body=b"")


@dataclass(slots=True)
class Run:
    """A run that was asked for."""

    run_id: str
    plan: list[workload.Stage]
    #: by what the operator has done, it may end in other ways than its plan says
    touched: bool = False


@dataclass(slots=True)
class Slot:
    """The place of a process: whoever is in it has its identity."""

    number: int
    process: Process | None = None
    stop: asyncio.Event | None = None
    lives: int = 0


@dataclass
class Life:
    """Everything of one life."""

    seed: int
    #: kinds of faults that may strike; None: those that the seed draws
    only: frozenset[str] | None = None
    wrong: list[str] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)
    simulated_s: float = 0.0
    trace: int = 0

    def __post_init__(self) -> None:
        random = Random(f"{self.seed} life")
        self._random = random
        self.clock = VirtualClock(start_ms=_START_MS, seed=self.seed)
        self.loop = SimLoop(self.clock, Random(f"{self.seed} schedule"))
        self.broker = SimBroker(
            self.clock,
            Random(f"{self.seed} broker"),
            partial(self.loop.call_later, context=contextvars.Context()),
            bumps_epochs=random.random() < _BUMPS,
        )
        self.net = Net(self.loop, self.broker, Random(f"{self.seed} net"))
        self.world = World(Random(f"{self.seed} outside"), self.clock.now_ms)
        self.sink = Sink(Random(f"{self.seed} sink"))
        retry = Retry(attempts=500, initial_s=0.5, max_s=5.0)
        relay = outbox_agent(HttpDelivery(self.sink, self.clock, retry=retry))
        #: all processes have the same code; to declare it takes longer than to live
        self.agents = (workload.walker(self.world), relay)
        self.broker.create([dead_spec(APP, 1_000_000)])
        for agent in (AGENT, OUTBOX):
            self.broker.create(agent_specs(APP, agent, PARTITIONS, 1_000_000))
        drawn = {kind for kind in FAULTS if random.random() < 0.45}
        self.kinds = drawn if self.only is None else drawn & self.only
        self.runs = self._runs()
        self.slots = [Slot(number) for number in range(SLOTS)]
        self.jumps: dict[str, int] = {}
        #: what was in a slot when another process of the same identity began
        self.twins: list[Process] = []
        self.told: list[tuple[str, bool | None]] = []
        self.poison: list[str] = []
        self.over = False
        self.violent = True
        self.calm_s = 0.0
        self._position = {
            (AgentTopics(APP, a).state, p): 0 for a in (AGENT, OUTBOX) for p in range(PARTITIONS)
        }
        self._status: dict[tuple[str, str], dict[str, Any]] = {}
        self._sent: set[tuple[str, str]] = set()
        self._commands = 0

    def _runs(self) -> dict[str, Run]:
        random = Random(f"{self.seed} runs")
        return {f"r{n}": Run(f"r{n}", workload.plan(random)) for n in range(random.randint(1, 4))}

    def strike(self, what: str) -> None:
        self.struck[what] = self.struck.get(what, 0) + 1

    # Living ----------------------------------------------------------------------------------

    def live(self) -> list[str]:
        """To its end. Returns what was wrong."""
        clients.use(self.net)
        self.loop.set_exception_handler(self._reported)
        with _patched(self), _quiet():
            self.loop.spawn(None, self._fate())
            self.loop.spawn(None, self._tick())
            try:
                self.loop.run_until(lambda: self.over, deadline_s=5_000.0)
            except Endless as error:
                self.wrong.append(f"I15: {error}")
            self.simulated_s = self.clock.monotonic_s()
            self.trace = zlib.crc32(repr(self._traced()).encode(), self.loop.queue.trace)
        _GRAVES.append(self.loop)
        for what, times in self.net.bitten.items():
            self.struck[what] = self.struck.get(what, 0) + times
        self.struck["fenced"] = self.broker.fenced
        self.struck["unknown"] = sum(landed is None for _, landed in self.told)
        groups = self.broker.groups.by_name.values()
        self.struck["rebalances"] = sum(group.rebalances for group in groups)
        self.struck["refused member"] = sum(group.refused for group in groups)
        self.struck["unstable offset"] = sum(group.unstable for group in groups)
        self.struck["slow marker"] = self.broker.slow
        self.struck["repeated end"] = self.broker.repeated
        self.struck["one epoch"] = int(not self.broker.bumps_epochs)
        return self.wrong

    def _traced(self) -> list[Any]:
        records = [(r.topic, r.partition, r.offset, r.value) for r, _ in self.broker.everything]
        return [records, self.broker.samples, self.sink.requests, self.struck]

    def _reported(self, _loop: Any, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        self.wrong.append(f"nobody looked at: {context['message']}: {error!r}")

    async def _fate(self) -> None:
        random, loop = self._random, self.loop
        self._weather()
        for slot in self.slots[: random.choice((1, 2, 2, 3))]:
            self._begin(slot)
        loop.spawn(None, self._ask())
        until_s = loop.time() + random.uniform(5, 45)
        strikes = [
            kind
            for kind in ("crash", "freeze", "drain", "spare", "jump", "compact", "poison")
            if kind in self.kinds
        ]
        while loop.time() < until_s:
            await asyncio.sleep(random.expovariate(1 / 2.5))
            if strikes:
                self._strike(random.choice(strikes))
        await self._calm()

    def _weather(self) -> None:
        kinds, random = self.kinds, self._random
        self.world.slow = 0.15 if "slow" in kinds else 0.0
        self.world.hang = 0.03 if "hang" in kinds else 0.0
        self.world.fail = 0.10 if "fail" in kinds else 0.0
        self.sink.trouble = 0.4 if "sink" in kinds else 0.0
        self.broker.slow_markers = 0.1 if "markers" in kinds else 0.0
        once = ("name",) if self.broker.bumps_epochs else _DECIDING
        for api in _APIS:
            deciding = api in _DECIDING
            self.net.weather[api] = Weather(
                lost=0.03 if "lost" in kinds else 0.0,
                answer_lost=0.05 if "answer lost" in kinds else 0.0,
                twice=0.05 if "twice" in kinds and api not in once else 0.0,
                slow=0.05 if "slow net" in kinds else 0.0,
                late=(0.12 if deciding else 0.01) if "late" in kinds else 0.0,
                reset=(0.08 if deciding else 0.03) if "reset" in kinds else 0.0,
            )
        if "freeze" in kinds:
            self.net.on_journaled = self._journaled
        if "late" in kinds and random.random() < 0.5:
            self.net.weather["end"].answer_lost = 0.1

    async def _calm(self) -> None:
        """The faults stop, and whoever is needed is there."""
        self.violent = False
        self.calm_s = self.loop.time()
        for twin in self.twins:
            if twin.alive:
                self.loop.queue.kill(twin)
        self.net.weather.clear()
        self.broker.slow_markers = 0.0
        self.jumps.clear()
        world = self.world
        world.slow = world.hang = world.fail = self.sink.trouble = 0.0
        for slot in self.slots:
            process = slot.process
            if process is not None and process.alive:
                process.dies_at = process.freezes_at = None
                if process.frozen:
                    self.loop.queue.thaw(process)
        jumped_s = _JUMP_MS / 1000 if "jump" in self.kinds else 0.0
        until_s = self.loop.time() + REST_S + jumped_s
        while self.loop.time() < until_s:
            self._look()
            self._help()
            if self._at_rest():
                break
            await asyncio.sleep(1.0)
        self.over = True

    async def _tick(self) -> None:
        """The broker's own duties, and the supervisor's."""
        while True:
            await asyncio.sleep(1.0)
            self.broker.time_out()
            self.broker.groups.expire(
                SETTINGS.session_timeout_ms / 1000, SETTINGS.rebalance_timeout_ms / 1000
            )
            for slot in self.slots[: 1 if self.violent else 2]:
                dead = slot.process is None or not slot.process.alive
                if self.violent and "twin" in self.kinds:
                    self._twin(slot)
                if dead and (not self.violent or self._random.random() < 0.4):
                    self._begin(slot)

    def _twin(self, slot: Slot) -> None:
        """A second process of one identity, beside one that lives: best while that is frozen."""
        process = slot.process
        if process is None or not process.alive or sum(twin.alive for twin in self.twins) >= 2:
            return
        if self._random.random() < (0.6 if process.frozen else 0.03):
            self.twins.append(process)
            self._begin(slot)
            self.strike("twin")

    # Processes -------------------------------------------------------------------------------

    def _begin(self, slot: Slot) -> None:
        slot.lives += 1
        slot.process = Process(f"p{slot.number}.{slot.lives}")
        slot.stop = None
        self.loop.spawn(slot.process, self._main(slot, slot.process))

    async def _main(self, slot: Slot, process: Process) -> None:
        clock = SimClock(self.clock, self.jumps, process.name)
        executor = _Executor(clock)
        stop, abort = asyncio.Event(), asyncio.Event()
        slot.stop = stop
        workers = []
        for agent in self.agents:
            topics = AgentTopics(APP, agent.name)
            log = KafkaLog(
                topics=topics,
                partitions=PARTITIONS,
                settings=SETTINGS,
                clock=clock,
                slot=slot.number,
            )
            workers.append(
                Worker(
                    agent=agent,
                    log=log,
                    wire=Wire(APP, topics, PARTITIONS),
                    executor=executor,
                    clock=clock,
                    limits=OwnerLimits(forward_after_s=5.0),
                    in_flight=4,
                )
            )
        try:
            await asyncio.gather(
                *(worker.run(stop, drain_s=3.0, abort=abort) for worker in workers)
            )
        except Exception as error:  # noqa: BLE001  (a process may end; nobody else may notice)
            lately = self.twins or self.loop.time() - self.calm_s < _OUSTED_S
            twin = (
                isinstance(error, ConfigError) and lately
            )  # it had one a moment ago, or so it seemed
            if not self.violent and not twin:
                self.wrong.append(f"{process} ended in calm weather: {error!r}")
        self.loop.call_soon(self.loop.queue.kill, process, context=contextvars.Context())

    def _strike(self, kind: str) -> None:
        random = self._random
        living = [s for s in self.slots if s.process is not None and s.process.alive]
        if kind == "compact":
            if self.broker.compact(AgentTopics(APP, AGENT).state, keep_last=2):
                self.strike(kind)
            return
        if kind == "poison":
            self._poison()
            return
        if kind == "spare":
            idle = [s for s in self.slots if s not in living]
            if idle:
                self._begin(random.choice(idle))
                self.strike(kind)
            return
        if not living:
            return
        slot = random.choice(living)
        process = slot.process
        assert process is not None
        self.strike(kind)
        match kind:
            case "crash":
                process.dies_at = process.steps + random.randint(1, 400)
            case "freeze" if not process.frozen:
                process.on_freeze = self._frozen
                process.freezes_at = process.steps + random.randint(1, 400)
            case "drain" if slot.stop is not None:
                slot.stop.set()
            case "jump":
                self.jumps[process.name] = random.choice((-_JUMP_MS, _JUMP_MS, 0))

    def _journaled(self, process: Process) -> None:
        """Between the commit of an intent and what is intended: where a zombie does most harm."""
        random = self._random
        if self.violent and process.freezes_at is None and random.random() < 0.3:
            process.on_freeze = self._frozen
            process.freezes_at = process.steps + random.randint(1, 8)
            self.strike("freeze after commit")

    def _frozen(self, process: Process) -> None:
        random = self._random
        if not self.violent:
            self.loop.queue.thaw(process)
            return
        self.loop.call_later(
            random.choice((0.5, 3.0, 8.0, 15.0, 30.0)) * random.uniform(0.5, 1.5),
            self._thaw,
            process,
            context=contextvars.Context(),
        )

    def _thaw(self, process: Process) -> None:
        if process.frozen and process.alive:
            self.loop.queue.thaw(process)
            self.strike("woken")

    # Commands --------------------------------------------------------------------------------

    def _send(self, run_id: str, kind: str, *, of: str | None = None, **fields: Any) -> None:
        self._commands += 1
        if kind != "start":
            fields["id"] = of or f"c{self._commands}"
        out = command_out(
            APP, PARTITIONS, AGENT, run_id=run_id, kind=kind, sent_ms=self.clock.now_ms(), **fields
        )
        self.broker.append(out)

    def _start(self, run: Run) -> None:
        self._send(run.run_id, "start", payload=strict_json(workload.begin(run.plan)))

    def _signal(self, run: Run, name: str) -> None:
        self._sent.add((run.run_id, name))
        payload = strict_json(workload.said(run.run_id, name))
        self._send(run.run_id, "signal", of=f"{run.run_id}-{name}", name=name, payload=payload)

    async def _ask(self) -> None:
        """Somebody asks for the runs, now and then twice or in the wrong order."""
        random = Random(f"{self.seed} commands")
        due: list[tuple[float, Callable[[], None]]] = []
        for run in self.runs.values():
            at_s = random.uniform(0, 5)
            due.append((at_s, lambda run=run: self._start(run)))  # type: ignore[misc]
            if "repeat" in self.kinds:
                due.append((at_s + random.uniform(0, 20), lambda run=run: self._start(run)))  # type: ignore[misc]
            for name in workload.signals(run.plan):
                times = 2 if "repeat" in self.kinds else 1
                for _ in range(times if random.random() < 0.8 else 0):
                    at_s = random.uniform(0, 40)
                    due.append((at_s, lambda r=run, n=name: self._signal(r, n)))  # type: ignore[misc]
            if "operator" in self.kinds:
                for _ in range(random.randint(0, 3)):
                    kind = random.choice(("pause", "resume", "resume", "cancel"))
                    due.append((random.uniform(0, 40), lambda r=run, k=kind: self._operate(r, k)))  # type: ignore[misc]
        began_s = self.loop.time()
        for at_s, act in sorted(due, key=lambda each: each[0]):
            await asyncio.sleep(max(0.0, began_s + at_s - self.loop.time()))
            act()

    def _operate(self, run: Run, kind: str) -> None:
        if kind == "cancel":
            run.touched = True
        self._send(run.run_id, kind)

    def _poison(self) -> None:
        topics = AgentTopics(APP, AGENT)
        random = self._random
        topic = random.choice((topics.commands, topics.tasks))
        value = random.choice((b"\xff\xfe", b"", b"\xc3\x01" + b"\x07" * 12, b"{}", None))
        partition = random.randrange(PARTITIONS)
        offset = self.broker.append(ProducerRecord(topic, partition, b"r0", value))
        self.poison.append(f"{topic}/{partition}/{offset}")
        self.strike("poison")

    # Looking ---------------------------------------------------------------------------------

    def _look(self) -> None:
        for place, position in self._position.items():
            records, self._position[place] = self.broker.read(
                place, position, 10_000, committed=True
            )
            for record in records:
                key = (record.key or b"").decode()
                if "|" in key or key.startswith("@"):
                    continue
                try:
                    self._status[place[0], key] = decode(record.value, "Checkpoint")[1]
                except UndecodableError as error:
                    self.wrong.append(f"the checkpoint of {key} cannot be read: {error}")

    def _help(self) -> None:
        """What a person does who looks at the runs: late signals, resuming, telling what is so."""
        state = AgentTopics(APP, AGENT).state
        for (topic, run_id), checkpoint in list(self._status.items()):
            if topic != state:
                continue
            run = self.runs.get(run_id.partition("~")[0])
            mark = (run_id, f"{checkpoint['status']} {checkpoint['updated_ms']}")
            match checkpoint["status"]:
                case "waiting" if run is not None and checkpoint["wait"] is not None:
                    for name in workload.signals(run.plan):
                        if (run_id, name) not in self._sent and run_id == run.run_id:
                            self._signal(run, name)
                case "paused" if mark not in self._sent:
                    self._sent.add(mark)
                    self._send(run_id, "resume")
                case "attention" if mark not in self._sent:
                    self._sent.add(mark)
                    self._resolve(run_id, checkpoint)

    def _resolve(self, run_id: str, checkpoint: Mapping[str, Any]) -> None:
        failure = checkpoint["failure"]
        if failure is None or failure["code"] != "once_in_doubt":
            self.wrong.append(f"{run_id} needs a person: {failure}")
            return
        slot = failure["message"].partition("#")[0]
        key = (run_id, checkpoint["seq"], slot)
        if key in self.world.done:
            payload = strict_json(workload.told("once", *key))
            self._send(run_id, "resolve", name="happened", payload=payload)
        else:
            self._send(run_id, "resolve", name="did_not")
        self.strike("resolved")

    def _at_rest(self) -> bool:
        if not all((AgentTopics(APP, AGENT).state, r) in self._status for r in self.runs):
            return False
        if any(
            c["status"] not in ("completed", "failed", "cancelled") for c in self._status.values()
        ):
            return False
        for agent in (AGENT, OUTBOX):
            topics = AgentTopics(APP, agent)
            group = self.broker.groups.group(topics.group, PARTITIONS)
            for topic in (topics.commands, topics.tasks):
                for number in range(PARTITIONS):
                    place = TopicPartition(topic, number)
                    end = self.broker.partition(place).end
                    if end > (group.offsets[place].offset if place in group.offsets else 0):
                        return False
        return not self.broker.unmarked


# What is put in the place of something ------------------------------------------------------


@contextmanager
def _patched(life: Life) -> Iterator[None]:
    """The clients of a simulated Kafka in the place of aiokafka's, and a journal of what commits
    told their owners."""
    real = KafkaOwnership.commit

    async def commit(
        self: KafkaOwnership, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        names = (dict(out.headers).get("sf-txn") for out in records)
        transaction = next((name.decode() for name in names if name), "")
        landed: bool | None = None
        try:
            committed = await real(self, records, offsets)
        except RecordRefused:
            landed = False
            raise
        else:
            landed = True
            return committed
        finally:
            life.told.append((transaction, landed))

    with (
        patch("surefoot.infra.kafka.log.AIOKafkaConsumer", SimConsumer),
        patch("surefoot.infra.kafka.log.with_failover", lambda client, **_: client),
        patch("surefoot.infra.kafka.txn.TransactionClient", SimTransactionClient),
        patch.object(KafkaOwnership, "commit", commit),
    ):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """What the engine says of its misfortunes is not of interest here."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def told_of(life: Life) -> str:
    """A line about it."""
    return json.dumps({"seed": life.seed, "kinds": sorted(life.kinds), "struck": life.struck})
