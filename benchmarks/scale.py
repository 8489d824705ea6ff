"""More and fewer worker processes under a steady load: the rate, and what a change costs.

So many runs are in progress at any time, more than all processes have slots for. Their steps wait,
so that the rate is that of the slots. Processes are started and ended as a person does, with
SIGTERM, one stage after the other. A commit counts when a reader of committed events has it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.load import loaded
from benchmarks.site import Process, arguments, create_topics, process
from benchmarks.waiting_agent import BEGUN
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.ports.log import ConsumerRecord

PARTITIONS = 12
PROCESSES = (1, 2, 4, 6, 4, 2, 1)
#: of each process
SLOTS = 16
#: in progress at any time: half as many again as there are slots
RUNS = max(PROCESSES) * SLOTS * 3 // 2
STEPS = 50
#: of the curve, in seconds
BIN_S = 0.5
_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """From one change of the number of processes to the next; epoch seconds."""

    processes: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed step."""

    partition: int
    #: when a reader had it; epoch seconds
    at_s: float


async def measure(settings: Settings, *, stage_s: float) -> list[dict[str, Any]]:
    """A row for each stage, in order: see `row`."""
    await create_topics(settings)
    commits: list[Commit] = []
    workers: list[Process] = []
    stages: list[Stage] = []

    def see(record: ConsumerRecord) -> None:
        commits.append(Commit(record.partition, time.time()))

    def check() -> None:
        for worker in workers:
            worker.check()

    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as folder, ExitStack() as stack:
        begun = Path(folder) / "begun"
        extra = {BEGUN: str(begun), "SUREFOOT_IN_FLIGHT": str(SLOTS)}

        async def resize(count: int) -> None:
            for slot in range(len(workers), count):
                args = arguments("waiting", STEPS, slot)
                workers.append(stack.enter_context(process(args, settings, extra)))
            over = [workers.pop() for _ in range(len(workers) - count)]
            await asyncio.gather(*(asyncio.to_thread(worker.stop) for worker in over))

        async with (
            open_backend(settings, SystemClock()) as backend,
            loaded(backend, settings, steps=STEPS, check=check, see=see),
        ):
            await resize(PROCESSES[0])
            while not commits:
                check()
                await asyncio.sleep(_EVERY_S)
            for count in PROCESSES:
                begin_s = time.time()
                await resize(count)
                while time.time() < begin_s + stage_s:
                    check()
                    await asyncio.sleep(_EVERY_S)
                stages.append(Stage(count, begin_s, time.time()))
        twice = repeated(begun.read_text().splitlines())
    return [row(stage, commits, twice) for stage in stages]


def repeated(lines: Iterable[str]) -> list[float]:
    """When a body began that had begun before; epoch seconds, from the lines of the agent's file.

    Every step takes far less time than a hand-over gives it, so none should."""
    begun: set[tuple[str, str]] = set()
    twice: list[float] = []
    for line in lines:
        run_id, seq, at_s = line.split()
        if (run_id, seq) in begun:
            twice.append(float(at_s))
        begun.add((run_id, seq))
    return twice


def row(stage: Stage, commits: Sequence[Commit], twice: Sequence[float]) -> dict[str, Any]:
    """What a stage was like.

    `steps_per_s` is of its second half. `pause_s` is the longest time without a commit in any
    partition, `partition_pause_s` that of one partition. `rates` are steps/s, one for each BIN_S.
    """
    within = [each for each in commits if stage.begin_s <= each.at_s < stage.end_s]
    half_s = (stage.begin_s + stage.end_s) / 2
    late = sum(each.at_s >= half_s for each in within)
    of: defaultdict[int, list[float]] = defaultdict(list)
    for each in commits:
        of[each.partition].append(each.at_s)
    return {
        "kind": "waiting",
        "processes": stage.processes,
        "seconds": stage.end_s - stage.begin_s,
        "steps_per_s": late / (stage.end_s - half_s),
        "pause_s": longest_pause([each.at_s for each in commits], stage),
        "partition_pause_s": max(longest_pause(times, stage) for times in of.values()),
        "repeated": sum(stage.begin_s <= at_s < stage.end_s for at_s in twice),
        "rates": rates(within, stage),
    }


