"""The runs of one partition, folded from its state topic. Pure; one owner, no locks.

`live` has the runs that are not over, and failed ones, which can be retried. Every run that is over
has a receipt: it answers repeated starts until the dedup window has passed, and is then tombstoned
with the run's remaining entries; its recorded actions are kept as long. A checkpoint or an entry
that cannot be decoded costs only its run, never the partition: `broken` has the run_id and the
reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.state.machine import again
from surefoot.state.machine.model import (
    NO_MEMORY,
    Decided,
    Entry,
    Forget,
    Memory,
    Record,
    Run,
    State,
    Status,
)
from surefoot.state.names.topics import APPLIED_KEY
from surefoot.state.ports.log import ConsumerRecord, InputKind
from surefoot.state.records.encoding import (
    decode_applied,
    decode_checkpoint,
    decode_entry,
    entry_key,
    split_key,
)

#: kinds of entries that count only for the current attempt; their slots are reused
_OF_A_STEP = frozenset({"call", "reserved", "intent", "partial"})
#: kinds of entries that a finished run needs if it is rewound
_OF_THE_PAST = frozenset({"done", "past", "again"})


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is kept of a run that is over."""

    status: Status
    version: int
    seq: int
    epoch: int
    emit: int
    forks: int
    input_digest: bytes
    updated_ms: int
    commands: tuple[str, ...]
    decided: tuple[Decided, ...]
    #: number of messages of its thread that are still in the state topic
    thread: int

    def as_run(self, run_id: str, agent: str) -> Run:
        """Return as much of the run as is left."""
        memory = Memory(thread=self.thread, decided=self.decided)
        return Run(
            run_id=run_id,
            agent=agent,
            version=self.version,
            status=self.status,
            seq=self.seq,
            step="",
            attempt=0,
            payload=b"",
            created_ms=0,
            updated_ms=self.updated_ms,
            input_digest=self.input_digest,
            epoch=self.epoch,
            emit=self.emit,
            forks=self.forks,
            commands=self.commands,
            memory=None if memory == NO_MEMORY else memory,
        )


