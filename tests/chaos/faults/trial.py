"""Runs on a cluster of three brokers while brokers, workers and relays are killed and frozen.

A run is always under way in each partition, so that a partition without commits is one that stands
still. Each fault is over once there are commits in all partitions again and the cluster is whole.
In the end everything that was asked for must have been done once.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from surefoot.state.names.topics import AgentTopics
from surefoot.state.records.encoding import start_out
from tests.chaos.faults.recovery import Commits, Recovery, Serving, recovery
from tests.chaos.processes.services import Service, Services
from tests.chaos.processes.walker import EFFECT_EVERY, walker
from tests.checker import Asked, History, Promise, check
from tests.checker.kafka import read_history, read_offsets
from tests.checker.view import View
from tests.support.cluster import Cluster
from tests.support.effect_target import Sink
from tests.support.eventually import until
from tests.support.three_brokers import NODES, ThreeBrokers

FILE = str(Path(__file__).parents[1] / "processes" / "walker.py")
AGENT = walker.name
#: how long a step takes
PAUSE_S = 0.4
#: a partition that stood still for longer has felt the fault
FELT_S = 1.0
#: how long anything may take to go on after a fault, in seconds
HEAL_S = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fault has done."""

    kind: str
    recovery: Recovery

    @property
    def bitten(self) -> bool:
        return self.recovery.all_s > FELT_S


@dataclass(slots=True)
class Result:
    """What has come of a trial."""

    outcomes: list[Outcome] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    steps: int = 0
    #: steps and effects that were asked for and not done, and those done again
    lost: int = 0
    doubled: int = 0
    violations: list[str] = field(default_factory=list)


class Trial:
    def __init__(
        self,
        brokers: ThreeBrokers,
        kafka: Cluster,
        services: Services,
        target: Sink,
        *,
        random_: random.Random,
        workers: int,
        steps: int,
        tell: Callable[[Outcome], None],
    ) -> None:
        self.result = Result()
        self._brokers = brokers
        self._kafka = kafka
        self._services = services
        self._target = target
        self._random = random_
        self._wanted = workers
        self._steps = steps
        self._tell = tell
        self._topics = AgentTopics(kafka.settings.app, AGENT)
        self._partitions = kafka.settings.partitions
        self._commits = Commits(brokers, self._topics.events, self._partitions)
        self._serving = Serving(brokers, kafka.settings.app, AGENT, self._partitions)
        self._workers: list[Service] = []
        self._relays: list[Service] = []
        self._acknowledged: list[str] = []

    async def run(self, faults: Callable[[], str | None]) -> Result:
        """One fault after the other, until there is none; then the check."""
        producer = Producer(
            {
                "bootstrap.servers": self._brokers.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(HEAL_S * 1000),
                "socket.timeout.ms": 2_000,
            }
        )
        async with asyncio.TaskGroup() as group:
            around = [
                group.create_task(each) for each in (self._ask(producer), self._serving.watch())
            ]
            self._relays += [await self._services.begin("relay") for _ in range(2)]
            await self._scale(self._wanted)
            await self._going_on()
            while (kind := faults()) is not None:
                await self._fault(kind)
            for task in around:
                task.cancel()
        await asyncio.to_thread(producer.flush, HEAL_S)
        await self._finish()
        return self.result

    # Work ------------------------------------------------------------------------------------

    async def _ask(self, producer: Producer) -> None:
        """Start runs, until it is cancelled: a new one before the one before it has ended."""
        payload = json.dumps({"steps": self._steps, "pause_s": PAUSE_S}).encode()
        while True:
            for partition in range(self._partitions):
                run_id = self._kafka.run_on(partition, f"w{len(self.result.runs)}")
                self.result.runs.append(run_id)
                out = start_out(
                    self._kafka.settings.app,
                    self._partitions,
                    AGENT,
                    run_id,
                    payload,
                    sent_ms=self._kafka.clock.now_ms(),
                )

                def told(error: Any, _message: Any, run_id: str = run_id) -> None:
                    if error is None:
                        self._acknowledged.append(run_id)

                producer.produce(
                    out.topic,
                    out.value,
                    out.key,
                    out.partition,
                    on_delivery=told,
                    headers=list(out.headers),
                )
            until_s = time.monotonic() + 0.4 * self._steps * PAUSE_S
            while time.monotonic() < until_s:
                producer.poll(0)
                await asyncio.sleep(PAUSE_S)

    async def _scale(self, workers: int) -> None:
        """So many; those that are too many are told to stop, the newest first."""
        coming = [
            await self._services.begin("worker", FILE) for _ in range(workers - len(self._workers))
        ]
        for each in coming:
            await each.joined()
        self._workers += coming
        leaving = [self._workers.pop() for _ in range(len(self._workers) - workers)]
        for code in await asyncio.gather(*(each.stop() for each in leaving)):
            if code != 0:
                self.result.violations.append(f"a worker that was told to stop ended with {code}")

    async def _going_on(self, timeout_s: float = HEAL_S) -> None:
        """Wait for a commit in every partition."""
        now_s = time.time()
        await until(
            lambda: self._commits.again(now_s), what="every partition to go on", timeout_s=timeout_s
        )

    # Faults ----------------------------------------------------------------------------------

    async def _fault(self, kind: str) -> None:
        began_s = time.time()
        await getattr(self, f"_{kind}")()
        await self._going_on()
        found = recovery(self._commits.times(), self._serving, began_s, time.time())
        self.result.outcomes.append(Outcome(kind, found))
        self._tell(self.result.outcomes[-1])

    async def _back(self, *nodes: int) -> None:
        """Start brokers again, and wait until nothing is left of what they missed."""
        self._commits.reread()
        await asyncio.to_thread(self._brokers.start, *nodes)
        await self._brokers.until_whole()

    async def _leader_killed(self) -> None:
        partition = self._random.randrange(self._partitions)
        node = await self._brokers.leader(self._topics.state, partition)
        self._brokers.kill(node)
        await self._going_on()
        await self._back(node)

    async def _controller_killed(self) -> None:
        node = await self._brokers.controller()
        self._brokers.kill(node)
        await self._going_on()
        await self._back(node)

    async def _broker_frozen(self) -> None:
        """For longer than its session: the others take over, and it wakes up to that."""
        node = self._random.choice(NODES)
        self._brokers.freeze(node)
        try:
            await self._going_on()
            await asyncio.sleep(self._random.uniform(0, 10))
        finally:
            self._brokers.thaw(node)
        await self._brokers.until_whole()

    async def _rolling_restart(self) -> None:
        for node in NODES:
            await asyncio.to_thread(self._brokers.shut_down, node)
            await self._back(node)

    async def _two_brokers_down(self) -> None:
        """One is no quorum, and may acknowledge nothing."""
        nodes = self._random.sample(NODES, 2)
        for node in nodes:
            self._brokers.kill(node)
        await asyncio.sleep(self._random.uniform(5, 30))
        await self._back(*nodes)

    async def _scaled(self) -> None:
        for workers in (6, 1, 4, self._wanted):
            await self._scale(workers)
            await self._going_on()

    async def _worker_killed(self) -> None:
        worker = self._random.choice(self._workers)
        await worker.kill()
        await self._going_on()

    async def _worker_frozen(self) -> None:
        await self._zombie(self._random.choice(self._workers))

    async def _relay_frozen(self) -> None:
        await self._zombie(self._random.choice(self._relays))

    async def _zombie(self, service: Service) -> None:
        """Freeze it for longer than its session; it wakes up when others have its partitions."""
        process = await service.freeze()
        session_s = self._kafka.settings.session_timeout_ms / 1000
        await asyncio.sleep(session_s + self._random.uniform(1, 5))
        await self._going_on()
        with suppress(psutil.NoSuchProcess):
            process.resume()

    # The end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        effects = effects_of(self.result.runs, self._steps)
        for wait in (self._all_done(effects), self._at_rest()):
            try:
                await wait
            except AssertionError as error:
                self.result.violations.append(str(error))
        await self._brokers.until_whole()
        await self._check()

    async def _all_done(self, effects: set[str]) -> None:
        await until(
            lambda: effects <= self._target.acted.keys(),
            what="the last effects to be delivered",
            timeout_s=HEAL_S,
        )

    async def _at_rest(self) -> None:
        app = self._kafka.settings.app

        async def reached() -> bool:
            samples = await asyncio.to_thread(read_offsets, self._brokers.bootstrap, app)
            return all(sample.offset >= sample.stable_end for sample in samples)

        await until(reached, what="the groups to reach the end", timeout_s=HEAL_S)

    async def _check(self) -> None:
        app = self._kafka.settings.app
        history = await asyncio.to_thread(
            read_history, self._brokers.bootstrap, app, data=self._brokers.data(1), at_rest=True
        )
        history = replace(history, requests=self._target.requests())
        judged(self.result, history, self._acknowledged, self._steps)


