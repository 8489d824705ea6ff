"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from tests.checker import inputs, log, outside, runs, state
from tests.checker.history import History, Programs, Violation
from tests.checker.view import Findings, View

#: by theme; each tells one thing that must hold
CHECKS: tuple[Callable[[View], Findings], ...] = (
    log.readable,
    log.whole,
    log.one_fate,
    log.marked,
    log.truth,
    log.founded,
    log.offsets,
    log.fences,
    inputs.answered_once,
    inputs.none_passed_over,
    inputs.commands_told,
    inputs.caught_up,
    inputs.buried_once,
    inputs.failed_runs_buried,
    runs.once_each,
    runs.in_order,
    runs.not_early,
    state.compacted,
    state.agrees,
    state.applied,
    outside.acknowledged,
    outside.effects,
    outside.once,
    outside.calls,
)
#: those that need to know what the runs do
JUDGED: tuple[Callable[[View, Programs], Findings], ...] = (runs.results, runs.over)


def check(history: History, programs: Programs) -> list[Violation]:
    """Everything that was broken; pure. The history has to be one that nobody adds to."""
    view = View(history)
    found = [violation for each in CHECKS for violation in each(view)]
    found += [violation for each in JUDGED for violation in each(view, programs)]
    return found
