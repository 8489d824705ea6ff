"""One worker process: its agents' workers on one event loop, until SIGTERM.

The log's clients and all decisions run on this loop, in the main thread; the author's code runs on
the executor's. A watchdog thread ends the process when this loop makes no progress, and a task
warns when a step blocks the other loop; another thread ends the process by its deadline
(overdue.py).
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.builtin.schedules import schedules_agent
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.blobs.stores import check_blobs, open_claims
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.overdue import Stop
from surefoot.infra.readers.schedules import declare_schedules
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.exits import EXIT_CLEAN, EXIT_GAVE_UP, EXIT_STUCK
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.runtime.supervisor import is_supervised
from surefoot.infra.telemetry.health import Part, announced
from surefoot.infra.telemetry.metrics import measure
from surefoot.state.declare.agent import Agent
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import Log
from surefoot.state.records.encoding import Wire

log = structlog.get_logger(__name__)

#: a loop that has not polled for this long is stuck
STUCK_S = 60.0
#: reserve for a batch's overhead around its largest record, in bytes
BATCH_OVERHEAD = 512
#: and for the envelope of an encrypted one, which repeats its fields without payload: at most this,
#: or a quarter of a small limit
_ENVELOPE_MAX = 16_384


def record_room(settings: Settings) -> int:
    """Return how large a record may be, in bytes, before it is encrypted."""
    room = settings.record_max_bytes - BATCH_OVERHEAD
    return room if settings.encryption is None else room - min(_ENVELOPE_MAX, room // 4)


def run_worker(agents: Sequence[Agent], settings: Settings, *, slot: int) -> int:
    """Run until SIGTERM or SIGINT.

    Returns: the exit status, 0 when everything in progress was finished, 3 when some was given up
    at the drain deadline (nothing is lost: it runs again)."""
    return asyncio.run(_run(agents, settings, slot))


async def _run(agents: Sequence[Agent], settings: Settings, slot: int) -> int:
    clock = SystemClock()
    stop, abort = until_signalled(settings.drain_timeout_s)
    async with open_backend(settings, clock) as backend:
        async with backend.topics() as topics:
            await topics.verify(specs_for(names_of(agents), settings))
        spare_what_is_loaded()
        following = asyncio.create_task(follow_supervisor(stop))
        try:
            return await work(agents, settings, backend, clock, stop, abort, slot=slot)
        finally:
            following.cancel()
            stop.set()  # starts the deadline of the exit, however it came about


def spare_what_is_loaded() -> None:
    """Exempt what the process has imported and set up from garbage collection.

    Otherwise every full collection scans it again while steps and requests wait."""
    gc.collect()
    gc.freeze()


def until_signalled(drain_s: float) -> tuple[Stop, asyncio.Event]:
    """Return (stop, abort): set by the first SIGTERM or SIGINT, and by the second.

    The process has `drain_s` to finish after the first one."""
    stop, abort = Stop(drain_s), asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            abort.set()
            stop.abort()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    return stop, abort


async def work(
    agents: Sequence[Agent],
    settings: Settings,
    backend: Backend,
    clock: Clock,
    stop: asyncio.Event,
    abort: asyncio.Event,
    *,
    slot: int,
) -> int:
    """Run the agents' workers and schedules on the running loop until `stop` is set.

    Then finishes what is running, within the drain timeout or until `abort` is set. Returns the
    exit status."""
    await check_blobs(settings, clock)
    scheduled = [agent for agent in agents if agent.schedules]
    agents = [*agents, *(schedules_agent(agent, clock) for agent in scheduled)]
    executor = Executor(clock, open_claims(settings, clock))
    executor.start()
    logs = [backend.log(AgentTopics(settings.app, agent.name), slot) for agent in agents]
    workers = [
        _worker(agent, settings, log, clock, executor)
        for agent, log in zip(agents, logs, strict=True)
    ]
    watchdog = Watchdog(workers, clock)
    watchdog.start()
    watching = asyncio.create_task(_watch_steps(executor))
    named = [(agent.name, each) for agent, each in zip(agents, logs, strict=True)]
    measuring = asyncio.create_task(measure(workers, named))
    declaring = asyncio.create_task(declare_schedules(scheduled, settings, backend, clock))
    try:
        with announced([Part(each.agent.name, partial(_in_service, each)) for each in workers]):
            results = await asyncio.gather(
                *(
                    worker.run(stop, drain_s=settings.drain_timeout_s, abort=abort)
                    for worker in workers
                )
            )
    finally:
        watchdog.stop()
        watching.cancel()
        measuring.cancel()
        declaring.cancel()
        executor.stop()
    return EXIT_CLEAN if all(results) else EXIT_GAVE_UP


def _in_service(worker: Worker) -> bool:
    return worker.in_service


def _worker(
    agent: Agent,
    settings: Settings,
    log: Log,
    clock: Clock,
    executor: Executor,
) -> Worker:
    topics = AgentTopics(settings.app, agent.name)
    return Worker(
        agent=agent,
        log=log,
        wire=Wire(settings.app, topics, settings.partitions),
        executor=executor,
        clock=clock,
        limits=OwnerLimits(
            record_bytes=record_room(settings),
            dedup_window_ms=_dedup_window_ms(agent, settings),
        ),
        in_flight=min([settings.in_flight, *limits_of(agent)]),
    )


def _dedup_window_ms(agent: Agent, settings: Settings) -> int:
    own = agent.flow.dedup_ms if agent.flow is not None else None
    return int(settings.dedup_window_s * 1000) if own is None else own


def limits_of(agent: Agent) -> list[int]:
    """Return the limits that the agent's own declarations set on a worker's steps at a time.

    Steps of a pool share its slots, so the smallest limit holds for all."""
    if agent.home is None:
        return []
    return [step.concurrency for step in agent.steps.values() if step.concurrency is not None]


async def follow_supervisor(stop: asyncio.Event, *, every_s: float = 1.0) -> None:
    """Drain when the supervisor that started this process is gone.

    A new supervisor would start another process of the same identity, and the two would throw each
    other out of the group, or find the port taken. A process without a supervisor follows
    nobody."""
    if not is_supervised():
        return
    parent = os.getppid()
    while True:
        await asyncio.sleep(every_s)
        if os.getppid() != parent:
            log.warning("supervisor_gone")
            stop.set()
            return


async def _watch_steps(executor: Executor, *, every_s: float = 5.0) -> None:
    """Warn when the steps' loop does not answer, with the steps in progress and its stack.

    A step that blocks the loop holds up other steps, never heartbeats."""
    while True:
        await asyncio.sleep(every_s)
        if not await executor.probe(every_s):
            log.warning("step_blocks_loop", steps=executor.busy()[:5], stack=executor.stack())


class Polling(Protocol):
    """Something that must not stop polling."""

    polled_s: float


class Watchdog(threading.Thread):
    """Ends a process whose workers have stopped polling, after dumping every thread's stack.

    The supervisor starts a new process, and the group finds another owner."""

    def __init__(self, workers: Sequence[Polling], clock: Clock) -> None:
        super().__init__(name="surefoot-watchdog", daemon=True)
        self._workers = workers
        self._clock = clock
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(STUCK_S / 12):
            oldest_s = min((worker.polled_s for worker in self._workers), default=float("inf"))
            if self._clock.monotonic_s() - oldest_s > STUCK_S:
                faulthandler.dump_traceback(file=sys.stderr)
                os._exit(EXIT_STUCK)

    def stop(self) -> None:
        self._stopped.set()
