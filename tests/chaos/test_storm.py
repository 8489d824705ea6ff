"""A short storm of faults; `python -m tests.chaos.faults.storm` makes longer ones."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.faults.networked import Networked
from tests.chaos.faults.storm import storm

FAULTS = 14


async def test_what_was_asked_for_during_a_storm_of_faults_is_done_once(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    tally = await storm(4, networked, app, tmp_path, lambda so_far: so_far.drawn < FAULTS)
    assert tally.violations == []
    assert tally.steps == 3 * len(tally.runs)
    # Otherwise it was no storm.
    assert tally.bitten.total() >= 0.8 * FAULTS, tally
