"""Faults drawn from a seed against workers on three brokers.

    python -m tests.chaos.cluster --minutes 60 --seed 7

Prints a line for each fault, and a table at the end: docs/reliability.md says what it means. The
status is 1 if a promise was broken. The same seed draws the same faults; what they meet depends on
the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from surefoot.infra.runtime.settings import Settings
from tests.chaos.faults.recovery import Recovery
from tests.chaos.faults.trial import KINDS, Outcome, Result, Trial, drawn, listed
from tests.chaos.processes.services import services
from tests.chaos.processes.walker import SINK, walker
from tests.support.cluster import QUICK, cluster
from tests.support.effect_target import sink
from tests.support.three_brokers import ThreeBrokers, three_brokers

PARTITIONS, WORKERS = 4, 2
#: of a run
STEPS = 60
PROPERTIES = {
    # Records are judged as they were written: nothing is compacted away.
    "log.cleaner.backoff.ms": "36000000",
    # A marker on its way to a broker that stands still holds up its transaction for 30 s by
    # default, which whoever asks the brokers whether they serve does not see.
    "request.timeout.ms": "5000",
}
#: by heading: what is measured of each fault
FIGURES: dict[str, Callable[[Recovery], float]] = {
    "first commit": lambda found: found.first_s,
    "all commit": lambda found: found.all_s,
    "cluster": lambda found: found.cluster_s,
    "ours": lambda found: found.ours_s,
}


async def trial(
    brokers: ThreeBrokers,
    app: str,
    folder: Path,
    faults: Callable[[], str | None],
    random_: random.Random,
    tell: Callable[[Outcome], None],
    *,
    steps: int = STEPS,
    **settings: Any,
) -> Result:
    """One trial, from the start of the workers to the check; with the settings that users have,
    where none are given."""
    users = {name: Settings.model_fields[name].default for name in QUICK}
    given = {**users, "partitions": PARTITIONS, "out_allow": "127.0.0.1", **settings}
    async with (
        sink() as target,
        cluster(brokers.bootstrap, app, walker, **given) as kafka,
        services(kafka.settings, folder, {SINK: target.url}) as started,
    ):
        return await Trial(
            brokers,
            kafka,
            started,
            target,
            random_=random_,
            workers=WORKERS,
            steps=steps,
            tell=tell,
        ).run(faults)


def table(outcomes: Sequence[Outcome]) -> str:
    """By kind of fault: how many, how many were felt, and p50/max of each figure in seconds."""
    lines = [
        "| fault | times | bitten | " + " | ".join(FIGURES) + " |",
        "|---|---|---|" + "---|" * 4,
    ]
    for kind in KINDS:
        of = [each for each in outcomes if each.kind == kind]
        if of:
            cells = [f"{median(v):.1f}/{max(v):.1f}" for v in _figures(of)]
            bitten = sum(each.bitten for each in of)
            lines.append(f"| {kind} | {len(of)} | {bitten} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figures(outcomes: Sequence[Outcome]) -> list[list[float]]:
    return [[figure(each.recovery) for each in outcomes] for figure in FIGURES.values()]


def _tell(outcome: Outcome) -> None:
    cells = (f"{name} {figure(outcome.recovery):.1f} s" for name, figure in FIGURES.items())
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {outcome.kind}: {', '.join(cells)}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="faults against workers on three brokers")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--faults", nargs="+", choices=KINDS, help="these only, in this order")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="surefoot-trial-"))
    sys.stdout.write(f"seed {given.seed}; the workers' logs are in {folder}\n")
    random_ = random.Random(given.seed)
    with three_brokers(properties=PROPERTIES) as brokers:
        until_s = time.monotonic() + given.minutes * 60
        faults = listed(given.faults) if given.faults else drawn(random_, until_s)
        app = f"trial-{given.seed}-{os.getpid()}"
        result = asyncio.run(trial(brokers, app, folder, faults, random_, _tell))
    totals = (
        f"faults={len(result.outcomes)} bitten={sum(o.bitten for o in result.outcomes)} "
        f"runs={len(result.runs)} steps={result.steps} lost={result.lost} "
        f"doubled={result.doubled} violations={len(result.violations)}"
    )
    lines = [
        *(f"violation: {violation}" for violation in result.violations),
        table(result.outcomes),
        totals,
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if result.violations or result.lost or result.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
