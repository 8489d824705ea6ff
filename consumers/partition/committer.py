"""Commits one partition's inputs: each batch becomes one transaction, or nothing.

1. Decide the inputs that are ready, those of a run in order of arrival, on the state in memory plus
   the batch.
   This gives their records, one checkpoint per run, the applied offsets, and the group's offsets up
   to the lowest input still in progress.
2. Commit. Nothing in memory has changed so far.
3. Apply a clean commit to memory, and begin the tasks that it wrote, without reading them back. A
   fence ends the owner. Anything else is an unknown outcome: new epoch, read the state's tail back,
   look for the transaction. If it is there, its tasks are read like those of anybody else. If not,
   decide the inputs again on what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import structlog

from surefoot.consumers.backoff import Denials, backoff
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.consumers.partition.transaction import (
    InputPosition,
    PendingInput,
    PendingInputs,
    RunChange,
    RunDraft,
    Transaction,
    answered_after,
    offsets_after,
)
from surefoot.state.errors import (
    FencedError,
    OutcomeUnknown,
    RecordRefused,
    Unavailable,
)
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import Failure
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import (
    INPUT_KINDS,
    ConsumerRecord,
    InputKind,
    Log,
    Ownership,
)
from surefoot.state.records.encoding import Wire
from surefoot.state.records.offset_tracker import OffsetTracker
from surefoot.state.records.run_store import RunStore
from surefoot.state.telemetry import metrics

log = structlog.get_logger(__name__)

#: most inputs in one transaction
BATCH_MAX = 128


class Committer:
    """Holds the ownership of one partition, and does all that needs it."""

    def __init__(
        self,
        *,
        rules: Rules,
        partition: int,
        log: Log,
        wire: Wire,
        clock: Clock,
        record_bytes: int,
        committing: Callable[[], AbstractContextManager[None]],
        deadlines: ConsumerDeadlines = DEADLINES,
    ) -> None:
        """`committing` is entered while a transaction is written."""
        self.store = RunStore()
        #: set when there is something to commit; the owner's loop waits for it
        self.wake = asyncio.Event()
        self._items = PendingInputs()
        #: None before the takeover, and while the ownership is lost
        self.ownership: Ownership | None = None
        self.progress: dict[InputKind, OffsetTracker] = {}
        #: commands that retention deleted unread, found at the takeover: (first offset, one after
        #: the last)
        self.lost: tuple[int, int] | None = None
        #: whether a commit is in progress, its outcome not known yet
        self.busy = False
        #: records that were answered while an earlier one is still in progress
        self.answered: set[InputPosition] = set()
        #: records below these offsets were answered before somebody set the group's offset back
        self._answered_below: dict[InputKind, int] = {}
        #: time from which no former owner can still believe it owns the partition; monotonic
        #: seconds
        self.exclusive_from_s = 0.0
        self._rules = rules
        self._partition = partition
        self._log = log
        self._wire = wire
        self._clock = clock
        self._record_bytes = record_bytes
        self._committing = committing
        self._deadlines = deadlines
        self._state_position: int | None = None
        self._committed: dict[InputKind, int] = {}

    def __len__(self) -> int:
        """Number of inputs to commit."""
        return len(self._items)

    @property
    def under_way(self) -> int:
        """Number of inputs of runs under way to commit."""
        return self._items.under_way

    def add(self, item: PendingInput) -> None:
        """Add the item to one of the next transactions."""
        self._items.add(item, self.store.live)
        self.wake.set()

    def done(self, *sources: InputPosition) -> None:
        """Mark these records as done, so that the offsets may move past them."""
        for kind, offset in sources:
            self.progress[kind].done(offset)

    async def take(self) -> dict[InputKind, int | None]:
        """Become the owner: fence, read the committed offsets, restore the runs.

        Returns: the offset to begin reading each input at (next to read; None: the beginning).
        Raises: NotAllowed — the log has denied a right for `denied_s`.
        """
        denials = Denials(self._clock, self._deadlines.denied_s)
        for wait_s in backoff(self._clock):
            self.store = RunStore()
            self._state_position = None
            found = await self._own_and_restore(self.store.apply, denials)
            if found is not None:
                break
            await asyncio.sleep(wait_s)
        assert found is not None
        committed, begins = found
        self.lost = None
        starts: dict[InputKind, int | None] = {}
        for kind in INPUT_KINDS:
            applied = self.store.applied.get(kind)
            group = committed[kind]
            starts[kind] = start_offset(group, applied)
            if group is not None and applied is not None and group < applied:
                self._answered_below[kind] = applied
            if (group or 0) != (applied or 0):
                log.warning(
                    "offsets_differ",
                    topic=getattr(self._wire.topics, kind),
                    partition=self._partition,
                    committed=group,
                    applied=applied,
                    start=starts[kind],
                )
            starts[kind] = self._not_before(begins[kind], kind, starts[kind])
        self.progress = {kind: OffsetTracker(starts[kind] or 0) for kind in INPUT_KINDS}
        self.answered = set(self.store.answered)
        self._committed = {kind: o for kind, o in committed.items() if o is not None}
        return starts

    def _not_before(self, begin: int, kind: InputKind, start: int | None) -> int | None:
        """Return the start offset, but not one below `begin`, the first that retention has left."""
        if (start or 0) >= begin:
            return start
        log.error(
            "committed_offset_gone",
            topic=getattr(self._wire.topics, kind),
            partition=self._partition,
            committed=start,
            log_start=begin,
        )
        if kind == "commands":
            self.lost = (start or 0, begin)
        return begin

    async def _own_and_restore(
        self, apply: Callable[[list[ConsumerRecord]], None], denials: Denials
    ) -> tuple[dict[InputKind, int | None], dict[InputKind, int]] | None:
        """Try once to own and restore the partition.

        Returns: the committed offsets, and where each input begins; None, with nothing changed,
            when the log is unavailable.
        Raises: NotAllowed — the log has denied a right for `denied_s`.
        """
        await self.close()
        if self._log.lease_left_s() <= 0:
            # Without proof of membership it is not for this worker to fence anybody. To look for it
            # costs nothing; a wait that grew with the outage would go on after its end.
            log.info("takeover_waits", partition=self._partition)
            while self._log.lease_left_s() <= 0:  # noqa: ASYNC110  (nobody tells of it)
                await asyncio.sleep(self._deadlines.lease_poll_s)
        try:
            self.ownership = await self._log.own(self._partition)
            self.exclusive_from_s = self._clock.monotonic_s() + self._log.lease_s()
            committed = await self.ownership.committed()
            begins = await self.ownership.begins()
            self._state_position = await self.ownership.restore(self._state_position, apply)
            applied = self.store.applied
            await self.ownership.name_owner(
                {kind: known_offset(committed[kind], applied.get(kind)) for kind in INPUT_KINDS}
            )
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("takeover_retry", partition=self._partition, error=str(error))
            denials.look(error)
            return None
        return committed, begins

    async def commit(self) -> tuple[list[PendingInput], list[RunChange]]:
        """Commit what is ready, and apply it to memory.

        Returns: the committed items, in order, and the runs that they changed. Both are empty when
            the transaction turned out not to have happened; its items are then still to be
            committed.
        Raises: FencedError — a newer owner exists.
        Under cancellation: the outcome is unknown; retire the owner.
        """
        batch = self._items.take(BATCH_MAX)
        self.busy = True
        try:
            return await self._commit(batch)
        finally:
            self.busy = False

    def was_answered(self, source: InputPosition) -> bool:
        """Whether the record was answered before a takeover or an offset reset repeated it.

        A command must not be taken twice: what was refused then could be legal now.
        """
        kind, offset = source
        return offset < self._answered_below.get(kind, 0) or source in self.answered

    async def commit_offsets(self) -> None:
        """Commit the offsets if they have moved. For use when there is nothing else to commit."""
        if offsets_after(self.progress, ()) != self._committed:
            await self.commit()

    async def close(self) -> None:
        """Retire the producer, at the latest when the log's own deadline passes."""
        ownership, self.ownership = self.ownership, None
        if ownership is not None:
            await ownership.close()

    async def _commit(
        self, batch: list[PendingInput], earlier: Sequence[PendingInput] = ()
    ) -> tuple[list[PendingInput], list[RunChange]]:
        """Commit one batch. `earlier` items are committed, but not yet marked as done."""
        txn = self._clock.unique().encode()
        transaction = Transaction(
            txn=txn,
            now_ms=self._clock.now_ms(),
            rules=self._rules,
            wire=self._wire,
            partition=self._partition,
            record_bytes=self._record_bytes,
            store=self.store,
        )
        outs, drafts = transaction.build(batch)
        for parked in transaction.parked:
            _tell_parked(*parked)
        offsets = offsets_after(self.progress, [*earlier, *batch])
        answered = answered_after(self.answered, [*earlier, *batch], offsets)
        outs.append(transaction.applied(offsets, answered))
        assert self.ownership is not None
        tasks: tuple[int, ...] = ()
        began_s = self._clock.monotonic_s()
        try:
            with self._committing():
                committed = await self.ownership.commit(outs, offsets)
            self._state_position, tasks = committed.state_end, committed.tasks
        except RecordRefused as error:
            return await self._commit_apart(batch, error, earlier)
        except OutcomeUnknown as error:
            metrics.TXN_AMBIGUOUS.add(self._rules.agent)
            log.warning(
                "commit_unknown", partition=self._partition, items=len(batch), error=str(error)
            )
            if not await self._settle(batch, txn):
                return [], []
        metrics.TXN_SECONDS.observe(self._clock.monotonic_s() - began_s, self._rules.agent)
        metrics.TXN_INPUTS.add(self._rules.agent, by=len(batch))
        self._committed.update(offsets)
        self.answered = answered
        left = iter(tasks)
        return batch, [draft.apply_to(self.store, self._begun(draft, left)) for draft in drafts]

    def _begun(self, draft: RunDraft, tasks: Iterator[int]) -> tuple[tuple[int, int], ...]:
        """Begin the tasks that a committed draft wrote, except those that were read before.

        Args: tasks: offsets of the tasks of this draft and of those after it, in order; empty where
            they are not known.
        Returns: the seq and the offset of each.
        """
        progress = self.progress["tasks"]
        known = zip(draft.requested, tasks, strict=False)
        return tuple((seq, offset) for seq, offset in known if progress.begin_unread(offset))

    async def _commit_apart(
        self, batch: list[PendingInput], error: RecordRefused, earlier: Sequence[PendingInput]
    ) -> tuple[list[PendingInput], list[RunChange]]:
        """Commit the items one by one, to find whose record the log refused."""
        if len(batch) > 1:
            done: list[PendingInput] = []
            moved: list[RunChange] = []
            for item in batch:
                items, runs = await self._commit([item], done)
                done += items
                moved += runs
            return done, moved
        (item,) = batch
        if item.record is not None:
            self._bury(item, item.record, Failure(code=error.code, message=str(error)))
        elif not item.inputs or item.parked:
            raise error
        else:
            run = self.store.state(item.run_id, self._rules.agent).run
            item.park(run, error.code, str(error), record_bytes=self._record_bytes)
            _tell_parked(item, error.code, str(error))
        return await self._commit([item], earlier)

    def _bury(self, item: PendingInput, record: ConsumerRecord, failure: Failure) -> None:
        """Replace records that cannot be written by a dead letter of the item's source record.

        Writes none if there is one from before a takeover.
        """
        told = any(self.was_answered(source) for source in item.sources)
        if not told:
            metrics.DEAD_LETTERS.add(self._rules.agent)
            log.error(
                "dead_letter",
                topic=record.topic,
                offset=record.offset,
                code=failure.code,
                error=failure.message,
            )
        item.outs = lambda h: [] if told else [self._wire.dead_input(record, failure, h)]
        item.record = None
        item.answers = True

    async def _settle(self, batch: list[PendingInput], txn: bytes) -> bool:
        """Find out whether a transaction with an unknown outcome was committed.

        Returns: True if it was; otherwise its items are to be committed again.
        Raises: FencedError — another owner has written in the meantime; NotAllowed — as for `take`.
        """
        seen: set[bytes] = set()

        def note(records: list[ConsumerRecord]) -> None:
            seen.update(value for r in records for name, value in r.headers if name == "sf-txn")
            self.store.apply(records)

        denials = Denials(self._clock, self._deadlines.denied_s)
        for wait_s in backoff(self._clock):
            if await self._own_and_restore(note, denials) is not None:
                break
            await asyncio.sleep(wait_s)
        if seen - {txn}:
            raise FencedError("another owner has written to the partition")
        log.info("commit_settled", partition=self._partition, landed=txn in seen)
        if txn not in seen:
            self._items.put_back(batch, self.store.live)
        return txn in seen


def _tell_parked(item: PendingInput, code: str, reason: str) -> None:
    log.error("run_attention", run_id=item.run_id, code=code, error=reason)


def start_offset(committed: int | None, applied: int | None) -> int | None:
    """Return where to begin reading an input: the lower of the group's offset and the state's.

    Both move in the same transactions. If somebody set the group's offset back, the records are
    read again and recognised as done. If somebody set it forward, or it expired, nothing that the
    state has not seen is lost.
    """
    known = [offset for offset in (committed, applied) if offset is not None]
    return min(known) if known else None


def known_offset(committed: int | None, applied: int | None) -> int:
    """Return the group's offset; if it has none, or none any more, the state's."""
    return committed if committed is not None else applied or 0
