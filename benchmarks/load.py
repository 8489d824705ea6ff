"""The load of a closed loop: so many runs at a time; when one has ended, another begins.

It follows the events as any reader of committed records does. A step is done when its event comes
in here, so what is told is what everybody else sees, and is the same for every kind of log and
worker. Values are not decoded: the headers say enough, and the load is to be light.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.records import AGENT, payload, run_name
from benchmarks.site import quantile
from surefoot.infra.log.ports import Backend
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import start_out

_EVERY_S = 0.05
#: without any progress for this long something is wrong, in seconds
_STUCK_S = 60.0
_ENDS = {b"surefoot.step.completed", b"surefoot.run.completed"}


class Wrong(Exception):
    """What was committed is not what was asked for: the numbers would mean nothing."""


class Load:
    """Which runs are in progress, and what their events tell. Pure.

    `start` is called with the run_id of each run that is to begin."""

    def __init__(self, steps: int, start: Callable[[str], None]) -> None:
        self._steps = steps
        self._start = start
        #: of each run in progress: steps seen, and when the last one was; seconds
        self._runs: dict[bytes, tuple[int, float]] = {}
        self._begun = 0
        #: whether a run begins when one has ended
        self.goes_on = True
        #: seen so far
        self.steps = 0
        self.ended = 0
        #: from one step of a run to its next, in the order in which they were seen
        self.periods_ms: list[float] = []
        #: the first thing that should not have been
        self.wrong: str | None = None

    @property
    def in_progress(self) -> int:
        return len(self._runs)

    def begin(self, runs: int) -> None:
        for _ in range(runs):
            run_id = run_name(self._begun)
            self._begun += 1
            self._runs[run_id.encode()] = (0, 0.0)
            self._start(run_id)

    def see(self, record: ConsumerRecord, now_s: float) -> None:
        """Take in one event."""
        headers = dict(record.headers)
        if headers["ce_type"] not in _ENDS:
            return
        key, seq = record.key or b"", int(headers["sf-seq"])
        done, last_s = self._runs.get(key, (-1, 0.0))
        if seq != done:
            self.wrong = self.wrong or f"step {seq} of {key!r} came where {done} was due"
            return
        self.steps += 1
        if seq:
            self.periods_ms.append((now_s - last_s) * 1000)
        if seq + 1 < self._steps:
            self._runs[key] = (seq + 1, now_s)
            return
        del self._runs[key]
        self.ended += 1
        if self.goes_on:
            self.begin(1)


async def drive(
    backend: Backend,
    settings: Settings,
    *,
    steps: int,
    seconds: float,
    cpu: Callable[[], Mapping[str, float]],
) -> dict[str, Any]:
    """Keep `settings.in_flight` runs of so many steps going for `seconds`, after a fifth of that
    which is not counted, and let them end.

    Args: cpu: CPU time used so far, in seconds, by name; also raises when a worker has died

    Returns: steps, rate, period of a step, and CPU ms a step by name. It takes longer where as many
        periods as runs have not been seen by then.

    Raises: ExceptionGroup - of Wrong: a step came twice or out of order, or none came for a
        minute; of what `cpu` raised; of Unavailable.
    """
    async with loaded(backend, settings, steps=steps, check=cpu) as load:
        await _until(lambda: load.ended >= settings.in_flight, load, cpu)
        warm_s = time.perf_counter() + seconds / 5
        await _until(lambda: time.perf_counter() >= warm_s, load, cpu)
        return await _window(load, settings.in_flight, seconds, cpu)


@asynccontextmanager
async def loaded(
    backend: Backend,
    settings: Settings,
    *,
    steps: int,
    check: Callable[[], object],
    see: Callable[[ConsumerRecord], None] = lambda _: None,
) -> AsyncIterator[Load]:
    """Keep `settings.in_flight` runs of so many steps going; at the end, let them end.

    Args: check: raises when a worker has died
        see: gets each event that ends a step

    Raises: as `drive`.
    """
    clock = SystemClock()
    async with AsyncExitStack() as open_:
        appender = backend.appender()
        open_.push_async_callback(appender.stop)
        writing = await open_.enter_async_context(asyncio.TaskGroup())

        def start(run_id: str) -> None:
            out = start_out(
                settings.app,
                settings.partitions,
                AGENT,
                run_id,
                payload(steps),
                sent_ms=clock.now_ms(),
            )
            writing.create_task(appender.append(out, "a start command", deadline_s=_STUCK_S))

        load = Load(steps, start)

        def come(record: ConsumerRecord) -> None:
            before = load.steps
            load.see(record, time.perf_counter())
            if load.steps > before:
                see(record)

        tail = backend.tail(AgentTopics(settings.app, AGENT).events, come, from_end=False)
        open_.push_async_callback(tail.stop)
        tail.start()
        await tail.started()
        load.begin(settings.in_flight)
        yield load
        load.goes_on = False
        await _until(lambda: not load.in_progress, load, check)


async def _window(
    load: Load, least: int, seconds: float, cpu: Callable[[], Mapping[str, float]]
) -> dict[str, Any]:
    before, steps, periods = cpu(), load.steps, len(load.periods_ms)
    begun_s = time.perf_counter()
    await _until(
        lambda: (
            time.perf_counter() - begun_s >= seconds and len(load.periods_ms) - periods >= least
        ),
        load,
        cpu,
    )
    took_s = time.perf_counter() - begun_s
    after, steps, found = cpu(), load.steps - steps, load.periods_ms[periods:]
    return {
        "steps": steps,
        "seconds": took_s,
        "steps_per_s": steps / took_s,
        "ms_p50": quantile(found, 0.5),
        "ms_p99": quantile(found, 0.99),
        **{f"{name}_ms_per_step": (after[name] - before[name]) * 1000 / steps for name in after},
    }


async def _until(true: Callable[[], bool], load: Load, check: Callable[[], object]) -> None:
    seen, moved_s = load.steps, time.perf_counter()
    while True:
        check()
        if load.wrong is not None:
            raise Wrong(load.wrong)
        if true():
            return
        now_s = time.perf_counter()
        if load.steps > seen:
            seen, moved_s = load.steps, now_s
        if now_s - moved_s > _STUCK_S:
            raise Wrong(f"no step for {_STUCK_S:g} s, {load.in_progress} runs in progress")
        await asyncio.sleep(_EVERY_S)