def effects_of(runs: Sequence[str], steps: int) -> set[str]:
    """The idempotency keys of all effects of walks of so many steps."""
    return {f"{AGENT}:{run_id}:{seq}:0" for run_id in runs for seq in range(0, steps, EFFECT_EVERY)}


def judged(result: Result, history: History, acknowledged: Collection[str], steps: int) -> None:
    """Add to the result whatever was broken of its runs' promises; by a checker that knows nothing
    of the engine. `history` has the requests of the effects' target."""
    effects, known = effects_of(result.runs, steps), set(acknowledged)
    asked = [
        Asked(
            id=None,
            agent=AGENT,
            run_id=run_id,
            kind="start",
            outcome="ok" if run_id in known else "unknown",
        )
        for run_id in result.runs
    ]
    history = replace(history, asked=asked)
    own: dict[str, set[str]] = {}
    for effect in effects:
        own.setdefault(effect.split(":")[1], set()).add(effect)
    promises = {
        run_id: Promise(result=steps, effects=frozenset(own[run_id])) for run_id in result.runs
    }
    programs = {run_id: lambda _, promise=p: promise for run_id, p in promises.items()}
    result.violations += map(str, check(history, programs))
    view = View(history)
    done = Counter((each["run_id"], each["seq"]) for each in view.results(AGENT))
    acted = Counter(request.key for request in history.requests if request.applied)
    asked_for = {(run_id, seq) for run_id in result.runs for seq in range(steps)}
    result.steps = len(done)
    result.lost = len(asked_for - done.keys()) + len(effects - acted.keys())
    result.doubled = done.total() - len(done) + acted.total() - len(acted)


#: kinds of faults, with how often each is drawn
KINDS: dict[str, int] = {
    "leader_killed": 4,
    "controller_killed": 3,
    "broker_frozen": 3,
    "rolling_restart": 1,
    "two_brokers_down": 2,
    "scaled": 1,
    "worker_killed": 4,
    "worker_frozen": 2,
    "relay_frozen": 1,
}


def drawn(random_: random.Random, until_s: float) -> Callable[[], str | None]:
    """Faults of the seed's choice, until a time of the monotonic clock."""

    def next_one() -> str | None:
        if time.monotonic() >= until_s:
            return None
        return random_.choices(list(KINDS), list(KINDS.values()))[0]

    return next_one


def listed(kinds: Sequence[str]) -> Callable[[], str | None]:
    """These faults, in their order."""
    left = iter(kinds)
    return lambda: next(left, None)
