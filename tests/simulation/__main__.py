"""Lives by seed, until something is wrong:

    python -m tests.simulation --seeds 1000 --from 0 --jobs 2
    python -m tests.simulation --minutes 60            # what `make soak MINUTES=60` runs
    python -m tests.simulation --seeds 1 --from 7 --shrink

Each seed is lived twice, and has to do the same again. A seed that fails is told with the commit,
what was wrong, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.history import WatchedLife
from tests.simulation.world import FAULTS, Life, told_of

Kinds = frozenset[str] | None

#: seeds that one process lives before another takes over: what a life leaves behind is never
#: collected, as that would run its `finally`
_BATCH = 50
#: what a life is made of
_JUDGED = ("consumers", "infra", "schemas", "state", "surefoot", "tests/simulation")


@dataclass(slots=True)
class Tally:
    """What many lives came to."""

    seeds: int = 0
    simulated_s: float = 0.0
    struck: Counter[str] = field(default_factory=Counter)
    #: seed and what was wrong
    failed: list[tuple[int, str, list[str]]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.simulated_s += other.simulated_s
        self.struck.update(other.struck)
        self.failed += other.failed


def lived(seed: int, *, only: Kinds, twice: bool) -> tuple[Life, list[str]]:
    life: Life = WatchedLife(seed, only=only)
    wrong = life.live()
    if twice:
        again = Life(seed, only=only)
        again.live()
        if again.trace != life.trace:
            wrong = [*wrong, "the second time it went another way"]
    return life, wrong


def _batch(given: tuple[Sequence[int], Kinds, bool, bool]) -> Tally:
    """In a process of its own."""
    seeds, only, twice, stop = given
    gc.disable()
    tally = Tally()
    for seed in seeds:
        life, wrong = lived(seed, only=only, twice=twice)
        tally.seeds += 1
        tally.simulated_s += life.simulated_s
        tally.struck.update(life.struck)
        if wrong:
            tally.failed.append((seed, told_of(life), wrong))
            if stop:
                break
    return tally


def run(
    seeds: Iterator[Sequence[int]], *, jobs: int, only: Kinds, twice: bool, stop: bool
) -> Tally:
    """Live them all, or until one fails."""
    total = Tally()
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        under_way: deque[Any] = deque()
        for batch in seeds:
            under_way.append(pool.apply_async(_batch, ((batch, only, twice, stop),)))
            if len(under_way) > jobs:
                total.add(under_way.popleft().get())
            if stop and total.failed:
                pool.terminate()
                return total
        for each in under_way:
            total.add(each.get())
    return total


def shrink(seed: int, only: Kinds) -> frozenset[str]:
    """The fewest kinds of faults with which it still fails."""
    kinds = frozenset(FAULTS) if only is None else only
    for kind in FAULTS:
        fewer = kinds - {kind}
        if WatchedLife(seed, only=fewer).live():
            kinds = fewer
    return frozenset(Life(seed, only=kinds).kinds)


def fresh() -> int:
    """A first seed that is another for each state of the engine and of this simulation, and the
    same for the same."""
    told = _git("rev-parse", *(f"HEAD:{path}" for path in _JUDGED))
    return zlib.crc32(told.encode()) * 10_000


def _git(*args: str) -> str:
    """What git says of this checkout; nothing where there is none."""
    asked = subprocess.run(
        ["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def _batches(first: int, count: int | None, deadline_s: float) -> Iterator[Sequence[int]]:
    at = first
    while (count is None or at < first + count) and time.monotonic() < deadline_s:
        size = _BATCH if count is None else min(_BATCH, first + count - at)
        yield range(at, at + size)
        at += size


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, help="how many; without --minutes 100")
    parser.add_argument("--from", type=int, dest="first", help="by default told from the code")
    parser.add_argument("--minutes", type=float, help="go on with fresh seeds for so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="kinds of faults that may strike; by default all")
    parser.add_argument("--once", action="store_true", help="do not live each seed twice")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--shrink", action="store_true", help="find what a failure needs")
    asked = parser.parse_args(argv)
    only = frozenset(asked.only.split(",")) if asked.only else None
    first = fresh() if asked.first is None else asked.first
    began_s = time.monotonic()
    deadline_s = began_s + (asked.minutes * 60 if asked.minutes else 1e9)
    count = asked.seeds or (None if asked.minutes else 100)
    total = run(
        _batches(first, count, deadline_s),
        jobs=asked.jobs,
        only=only,
        twice=not asked.once,
        stop=not asked.keep_going,
    )
    lines: list[str] = []
    commit = _git("rev-parse", "--short=12", "HEAD") or "no commit"
    for seed, told, wrong in sorted(total.failed):
        again = f"python -m tests.simulation --seeds 1 --from {seed}"
        lines += [f"seed {seed} at {commit}; again: {again}", told]
        lines += [f"  {each}" for each in wrong[:10]]
        if asked.shrink:
            lines.append(f"  it needs no more than {sorted(shrink(seed, only))}")
    took_s = time.monotonic() - began_s
    lines += [
        json.dumps(dict(sorted(total.struck.items()))),
        (
            f"{total.seeds} seeds from {first}, {total.simulated_s / 3600:.1f} simulated hours in "
            f"{took_s:.0f} s, {len(total.failed)} violations"
        ),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(total.failed))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
