"""What one transaction does.

It takes its share of the inputs that are ready, and decides them, those of a run in order of
arrival, each on the state in memory plus the changes of the earlier ones. No I/O, no clock, and
memory stays unchanged: the committer writes the records, and applies the changes to memory once
they are committed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from surefoot.state.machine.decide import decide
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import (
    Entries,
    Entry,
    Failure,
    Forget,
    Input,
    Park,
    Record,
    Refusal,
    Run,
    StartRun,
    State,
    TaskRecord,
)
from surefoot.state.names.topics import dead_topic
from surefoot.state.ports.log import (
    INPUT_KINDS,
    ConsumerRecord,
    Headers,
    InputKind,
    ProducerRecord,
)
from surefoot.state.records.encoding import Wire
from surefoot.state.records.offset_tracker import OffsetTracker
from surefoot.state.records.run_store import RunStore
from surefoot.state.records.sizes import record_size

InputPosition = tuple[InputKind, int]

#: bytes that a checkpoint needs besides its payload when a run is parked for its size
PARKED_BYTES = 16_384
#: bytes left free in every checkpoint, so that the run can still be parked with a reason
FAILURE_BYTES = 1_024


@dataclass(slots=True, kw_only=True, eq=False)
class PendingInput:
    """Inputs of one run that are decided together, or records that concern no run.

    Committing the item completes its `sources`.
    """

    sources: tuple[InputPosition, ...] = ()
    run_id: str = ""
    inputs: tuple[Input, ...] = ()
    #: builds records that concern no run, from their headers
    outs: Callable[[Headers], list[ProducerRecord]] | None = None
    #: the record they are made from; dead-lettered if the log refuses them
    record: ConsumerRecord | None = None
    #: whether its sources must not be answered twice: a command, a record that cannot be used
    answers: bool = False
    #: called once it is committed, with the refusal if it changed nothing
    on_done: Callable[[Refusal | None], None] | None = None
    refused: Refusal | None = field(default=None, init=False)

    def park(self, run: Run | None, code: str, reason: str, *, record_bytes: int) -> None:
        """Replace inputs whose records cannot be written: the run stays as it was, parked."""
        step = run.step if run is not None else None
        room = record_bytes - PARKED_BYTES
        starts = tuple(
            replace(each, payload=b"") if len(each.payload) > room else each
            for each in self.inputs
            if isinstance(each, StartRun)
        )
        failure = Failure(
            code=code,
            message=f"what step {step!r} has come to cannot be written: {reason}",
            step=step,
            attempt=run.attempt if run is not None else 0,
        )
        self.inputs = (*starts, Park(failure=failure))
        self.on_done = None  # it was not done

    @property
    def parked(self) -> bool:
        """Whether it is reduced to parking: nothing smaller can be written."""
        return bool(self.inputs) and isinstance(self.inputs[-1], Park)


class _Queue:
    """Inputs in order, and whose they are."""

    def __init__(self) -> None:
        self.items: deque[PendingInput] = deque()
        #: number of inputs, by run
        self.runs: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.items)

    def take(self, most: int) -> list[PendingInput]:
        taken = [self.items.popleft() for _ in range(min(most, len(self.items)))]
        for item in taken:
            self.runs[item.run_id] -= 1
            if not self.runs[item.run_id]:
                del self.runs[item.run_id]
        return taken


class PendingInputs:
    """The inputs of one partition that wait for a transaction, those of one run in order.

    Inputs of runs under way, and new ones (of runs that are to begin, or of none), get half of a
    transaction each while there are enough of both: a storm of starts holds up no run under way.
    """

    def __init__(self) -> None:
        self._under_way = _Queue()
        self._new = _Queue()

    def __len__(self) -> int:
        return len(self._under_way) + len(self._new)

    @property
    def under_way(self) -> int:
        """Number of those that wait behind no new ones."""
        return len(self._under_way)

    def add(self, item: PendingInput, live: Container[str]) -> None:
        """Add an input behind the others; `live`: the runs under way."""
        queue = self._queue_for(item, live)
        queue.items.append(item)
        queue.runs[item.run_id] += 1

    def put_back(self, batch: Sequence[PendingInput], live: Container[str]) -> None:
        """Put what was taken before the others again."""
        for item in reversed(batch):
            queue = self._queue_for(item, live)
            queue.items.appendleft(item)
            queue.runs[item.run_id] += 1

    def take(self, most: int) -> list[PendingInput]:
        """Take what the next transaction has, of at most so many inputs."""
        new = self._new.take(max(most // 2, most - len(self._under_way)))
        return [*self._under_way.take(most - len(new)), *new]

    def _queue_for(self, item: PendingInput, live: Container[str]) -> _Queue:
        """A run's inputs stay in one queue while any wait there, also if it begins or ends."""
        for queue in (self._under_way, self._new):
            if item.run_id in queue.runs:
                return queue
        return self._under_way if item.run_id in live else self._new


