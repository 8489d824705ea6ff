"""The gateway's Kafka side on a real broker, and without one: what it writes and what it reads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any, Self

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from surefoot import Agent, Context, Done, Webhook
from surefoot.infra.broker.find import start_broker
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.kafka_client import appender as kafka_client
from surefoot.infra.kafka_client import tail as kafka_tail
from surefoot.infra.kafka_client.appender import READY_KEY, KafkaAppender, KafkaReadiness
from surefoot.infra.readers import event_hub
from surefoot.infra.readers.runs import LogRunReader, bounded
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.writers.commands import LogCommands
from surefoot.schemas.codec.codec import decode
from surefoot.state.errors import ConfigError, RecordTooLarge, StateError, Unavailable
from surefoot.state.machine.model import Entry, EventRecord, EventType, Memory, Run, Status
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.reading.ports import Backlog
from surefoot.state.records.encoding import Wire
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until
from tests.support.long_deadlines import LONG_S, PATIENT
from tests.support.servers import served

SECRET = "0123456789abcdef0123456789abcdef"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def agent(agent_name: str) -> Agent:
    made = Agent(agent_name)

    @made.step
    async def first(ctx: Context, payload: int) -> Done:
        return Done(payload)

    @made.webhook("github", event="issues")
    def on_issue(delivery: Webhook) -> int:
        return int(delivery.json["issue"]["number"])

    return made


@pytest.fixture
async def kafka(bootstrap: str, app: str, agent: Agent) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, agent, **PATIENT) as made:
        yield made


class Owner:
    """Writes the history of runs in transactions, as their owner would."""

    def __init__(self, settings: Settings, agent: Agent):
        topics = AgentTopics(settings.app, agent.name)
        self._agent = agent.name
        self._partitions = settings.partitions
        self._wire = Wire(settings.app, topics, settings.partitions)
        self._topics = topics
        self.producer = AIOKafkaProducer(
            **settings.kafka(),
            transactional_id=f"{topics.group}.test",
            transaction_timeout_ms=300_000,  # one is left open while others wait for their deadline
        )

    async def __aenter__(self) -> Self:
        await self.producer.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.producer.stop()

    async def send(
        self,
        run_id: str,
        kind: EventType,
        status: Status = "running",
        *,
        seq: int = 0,
        at_ms: int | None = None,
        result: bytes | None = None,
        version: int = 1,
        **event_fields: Any,
    ) -> None:
        """Checkpoint and event of one decision, in the transaction that is open."""
        now_ms = at_ms or SystemClock().now_ms()
        over = status == "completed"
        run = Run(
            run_id=run_id,
            agent=self._agent,
            version=version,
            status=status,
            seq=seq,
            step="first",
            attempt=0,
            payload=b"" if over else b"%d" % seq,
            created_ms=now_ms,
            updated_ms=now_ms,
            input_digest=b"12345678",
            result=result,
        )
        event = EventRecord(
            type=kind,
            run_id=run_id,
            agent=self._agent,
            version=version,
            status=status,
            seq=seq,
            at_ms=now_ms,
            result=result,
            **event_fields,
        )
        partition = partition_of(run_id, self._partitions)
        for out in (
            self._wire.checkpoint(run, 2, (), partition),
            self._wire.out(event, run_id, partition, (), now_ms),
        ):
            await self.producer.send(out.topic, out.value, out.key, out.partition)

    async def write(self, run_id: str, kind: EventType, status: Status = "running", **more) -> None:
        """One decision, committed."""
        async with self.producer.transaction():
            await self.send(run_id, kind, status, **more)

    async def write_state(self, run_id: str, value: bytes | None) -> None:
        async with self.producer.transaction():
            await self.producer.send(
                self._topics.state, value, run_id.encode(), partition_of(run_id, self._partitions)
            )

    async def say(self, run_id: str, number: int, message: bytes | None) -> None:
        """One message of the run's thread; None: it is tombstoned."""
        entry = Entry(run_id=run_id, slot=f"m:{number}", kind="message", value=message, at_ms=1)
        partition = partition_of(run_id, self._partitions)
        out = self._wire.out(entry, run_id, partition, (), 1)
        value = out.value if message is not None else None
        async with self.producer.transaction():
            await self.producer.send(out.topic, value, out.key, partition)

    async def finish(self, run_id: str, steps: int) -> None:
        """A whole run, one transaction a step."""
        await self.write(run_id, "run.started")
        for seq in range(1, steps):
            await self.write(run_id, "step.completed", seq=seq)
        await self.write(run_id, "run.completed", "completed", seq=steps, result=b'"ok"')


