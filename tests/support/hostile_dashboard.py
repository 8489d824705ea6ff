"""An agent that says what no page may act upon, served on an embedded log or on Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from unittest.mock import patch

import httpx

from surefoot import (
    Agent,
    Approval,
    Approve,
    BranchResult,
    Context,
    Done,
    Next,
    Parallel,
    Retry,
    Wait,
)
from surefoot.infra.embedded.backend import EmbeddedBackend
from surefoot.infra.encryption.backend import EncryptedBackend
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes import gateway as gateway_main
from surefoot.infra.processes.gateway import serve_gateway
from surefoot.infra.processes.serve import serve
from surefoot.infra.readers.runs import LogRunReader
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.machine.model import EventRecord, Run
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.reading.runs import RunSummary
from surefoot.state.records.encoding import Wire
from tests.support.eventually import until

#: markup, an override of the direction of text, and a mark without width
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> \u202eabc\u200b <script>alert(1)</script>"
_STOP_S = 90.0
_BATCH = 5_000


def desk_agent(name: str = "desk") -> Agent:
    """What a run does is its payload; a run called `live` ticks for each signal `tick`."""
    agent = Agent(name)

    @agent.step(start=True, retry=Retry(attempts=1))
    async def begin(ctx: Context, what: str) -> Next | Approve | Wait | Parallel:
        ctx.plan.tick(ctx.plan.add("read the letter"))
        ctx.plan.add(f"answer {HOSTILE}")
        if what == "fail":
            raise ValueError(HOSTILE)
        if what == "ask":
            return Approve(f"Refund 100? {HOSTILE}", then=decided, expires="1h")
        if what == "wait":
            return Wait("tick", then=ticked)
        if what == "fork":
            return Parallel([(ticked, 0), (ticked, 1)], join=joined, on_error="collect")
        return Next(end, what)

    @agent.step
    async def ticked(ctx: Context, number: int) -> Wait:
        return Wait("tick", then=ticked)

    @agent.step
    async def joined(ctx: Context, branches: list[BranchResult]) -> Done:
        return Done(len(branches))

    @agent.step
    async def decided(ctx: Context, answer: Approval, what: str) -> Done:
        return Done({"approved": answer.approved, "note": answer.note})

    @agent.step
    async def end(ctx: Context, what: str) -> Done:
        return Done({"said": what, "text": HOSTILE, "big": 2**60})

    return agent


@asynccontextmanager
async def served_desk(settings: Settings, agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
    """`surefoot serve` on this loop: a client of its API, with its URL."""
    stop, abort = asyncio.Event(), asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    embedded = settings.embedded_path is not None
    async with open_backend(settings, SystemClock(), owner=embedded) as backend:
        serving = asyncio.create_task(
            serve([agent], settings, backend, stop, abort, url.set_result)
        )
        await until(lambda: serving.done() or url.done(), what="the gateway to listen")
        if serving.done():
            serving.result()
        try:
            async with httpx.AsyncClient(base_url=url.result(), timeout=90) as client:
                yield client
        finally:
            stop.set()
            abort.set()
            await asyncio.wait_for(serving, _STOP_S)


RUNS = EVENTS = 20_000


class _Crowded(LogRunReader):
    """Knows of so many runs without having read them."""

    def __init__(self, settings: Settings, backend: Backend, agents: Sequence[str]) -> None:
        super().__init__(settings, backend, agents)
        index = self.agents["desk"].index
        now_ms = SystemClock().now_ms()
        for number in range(1, RUNS):
            index.runs[f"run-{number}"] = RunSummary(
                run_id=f"run-{number}",
                version=1,
                status="completed",
                seq=2,
                step="end",
                attempt=0,
                created_ms=now_ms - number,
                updated_ms=now_ms,
                due_ms=None,
                failure=None,
                epoch=0,
                child=False,
                waits=None,
                offset=0,
            )


@asynccontextmanager
async def served_crowd(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway on an embedded log with RUNS runs of `desk`, and EVENTS events of `run-0`."""
    clock, topics = SystemClock(), AgentTopics(settings.app, "desk")
    wire = Wire(settings.app, topics, 1)
    now_ms = clock.now_ms()
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    run = Run(
        run_id="run-0",
        agent="desk",
        version=1,
        status="completed",
        seq=2,
        step="end",
        attempt=0,
        payload=b"",
        created_ms=now_ms,
        updated_ms=now_ms,
        input_digest=b"",
    )
    async with open_backend(settings, clock, owner=True) as backend:
        assert isinstance(backend, EncryptedBackend)
        embedded = backend.inner
        assert isinstance(embedded, EmbeddedBackend)
        async with backend.topics() as admin:
            await admin.apply(specs_for(["desk"], settings))
        await embedded._broker.append([wire.checkpoint(run, 1, (), 0)])
        event = _one_event(wire, now_ms)
        for _ in range(0, EVENTS, _BATCH):
            await embedded._broker.append([event] * _BATCH)
        with patch.object(gateway_main, "open_run_reader", _Crowded):
            serving = asyncio.create_task(
                serve_gateway([desk_agent()], settings, backend, stop, url.set_result)
            )
            try:
                async with httpx.AsyncClient(base_url=await url, timeout=90) as client:
                    yield client
            finally:
                stop.set()
                await asyncio.wait_for(serving, _STOP_S)


def _one_event(wire: Wire, now_ms: int) -> ProducerRecord:
    record = EventRecord(
        run_id="run-0",
        agent="desk",
        version=1,
        type="step.completed",
        status="running",
        seq=1,
        step="begin",
        next_step="end",
        at_ms=now_ms,
        started_ms=now_ms - 5,
        payload=b'"tea"',
    )
    return wire.out(record, "run-0", 0, (), now_ms)


async def start(client: httpx.AsyncClient, agent: str, run_id: str, what: str, status: str) -> None:
    """Start a run and wait until it is like this."""
    answer = await client.post(f"/runs/{agent}", json={"run_id": run_id, "payload": what})
    assert answer.status_code == 202, answer.text
    await until_status(client, agent, run_id, status)


async def until_status(client: httpx.AsyncClient, agent: str, run_id: str, status: str) -> None:
    async def there() -> bool:
        answer = await client.get(f"/runs/{agent}/{run_id}")
        return bool(answer.status_code == 200 and answer.json()["status"] == status)

    await until(there, what=f"{run_id} to be {status}")
