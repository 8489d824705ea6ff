"""What comes due by itself: waits of runs, and the expiry of receipts and early signals."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import partial

from surefoot.consumers.partition.admission import Admission
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.context import PartitionContext
from surefoot.consumers.partition.transaction import PendingInput
from surefoot.state.machine.model import Run
from surefoot.state.ports.log import Headers, ProducerRecord


class Timers:
    """When waits end, epoch ms. Pure.

    Of several times set for one run, only the one that the run itself names counts.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    @property
    def next_ms(self) -> int | None:
        """When the next timer fires: epoch ms, or None."""
        return self._heap[0][0] if self._heap else None

    def arm(self, run: Run) -> None:
        """Set a timer for a run that waits for a time."""
        if run.status == "waiting" and run.due_ms is not None:
            heapq.heappush(self._heap, (run.due_ms, run.run_id))

    def due(self, now_ms: int, live: Mapping[str, Run]) -> Iterator[tuple[int, Run]]:
        """Yield each run whose time has come, with that time."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, run_id = heapq.heappop(self._heap)
            run = live.get(run_id)
            if run is not None and run.status == "waiting" and run.due_ms == due_ms:
                yield due_ms, run


class Expiry:
    """Tombstones receipts whose dedup window is over, and signals for runs that never began."""

    def __init__(
        self, context: PartitionContext, committer: Committer, admission: Admission
    ) -> None:
        #: when to check next for early signals, which are rare; monotonic seconds
        self.look_s = 0.0
        self._context = context
        self._committer = committer
        self._admission = admission

    def forget_old(self) -> None:
        """Have expired records deleted with the next transaction."""
        store, limits = self._committer.store, self._context.limits
        now_ms, now_s = self._context.clock.now_ms(), self._context.clock.monotonic_s()
        old = store.expired(now_ms - limits.dedup_window_ms)
        if now_s >= self.look_s:
            self.look_s = now_s + 60.0
            self._admission.tidy()
            early = store.early(now_ms - limits.early_signals_ms)
            for run_id in early:
                self._context.logger.warning("early_signals_expired", run_id=run_id)
            old += early
        for run_id in old:
            keys = list(store.keys(run_id))
            store.forget(run_id)
            self._committer.add(PendingInput(outs=partial(self._tombstones, keys)))

    def _tombstones(self, keys: list[bytes], headers: Headers) -> list[ProducerRecord]:
        wire, partition = self._context.wire, self._context.partition
        return [wire.tombstone(key, partition, headers) for key in keys]
