"""What a run did with `ctx.once`, over all its epochs. Pure.

While its step is in progress, an action is in the slot of its call, which a later step uses again.
When the run leaves the step, the action moves to a slot of its own, with kind `done`. A rewind to
before it makes it `past`: the first call with the same step, name, occurrence and arguments takes
it and does not act again. So each action of an earlier line of history stands for one of the new
line.

An action of another run, of which this run is a copy, is `past` with that run's id in `by`, and
without its outcome: whether it counts for this run is in doubt.

An action recorded as permanently failed is not kept: it is tried again, as a retry does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from surefoot.state.machine import again
from surefoot.state.machine.decision import DecisionBuilder
from surefoot.state.machine.model import Action, Entry, Run


class AtVersion(Protocol):
    """A run, or a view of one."""

    @property
    def seq(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> str: ...


def keep(builder: DecisionBuilder, run: Run) -> None:
    """Keep the actions that the step in progress has done or begun. The run leaves that step."""
    for entry in list(builder.entries.values()):
        if _in_work(entry, run):
            builder.write_entry(
                replace(
                    entry,
                    slot=_slot(entry.seq, entry.epoch, call_of(entry)),
                    kind="done",
                    name=entry.name or run.step,
                    value=outcome(entry),
                )
            )


def set_back_actions(
    builder: DecisionBuilder, run: Run, seq: int, forks: int, repeat: Collection[str]
) -> None:
    """Mark the actions since version `seq` as past, and delete those named in `repeat`."""
    keep(builder, run)
    again.set_back_forks(builder, run, forks, repeat)
    for entry in list(builder.entries.values()):
        if not _since(entry, seq):
            continue
        if call_name(entry) in repeat:
            builder.forget(entry.slot)
        elif entry.kind == "done":
            builder.write_entry(replace(entry, kind="past"))


def inherit_actions(
    builder: DecisionBuilder, run: Run, actions: Iterable[Action], repeat: Collection[str]
) -> None:
    """Write the actions that a copy of another run begins with."""
    for number, action in enumerate(actions):
        if again.is_again(action):
            again.inherit_doubt(builder, run, action, repeat)
            continue
        builder.write_entry(
            Entry(
                run_id=run.run_id,
                slot=_slot(number, -1, action.call),
                kind="past",
                seq=number,
                epoch=-1,
                digest=action.digest,
                name=action.step,
                by=action.run_id,
                at_ms=builder.now_ms,
            )
        )


def found_by(entries: Iterable[Entry], run: AtVersion, seq: int) -> list[Entry]:
    """Return the actions that a line of history from version `seq` finds done, in order."""
    found = [
        replace(entry, name=entry.name or run.step)
        for entry in entries
        if _in_work(entry, run) or _since(entry, seq)
    ]
    return sorted(found, key=_order)


def by_call(entries: Iterable[Entry]) -> dict[tuple[str, bytes | None], list[Entry]]:
    """Group the past actions by call and arguments, in order."""
    past: dict[tuple[str, bytes | None], list[Entry]] = {}
    for entry in sorted((entry for entry in entries if entry.kind == "past"), key=_order):
        past.setdefault((call_of(entry), entry.digest), []).append(entry)
    return past


def inherited_actions(entries: Iterable[Entry], repeat: Collection[str]) -> Iterator[Action]:
    """Yield the actions that a copy of their run inherits."""
    for entry in entries:
        if call_name(entry) not in repeat:
            yield Action(
                run_id=entry.by or entry.run_id,
                step=entry.name or "",
                call=call_of(entry),
                digest=entry.digest or b"",
            )


def outcome(entry: Entry) -> bytes | None:
    """Return the action's outcome, or None if it is unknown."""
    return None if entry.kind == "intent" else entry.value


def call_of(entry: Entry) -> str:
    """Return the call's NAME#N."""
    if entry.kind in ("done", "past"):
        return entry.slot.split(":", 3)[3]
    return entry.slot.removeprefix("c:")


def call_name(entry: Entry) -> str:
    """Return the call's name."""
    return call_of(entry).rpartition("#")[0]


def _slot(seq: int, epoch: int, call: str) -> str:
    return f"o:{seq}:{epoch}:{call}"


def _in_work(entry: Entry, run: AtVersion) -> bool:
    """Whether the entry is an action of the step in progress.

    Only actions carry the name of their step. An intent that an earlier release wrote has none, and
    is an action all the same.
    """
    here = (entry.seq, entry.epoch) == (run.seq, run.epoch)
    done = entry.kind == "call" and entry.name is not None and entry.failure is None
    return here and (done or entry.kind == "intent")


def _since(entry: Entry, seq: int) -> bool:
    return entry.kind == "past" or (entry.kind == "done" and entry.seq >= seq)


def _order(entry: Entry) -> tuple[int, int]:
    return entry.seq, entry.epoch
