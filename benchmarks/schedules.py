"""How late a tick is with many schedules: from the time at which its run is to start (the tick, and
its jitter) until an ordinary reader has the command that starts the run, and has the run's first
step; both are committed then.

One worker process keeps the schedules and runs what they start.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer

from benchmarks.records import AGENT
from benchmarks.site import (
    Died,
    Process,
    commands_reader,
    cpu_s,
    events_reader,
    process,
    quantile,
    written,
)
from surefoot.infra.kafka_client.topics import Topics, specs_for
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import decode
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.scheduling.book import jitter_ms

_AGENT = """
from surefoot import Agent, Context, Done, Tick

agent = Agent("{agent}")

@agent.step
async def work(ctx: Context, name: str) -> Done:
    return Done()

def payload(tick: Tick) -> str:
    return tick.name

for number in range({schedules}):
    cron = {cron!r}.format(number % 60)
    agent.schedule(cron, jitter={jitter_s}, name=f"s-{{number}}")(payload)
"""
_MINUTE_MS = 60_000
#: how late the last one may be
_LATEST_MS = 120_000

#: each once an hour or a minute, spread over it; or all in one second, once
When = Literal["hour", "minute", "at once"]


async def measure(settings: Settings, *, schedules: int, when: When) -> dict[str, Any]:
    """Let so many schedules tick for one whole minute, once all of them have begun.

    Raises: Died — the worker did, or they had not begun in time, or ticks were missing.
    """
    begins_s = 60 + schedules / 25
    first_ms = _minute_after(SystemClock().now_ms() + round(begins_s * 1000))
    at = datetime.fromtimestamp(first_ms / 1000, UTC)
    cron, jitter_s, ticks = {
        "hour": ("{} * * * *", 60, schedules // 60),
        "minute": ("* * * * *", 60, schedules),
        "at once": (f"{at.minute} {at.hour} * * *", None, schedules),
    }[when]
    keeper = schedules_agent_name(AGENT)
    async with Topics(settings) as topics:
        await topics.apply(specs_for([AGENT, keeper], settings))
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as folder:
        file = Path(folder) / "agent.py"
        file.write_text(
            _AGENT.format(agent=AGENT, schedules=schedules, cron=cron, jitter_s=jitter_s),
            encoding="utf-8",
        )
        args = ["surefoot", "worker", str(file), "--slot", "0"]
        async with (
            commands_reader(settings) as commands,
            events_reader(settings) as events,
            events_reader(settings, keeper) as begun,
        ):
            began_s = time.perf_counter()
            with process(args, settings) as worker:
                await _all_begun(begun, schedules, worker, begins_s)
                took_s = time.perf_counter() - began_s
                if when != "at once":
                    first_ms = _minute_after(SystemClock().now_ms())
                await asyncio.sleep((first_ms - SystemClock().now_ms()) / 1000)
                before_s = cpu_s(worker.pid)
                seen = _Window(first_ms, (jitter_s or 0) * 1000, ticks, worker)
                tick_ms, run_ms = await asyncio.gather(
                    seen.lateness(commands, _started_by), seen.lateness(events, _begun_by)
                )
                used_s = cpu_s(worker.pid) - before_s
    return {
        "schedules": schedules,
        "when": when,
        "ticks": len(tick_ms),
        "ms_p50": quantile(tick_ms, 0.5),
        "ms_p99": quantile(tick_ms, 0.99),
        "ms_max": max(tick_ms),
        "within_250_ms": sum(ms <= 250 for ms in tick_ms) / len(tick_ms),  # noqa: PLR2004
        "run_ms_p50": quantile(run_ms, 0.5),
        "run_ms_max": max(run_ms),
        "begin_s": took_s,
        "cpu_ms_per_tick": used_s * 1000 / len(tick_ms),
    }


async def _all_begun(
    begun: AIOKafkaConsumer, schedules: int, worker: Process, within_s: float
) -> None:
    """Two events each: it has started, and its first step is done."""
    deadline_s = time.perf_counter() + within_s
    while await written(begun) < 2 * schedules:
        worker.check()
        if time.perf_counter() > deadline_s:
            raise Died(f"{schedules} schedules have not begun after {within_s} s")
        await asyncio.sleep(0.2)


class _Window:
    """The runs that are to start within one minute; it is known how many."""

    def __init__(self, first_ms: int, jitter_ms: int, ticks: int, worker: Process) -> None:
        self._first_ms = first_ms
        self._jitter_ms = jitter_ms
        self._ticks = ticks
        self._worker = worker

    async def lateness(
        self, reader: AIOKafkaConsumer, run_of: Callable[[bytes], str | None]
    ) -> list[int]:
        """When a reader has what there is of each run, in milliseconds after it was due."""
        late: dict[str, int] = {}
        clock = SystemClock()
        while len(late) < self._ticks:
            self._worker.check()
            if clock.now_ms() > self._first_ms + _MINUTE_MS + _LATEST_MS:
                raise Died(f"{len(late)} of {self._ticks} ticks have come")
            for records in (await reader.getmany(timeout_ms=200)).values():
                now_ms = clock.now_ms()
                for record in records:
                    run_id = run_of(record.value)
                    due_ms = 0 if run_id is None else _due_ms(run_id, self._jitter_ms)
                    if run_id and self._first_ms <= due_ms < self._first_ms + _MINUTE_MS:
                        late.setdefault(run_id, now_ms - due_ms)
        return list(late.values())


def _started_by(command: bytes) -> str | None:
    said = decode(command, "Command")[1]
    return said["run_id"] if said["kind"] == "start" else None


def _begun_by(event: bytes) -> str | None:
    said = decode(event, "Event")[1]
    return said["run_id"] if said["type"] == "run.started" else None


def _due_ms(run_id: str, most_ms: int) -> int:
    _, name, tick = run_id.split("~")
    at = datetime.strptime(tick, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    tick_ms = round(at.timestamp() * 1000)
    return tick_ms + jitter_ms(name, tick_ms, most_ms)


def _minute_after(at_ms: int) -> int:
    return (at_ms // _MINUTE_MS + 1) * _MINUTE_MS
