"""The one commit of one partition: what is decided becomes one transaction, or nothing.

1. all decisions that are ready become one transaction: checkpoints, their records, the applied
   offsets, and the group's offsets up to the lowest input still in work
2. commit; nothing in memory has changed so far
3. a clean commit is handed back, to be applied to memory; a fence ends the owner; anything else
   is an unknown outcome: new epoch, read the state's tail back, and see whether it is there
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from surefoot.state.errors import FencedError, OutcomeUnknown, RecordTooLarge, Unavailable
from surefoot.state.machine import decide
from surefoot.state.model import Failure, Quarantine, Record, Run
from surefoot.state.ports import (
    INPUT_KINDS,
    Clock,
    Headers,
    In,
    InputKind,
    Log,
    Out,
    Ownership,
)
from surefoot.state.progress import Progress
from surefoot.state.store import RunStore
from surefoot.state.topics import dead_topic
from surefoot.state.wire import Wire

log = structlog.get_logger(__name__)

Source = tuple[InputKind, int]

#: most decisions in one transaction
BATCH_MAX = 128


@dataclass(slots=True, kw_only=True, eq=False)
class Item:
    """One decision: its records belong together, and it completes its `sources`."""

    sources: tuple[Source, ...]
    #: its records, given their headers
    build: Callable[[Headers], list[Out]]
    #: the run before and after; None for an input that moves no run
    before: Run | None = None
    after: Run | None = None
    #: records of earlier decisions on the run that are committed with this one
    pending: tuple[Record, ...] = ()


class Committer:
    """Holds the ownership of one partition, and everything that goes through it."""

    def __init__(
        self, *, partition: int, log: Log, wire: Wire, clock: Clock, record_bytes: int
    ) -> None:
        self.store = RunStore()
        self.progress: dict[InputKind, Progress] = {}
        #: a commit is under way whose outcome is not known yet
        self.busy = False
        self._partition = partition
        self._log = log
        self._wire = wire
        self._clock = clock
        self._record_bytes = record_bytes
        self._ownership: Ownership | None = None
        self._state_position: int | None = None
        self._committed: dict[InputKind, int] = {}
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Make a decision part of the next transaction."""
        self._items.append(item)

    async def take(self) -> dict[InputKind, int | None]:
        """Become the owner: fence, read the committed offsets, restore the runs. Returns where to
        begin reading each input (next offset; None = the beginning)."""
        for wait_s in backoff(self._clock):
            self.store = RunStore()
            self._state_position = None
            committed = await self._own_and_restore(self.store.apply)
            if committed is not None:
                break
            await asyncio.sleep(wait_s)
        assert committed is not None
        starts: dict[InputKind, int | None] = {}
        for kind in INPUT_KINDS:
            applied = self.store.applied.get(kind)
            starts[kind] = start_offset(committed[kind], applied)
            if committed[kind] != applied:
                log.warning(
                    "offsets_differ", topic=getattr(self._wire.topics, kind),
                    partition=self._partition, committed=committed[kind], applied=applied,
                    start=starts[kind],
                )  # fmt: skip
        self.progress = {kind: Progress(starts[kind] or 0) for kind in INPUT_KINDS}
        self._committed = {kind: o for kind, o in committed.items() if o is not None}
        return starts

    async def _own_and_restore(
        self, apply: Callable[[list[In]], None]
    ) -> dict[InputKind, int | None] | None:
        """One try at it; None when the log did not let us, which changes nothing."""
        await self.close()
        if self._log.lease_left_s() <= 0:
            # Without proof of membership it is not for this worker to fence anybody.
            log.info("takeover_waits", partition=self._partition)
            return None
        try:
            self._ownership = await self._log.own(self._partition)
            committed = await self._ownership.committed()
            self._state_position = await self._ownership.restore(self._state_position, apply)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("takeover_retry", partition=self._partition, error=str(error))
            return None
        return committed

    async def commit(self) -> list[Item]:
        """Commit what is ready. Returns the items to be applied to memory, in order; none when the
        transaction turned out not to have happened (they are then still to be committed).

        Raises: FencedError. Under cancellation the outcome is unknown: retire the owner.
        """
        batch = [self._items.popleft() for _ in range(min(len(self._items), BATCH_MAX))]
        self.busy = True
        try:
            return await self._commit(batch)
        finally:
            self.busy = False

    async def commit_offsets(self) -> None:
        """With nothing else to commit: the offsets, if they have moved."""
        if self._offsets(()) != self._committed:
            await self.commit()

    async def close(self) -> None:
        """Retire the producer, at the latest when the log's own deadline is over."""
        ownership, self._ownership = self._ownership, None
        if ownership is not None:
            await ownership.close()

    async def _commit(self, batch: list[Item], earlier: Sequence[Item] = ()) -> list[Item]:
        """`earlier` items are committed, but not applied to memory yet."""
        txn = self._clock.unique().encode()
        outs, batch = self._build(batch, txn)
        offsets = self._offsets([*earlier, *batch])
        applied: dict[str, int | None] = {kind: offsets[kind] for kind in INPUT_KINDS}
        outs.append(self._wire.applied(applied, self._partition, (("sf-txn", txn),)))
        assert self._ownership is not None
        try:
            self._state_position = await self._ownership.commit(outs, offsets)
        except RecordTooLarge as error:
            return await self._commit_apart(batch, error, earlier)
        except OutcomeUnknown as error:
            log.warning(
                "commit_unknown", partition=self._partition, items=len(batch), error=str(error)
            )
            if not await self._settle(batch, txn):
                return []
        self._committed.update(offsets)
        return batch

    def _build(self, batch: list[Item], txn: bytes) -> tuple[list[Out], list[Item]]:
        """The records of the batch; what is too large for its topic is replaced."""
        outs: list[Out] = []
        kept: list[Item] = []
        for decided in batch:
            item = decided
            made = item.build(self._headers(item, txn))
            size = max((record_size(out) for out in made if out.topic != self._dead), default=0)
            if size > self._record_bytes and item.before is not None:
                item = self._oversized(item, size, self._record_bytes)
                made = item.build(self._headers(item, txn))
            outs.extend(made)
            kept.append(item)
        return outs, kept

    @property
    def _dead(self) -> str:
        return dead_topic(self._wire.app)

    def _headers(self, item: Item, txn: bytes) -> Headers:
        source = b"timer"
        if item.sources:
            kind, offset = item.sources[0]
            source = f"{getattr(self._wire.topics, kind)}/{self._partition}/{offset}".encode()
        if item.before is None:
            return (("sf-txn", txn), ("sf-src", source))
        return (
            ("sf-txn", txn),
            ("sf-src", source),
            ("sf-run", item.before.run_id.encode()),
            ("sf-seq", b"%d" % item.before.seq),
        )

    def _offsets(self, batch: Sequence[Item]) -> dict[InputKind, int]:
        done: dict[InputKind, set[int]] = {kind: set() for kind in INPUT_KINDS}
        for item in batch:
            for kind, offset in item.sources:
                done[kind].add(offset)
        return {kind: self.progress[kind].watermark(done[kind]) for kind in INPUT_KINDS}

    async def _commit_apart(
        self, batch: list[Item], error: RecordTooLarge, earlier: Sequence[Item]
    ) -> list[Item]:
        """The log refused the batch for the size of a record: find whose it is."""
        if len(batch) > 1:
            done: list[Item] = []
            for item in batch:
                done += await self._commit([item], done)
            return done
        (item,) = batch
        if item.before is None or item.after is None or item.after.status == "attention":
            raise error
        return await self._commit([self._oversized(item, error.size, error.limit)], earlier)

    def _oversized(self, item: Item, size: int, limit: int) -> Item:
        """Instead of what does not fit: the run as it was, waiting for a person."""
        assert item.before is not None
        run = item.before
        failure = Failure(
            code="too_large",
            message=f"step {run.step!r} makes a record of {size} bytes, over the limit of {limit}",
            step=run.step,
            attempt=run.attempt,
        )
        log.error("run_attention", run_id=run.run_id, code=failure.code, error=failure.message)
        if len(run.payload) > limit - PARKED_BYTES:  # its input is still in the start command
            run = replace(run, payload=b"")
        now_ms = self._clock.now_ms()
        decision = decide(run, Quarantine(failure=failure), now_ms)
        parked, records = decision.run, (*item.pending, *decision.records)
        assert parked is not None
        return Item(
            sources=item.sources,
            build=lambda h: self._wire.outs(parked, records, h, self._partition, now_ms),
            before=item.before,
            after=parked,
            pending=item.pending,
        )

    async def _settle(self, batch: list[Item], txn: bytes) -> bool:
        """Find out what became of a transaction whose outcome is unknown: True when it has landed;
        otherwise its items are still to be committed.

        Raises: FencedError when somebody else has written in the meantime.
        """
        seen: set[bytes] = set()

        def note(records: list[In]) -> None:
            seen.update(value for r in records for name, value in r.headers if name == "sf-txn")
            self.store.apply(records)

        for wait_s in backoff(self._clock):
            if await self._own_and_restore(note) is not None:
                break
            await asyncio.sleep(wait_s)
        if seen - {txn}:
            raise FencedError("another owner has written to the partition")
        log.info("commit_settled", partition=self._partition, landed=txn in seen)
        if txn not in seen:
            self._items.extendleft(reversed(batch))
        return txn in seen


#: room that a checkpoint needs beside its payload when a run is parked for its size
PARKED_BYTES = 16_384


def start_offset(committed: int | None, applied: int | None) -> int | None:
    """Where to begin reading an input: the lower of what the group and the state say.

    They move in the same transactions. If somebody set the group's offset back, the work is gone
    through again and recognised as done; if somebody set it forward, or it expired, what the state
    has not seen is not lost.
    """
    known = [offset for offset in (committed, applied) if offset is not None]
    return min(known) if known else None


def record_size(out: Out) -> int:
    """Bytes of a record as the broker counts them, within a few."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in out.headers)
    return len(out.key or b"") + len(out.value or b"") + headers + 32


def backoff(clock: Clock, first_s: float = 0.1, most_s: float = 5.0) -> Iterator[float]:
    """Endless waits in seconds: doubling, jittered, capped."""
    next_s = first_s
    while True:
        yield next_s * (0.5 + clock.random() / 2)
        next_s = min(most_s, next_s * 2)
