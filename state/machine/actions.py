"""What a run has done with `ctx.once`, over all its epochs. Pure.

While its step is in work an action stands under the slot of its call, which a later step uses
again. When the run leaves the step it is kept under a slot of its own, `done`. A rewind to before
it makes it `past`: the first call of the same step, name, occurrence and arguments takes it, and
does not act again. So each action of an earlier line of history stands for one of the new line.
What another run has done, of which this one is a copy, is `past` with that run's id in `by`, and
without its outcome: whether that counts for this run is in doubt.

What was recorded as failed for good is not kept: it is tried again, as a retry does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from surefoot.state.machine import again
from surefoot.state.machine.decision import DecisionBuilder
from surefoot.state.machine.model import Action, Entry, Run


class AtVersion(Protocol):
    """A run, or what the outside sees of one."""

    @property
    def seq(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> str: ...


def keep(builder: DecisionBuilder, run: Run) -> None:
    """The run leaves the step in work: keep what that has done, or begun."""
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


def set_back(
    builder: DecisionBuilder, run: Run, seq: int, forks: int, repeat: Collection[str]
) -> None:
    """What has been done since that version is past; what is to be repeated is forgotten."""
    keep(builder, run)
    again.set_back(builder, run, forks, repeat)
    for entry in list(builder.entries.values()):
        if not _since(entry, seq):
            continue
        if name_of(entry) in repeat:
            builder.forget(entry.slot)
        elif entry.kind == "done":
            builder.write_entry(replace(entry, kind="past"))


def inherit(
    builder: DecisionBuilder, run: Run, actions: Iterable[Action], repeat: Collection[str]
) -> None:
    """A copy of another run begins."""
    for number, action in enumerate(actions):
        if again.is_again(action):
            again.inherit(builder, run, action, repeat)
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
    """The actions that a line of history finds done which begins at version `seq`, in order."""
    found = [
        replace(entry, name=entry.name or run.step)
        for entry in entries
        if _in_work(entry, run) or _since(entry, seq)
    ]
    return sorted(found, key=_order)


def by_call(entries: Iterable[Entry]) -> dict[tuple[str, bytes | None], list[Entry]]:
    """What is past, by call and arguments, in order."""
    past: dict[tuple[str, bytes | None], list[Entry]] = {}
    for entry in sorted((entry for entry in entries if entry.kind == "past"), key=_order):
        past.setdefault((call_of(entry), entry.digest), []).append(entry)
    return past


def handed_on(entries: Iterable[Entry], repeat: Collection[str]) -> Iterator[Action]:
    """The actions as a copy of their run inherits them."""
    for entry in entries:
        if name_of(entry) not in repeat:
            yield Action(
                run_id=entry.by or entry.run_id,
                step=entry.name or "",
                call=call_of(entry),
                digest=entry.digest or b"",
            )


def outcome(entry: Entry) -> bytes | None:
    """What came of the action; None: nobody knows."""
    return None if entry.kind == "intent" else entry.value


def call_of(entry: Entry) -> str:
    """NAME#N of the call."""
    if entry.kind in ("done", "past"):
        return entry.slot.split(":", 3)[3]
    return entry.slot.removeprefix("c:")


def name_of(entry: Entry) -> str:
    """Name of the call."""
    return call_of(entry).rpartition("#")[0]


def _slot(seq: int, epoch: int, call: str) -> str:
    return f"o:{seq}:{epoch}:{call}"


def _in_work(entry: Entry, run: AtVersion) -> bool:
    """Whether it is an action of the step in work. Only those have the name of their step; an
    intent that an earlier release has written has none, and is one all the same."""
    here = (entry.seq, entry.epoch) == (run.seq, run.epoch)
    done = entry.kind == "call" and entry.name is not None and entry.failure is None
    return here and (done or entry.kind == "intent")


def _since(entry: Entry, seq: int) -> bool:
    return entry.kind == "past" or (entry.kind == "done" and entry.seq >= seq)


def _order(entry: Entry) -> tuple[int, int]:
    return entry.seq, entry.epoch
