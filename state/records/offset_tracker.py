"""Which input offsets of one topic partition are done. Pure.

The committed offset is the next one to read: everything below it is finished. With several
records in work at once it is the lowest one still in work, never the highest one finished.
"""

from __future__ import annotations

import heapq


class OffsetTracker:
    """Offsets in work and finished, of one input of one partition."""

    def __init__(self, next_offset: int) -> None:
        #: next offset to read
        self.next = next_offset
        self._in_work: list[int] = []
        self._done: set[int] = set()

    def begin(self, offset: int) -> bool:
        """Take a record into work. False: it was read before, leave it alone."""
        if offset < self.next:
            return False
        heapq.heappush(self._in_work, offset)
        self.next = offset + 1
        return True

    def done(self, offset: int) -> None:
        """The record's outcome is committed, or it needed none."""
        if not self._in_work or offset < self._in_work[0]:
            return  # told before
        self._done.add(offset)
        while self._in_work and self._in_work[0] in self._done:
            self._done.discard(heapq.heappop(self._in_work))

    def watermark(self, also_done: frozenset[int] | set[int] = frozenset()) -> int:
        """Offset to commit once the records `also_done` are finished too."""
        if not also_done:
            return self._in_work[0] if self._in_work else self.next
        finished = self._done | also_done
        return min((o for o in self._in_work if o not in finished), default=self.next)

    def skip_to(self, position: int) -> None:
        """Nothing but transaction markers lies before `position`: step over them."""
        if not self._in_work and position > self.next:
            self.next = position

    def leave_out(self, position: int) -> None:
        """Nothing is left of what lay before `position` and was not read."""
        self.next = max(self.next, position)

    @property
    def in_work(self) -> int:
        """How many records are in work."""
        return len(self._in_work)