def longest_pause(times: Sequence[float], stage: Stage) -> float:
    """The longest time between two commits of which the second is in the stage, in seconds; one
    that lasts to its end is cut off there."""
    before = [at_s for at_s in times if at_s < stage.begin_s][-1:] or [stage.begin_s]
    within = [at_s for at_s in times if stage.begin_s <= at_s < stage.end_s]
    return max(after - first for first, after in pairwise([*before, *within, stage.end_s]))


def rates(commits: Iterable[Commit], stage: Stage) -> list[float]:
    """Steps/s in each whole BIN_S of the stage."""
    counts = [0] * int((stage.end_s - stage.begin_s) / BIN_S)
    for each in commits:
        number = int((each.at_s - stage.begin_s) / BIN_S)
        if number < len(counts):
            counts[number] += 1
    return [count / BIN_S for count in counts]


# The picture ---------------------------------------------------------------------------------

_WIDE, _HIGH = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 48, 28, 44
_INK, _GRID, _RATE, _COUNT = "#333", "#ddd", "#1668b8", "#efe9da"


def picture(stages: Sequence[Mapping[str, Any]]) -> str:
    """An SVG of the rows: rate over time, in front of the number of processes."""
    times, values = _curve(stages)
    span_s: float = sum(each["seconds"] for each in stages)
    top = _round_up(max(values, default=0.0))
    most: int = max(each["processes"] for each in stages)

    def x(at_s: float) -> float:
        return _LEFT + (_WIDE - _LEFT - _RIGHT) * at_s / span_s

    def y(share: float) -> float:
        return _HIGH - _BOTTOM - (_HIGH - _TOP - _BOTTOM) * share

    parts = [f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>']
    begin_s = 0.0
    for each in stages:
        left, right, high = x(begin_s), x(begin_s + each["seconds"]), y(each["processes"] / most)
        parts += [
            f'<path d="M{left:.1f} {y(0):.1f}V{high:.1f}H{right:.1f}V{y(0):.1f}" fill="{_COUNT}"/>',
            _text((left + right) / 2, y(0) - 6, f"{each['processes']}", "middle"),
        ]
        begin_s += each["seconds"]
    for quarter in range(5):
        share = quarter / 4
        parts += [
            f'<path d="M{_LEFT} {y(share):.1f}H{_WIDE - _RIGHT}" stroke="{_GRID}"/>',
            _text(_LEFT - 6, y(share) + 4, f"{top * share:.0f}", "end"),
        ]
    for at_s in range(0, int(span_s) + 1, 20):
        parts.append(_text(x(at_s), y(0) + 18, f"{at_s} s", "middle"))
    points = " ".join(
        f"{x(at_s):.1f},{y(value / top):.1f}" for at_s, value in zip(times, values, strict=True)
    )
    parts += [
        f'<polyline points="{points}" fill="none" stroke="{_RATE}" stroke-width="1.8"/>',
        _text(_LEFT - 6, 16, "steps/s", "end", _RATE),
        _text(_WIDE - _RIGHT, 16, "number of worker processes", "end"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" '
        f'font-family="sans-serif" font-size="12" role="img">\n'
        "<title>Steps per second while worker processes come and go</title>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _curve(stages: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """The middle of each bin, in seconds from the first stage's begin, and its rate."""
    times: list[float] = []
    values: list[float] = []
    begin_s = 0.0
    for each in stages:
        times += [begin_s + (number + 0.5) * BIN_S for number in range(len(each["rates"]))]
        values += each["rates"]
        begin_s += each["seconds"]
    return times, values


def _round_up(value: float) -> int:
    """The top of an axis whose quarters are whole tens."""
    return max(1, ceil(value / 40)) * 40


def _text(x: float, y: float, text: str, anchor: str, fill: str = _INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{text}</text>'
