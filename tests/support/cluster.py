"""Workers in this process on a real broker, and plain looks at what they wrote.

What is read here is read with a raw client and the codec, not with the engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import ConsumerRecord
from confluent_kafka import TopicPartition as Place

from surefoot import Context, Done, Next
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.blobs.stores import open_claims
from surefoot.infra.kafka.log import KafkaLog, KafkaOwnership
from surefoot.infra.kafka_client.topics import Topics, names_of, specs_for
from surefoot.infra.processes.worker import BATCH_OVERHEAD
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.payload import load
from surefoot.state.declare.agent import Agent
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics, dead_topic
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import Wire, command_out, start_out
from surefoot.state.steps.effects import HTTP
from surefoot.state.steps.http_effect import HttpEffect
from tests.checker.kafka import stable_offsets
from tests.support.eventually import until, until_sync

#: quick to notice a dead worker, patient with a machine that stands still for seconds, and in the
#: order that settings ask for
QUICK = {
    "heartbeat_interval_ms": 300,
    "producer_request_timeout_ms": 4_000,
    "transaction_timeout_ms": 8_000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 15_000,
    "drain_timeout_s": 10.0,
}


#: of a clock for which what is due in half an hour is due
LATER_MS = 45 * 60_000


class MovingClock(SystemClock):
    """The wall clock, and what a test puts it forward by."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@dataclass(slots=True)