class RunChange(NamedTuple):
    """One run before and after a transaction."""

    run_id: str
    before: Run | None
    after: Run | None
    #: seq and offset of each task that it wrote and that is yet to be read, where they are known
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class RunDraft:
    """What a transaction will do to one run."""

    run_id: str
    before: State
    after: State
    records: list[Record] = field(default_factory=list)
    outs: list[ProducerRecord] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.after.run is not self.before.run

    @property
    def requested(self) -> list[int]:
        """The seq of each step that its tasks request, in order."""
        return [record.seq for record in self.records if isinstance(record, TaskRecord)]

    def apply_to(self, store: RunStore, tasks: tuple[tuple[int, int], ...] = ()) -> RunChange:
        """Apply a committed draft to memory. Memory must not change before the commit."""
        if self.changed and self.after.run is not None:
            store.put(self.after.run)
        store.put_records(self.run_id, self.records)
        return RunChange(self.run_id, self.before.run, self.after.run, tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transaction under construction, for a batch of inputs."""

    txn: bytes
    now_ms: int
    rules: Rules
    wire: Wire
    partition: int
    #: largest record, in bytes, including key and headers
    record_bytes: int
    #: the committed runs; read only
    store: RunStore
    #: inputs whose runs are parked instead, with the code and the reason
    parked: list[tuple[PendingInput, str, str]] = field(default_factory=list)

    def build(self, batch: Sequence[PendingInput]) -> tuple[list[ProducerRecord], list[RunDraft]]:
        """Build the records of the batch.

        A run whose records do not fit is parked for a person; its item in the batch is changed to
        that.
        """
        runs: dict[str, list[PendingInput]] = {}
        outs: list[ProducerRecord] = []
        for item in batch:
            if item.outs is not None:
                outs += item.outs(self._headers(item))
            elif item.inputs:
                runs.setdefault(item.run_id, []).append(item)
        drafts = []
        for run_id, items in runs.items():
            draft = self._draft(run_id, items)
            if self._too_large(draft):
                draft = self._draft_what_fits(run_id, items)
            drafts.append(draft)
            outs += draft.outs
        return outs, drafts

    def applied(
        self, offsets: Mapping[InputKind, int], answered: AbstractSet[InputPosition]
    ) -> ProducerRecord:
        """Build the record of the offsets that the state includes once this is committed."""
        applied: dict[str, int | None] = {kind: offsets[kind] for kind in INPUT_KINDS}
        return self.wire.applied(applied, self.partition, (("sf-txn", self.txn),), answered)

    def _draft(self, run_id: str, items: Sequence[PendingInput]) -> RunDraft:
        """Decide all inputs of one run."""
        before = self.store.state(run_id, self.rules.agent)
        draft = RunDraft(run_id=run_id, before=before, after=before)
        seq = before.run.seq if before.run is not None else 0
        mine = (("sf-run", run_id.encode()), ("sf-seq", b"%d" % seq))
        headers: Headers = ()
        for item in items:
            headers = (*self._headers(item), *mine)
            item.refused = None
            try:
                for event in item.inputs:
                    self._decide(draft, item, event, headers)
            except ValueError as error:  # a number or a text that no record can hold
                if item.parked:
                    raise
                self._park(item, before.run, "unserialisable", str(error))
                return self._draft(run_id, items)
        if draft.changed and draft.after.run is not None:
            count = len(draft.outs) + 1
            run = draft.after.run
            draft.outs.insert(0, self.wire.checkpoint(run, count, headers, self.partition))
        return draft

    def _decide(self, draft: RunDraft, item: PendingInput, event: Input, headers: Headers) -> None:
        decision = decide(self.rules, draft.after, event, self.now_ms)
        item.refused = decision.refused
        draft.after = State(decision.run, _entries_after(draft.after.entries, decision.records))
        draft.records += decision.records
        trace = decision.run.traceparent if decision.run is not None else None
        draft.outs += [
            self.wire.out(
                record,
                draft.run_id,
                self.partition,
                headers,
                self.now_ms,
                number=number,
                traceparent=trace,
            )
            for number, record in enumerate(decision.records, len(draft.outs))
        ]

    def _too_large(self, draft: RunDraft) -> int:
        """Return the bytes of the draft's largest record if it is over the limit, else 0."""
        dead = dead_topic(self.wire.app)
        sizes = [record_size(out) for out in draft.outs if out.topic != dead]
        run = draft.after.run
        if draft.changed and run is not None and run.status != "attention":
            sizes[0] += FAILURE_BYTES
        largest = max(sizes, default=0)
        return largest if largest > self.record_bytes else 0

    def _draft_what_fits(self, run_id: str, items: Sequence[PendingInput]) -> RunDraft:
        """Add one input at a time; replace each whose records do not fit by parking the run."""
        done: list[PendingInput] = []
        for item in items:
            draft = self._draft(run_id, [*done, item])
            if size := self._too_large(draft):
                limit = self.record_bytes
                reason = f"a record of {size} bytes is over the limit of {limit}"
                self._park(item, draft.after.run, "too_large", reason)
            done.append(item)
        return self._draft(run_id, done)

    def _park(self, item: PendingInput, run: Run | None, code: str, reason: str) -> None:
        item.park(run, code, reason, record_bytes=self.record_bytes)
        self.parked.append((item, code, reason))

    def _headers(self, item: PendingInput) -> Headers:
        source = b"timer"
        if item.sources:
            kind, offset = item.sources[0]
            source = f"{getattr(self.wire.topics, kind)}/{self.partition}/{offset}".encode()
        return (("sf-txn", self.txn), ("sf-src", source))


def _entries_after(entries: Entries, records: Sequence[Record]) -> Entries:
    changes = [record for record in records if isinstance(record, Entry | Forget)]
    if not changes:
        return entries
    after = dict(entries)
    for change in changes:
        after.pop(change.slot, None)
        if isinstance(change, Entry):
            after[change.slot] = change
    return after


def offsets_after(
    progress: Mapping[InputKind, OffsetTracker], batch: Sequence[PendingInput]
) -> dict[InputKind, int]:
    """Return the group's offsets (next to read): the lowest input in progress after this batch."""
    done: dict[InputKind, set[int]] = {kind: set() for kind in INPUT_KINDS}
    for item in batch:
        for kind, offset in item.sources:
            done[kind].add(offset)
    return {kind: progress[kind].watermark(done[kind]) for kind in INPUT_KINDS}


def answered_after(
    answered: AbstractSet[InputPosition],
    batch: Sequence[PendingInput],
    offsets: Mapping[InputKind, int],
) -> set[InputPosition]:
    """Return the answered records at or above the group's offsets."""
    new = {source for item in batch if item.answers for source in item.sources}
    return {(kind, o) for kind, o in answered | new if o >= offsets[kind]}
