"""What every row needs: its topics, its processes, its clients, and a look at what was written."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.records import AGENT, payload, run_name
from surefoot.infra.kafka_client.topics import Topics, specs_for
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import decode
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import start_out

ROOT = Path(__file__).resolve().parent.parent
#: how long a process may take to end when it is asked to, in seconds
STOP_S = 40.0
#: and to be ready
READY_S = 60.0

#: who does the work: by hand, the engine, the engine with steps on the clients' loop, the engine
#: with a recorded call in each step, or with steps that wait
Kind = Literal["bare", "engine", "one_loop", "calling", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One committed step, as its event tells it."""

    run_id: bytes
    seq: int
    partition: int
    #: epoch ms: when its transaction's records were handed to the client
    at_ms: int


async def create_topics(settings: Settings) -> None:
    """The topics of the row's app prefix."""
    async with Topics(settings) as topics:
        await topics.apply(specs_for([AGENT], settings))


# Processes -----------------------------------------------------------------------------------


def environment(settings: Settings) -> dict[str, str]:
    """The variables of a process with these settings."""
    return {
        "SUREFOOT_APP": settings.app,
        "SUREFOOT_BOOTSTRAP_SERVERS": settings.bootstrap_servers or "",
        "SUREFOOT_PARTITIONS": str(settings.partitions),
        "SUREFOOT_IN_FLIGHT": str(settings.in_flight),
        "SUREFOOT_INSTANCE": settings.instance,
    }


class Died(Exception):
    """A measured process ended by itself; the message has the end of its log."""


class Process:
    """A child process, its output in a file."""

    def __init__(
        self, args: Sequence[str], settings: Settings, log: Path, extra: Mapping[str, str]
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", *args],
                cwd=ROOT,
                env={**os.environ, **environment(settings), **extra},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def check(self) -> None:
        """Raises Died when it no longer runs."""
        code = self._popen.poll()
        if code is not None:
            raise Died(f"{self._popen.args!r} ended with status {code}\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-20:])

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL past the deadline."""
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


@contextmanager
def process(
    args: Sequence[str], settings: Settings, extra: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run `python -m ARGS...` with these settings and variables; stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as folder:
        child = Process(args, settings, Path(folder) / "log", extra or {})
        try:
            yield child
        finally:
            child.stop()


async def row_of(args: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """The row that `python -m ARGS...` prints as JSON. Raises: Died."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *args,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    if child.returncode:
        raise Died(f"{args} ended with status {child.returncode}")
    row: dict[str, Any] = json.loads(output)
    return row


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A temporary folder that is not in /tmp, which may be memory."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
        yield Path(folder)


async def until_ready(port: int, gateway: Process) -> None:
    """Until the gateway on this port of this machine says so."""
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(READY_S),
    ):
        while True:
            gateway.check()
            with suppress(httpx.TransportError):
                if (await client.get("/ready")).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(0.1)


def cpu_s(pid: int) -> float:
    """CPU time that the process has used so far, in seconds."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def arguments(kind: Kind, steps: int, slot: int = 0) -> list[str]:
    """What runs one process of that kind; `steps` is how many a run has, `slot` tells processes of
    the engine apart."""
    match kind:
        case "bare":
            return ["benchmarks.bare", str(steps)]
        case "engine":
            return ["surefoot", "worker", "benchmarks/agents.py", "--slot", str(slot)]
        case "calling":
            return ["surefoot", "worker", "benchmarks/calling_agent.py", "--slot", "0"]
        case "waiting":
            return ["surefoot", "worker", "benchmarks/waiting_agent.py", "--slot", str(slot)]
        case "one_loop":
            return ["benchmarks.one_loop"]


# Writing -------------------------------------------------------------------------------------


def command(settings: Settings, number: int, steps: int) -> ProducerRecord:
    """Asks for one run of so many steps."""
    return start_out(
        settings.app,
        settings.partitions,
        AGENT,
        run_name(number),
        payload(steps),
        sent_ms=SystemClock().now_ms(),
    )


@asynccontextmanager
async def producer(settings: Settings, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A plain producer that waits for every replica."""
    async with AIOKafkaProducer(**settings.kafka(), acks="all", **options) as made:
        yield made


async def start_runs(settings: Settings, count: int, steps: int) -> None:
    """Write the commands of `count` runs; returns when all are acknowledged."""
    async with producer(settings, linger_ms=5, max_batch_size=262_144) as client:
        sent = []
        for number in range(count):
            out = command(settings, number, steps)
            sent.append(await client.send(out.topic, out.value, out.key, out.partition))
        await asyncio.gather(*sent)


# Looking -------------------------------------------------------------------------------------


@asynccontextmanager
async def events_reader(settings: Settings, agent: str = AGENT) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer at the beginning of every partition of the events; sees what is committed."""
    async with _reader(settings, AgentTopics(settings.app, agent).events) as consumer:
        yield consumer


@asynccontextmanager
async def _reader(settings: Settings, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    async with AIOKafkaConsumer(
        **settings.kafka(), isolation_level="read_committed", enable_auto_commit=False
    ) as consumer:
        places = [TopicPartition(topic, partition) for partition in range(settings.partitions)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        yield consumer


@asynccontextmanager
async def commands_reader(settings: Settings) -> AsyncIterator[AIOKafkaConsumer]:
    """The same for the commands."""
    async with _reader(settings, AgentTopics(settings.app, AGENT).commands) as consumer:
        yield consumer


async def start_times(reader: AIOKafkaConsumer) -> dict[bytes, int]:
    """When each run was asked for, by run_id; epoch ms."""
    return {record.key: record.timestamp for record in await _all(reader)}


async def written(reader: AIOKafkaConsumer) -> int:
    """How far the committed events reach, over all partitions (transaction markers included)."""
    return sum((await reader.end_offsets(reader.assignment())).values())


async def all_steps(reader: AIOKafkaConsumer) -> list[Step]:
    """Every step committed so far, in order within each partition."""
    return [step for record in await _all(reader) if (step := step_of(record)) is not None]


async def transactions(settings: Settings) -> int:
    """How many transactions have moved a run, or recorded something for one."""
    async with _reader(settings, AgentTopics(settings.app, AGENT).state) as reader:
        headers = [dict(record.headers) for record in await _all(reader)]
    return len({each["sf-txn"] for each in headers if "sf-run" in each})


async def _all(reader: AIOKafkaConsumer) -> list[Any]:
    ends = await reader.end_offsets(reader.assignment())
    found: list[Any] = []
    while any([await reader.position(place) < end for place, end in ends.items()]):
        for records in (await reader.getmany(timeout_ms=200)).values():
            found += records
    return found


def step_of(record: Any) -> Step | None:
    """The step that an event ends; None: it ends none."""
    event = decode(record.value, "Event")[1]
    if event["type"] not in ("step.completed", "run.completed"):
        return None
    return Step(
        run_id=record.key,
        seq=event["seq"],
        partition=record.partition,
        at_ms=record.timestamp,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
