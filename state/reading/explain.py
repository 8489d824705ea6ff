"""Explains why a run does not move, and what to type. Pure.

Everything comes from the run's checkpoint except the queue ahead of the run: only the broker knows
it, and it is left out unless the caller asked the broker.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from surefoot.state.machine.model import TERMINAL, WaitState
from surefoot.state.machine.wait_rules import child_id
from surefoot.state.reading.ports import Backlog, RunView
from surefoot.state.reading.runs import amounts_json, failure_text

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sentences and commands for people."""

    #: what the run waits for, most important first
    because: tuple[str, ...]
    #: commands to type; empty when waiting is all there is to do
    do: tuple[str, ...]


def explain(
    run: RunView, now_ms: int, backlog: Backlog | None = None, version: int | None = None
) -> Explanation:
    """Explain why the run is where it is at `now_ms` (epoch ms, UTC).

    Args: version: of the agent's code on this machine; None: there is no such code here
    """
    because = (*_held(run, backlog, version), *_because(run, now_ms, backlog))
    return Explanation(because=because, do=tuple(_commands(run, backlog)))


def clock_time(epoch_ms: int) -> str:
    """Format a time for people: UTC, to the second."""
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


# Why ----------------------------------------------------------------------------------------


def _held(run: RunView, backlog: Backlog | None, version: int | None) -> Iterator[str]:
    """Say that the run waits for newer code. The version of the workers' code is unknown; signs of
    it are the code on this machine, or workers that have nothing left to do."""
    if run.archived or run.status in TERMINAL or run.status == "attention":
        return
    if version is not None and run.version > version:
        yield (
            f"Version {run.version} of the agent wrote the run's state, and older code cannot "
            f"continue it; this is version {version}. Start workers of version {run.version}"
        )
    elif version is None and backlog is not None and run.status == "running" and _idle(backlog):
        yield (
            "The workers of its partition are idle: they may run code older than "
            f"version {run.version}, which wrote the run's state (`run_held` in "
            "their log)"
        )


def _idle(backlog: Backlog) -> bool:
    return backlog.workers > 0 and not backlog.commands and not backlog.tasks


def _because(run: RunView, now_ms: int, backlog: Backlog | None) -> Iterator[str]:
    ago = _ago(run.updated_ms, now_ms)
    since = _since(run.updated_ms, now_ms)
    if run.archived:
        yield f"{run.status.capitalize()} {ago}; only the archive still has it"
        return
    match run.status:
        case "completed" | "cancelled":
            yield f"{run.status.capitalize()} {ago}"
        case "failed":
            yield f"Failed {ago}: {_failure(run)}"
            if _compensated(run):
                yield "Its compensation has run; it can only be rewound"
        case "attention":
            yield f"Needs a person {since}: {_failure(run)}"
        case "paused":
            yield f"Paused {since}"
            yield from _next(run, now_ms)
        case "pending":
            yield f"Queued {since}: the agent's flow control lets other runs go first"
        case "running":
            yield f"Step {run.step!r} runs, or is about to run, {since}"
            yield from _attempts(run, now_ms)
        case "waiting":
            yield from _next(run, now_ms)
    if run.ending is not None and run.status not in TERMINAL:
        yield f"This step is its compensation; after it the run is {run.ending}"
    if run.status not in ("failed", "attention") and run.status not in TERMINAL:
        yield from _before_it(run, now_ms, backlog)


def _next(run: RunView, now_ms: int) -> Iterator[str]:
    """Say what a waiting run waits for, or a paused one will wait for."""
    wait = run.wait
    if wait is not None:
        yield _waits_for(run, wait, now_ms)
        if run.due_ms is not None and wait.kind == "budget":
            yield f"Step {run.step!r} does not run before {_when(run.due_ms, now_ms)}"
        elif run.due_ms is not None:
            then = f"step {wait.on_timeout!r} runs" if wait.on_timeout else "the run fails"
            yield f"At {_when(run.due_ms, now_ms)} it times out: {then}"
    elif run.due_ms is not None and run.attempt:
        yield (
            f"Step {run.step!r} failed ({_failure(run)}); attempt {run.attempt + 1} is at "
            f"{_when(run.due_ms, now_ms)}"
        )
    elif run.due_ms is not None:
        yield f"Sleeps until {_when(run.due_ms, now_ms)}, then runs step {run.step!r}"
    else:
        yield f"Next: step {run.step!r}"


def _waits_for(run: RunView, wait: WaitState, now_ms: int) -> str:
    since = _since(wait.since_ms, now_ms)
    named = ", ".join(repr(name) for name in wait.names)
    match wait.kind:
        case "signal":
            which = {
                "one": f"signal {named}",
                "all": f"one signal each of {named}",
                "any": f"any signal of {named}",
            }.get(wait.mode, f"{wait.need} signals of {named}")
            return f"Waits for {which} {since}"
        case "approval":
            who = " or ".join(wait.by) or "anybody"
            until = f" until {clock_time(run.due_ms)}" if run.due_ms is not None else ""
            return f"Waits for approval {since}: question {wait.question}; {who} may answer{until}"
        case "budget":
            spent, granted = _budget(run, wait)
            return (
                f"Used {spent} of {granted} {named}, and asks for as much again {since}: "
                f"question {wait.question}"
            )
        case "children":
            count = len(wait.branches)
            runs = f"{_child(run, wait, 0)} to {_child(run, wait, count - 1)}"
            agents = ", ".join(sorted({branch.agent for branch in wait.branches}))
            limit = f", {wait.limit} at a time" if wait.limit else ""
            if count == 1:
                return f"Waits for its child, run {_child(run, wait, 0)} of {agents}, {since}"
            return f"Waits for its {count} children, runs {runs} of {agents}{limit}, {since}"
        case "pool":
            agent = wait.branches[0].agent
            return (
                f"Step {run.step!r} runs in the pool {agent}, as its run "
                f"{_child(run, wait, 0)}, {since}"
            )