class Running:
    """One worker, as a task of the test's loop."""

    worker: Worker
    log: KafkaLog
    executor: Executor
    stop: asyncio.Event
    abort: asyncio.Event
    task: asyncio.Task[bool]

    async def drain(self) -> bool:
        """What SIGTERM does; True when nothing was given up."""
        self.stop.set()
        return await self.task

    def before_own(self, first: Callable[[int], Awaitable[None]]) -> None:
        """Have something happen just before each time that this worker takes a partition over."""
        own = self.log.own

        async def owning(partition: int) -> KafkaOwnership:
            await first(partition)
            return await own(partition)

        self.log.own = owning  # type: ignore[method-assign]

    async def vanish(self) -> None:
        """Be gone as after SIGKILL: nothing is finished, and the group is not told."""

        async def say_nothing(consumer: AIOKafkaConsumer) -> None: ...

        self.log._leave = say_nothing  # type: ignore[method-assign]
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@dataclass(slots=True)
class Cluster:
    """One app prefix on the broker."""

    settings: Settings
    clock: MovingClock = field(default_factory=MovingClock)
    _running: list[Running] = field(default_factory=list)
    _producer: AIOKafkaProducer | None = None

    def topics(self, agent: Agent | str) -> AgentTopics:
        return AgentTopics(self.settings.app, agent if isinstance(agent, str) else agent.name)

    async def create_topics(self, *agents: Agent) -> None:
        async with Topics(self.settings) as topics:
            await topics.apply(specs_for(names_of(agents), self.settings))

    async def work(
        self,
        agent: Agent,
        *,
        slot: int = 0,
        in_flight: int = 64,
        ready: bool = True,
        deadlines: ConsumerDeadlines = DEADLINES,
        **limits: Any,
    ) -> Running:
        """Start a worker; returns when all its partitions are served (unless `ready` is False)."""
        topics = self.topics(agent)
        log = KafkaLog(
            topics=topics,
            partitions=self.settings.partitions,
            settings=self.settings,
            clock=self.clock,
            slot=slot,
        )
        claims = open_claims(self.settings, self.clock)
        executor = Executor(self.clock, claims, deadlines=deadlines)
        executor.start()
        worker = Worker(
            agent=agent,
            log=log,
            wire=Wire(self.settings.app, topics, self.settings.partitions),
            executor=executor,
            clock=self.clock,
            limits=OwnerLimits(
                record_bytes=self.settings.record_max_bytes - BATCH_OVERHEAD,
                **({"idle_commit_s": 0.2, "handover_s": 0.2} | limits),
            ),
            in_flight=in_flight,
            deadlines=deadlines,
        )
        stop, abort = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(
            worker.run(stop, drain_s=self.settings.drain_timeout_s, abort=abort)
        )
        running = Running(worker, log, executor, stop, abort, task)
        self._running.append(running)
        if ready:
            await until(
                lambda: task.done() or (worker.partitions and worker.ready),
                what="the worker to serve its partitions",
            )
        return running

    async def close(self) -> None:
        for running in self._running:
            running.stop.set()
            running.abort.set()
        await asyncio.gather(*(r.task for r in self._running), return_exceptions=True)
        for running in self._running:
            running.executor.stop()
        if self._producer is not None:
            await self._producer.stop()

    # Writing ---------------------------------------------------------------------------------

    async def send(self, out: ProducerRecord) -> int:
        """Write one raw record; returns its offset."""
        if self._producer is None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=self.settings.bootstrap_servers,
                acks="all",
                max_request_size=4_000_000,
                max_batch_size=1_000_000,
            )
            await self._producer.start()
        metadata = await self._producer.send_and_wait(
            out.topic, out.value, out.key, out.partition, headers=list(out.headers)
        )
        return int(metadata.offset)

    async def start(self, agent: Agent, run_id: str, payload: bytes = b"0") -> int:
        """Start a run; returns the offset of the command."""
        return await self.send(
            start_out(
                self.settings.app,
                self.settings.partitions,
                agent.name,
                run_id,
                payload,
                sent_ms=self.clock.now_ms(),
            )
        )

    async def tell(
        self,
        agent: Agent | str,
        run_id: str,
        kind: str,
        *,
        id: str | None = None,  # noqa: A002
        **fields: Any,
    ) -> str:
        """Send a command to a run; returns its id."""
        identity = id or self.clock.unique()
        name = agent if isinstance(agent, str) else agent.name
        await self.send(
            command_out(
                self.settings.app,
                self.settings.partitions,
                name,
                run_id=run_id,
                kind=kind,
                sent_ms=self.clock.now_ms(),
                id=identity,
                **fields,
            )
        )
        return identity

    async def answer(self, agent: Agent | str, run_id: str, identity: str) -> dict[str, Any]:
        """The event that answers that command."""

        async def answered() -> Any:
            events = await self.events(agent, run_id)
            return next((event for event in events if event["id"] == identity), None)

        found: dict[str, Any] = await until(answered, what=f"the answer to {identity}")
        return found

    def run_on(self, partition: int, name: str = "run") -> str:
        """A run_id that lives in that partition."""
        return next(
            run_id
            for run_id in (f"{name}-{n}" for n in range(10_000))
            if partition_of(run_id, self.settings.partitions) == partition
        )

    async def set_offsets(self, agent: Agent, offsets: Mapping[tuple[str, int], int]) -> None:
        """What an admin tool does to the group's offsets, by (input, partition); the group must be
        empty."""
        topics = self.topics(agent)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.settings.bootstrap_servers,
            group_id=topics.group,
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            places = {
                TopicPartition(getattr(topics, kind), partition): offset
                for (kind, partition), offset in offsets.items()
            }
            consumer.assign(list(places))
            await consumer.commit(places)
        finally:
            await consumer.stop()

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """What retention does: the log then starts at that offset (-1: it is empty)."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.bootstrap_servers)
        await admin.start()
        try:
            await admin.delete_records(
                {TopicPartition(topic, partition): RecordsToDelete(before_offset=offset)}
            )
        finally:
            await admin.close()

    # Looking ---------------------------------------------------------------------------------

    async def read(self, topic: str, *, isolation: str = "read_committed") -> list[ConsumerRecord]:
        """Every record of a topic up to what has been written now, by partition and offset.

        A transaction that is being completed is waited for: its markers reach one partition after
        the other.
        """
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.settings.bootstrap_servers,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        await consumer.start()
        try:
            partitions = await consumer._client._wait_on_metadata(topic)
            tps = [TopicPartition(topic, p) for p in sorted(partitions)]
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            ends: dict[TopicPartition, int] = {}
            found: list[ConsumerRecord] = []
            left = tps
            while left:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    found += records
                for tp in tps:
                    high = consumer.highwater(tp)
                    if high is not None:
                        ends.setdefault(tp, high)
                left = [
                    tp for tp in tps if tp not in ends or await consumer.position(tp) < ends[tp]
                ]
            return sorted(found, key=lambda r: (r.partition, r.offset))
        finally:
            await consumer.stop()

    async def events(self, agent: Agent | str, run_id: str | None = None) -> list[dict[str, Any]]:
        """The committed history, of one run or of all."""
        events: list[Any] = [
            decode(r.value, "Event")[1] for r in await self.read(self.topics(agent).events)
        ]
        return [e for e in events if run_id is None or e["run_id"] == run_id]

    async def checkpoint(self, agent: Agent | str, run_id: str) -> dict[str, Any] | None:
        """The latest committed checkpoint of a run."""
        found = None
        for record in await self.read(self.topics(agent).state):
            if record.key == run_id.encode():
                found = record.value and decode(record.value, "Checkpoint")[1]
        return found

    async def status(self, agent: Agent | str, run_id: str) -> str | None:
        checkpoint = await self.checkpoint(agent, run_id)
        return None if checkpoint is None else str(checkpoint["status"])

    async def until_status(
        self, agent: Agent | str, run_ids: str | Iterable[str], status: str, **kw: Any
    ) -> None:
        """Wait until every one of the runs has that status."""
        wanted = {run_ids} if isinstance(run_ids, str) else set(run_ids)

        async def reached() -> bool:
            found: dict[str, str] = {}
            for record in await self.read(self.topics(agent).state):
                key = (record.key or b"").decode()
                if key in wanted and record.value:
                    found[key] = decode(record.value, "Checkpoint")[1]["status"]
            return set(found) == wanted and set(found.values()) == {status}

        await until(reached, what=f"{sorted(wanted)[:5]} to be {status}", **kw)

    async def due_ms(self, agent: Agent | str, run_id: str) -> int:
        """When the run, which fails, is or was to be tried again, in epoch ms."""

        async def told() -> list[int]:
            events = await self.events(agent, run_id)
            return [event["due_ms"] for event in events if event["type"] == "step.retrying"]

        (due_ms,) = await until(told, what=f"{run_id} to fail")
        return due_ms

    async def effects(self) -> dict[str, HttpEffect]:
        """What committed steps have asked for, by idempotency key."""
        found: dict[str, HttpEffect] = {}
        for record in await self.read(self.topics("outbox").commands):
            command = decode(record.value or b"", "Command")[1]
            found.setdefault(command["run_id"], load(HTTP.stored, command["payload"]))
        return found

    async def dead(self) -> list[ConsumerRecord]:
        return await self.read(dead_topic(self.settings.app))

    async def committed(self, agent: Agent) -> dict[tuple[str, int], int]:
        """Committed offsets of the agent's group, by (input, partition).

        Those of a commit that is being completed are waited for: it has returned before the group
        has them, and aiokafka would be told the ones before.
        """
        topics, bootstrap = self.topics(agent), self.settings.bootstrap_servers
        assert bootstrap is not None
        kinds = {topics.commands: "commands", topics.tasks: "tasks"}
        places = [Place(topic, p) for topic in kinds for p in range(self.settings.partitions)]
        found = await asyncio.to_thread(stable_offsets, bootstrap, topics.group, places)
        return {(kinds[at.topic], at.partition): at.offset for at in found if at.offset >= 0}

    async def check_history(self, agent: Agent | str, *others: Agent | str) -> None:
        """What must hold of any history: each step of each run once, in order, without a gap; no
        input answered twice; of each decision all records or none. `others`: agents that this one
        sends commands to."""
        topics = self.topics(agent)
        steps: dict[bytes | None, list[dict[str, Any]]] = {}
        answers: dict[bytes, list[tuple[bytes, bytes]]] = {}
        started: set[tuple[bytes, bytes]] = set()
        parts: dict[tuple[bytes, bytes, bytes], int] = {}
        manifests: dict[tuple[bytes, bytes, bytes], int] = {}
        for topic in (topics.state, topics.tasks, topics.events):
            for record in await self.read(topic):
                headers = dict(record.headers)
                if "sf-run" not in headers:
                    continue
                whose = (headers["sf-txn"], headers["sf-run"], headers["sf-seq"])
                parts[whose] = parts.get(whose, 0) + 1
                if topic == topics.state and record.value and b"|" not in record.key:
                    manifests[whose] = decode(record.value, "Checkpoint")[1]["records"]
                    source = headers["sf-src"]
                    if source != b"timer":
                        answers.setdefault(source, []).append(whose[:2])
                if topic == topics.events:
                    event: Any = decode(record.value, "Event")[1]
                    steps.setdefault(record.key, []).append(event)
                    if event["type"] == "run.started":
                        started.add(whose[:2])
        for source, (first, *later) in answers.items():
            # A start that is read again asks for the first step of the run that it has made.
            again = [each for each in later if first not in started or each in started]
            assert not again, f"{source!r} was answered twice"
        for events in steps.values():
            check_steps(events)
        sent: dict[tuple[bytes, bytes, bytes], int] = {}
        to = [self.topics(each).commands for each in ("outbox", agent, *others)]
        for topic in (*to, dead_topic(self.settings.app)):
            for record in await self.read(topic):
                headers = dict(record.headers)
                if "sf-run" in headers:
                    whose = (headers["sf-txn"], headers["sf-run"], headers["sf-seq"])
                    sent[whose] = sent.get(whose, 0) + 1
        for whose, count in manifests.items():
            assert parts[whose] + sent.get(whose, 0) == count, f"{whose}: not all of {count}"


class Watched:
    """An agent that counts up, a step at a time; its bodies are watched, and held where a test says
    so. Workers get it under names of their own: `await kafka.work(watched.on("A"))`."""

    def __init__(self, name: str, *, steps: int = 3, version: int = 1, sync: bool = False) -> None:
        self.name = name
        self.version = version
        #: (worker, run_id, seq) of every body, in the order of their beginnings
        self.begun: list[tuple[str, str, int]] = []
        #: how many bodies of a (worker, run_id, seq) were ever in progress at once
        self.most: Counter[tuple[str, str, int]] = Counter()
        self._steps = steps
        self._sync = sync
        self._now: Counter[tuple[str, str, int]] = Counter()
        self._held: set[tuple[str | None, str, int]] = set()
        self._lock = threading.Lock()

    def hold(self, run_id: str, seq: int = 0, *, on: str | None = None) -> None:
        """Bodies of that step do not end (on that worker, or on any) until they are let go."""
        self._held.add((on, run_id, seq))

    def let_go(self, run_id: str, seq: int = 0, *, on: str | None = None) -> None:
        self._held.discard((on, run_id, seq))

    def times(self, run_id: str, seq: int = 0, *, on: str | None = None) -> int:
        """How often the body of that step was begun (on that worker, or on any)."""
        return sum(b[1:] == (run_id, seq) and on in (None, b[0]) for b in list(self.begun))

    def on(self, worker: str) -> Agent:
        agent = Agent(self.name, version=self.version)

        def after(payload: int) -> Next | Done:
            following = payload + 1
            return Next(count, following) if following < self._steps else Done(following)

        async def a_step(ctx: Context, payload: int) -> Next | Done:
            with self._watch(worker, ctx):
                await until(lambda: self._free(worker, ctx), timeout_s=600, what="to be let go")
            return after(payload)

        def a_sync_step(ctx: Context, payload: int) -> Next | Done:
            with self._watch(worker, ctx):
                until_sync(lambda: self._free(worker, ctx), timeout_s=600, what="to be let go")
            return after(payload)

        count: Any = a_sync_step if self._sync else a_step
        count.__name__ = "count"
        agent.step(count)
        return agent

    def _free(self, worker: str, ctx: Context) -> bool:
        return not {(None, ctx.run_id, ctx.seq), (worker, ctx.run_id, ctx.seq)} & self._held

    @contextmanager
    def _watch(self, worker: str, ctx: Context) -> Iterator[None]:
        key = (worker, ctx.run_id, ctx.seq)
        with self._lock:
            self.begun.append(key)
            self._now[key] += 1
            self.most[key] = max(self.most[key], self._now[key])
        try:
            yield
        finally:
            with self._lock:
                self._now[key] -= 1


@asynccontextmanager
async def cluster(
    bootstrap: str, app: str, *agents: Agent, **settings: Any
) -> AsyncIterator[Cluster]:
    """A cluster with the topics of these agents."""
    made = Cluster(
        load_settings(
            **{
                **QUICK,
                "bootstrap_servers": bootstrap,
                "app": app,
                "partitions": 2,
                "instance": app,
                **settings,
            }
        )
    )
    await made.create_topics(*agents)
    try:
        yield made
    finally:
        await made.close()


#: events that close a step of a run: it is done, or will not be
CLOSING = ("step.completed", "run.completed", "run.cancelling", "run.failing")


def check_steps(events: Sequence[dict[str, Any]]) -> None:
    """Each step of one run once, in order, without a gap, in every epoch."""
    expected = 0
    for event in events:
        if event["type"] == "run.rewound":
            expected = event["seq"]
        elif event["type"] in CLOSING:
            assert event["seq"] == expected, f"{event['run_id']}: {event['type']} {event['seq']}"
            expected += 1


def headers_of(record: ConsumerRecord) -> dict[str, bytes]:
    return dict(record.headers)


def names(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]
