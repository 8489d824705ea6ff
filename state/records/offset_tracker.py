"""Tracks which input offsets of one topic partition are done. Pure.

The committed offset is the next one to read: everything below it is done. With several records in
progress, it is the lowest of these, never the highest done.
"""

from __future__ import annotations

import heapq


class OffsetTracker:
    """Offsets in progress and done, of one input of one partition."""

    def __init__(self, next_offset: int) -> None:
        #: next offset to read
        self.next = next_offset
        self._in_work: list[int] = []
        self._done: set[int] = set()

    def begin(self, offset: int) -> bool:
        """Start work on a record. False: it was read before; ignore it."""
        if offset < self.next:
            return False
        heapq.heappush(self._in_work, offset)
        self.next = offset + 1
        return True

    def done(self, offset: int) -> None:
        """Record that the record's outcome is committed, or that it needs none."""
        if not self._in_work or offset < self._in_work[0]:
            return  # already reported
        self._done.add(offset)
        while self._in_work and self._in_work[0] in self._done:
            self._done.discard(heapq.heappop(self._in_work))

    def watermark(self, also_done: frozenset[int] | set[int] = frozenset()) -> int:
        """Return the offset to commit once the records in `also_done` are done too."""
        if not also_done:
            return self._in_work[0] if self._in_work else self.next
        finished = self._done | also_done
        return min((o for o in self._in_work if o not in finished), default=self.next)

    def skip_to(self, position: int) -> None:
        """Skip to `position`: only transaction markers lie before it."""
        if not self._in_work and position > self.next:
            self.next = position

    def leave_out(self, position: int) -> None:
        """Skip to `position`: the unread records before it no longer exist."""
        self.next = max(self.next, position)

    @property
    def in_work(self) -> int:
        """Number of records in progress."""
        return len(self._in_work)
