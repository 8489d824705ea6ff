"""Steps per second of one process that has a backlog of runs.

All start commands are written before the process starts, so that nobody but the process and the
broker works while it is measured. A look twice a second at how far the events reach, and at the
CPU time of both, is all that is done meanwhile; rate and latency are computed afterwards, from the
timestamps of the committed events.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from aiokafka import AIOKafkaConsumer

from benchmarks.load import Wrong
from benchmarks.site import (
    Kind,
    Process,
    Step,
    all_steps,
    arguments,
    cpu_s,
    create_topics,
    events_reader,
    process,
    quantile,
    start_runs,
    transactions,
    written,
)
from surefoot.infra.runtime.settings import Settings

STEPS = 5
_EVERY_S = 0.5
#: looks without any change after which it is over
_STILL = 4
#: without any progress for this long something is wrong, in seconds
_STUCK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look: totals so far."""

    events: int
    cpu_s: float
    broker_cpu_s: float
    rss_bytes: int


async def measure(
    kind: Kind, settings: Settings, *, runs: int, broker_pid: int | None
) -> dict[str, Any]:
    """One row: `runs` runs of five steps, from the first committed step to the last."""
    await create_topics(settings)
    await start_runs(settings, runs, STEPS)
    async with events_reader(settings) as reader:
        with process(arguments(kind, STEPS), settings) as worker:
            samples = await _watch(worker, reader, runs, broker_pid)
        steps = await all_steps(reader)
    _check(steps, runs)
    return {
        "kind": kind,
        "in_flight": settings.in_flight,
        "runs": runs,
        "steps": len(steps),
        "steps_per_transaction": len(steps) / await transactions(settings),
        **_rate(steps),
        **_latency(steps),
        **_cost(samples, len(steps)),
    }


async def _watch(
    worker: Process, reader: AIOKafkaConsumer, runs: int, broker_pid: int | None
) -> list[Sample]:
    """Look until every event has been written and nothing more comes."""
    wanted = runs * (STEPS + 1)
    samples: list[Sample] = []
    still = 0
    while still < _STILL:
        worker.check()
        samples.append(
            Sample(
                events=await written(reader),
                cpu_s=cpu_s(worker.pid),
                broker_cpu_s=cpu_s(broker_pid) if broker_pid else 0.0,
                rss_bytes=psutil.Process(worker.pid).memory_info().rss,
            )
        )
        quiet = _looks_without_change(samples)
        still = quiet if samples[-1].events >= wanted else 0
        if quiet * _EVERY_S > _STUCK_S:
            raise Wrong(f"no progress for {_STUCK_S:g} s\n{worker.log_tail()}")
        await asyncio.sleep(_EVERY_S)
    return samples


def _looks_without_change(samples: Sequence[Sample]) -> int:
    last = samples[-1].events
    return next((n for n, s in enumerate(reversed(samples)) if s.events != last), len(samples))


def _check(steps: Sequence[Step], runs: int) -> None:
    """Every step of every run, once."""
    different = {(step.run_id, step.seq) for step in steps}
    if not len(steps) == len(different) == runs * STEPS:
        raise Wrong(
            f"{len(steps)} committed steps, {len(different)} different ones, where "
            f"{runs * STEPS} were asked for"
        )


def _rate(steps: Sequence[Step]) -> dict[str, Any]:
    times = [step.at_ms for step in steps]
    took_s = (max(times) - min(times)) / 1000
    return {"seconds": took_s, "steps_per_s": len(steps) / took_s}


def _latency(steps: Sequence[Step]) -> dict[str, Any]:
    """From the event of one step to the event of the next one of the same run: its commit, its
    task read back, the step, and the wait for its turn."""
    by_run: defaultdict[bytes, dict[int, int]] = defaultdict(dict)
    for step in steps:
        by_run[step.run_id][step.seq] = step.at_ms
    gaps = [
        at_ms - times[seq - 1] for times in by_run.values() for seq, at_ms in times.items() if seq
    ]
    return {"step_ms_p50": quantile(gaps, 0.5), "step_ms_p99": quantile(gaps, 0.99)}


def _cost(samples: Sequence[Sample], steps: int) -> dict[str, Any]:
    """CPU time per step while it was at work, start-up left out: from the first look that saw
    events to the first that saw them all. None when that was one and the same."""
    last = samples[-1].events
    begun = next(sample for sample in samples if sample.events > 0)
    over = next(sample for sample in samples if sample.events == last)
    counted = steps * (over.events - begun.events) / last
    cost: dict[str, Any] = {"rss_peak_mb": max(sample.rss_bytes for sample in samples) / 1e6}
    spent_s, broker_s = over.cpu_s - begun.cpu_s, over.broker_cpu_s - begun.broker_cpu_s
    cost["cpu_ms_per_step"] = spent_s * 1000 / counted if counted else None
    cost["broker_cpu_ms_per_step"] = broker_s * 1000 / counted if counted and broker_s else None
    return cost
