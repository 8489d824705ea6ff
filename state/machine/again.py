"""What children and pooled steps may do again after their run was rewound or copied. Pure.

Such a child is a run of its own: it does not know what the runs whose place it may take did with
`ctx.once`. So everything it does is in doubt until it has a record of its own, and so is everything
its own children do. Entries of kind `again` record this, each in a slot of its own:

    a:all    in a child: whatever it does may have been done. `value` names what may be repeated
    a:forks  in the run: the number of forks undone. Which step made them is not on record, so
             each step starts that many as copies; further ones are new
    a:f:N    fork N was started as such a copy, by step `name`
    a:c:CALL the doubt was raised for this call of the step in progress; it is raised once, whatever
             is decided

A run that was never rewound has none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from surefoot.schemas.payload import parse_json, strict_json
from surefoot.state.machine.decision import DecisionBuilder
from surefoot.state.machine.model import Action, CommandRecord, Entries, Entry, Run

_ALL = "a:all"
_FORKS = "a:forks"
_FORK = "a:f:"
#: of the highest number of forks
_DIGITS = 10


def set_back_forks(builder: DecisionBuilder, run: Run, forks: int, repeat: Collection[str]) -> None:
    """Record that whatever was started since that version may be started again."""
    whole, known = builder.entries.get(_ALL), builder.entries.get(_FORKS)
    if whole is not None:
        builder.write_entry(replace(whole, value=strict_json(sorted(repeat))))
        return
    copies = [each for each in _copies(builder.entries) if each.seq > forks]
    for copy in copies:
        builder.forget(copy.slot)
    undone = max(run.forks - forks, 0) - len(copies)
    if known is not None or undone > 0:
        by = None if known is None else known.by
        before = 0 if known is None else known.seq
        _write(builder, run, _FORKS, seq=before + undone, by=by, repeat=repeat)


def inherit_doubt(
    builder: DecisionBuilder, run: Run, action: Action, repeat: Collection[str]
) -> None:
    """Begin a child in the place of another one, or a copy of a run that has had children."""
    count = number_in(action.call)
    slot = _FORKS if count else _ALL
    _write(builder, run, slot, seq=count, by=action.run_id, repeat=repeat)


def note_fork(builder: DecisionBuilder, run: Run, number: int) -> None:
    """Record that the children that the step starts may take the place of others."""
    known = builder.entries.get(_FORKS)
    if known is None:
        return
    if sum(copy.name == run.step for copy in _copies(builder.entries)) < known.seq:
        copy = Entry(
            run_id=run.run_id,
            slot=f"{_FORK}{number}",
            kind="again",
            seq=number,
            epoch=run.epoch,
            name=run.step,
            at_ms=builder.now_ms,
        )
        builder.write_entry(copy)


def annotate_start(entries: Entries, number: int, start: CommandRecord) -> CommandRecord:
    """Return the start of a child of that fork, with a note if it may take the place of another."""
    found = entries.get(_ALL)
    if found is None and f"{_FORK}{number}" in entries:
        found = entries.get(_FORKS)
    if found is None:
        return start
    action = Action(run_id=found.by or found.run_id, step="", call="", digest=b"")
    return replace(start, actions=(action,), repeat=repeatable(found))


def inherited_doubt(entries: Iterable[Entry], run_id: str, undone: int) -> Iterator[Action]:
    """Yield what a copy of the run inherits if it begins before the last `undone` forks."""
    there = {entry.slot: entry for entry in entries}
    whole, known = there.get(_ALL), there.get(_FORKS)
    if whole is not None:
        yield Action(run_id=whole.by or run_id, step="", call="", digest=b"")
    elif count := undone + (known.seq if known is not None else 0):
        yield Action(run_id=run_id, step="", call=str(count), digest=b"")


def note_doubt(builder: DecisionBuilder, run: Run, slot: str) -> None:
    """Record that another run may have made a call of the step in progress.

    The doubt is raised once; after that the call has a record of its own, or is simply made.
    """
    note = Entry(
        run_id=run.run_id,
        slot=doubt_slot(slot),
        kind="again",
        seq=run.seq,
        epoch=run.epoch,
        at_ms=builder.now_ms,
    )
    builder.write_entry(note)


def number_in(text: str | None) -> int:
    """Return the number of forks in a command's text, or 0 for anything else."""
    text = text or ""
    known = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if known else 0


def is_again(action: Action) -> bool:
    """Whether it stands for whatever other runs did, rather than for one action."""
    return "#" not in action.call


def counts(entry: Entry, run: Run) -> bool:
    """Whether the attempt in progress needs to know of this entry of kind `again`."""
    return entry.slot == _ALL or (
        entry.slot.startswith("a:c:") and (entry.seq, entry.epoch) == (run.seq, run.epoch)
    )


def of_run(entries: Entries) -> Entry | None:
    """Return the entry that says that whatever this run does may have been done, or None."""
    return entries.get(_ALL)


def doubt_slot(slot: str) -> str:
    """Return the slot of the note that the doubt was raised for the call in `slot`."""
    return f"a:{slot}"


def repeatable(entry: Entry) -> tuple[str, ...]:
    """Return the names of the actions that may run again."""
    return tuple(parse_json(entry.value or b"[]"))


def _copies(entries: Entries) -> list[Entry]:
    return [each for each in entries.values() if each.slot.startswith(_FORK)]


def _write(
    builder: DecisionBuilder,
    run: Run,
    slot: str,
    *,
    seq: int,
    by: str | None,
    repeat: Collection[str],
) -> None:
    builder.write_entry(
        Entry(
            run_id=run.run_id,
            slot=slot,
            kind="again",
            seq=seq,
            value=strict_json(sorted(repeat)),
            by=by,
            at_ms=builder.now_ms,
        )
    )