def reader_of(settings: Settings, *given: Any) -> LogRunReader:
    return LogRunReader(settings, KafkaBackend(settings, SystemClock()), *given)


def commands_of(settings: Settings) -> LogCommands:
    return LogCommands(settings, KafkaAppender(settings), SystemClock())


@pytest.fixture
async def owner(kafka: Cluster, agent: Agent) -> AsyncIterator[Owner]:
    async with Owner(kafka.settings, agent) as made:
        yield made


@pytest.fixture
async def reader(kafka: Cluster, agent: Agent) -> AsyncIterator[LogRunReader]:
    made = reader_of(kafka.settings, [agent.name])
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def commands(kafka: Cluster) -> AsyncIterator[LogCommands]:
    made = commands_of(kafka.settings)
    yield made
    await made.stop()


@pytest.fixture
async def readiness(kafka: Cluster) -> AsyncIterator[KafkaReadiness]:
    made = KafkaReadiness(kafka.settings)
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def gateway(
    settings: Settings, agent: Agent, monkeypatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway on a port of its own, and a client of it."""
    monkeypatch.setenv("SUREFOOT_WEBHOOK_GITHUB_SECRET", SECRET)
    # The client outlives the gateway: how that ends its streams is looked at.
    async with httpx.AsyncClient(timeout=90) as client, served(agent, settings) as url:
        client.base_url = url
        yield client


def delivery(number: int = 1347) -> tuple[bytes, dict[str, str]]:
    body = json.dumps({"action": "opened", "issue": {"number": number}}).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return body, {
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": f"delivery-{number}",
        "X-Hub-Signature-256": f"sha256={signature}",
        "Content-Type": "application/json",
    }


def port_of_its_own(settings: Settings, **more) -> Settings:
    return settings.model_copy(update={"gateway_port": 0, **more})


# Starting runs ------------------------------------------------------------------------------


async def test_twenty_deliveries_at_once_are_all_acknowledged_as_one_run_in_one_partition(
    kafka: Cluster, agent: Agent, monkeypatch
) -> None:
    async with gateway(port_of_its_own(kafka.settings), agent, monkeypatch) as client:
        body, headers = delivery()
        answers = await asyncio.gather(
            *(
                client.post(
                    "/webhooks/github",
                    content=body,
                    headers=headers | {"X-Request-Id": f"proxy-{n}"},
                )
                for n in range(20)
            )
        )
        # what has been answered is there already
        records = await kafka.read(kafka.topics(agent).commands)
    run_id = "github-delivery-1347"
    assert [answer.status_code for answer in answers] == [202] * 20
    assert {answer.text for answer in answers} == {
        json.dumps({"runs": [{"agent": agent.name, "run_id": run_id}]}, separators=(",", ":"))
    }
    assert len(records) == 20
    assert {(r.key, r.partition) for r in records} == {
        (run_id.encode(), partition_of(run_id, kafka.settings.partitions))
    }
    assert all(record.headers == () for record in records)


async def test_a_start_is_written_where_its_owner_looks_for_it(
    kafka: Cluster, agent: Agent, commands: LogCommands
) -> None:
    position = await commands.start(
        agent.name,
        "r1",
        b"7",
        traceparent=TRACE,
        tracestate="a=1",
        baggage="x=1",
        deadline_s=LONG_S,
    )
    [record] = await kafka.read(kafka.topics(agent).commands)
    assert (record.partition, record.offset) == (position.partition, position.offset)
    _, command = decode(record.value, "Command")
    assert (command["run_id"], command["kind"], command["step"]) == ("r1", "start", None)
    assert (command["payload"], command["traceparent"]) == (b"7", TRACE)
    assert (command["tracestate"], command["baggage"]) == ("a=1", "x=1")


async def test_a_start_that_is_too_large_is_refused_and_the_next_one_is_not(
    kafka: Cluster, agent: Agent, commands: LogCommands
) -> None:
    limit = kafka.settings.record_max_bytes
    with pytest.raises(RecordTooLarge) as caught:
        await commands.start(agent.name, "r1", b"0" * limit, deadline_s=LONG_S)
    assert caught.value.size > caught.value.limit == limit
    largest = b"1" * (limit - 200)
    await asyncio.gather(
        commands.start(agent.name, "r2", largest, deadline_s=LONG_S),
        commands.start(agent.name, "r3", b"7", deadline_s=LONG_S),
    )
    assert len(await kafka.read(kafka.topics(agent).commands)) == 2


async def test_what_is_sent_together_stays_within_the_limit_of_its_topic() -> None:
    """A topic's limit is for a batch, whatever each of its records takes."""
    settings = load_settings(bootstrap_servers="127.0.0.1:1", record_max_bytes=20_000)
    producer = KafkaAppender(settings)._make()
    batch = producer.create_batch()
    while batch.append(timestamp=1, key=b"r1", value=b"x" * 6_000) is not None:
        pass
    await producer.stop()
    assert 6_000 < batch.size() <= settings.record_max_bytes


async def test_any_command_is_written_with_what_it_says(
    kafka: Cluster, agent: Agent, commands: LogCommands
) -> None:
    await commands.send(
        agent.name, "r1", "signal", deadline_s=LONG_S, id="s1", name="go", payload=b"[1]", by="ann"
    )
    [record] = await kafka.read(kafka.topics(agent).commands)
    _, command = decode(record.value, "Command")
    assert (record.key, record.partition) == (b"r1", partition_of("r1", 2))
    told = [command[name] for name in ("kind", "id", "name", "payload", "by")]
    assert told == ["signal", "s1", "go", b"[1]", "ann"]
    with pytest.raises(RecordTooLarge, match="the signal command of r1"):
        await commands.send(
            agent.name,
            "r1",
            "signal",
            deadline_s=LONG_S,
            id="s2",
            name="go",
            payload=b"1" * kafka.settings.record_max_bytes,
        )


async def test_a_topic_with_another_partition_count_gets_no_command(
    kafka: Cluster, agent: Agent
) -> None:
    settings = kafka.settings.model_copy(update={"partitions": 3})
    commands = commands_of(settings)
    with pytest.raises(Unavailable, match="SUREFOOT_PARTITIONS"):
        await commands.start(agent.name, "r1", b"7", deadline_s=LONG_S)
    await commands.stop()


@contextlib.asynccontextmanager
async def mute_server() -> AsyncIterator[str]:
    """Something that takes connections and never answers."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


def slow_to_give_up(address: str) -> Settings:
    """No request of a client ends before the deadline that a test gives."""
    return load_settings(
        bootstrap_servers=address,
        producer_request_timeout_ms=600_000,
        transaction_timeout_ms=700_000,
        session_timeout_ms=800_000,
        rebalance_timeout_ms=900_000,
    )


async def test_without_an_answer_from_kafka_a_start_ends_at_its_deadline() -> None:
    async with mute_server() as address:
        commands = commands_of(slow_to_give_up(address))
        starts = [commands.start("a", f"r{n}", b"7", deadline_s=0.5) for n in range(5)]
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            assert isinstance(outcome, Unavailable)
            assert "no acknowledgement from Kafka in 0.5 s" in str(outcome)
        await commands.stop()


async def test_a_broker_that_stalls_gives_503_in_time_and_202_when_it_is_back(
    app: str, agent: Agent, monkeypatch
) -> None:
    if shutil.which("java") is None:
        pytest.skip("the broker to be paused is run with Java")
    broker = await asyncio.to_thread(start_broker, ways=("java",))
    try:
        async with cluster(broker.bootstrap, app, agent, gateway_port=0) as kafka:
            hasty = kafka.settings.within(start_s=1.0, answer_s=1.0, ready_s=1.0)
            async with gateway(hasty, agent, monkeypatch) as client:

                async def ready() -> int:
                    return (await client.get("/ready")).status_code

                async def sent(number: int) -> httpx.Response:
                    body, headers = delivery(number)
                    return await client.post("/webhooks/github", content=body, headers=headers)

                async def accepted(number: int) -> bool:
                    return (await sent(number)).status_code == 202

                await until(lambda: _is(ready(), 200), what="a new broker to be ready")
                await until(lambda: accepted(1), what="a delivery to be accepted")
                broker.pause()
                answers = await asyncio.gather(*(sent(2) for _ in range(3)))
                assert [answer.status_code for answer in answers] == [503] * 3
                assert all("Retry-After" in answer.headers for answer in answers)
                await until(lambda: _is(ready(), 503), what="readiness to be red")
                assert (await client.get("/health")).status_code == 200
                broker.resume()
                await until(lambda: _is(ready(), 200), what="readiness to be green")
                await until(lambda: accepted(2), what="the delivery to be accepted")
            keys = {record.key for record in await kafka.read(kafka.topics(agent).commands)}
            assert keys == {b"github-delivery-1", b"github-delivery-2"}
    finally:
        broker.resume()
        await asyncio.to_thread(broker.stop)


async def _is(awaited: Awaitable[int], wanted: int) -> bool:
    return await awaited == wanted


# Readiness ----------------------------------------------------------------------------------


async def test_ready_means_that_a_transaction_has_committed_and_callers_share_it(
    kafka: Cluster, agent: Agent, readiness: KafkaReadiness, monkeypatch
) -> None:
    monkeypatch.setattr(kafka_client, "_READY_EVERY_S", float("inf"))
    await asyncio.gather(*(readiness.check(agent.name) for _ in range(10)))
    await readiness.check(agent.name)
    records = await kafka.read(kafka.topics(agent).state)
    assert [(record.partition, record.key) for record in records] == [(0, READY_KEY)]


async def test_not_ready_without_the_state_topic_and_it_says_why(
    kafka: Cluster,
) -> None:
    readiness = KafkaReadiness(kafka.settings.within(ready_s=1.0))
    with pytest.raises(Unavailable, match="nobody"):
        await readiness.check("nobody")
    await readiness.stop()


async def test_two_gateways_of_one_instance_name_are_both_ready(
    kafka: Cluster, agent: Agent, readiness: KafkaReadiness, monkeypatch
) -> None:
    monkeypatch.setattr(kafka_client, "_READY_EVERY_S", 0)
    other = KafkaReadiness(kafka.settings)
    for _ in range(3):
        await readiness.check(agent.name)
        await other.check(agent.name)
    await other.stop()


async def test_not_ready_in_bounded_time_when_kafka_does_not_answer() -> None:
    async with mute_server() as address:
        readiness = KafkaReadiness(slow_to_give_up(address).within(ready_s=0.5))
        with pytest.raises(Unavailable, match=r"no transaction could be committed in 0\.5 s"):
            await readiness.check("a")
        await readiness.stop()


# Reading runs -------------------------------------------------------------------------------


async def test_a_run_is_shown_from_its_latest_committed_checkpoint(
    agent: Agent, owner: Owner, kafka: Cluster
) -> None:
    await owner.write("r1", "run.started")
    await owner.write("r1", "step.completed", seq=1)
    await owner.write("r2", "run.completed", "completed", seq=1, result=b'{"a": 1}')
    reader = reader_of(kafka.settings, [agent.name])
    await reader.start()  # the last record of each partition is a transaction marker
    one = await reader.get(agent.name, "r1")
    two = await reader.get(agent.name, "r2")
    assert one is not None
    assert two is not None
    assert (one.status, one.seq, one.payload, one.agent) == ("running", 1, b"1", agent.name)
    assert (two.status, two.result, two.payload) == ("completed", b'{"a": 1}', b"")
    assert await reader.get(agent.name, "r3") is None
    await reader.stop()


async def test_runs_are_listed_most_recent_first_and_by_status(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    for n in range(8):
        status: Status = "completed" if n % 2 else "running"
        await owner.write(f"r{n}", "run.started", status, at_ms=1_000_000 + n)

    async def listed(**query) -> list[str]:
        return [run.run_id for run in await reader.list(agent.name, **query)]

    await until(lambda: _has(listed(), 8), what="the runs to be listed")
    assert await listed() == [f"r{n}" for n in reversed(range(8))]
    assert await listed(limit=3) == ["r7", "r6", "r5"]
    assert await listed(status="running", limit=2) == ["r6", "r4"]


async def _has(awaited, count: int) -> bool:
    return len(await awaited) == count


async def test_what_was_aborted_tombstoned_or_is_no_run_is_not_shown(
    agent: Agent, owner: Owner, kafka: Cluster
) -> None:
    await owner.write("kept", "run.started")
    await owner.write("gone", "run.started")
    await owner.write_state("gone", None)
    await owner.write_state("@applied", b"whatever")
    await owner.producer.begin_transaction()
    await owner.send("never", "run.started")
    await owner.send("kept", "run.completed", "completed")
    await owner.producer.abort_transaction()
    reader = reader_of(kafka.settings, [agent.name])
    await reader.start()
    [run] = await reader.list(agent.name)
    assert (run.run_id, run.status) == ("kept", "running")
    assert await reader.get(agent.name, "gone") is None
    assert [e["type"] for _, e in await _now(reader, agent, "kept", 1)] == ["run.started"]
    await reader.stop()


async def _now(reader: LogRunReader, agent: Agent, run_id: str, count: int) -> list[Any]:
    events = reader.events(agent.name, run_id, None)
    async with contextlib.aclosing(events):
        return [await anext(events) for _ in range(count)]


async def test_a_checkpoint_that_cannot_be_decoded_is_shown_as_needing_attention(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.write_state("r1", b"\xc3\x01nonsense")
    await owner.write("r2", "run.started")
    await until(lambda: _has(reader.list(agent.name), 2), what="both runs")
    run = await reader.get(agent.name, "r1")
    assert run is not None
    assert run.status == "attention"
    assert run.failure is not None
    assert run.failure["code"] == "undecodable"


async def test_entries_of_a_run_are_no_runs_and_its_messages_are_read_from_them(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.write("r1", "run.started")
    await owner.write("r10", "run.started")
    for number, message in enumerate((b'"a"', b'"b"', b'"c"')):
        await owner.say("r1", number, message)
    await owner.say("r10", 0, b'"of another run"')
    await owner.say("r1", 1, b'"b again"')
    await until(lambda: _has(reader.list(agent.name), 2), what="the runs")
    assert {run.run_id for run in await reader.list(agent.name)} == {"r1", "r10"}
    latest = await reader.latest(agent.name, "r1")
    assert latest is not None
    assert (latest.status, latest.failure) == ("running", None)
    assert await reader.messages(agent.name, "r1", 3) == (b'"a"', b'"b again"', b'"c"')
    assert await reader.messages(agent.name, "r1", 1) == (b'"a"',)
    assert await reader.messages(agent.name, "r1", 0) == ()
    await owner.say("r1", 0, None)
    with pytest.raises(StateError, match="only 2 of 3 messages of r1 are left"):
        await reader.messages(agent.name, "r1", 3)
    with pytest.raises(StateError, match="only 0 of 1"):
        await reader.messages(agent.name, "nobody", 1)


async def test_runs_are_counted_as_they_change_and_go(
    agent: Agent, owner: Owner, kafka: Cluster
) -> None:
    await owner.write("r1", "run.started")
    await owner.write("r2", "run.started")
    await owner.write("r3", "run.started", version=2)
    await owner.write("r1", "run.completed", "completed", seq=1)
    await owner.write("gone", "run.started", version=7)
    await owner.write_state("gone", None)
    await owner.write_state("broken", b"nonsense")
    reader = reader_of(kafka.settings, [agent.name])
    await reader.start()
    assert await reader.counts(agent.name) == {
        (1, "running"): 1,
        (1, "completed"): 1,
        (2, "running"): 1,
        (0, "attention"): 1,
    }
    await reader.stop()


async def test_the_latest_state_of_a_run_waits_for_what_is_being_committed(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.write("r1", "run.started")
    for seq in range(1, 20):
        await owner.write("r1", "step.completed", seq=seq)
        run = await reader.latest(agent.name, "r1")
        assert run is not None
        assert run.seq == seq
    assert await reader.latest(agent.name, "nobody") is None


async def test_an_answer_is_seen_whenever_it_comes_after_the_watch_has_begun(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    for number in range(5):
        await owner.write("r1", "run.paused", "paused", id="earlier")
        async with reader.answers(agent.name, "r1") as events:
            await owner.write("other", "run.paused", "paused", id=f"c{number}")
            await owner.write("r1", "run.paused", "paused", id=f"c{number}")
            async with asyncio.timeout(90):
                found = await anext(events)
                while found["id"] == "earlier":  # of before, when the tail lags behind
                    found = await anext(events)
            assert (found["id"], found["run_id"]) == (f"c{number}", "r1")
    assert not reader.agents[agent.name].hub._watchers


async def test_lines_of_history_are_read_for_many_runs_at_once(
    agent: Agent, owner: Owner, reader: LogRunReader, monkeypatch
) -> None:
    monkeypatch.setattr("surefoot.infra.kafka_client.tail._PAGE_RECORDS", 4)
    runs = [f"r{n}" for n in range(6)]
    memory = Memory(thread=2)
    for run_id in runs:
        told: dict[str, Any] = {"next_step": "first", "payload": b"7", "memory": memory}
        await owner.write(run_id, "run.started", **told)
        await owner.write(run_id, "step.completed", seq=0, **told)
        await owner.write(run_id, "run.completed", "completed", seq=1)
    asked = runs[::2]
    lines = await reader.lines(agent.name, [*asked, "nobody"], lambda seq, _step: seq == 1)
    assert list(lines) == asked
    for line in lines.values():
        [version] = line.versions.values()
        assert (version.seq, version.step, version.payload) == (1, "first", b"7")
        assert version.memory == memory
    found = await reader.summaries(agent.name, ["r1", "nobody"])
    assert [(run.run_id, run.status) for run in found.values()] == [("r1", "completed")]


async def test_a_reader_of_one_partition_reads_no_other(
    agent: Agent, owner: Owner, kafka: Cluster
) -> None:
    mine, other = kafka.run_on(0), kafka.run_on(1)
    await owner.write(mine, "run.started")
    await owner.write(other, "run.started")
    reader = reader_of(kafka.settings, [agent.name], [0])
    await reader.start()
    assert await reader.get(agent.name, mine) is not None
    assert [run.run_id for run in await reader.list(agent.name)] == [mine]
    assert len(await _now(reader, agent, mine, 1)) == 1
    await reader.stop()


async def test_the_backlog_of_a_partition_counts_what_no_worker_has_finished(
    kafka: Cluster, agent: Agent, reader: LogRunReader
) -> None:
    for number in range(3):
        await kafka.start(agent, kafka.run_on(0, f"r{number}-"))
    await kafka.start(agent, kafka.run_on(1))
    nobody = Backlog(partition=0, commands=3, tasks=0, workers=0)
    assert await reader.backlog(agent.name, kafka.run_on(0)) == nobody
    await kafka.work(agent)

    async def drained() -> bool:
        found = await reader.backlog(agent.name, kafka.run_on(0))
        return found == Backlog(partition=0, commands=0, tasks=0, workers=1)

    await until(drained, what="an idle worker to leave no backlog")


async def test_the_reader_says_so_when_it_has_not_caught_up(
    agent: Agent, owner: Owner, kafka: Cluster, monkeypatch
) -> None:
    await owner.producer.begin_transaction()
    await owner.send("r1", "run.started")
    await owner.producer.flush()
    reader = reader_of(kafka.settings, [agent.name])
    await reader.start()
    with monkeypatch.context() as abort:
        abort.setattr(reader.agents[agent.name], "bounded", partial(bounded, 0.5))
        with pytest.raises(Unavailable):
            await reader.list(agent.name)  # never an answer that leaves something out
    await owner.producer.commit_transaction()
    assert len(await reader.list(agent.name)) == 1
    await reader.stop()


async def test_a_reader_comes_up_without_kafka_and_stops() -> None:
    async with mute_server() as address:
        reader = reader_of(load_settings(bootstrap_servers=address).within(read_s=0.3), ["a"])
        await reader.start()
        with pytest.raises(Unavailable):
            await reader.get("a", "r1")
        with pytest.raises(Unavailable):
            await anext(reader.events("a", "r1", None))
        await reader.stop()


async def test_a_caller_that_leaves_while_a_consumer_is_opened_leaves_none_behind(
    agent: Agent, owner: Owner, reader: LogRunReader, monkeypatch
) -> None:
    await owner.write("r1", "run.started")
    await until(lambda: _has(reader.list(agent.name), 1), what="the run")
    opened: list[AIOKafkaConsumer] = []
    gate = asyncio.Event()
    real = kafka_tail.consumer

    def slow_to_start(*args: Any, **options: Any) -> AIOKafkaConsumer:
        consumer = real(*args, **options)
        start = consumer.start

        async def start_later() -> None:
            await gate.wait()
            await start()

        consumer.start = start_later
        opened.append(consumer)
        return consumer

    monkeypatch.setattr(kafka_tail, "consumer", slow_to_start)
    getting = asyncio.create_task(reader.get(agent.name, "r1"))
    await until(lambda: opened, what="a consumer to be opened")
    getting.cancel()
    await asyncio.wait([getting], timeout=90)
    assert getting.cancelled()  # though the consumer has not started yet
    gate.set()
    await until(lambda: opened[0]._closed, what="it to be closed")


async def test_many_runs_are_read_at_once(agent: Agent, owner: Owner, reader: LogRunReader) -> None:
    async with owner.producer.transaction():
        for n in range(300):
            await owner.send(f"r{n}", "run.started", seq=n)
    await until(lambda: _has(reader.list(agent.name, limit=400), 300), what="the runs")
    runs = await asyncio.gather(*(reader.get(agent.name, f"r{n}") for n in range(0, 300, 5)))
    assert [run.payload for run in runs if run] == [b"%d" % n for n in range(0, 300, 5)]


# Events -------------------------------------------------------------------------------------


async def watched(
    reader: LogRunReader, agent: Agent, run_id: str, after: int | None = None
) -> list[tuple[int, int, str]]:
    return [
        (offset, event["seq"], event["type"])
        async for offset, event in reader.events(agent.name, run_id, after)
    ]


async def test_watchers_that_come_at_any_time_see_each_event_once_and_in_order(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.finish("other", 2)
    first = asyncio.create_task(watched(reader, agent, "r1"))  # before its start
    watchers = [first]
    await owner.write("r1", "run.started")
    for seq in range(1, 40):
        await owner.write("r1", "step.completed", seq=seq)
        await owner.write(f"noise-{seq}", "run.started")
        if seq % 4 == 0:
            watchers.append(asyncio.create_task(watched(reader, agent, "r1")))
    await owner.write("r1", "run.completed", "completed", seq=40)
    await owner.write("r1", "start.ignored", "completed", seq=40)
    watchers.append(asyncio.create_task(watched(reader, agent, "r1")))  # after its end
    histories = await asyncio.wait_for(asyncio.gather(*watchers), 90)
    expected = ["run.started", *["step.completed"] * 39, "run.completed"]
    for history in histories:
        assert [kind for _, _, kind in history] == expected
        assert [seq for _, seq, _ in history] == list(range(41))
        assert history == histories[0]


async def test_a_watcher_goes_on_after_the_event_it_has_seen_last(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.finish("r1", 5)
    history = await watched(reader, agent, "r1")
    for seen in range(len(history)):
        offset = history[seen][0]
        assert await watched(reader, agent, "r1", after=offset) == history[seen + 1 :]
    # a cursor of a topic that has been made anew: the whole history rather than none of it
    assert await watched(reader, agent, "r1", after=10_000_000) == history


async def test_a_live_tail_that_lags_behind_loses_no_event_and_repeats_none(
    kafka: Cluster, agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    tail: Any = reader.agents[agent.name].hub._tail
    tail.start()
    await tail.started()
    await tail.stop()
    await owner.write("r1", "run.started")
    await owner.write("r1", "step.completed", seq=1)
    await owner.write("r1", "step.completed", seq=2)
    # over, and none of it has come in live
    await owner.finish("r2", 2)
    assert [seq for _, seq, _ in await watched(reader, agent, "r2")] == [0, 1, 2]
    # seen already, as another gateway was ahead of this one
    events = [r for r in await kafka.read(kafka.topics(agent).events) if r.key == b"r1"]
    going_on = asyncio.create_task(watched(reader, agent, "r1", after=events[1].offset))
    await until(lambda: reader.agents[agent.name].hub._watchers, what="the watcher")
    tail._task = None
    tail.start()
    await owner.write("r1", "run.completed", "completed", seq=3)
    assert [seq for _, seq, _ in await asyncio.wait_for(going_on, 90)] == [2, 3]


async def test_a_run_that_went_on_after_its_end_is_watched_to_its_last_end(
    agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.finish("r1", 2)
    await owner.write("r1", "command.refused", "completed", seq=2, id="c1")
    await owner.write("r1", "run.rewound", seq=1, id="c2")
    early = asyncio.create_task(watched(reader, agent, "r1"))
    await until(lambda: reader.agents[agent.name].hub._watchers, what="the watcher")
    assert not early.done()
    await owner.write("r1", "command.repeated", seq=1, id="c2")
    await owner.write("r1", "run.completed", "completed", seq=2)
    await owner.write("r1", "command.refused", "completed", seq=2, id="c3")
    late = await watched(reader, agent, "r1")
    assert [kind for _, _, kind in late] == [
        "run.started",
        "step.completed",
        "run.completed",
        "run.rewound",
        "command.repeated",
        "run.completed",
    ]
    assert await asyncio.wait_for(early, 90) == late


async def test_a_watcher_that_has_seen_the_end_is_let_go_also_when_the_state_lags_behind(
    kafka: Cluster, agent: Agent, owner: Owner, reader: LogRunReader
) -> None:
    await owner.write("r1", "run.started")
    await until(lambda: _has(reader.list(agent.name), 1), what="the run")
    tail: Any = reader.agents[agent.name].state
    await tail.stop()
    await owner.write("r1", "run.completed", "completed", seq=1)
    [*_, last] = await kafka.read(kafka.topics(agent).events)
    watching = asyncio.create_task(watched(reader, agent, "r1", after=last.offset))
    await until(lambda: reader.agents[agent.name].hub._watchers, what="the watcher")
    tail._task = None
    tail.start()
    assert await asyncio.wait_for(watching, 90) == []


async def test_a_history_longer_than_a_page_is_whole(
    agent: Agent, owner: Owner, reader: LogRunReader, monkeypatch
) -> None:
    monkeypatch.setattr("surefoot.infra.kafka_client.tail._PAGE_RECORDS", 3)
    monkeypatch.setattr("surefoot.infra.kafka_client.tail._PAGE_SCANNED", 5)
    monkeypatch.setattr("surefoot.infra.kafka_client.tail._BATCH", 4)
    for n in range(12):
        await owner.write(f"noise-{n}", "run.started")
    await owner.finish("r1", 20)
    assert [seq for _, seq, _ in await watched(reader, agent, "r1")] == list(range(21))


async def test_a_watcher_that_is_too_slow_is_let_go_and_can_come_back(
    agent: Agent, owner: Owner, reader: LogRunReader, monkeypatch
) -> None:
    monkeypatch.setattr(event_hub, "WAITING_RECORDS", 5)
    events = reader.events(agent.name, "r1", None)
    taking = asyncio.create_task(anext(events))
    await until(lambda: reader.agents[agent.name].hub._watchers, what="the watcher")
    await owner.write("r1", "run.started")
    seen = [(await taking)[1]["seq"]]
    async with owner.producer.transaction():
        for seq in range(1, 20):
            await owner.send("r1", "step.completed", seq=seq)
    [watcher] = reader.agents[agent.name].hub._watchers[b"r1"]
    await until(lambda: watcher._closed, what="the watcher to be given up")
    assert len(watcher._waiting) == 0
    last = 0
    async for offset, event in events:
        seen.append(event["seq"])
        last = offset
    assert len(seen) < 20
    await owner.write("r1", "run.completed", "completed", seq=20)
    rest = await watched(reader, agent, "r1", after=last or None)
    assert [seq for _, seq, _ in rest][-1] == 20


async def test_a_tail_that_loses_its_consumer_goes_on_from_where_it_was(
    agent: Agent, owner: Owner, reader: LogRunReader, monkeypatch
) -> None:
    monkeypatch.setattr("surefoot.infra.kafka_client.tail._RETRY_S", 0.05)
    events = reader.events(agent.name, "r1", None)
    first = asyncio.create_task(anext(events))
    await owner.write("r1", "run.started")
    seen = [(await first)[1]["seq"]]  # what comes from now on comes live
    hub = reader.agents[agent.name].hub
    tail: Any = hub._tail
    real = tail._apply
    failures: Counter[int] = Counter()

    def failing(record) -> None:
        failures[record.offset] += 1
        if failures[record.offset] == 1:
            raise OSError("connection lost")
        real(record)

    monkeypatch.setattr(hub._tail, "_apply", failing)
    await owner.write("r1", "step.completed", seq=1)
    await owner.write("r1", "run.completed", "completed", seq=2)
    async with asyncio.timeout(90):
        seen += [event["seq"] async for _, event in events]
    assert seen == [0, 1, 2]
    assert failures


# The process --------------------------------------------------------------------------------


async def test_events_are_streamed_over_http_and_stopping_the_gateway_ends_them(
    kafka: Cluster, agent: Agent, owner: Owner, monkeypatch
) -> None:
    async with gateway(port_of_its_own(kafka.settings), agent, monkeypatch) as client:
        path = f"/runs/{agent.name}/r1/events"
        lines: asyncio.Queue[str] = asyncio.Queue()

        async def watch(run_id: str) -> None:
            async with client.stream("GET", f"/runs/{agent.name}/{run_id}/events") as answer:
                async for line in answer.aiter_lines():
                    lines.put_nowait(line)

        watching = asyncio.create_task(watch("r1"))
        await owner.finish("r1", 2)
        await asyncio.wait_for(watching, 90)
        got = [lines.get_nowait() for _ in range(lines.qsize())]
        assert [line for line in got if line.startswith("event:")] == [
            "event: run.started",
            "event: step.completed",
            "event: run.completed",
        ]
        ids = [line.removeprefix("id: ") for line in got if line.startswith("id:")]
        async with client.stream("GET", path, headers={"Last-Event-ID": ids[-1]}) as answer:
            assert answer.status_code == 204
        shown = (await client.get(f"/runs/{agent.name}/r1")).json()
        assert (shown["status"], shown["result"]) == ("completed", "ok")
        open_end = asyncio.create_task(watch("r2"))
        await owner.write("r2", "run.started")
        await asyncio.wait_for(lines.get(), 90)
    await asyncio.wait_for(open_end, 90)  # ended cleanly, not cut off


async def test_a_gateway_does_not_come_up_before_its_topics_are_right(
    kafka: Cluster, agent: Agent, monkeypatch
) -> None:
    settings = port_of_its_own(kafka.settings, partitions=3)
    with pytest.raises(ConfigError, match="partitions"):
        async with gateway(settings, agent, monkeypatch):
            pass


async def test_a_port_that_is_taken_is_a_start_up_error(
    kafka: Cluster, agent: Agent, monkeypatch
) -> None:
    async with mute_server() as address:
        settings = port_of_its_own(kafka.settings, gateway_port=int(address.split(":")[1]))
        with pytest.raises(ConfigError, match="SUREFOOT_GATEWAY_PORT"):
            async with gateway(settings, agent, monkeypatch):
                pass