def _budget(run: RunView, wait: WaitState) -> tuple[float, float]:
    what = wait.names[0]
    memory = run.memory
    if memory is None:
        return 0, 0
    spent = [each for each in memory.spent if each.what == what]
    granted = [each for each in memory.granted if each.what == what]
    return (
        next(iter(amounts_json(tuple(spent)).values()), 0),
        next(iter(amounts_json(tuple(granted)).values()), 0),
    )


def _attempts(run: RunView, now_ms: int) -> Iterator[str]:
    if run.failure is not None and run.failure["code"] == "attempt_abandoned":
        yield f"{_failure(run)}, {_since(run.updated_ms, now_ms)}"
    elif run.attempt:
        yield f"Attempt {run.attempt + 1}; the previous one failed: {_failure(run)}"


def _before_it(run: RunView, now_ms: int, backlog: Backlog | None) -> Iterator[str]:
    """Say what holds the run up although it is due."""
    if backlog is None:
        return
    if not backlog.workers:
        yield f"No worker of agent {run.agent} runs: its consumer group is empty"
    overdue = run.status == "waiting" and run.due_ms is not None and run.due_ms <= now_ms
    if run.status in ("running", "pending") or overdue or not backlog.workers:
        yield (
            f"Queue of its partition {backlog.partition}: {backlog.commands} commands, "
            f"{backlog.tasks} tasks"
        )


def _failure(run: RunView) -> str:
    if run.failure is None:
        return "no reason is recorded"
    return failure_text(run.failure)


def _compensated(run: RunView) -> bool:
    return run.ending is not None and not run.payload


# What to do ---------------------------------------------------------------------------------


def _commands(run: RunView, backlog: Backlog | None) -> Iterator[str]:
    if run.archived:
        yield _command(run, "watch")
        return
    code = run.failure["code"] if run.failure is not None else ""
    match run.status:
        case "failed" if not _compensated(run):
            yield _command(run, "retry")
            yield _command(run, "versions")
        case "failed" | "completed" | "cancelled":
            yield _command(run, "versions")
        case "attention" if code == "once_in_doubt":
            yield _command(run, "resolve", "--happened", "RESULT")
            yield _command(run, "resolve", "--did-not")
            yield _command(run, "resolve", "--give-up")
        case "attention" if code == "undecodable":
            return  # no command reaches it
        case "attention":
            yield _command(run, "retry")
            yield _command(run, "rewind", "--to", str(run.seq))
            yield _command(run, "cancel")
        case "paused":
            yield _command(run, "resume")
        case "waiting" if run.wait is not None:
            yield from _answers(run, run.wait)
    if backlog is not None and not backlog.workers and run.status not in TERMINAL:
        yield backlog.start_worker


def _answers(run: RunView, wait: WaitState) -> Iterator[str]:
    match wait.kind:
        case "signal":
            for name in wait.names:
                yield _command(run, "signal", name, "PAYLOAD")
        case "approval" | "budget":
            by = ("--by", wait.by[0]) if wait.by else ()
            for verdict in ("--yes", "--no"):
                yield _command(run, "approve", verdict, "--question", wait.question or "", *by)
        case "children" | "pool" if len(wait.branches) == 1:
            child = (wait.branches[0].agent, _child(run, wait, 0))
            yield shlex.join(("surefoot", "runs", "show", *child))
        case _:
            for agent in sorted({branch.agent for branch in wait.branches}):
                yield shlex.join(("surefoot", "runs", "list", agent))


def _command(run: RunView, verb: str, *args: str) -> str:
    return shlex.join(("surefoot", "runs", verb, run.agent, run.run_id, *args))


def _child(run: RunView, wait: WaitState, branch: int) -> str:
    return child_id(run.run_id, wait.fork, branch)


# Times --------------------------------------------------------------------------------------


def _ago(then_ms: int, now_ms: int) -> str:
    return f"{_span(now_ms - then_ms)} ago ({clock_time(then_ms)})"


def _since(then_ms: int, now_ms: int) -> str:
    return f"since {clock_time(then_ms)} ({_span(now_ms - then_ms)})"


def _when(due_ms: int, now_ms: int) -> str:
    if due_ms > now_ms:
        return f"{clock_time(due_ms)} (in {_span(due_ms - now_ms)})"
    return f"{clock_time(due_ms)} ({_span(now_ms - due_ms)} ago)"


def _span(ms: int) -> str:
    """Format a duration with its two largest units."""
    told: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(max(ms, 0), size)
        if count or told or unit == "s":
            told.append(f"{count} {unit}")
    return " ".join(told[:2])