class RunStore:
    """Fold of one state partition: `apply` on restore, `put` after each commit."""

    def __init__(self) -> None:
        self.live: dict[str, Run] = {}
        self.entries: dict[str, dict[str, Entry]] = {}
        self.receipts: dict[str, Receipt] = {}
        self.broken: dict[str, str] = {}
        #: input offsets (next to read) that the state includes
        self.applied: dict[str, int | None] = {}
        #: records from these offsets on that are already answered: input and offset
        self.answered: frozenset[tuple[InputKind, int]] = frozenset()
        self._with_bad_entries: set[str] = set()

    def apply(self, records: Sequence[ConsumerRecord]) -> None:
        """Apply committed records of the state topic, in offset order.

        A value that a later record of its key replaces is not decoded: it counts as compacted."""
        newest = {record.key: number for number, record in enumerate(records)}
        for number, record in enumerate(records):
            if record.value is not None and newest[record.key] != number:
                continue
            if record.key == APPLIED_KEY:
                self.applied, self.answered = decode_applied(record.value)
            elif record.key is not None and not record.key.startswith(b"@"):
                run_id, slot = split_key(record.key)
                if slot is None:
                    self._apply_run(run_id, record.value)
                else:
                    self._apply_entry(run_id, slot, record.value)

    def _apply_run(self, run_id: str, value: bytes | None) -> None:
        if value is None:
            self.forget(run_id)
            return
        try:
            run = decode_checkpoint(value)
        except UndecodableError as error:
            self._break(run_id, str(error))
            return
        if run.run_id != run_id:
            self._break(run_id, f"its checkpoint belongs to run {run.run_id}")
            return
        if run_id not in self._with_bad_entries:
            self.broken.pop(run_id, None)
            self.put(run)

    def _apply_entry(self, run_id: str, slot: str, value: bytes | None) -> None:
        if value is None:
            self.forget_entry(run_id, slot)
            return
        try:
            entry = decode_entry(value)
        except UndecodableError as error:
            self._break_entry(run_id, slot, str(error))
            return
        if (entry.run_id, entry.slot) != (run_id, slot):
            self._break_entry(run_id, slot, f"it belongs to run {entry.run_id}, {entry.slot}")
            return
        self.put_entry(entry)

    def _break_entry(self, run_id: str, slot: str, reason: str) -> None:
        self._with_bad_entries.add(run_id)
        self._break(run_id, f"entry {slot}: {reason}")

    def _break(self, run_id: str, reason: str) -> None:
        self.live.pop(run_id, None)
        self.receipts.pop(run_id, None)
        self.broken[run_id] = reason

    def state(self, run_id: str, agent: str) -> State:
        """Return everything known about a run."""
        run = self.live.get(run_id)
        if run is None and (receipt := self.receipts.get(run_id)) is not None:
            run = receipt.as_run(run_id, agent)
        return State(run, self.entries.get(run_id, {}))

    def put(self, run: Run) -> None:
        """Set the run's newest committed state."""
        run_id = run.run_id
        if run_id in self.broken:
            return
        self.live.pop(run_id, None)
        self.receipts.pop(run_id, None)
        if run.terminal:
            memory = run.memory or NO_MEMORY
            self.receipts[run_id] = Receipt(
                run.status,
                run.version,
                run.seq,
                run.epoch,
                run.emit,
                run.forks,
                run.input_digest,
                run.updated_ms,
                run.commands,
                memory.decided,
                memory.thread,
            )
        if not run.terminal or run.status == "failed":
            self.live[run_id] = run
        elif run_id in self.entries:
            for slot, entry in list(self.entries[run_id].items()):
                if entry.kind not in _OF_THE_PAST:
                    self.forget_entry(run_id, slot)

    def put_records(self, run_id: str, records: Iterable[Record]) -> None:
        """Apply a committed decision's changes to the run's entries."""
        for record in records:
            if isinstance(record, Entry):
                self.put_entry(record)
            elif isinstance(record, Forget):
                self.forget_entry(run_id, record.slot)

    def put_entry(self, entry: Entry) -> None:
        """Set an entry's newest committed state."""
        over = entry.run_id in self.receipts and entry.run_id not in self.live
        if over and entry.kind not in _OF_THE_PAST:
            return
        slots = self.entries.setdefault(entry.run_id, {})
        slots.pop(entry.slot, None)
        slots[entry.slot] = entry

    def forget_entry(self, run_id: str, slot: str) -> None:
        """Remove an entry that was tombstoned."""
        slots = self.entries.get(run_id, {})
        slots.pop(slot, None)
        if not slots:
            self.entries.pop(run_id, None)

    def journal(self, run: Run) -> dict[str, Entry]:
        """Return what the current attempt has journaled, and what its step did in the past."""
        return {
            slot: entry
            for slot, entry in self.entries.get(run.run_id, {}).items()
            if (entry.kind in _OF_A_STEP and (entry.seq, entry.epoch) == (run.seq, run.epoch))
            or (entry.kind == "past" and entry.name == run.step)
            or (entry.kind == "again" and again.counts(entry, run))
        }

    def signals(self, run_id: str) -> tuple[Entry, ...]:
        """Return the signals that no step has taken, in order of arrival."""
        slots = self.entries.get(run_id, {})
        return tuple(entry for entry in slots.values() if entry.kind == "signal")

    def messages(self, run: Run) -> tuple[bytes, ...]:
        """Return the run's thread."""
        if run.memory is None or not run.memory.thread:
            return ()
        slots = self.entries.get(run.run_id, {})
        return tuple(slots[f"m:{n}"].value or b"null" for n in range(run.memory.thread))

    def forget(self, run_id: str) -> None:
        """Remove a run that was tombstoned, together with everything that `keys` named."""
        self.live.pop(run_id, None)
        self.entries.pop(run_id, None)
        self.receipts.pop(run_id, None)
        self.broken.pop(run_id, None)
        self._with_bad_entries.discard(run_id)

    def keys(self, run_id: str) -> Iterator[bytes]:
        """Yield the keys of everything that is left of a run."""
        receipt = self.receipts.get(run_id)
        slots = dict.fromkeys(self.entries.get(run_id, {}))
        if receipt is not None:
            slots |= dict.fromkeys(f"m:{n}" for n in range(receipt.thread))
        yield from (entry_key(run_id, slot) for slot in slots)
        yield run_id.encode()

    def expired(self, before_ms: int, most: int = 256) -> list[str]:
        """Return runs whose receipts were last touched before that time, at most `most`. Receipts
        are in the order in which runs ended, so the search stops at the first one still needed."""
        old = takewhile(lambda item: item[1].updated_ms < before_ms, self.receipts.items())
        return [run_id for run_id, _ in islice(old, most)]

    def early(self, before_ms: int) -> list[str]:
        """Return runs that never began, and whose signals all arrived before that time."""
        return [
            run_id
            for run_id, slots in self.entries.items()
            if run_id not in self.live
            and run_id not in self.receipts
            and run_id not in self.broken
            and all(entry.at_ms < before_ms for entry in slots.values())
        ]
