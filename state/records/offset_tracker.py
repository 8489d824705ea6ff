"""Tracks which input offsets of one topic partition are done. Pure.

The committed offset is the next one to read: everything below it is done. With several records in
progress, it is the lowest of these, never the highest done.

An owner knows where the tasks are that it has written itself, and begins them before they are read.
Records of others may lie before them, so the committed offset passes neither what is in progress
nor what has not been read.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class OffsetTracker:
    """Offsets in progress and done, of one input of one partition."""

    def __init__(self, next_offset: int) -> None:
        #: next offset to read
        self.next = next_offset
        self._in_work: set[int] = set()
        #: begun and not read yet
        self._ahead: set[int] = set()

    def begin(self, offset: int) -> bool:
        """Start work on a record that was read. False: it was begun before; ignore it."""
        if offset < self.next:
            return False
        self.next = offset + 1
        if offset in self._ahead:
            self._ahead.remove(offset)
            return False
        self._in_work.add(offset)
        return True

    def begin_unread(self, offset: int) -> bool:
        """Start work on a record that is yet to be read. False: it was read before."""
        if offset < self.next:
            return False
        self._ahead.add(offset)
        self._in_work.add(offset)
        return True

    def done(self, offset: int) -> None:
        """Record that the record's outcome is committed, or that it needs none."""
        self._in_work.discard(offset)

    def watermark(self, also_done: AbstractSet[int] = frozenset()) -> int:
        """Return the offset to commit once the records in `also_done` are done too."""
        return min((self._in_work - also_done) | {self.next})

    def skip_to(self, position: int) -> None:
        """Skip to `position`: no record before it is left to read."""
        self.next = max(self.next, position)
        self._ahead = {offset for offset in self._ahead if offset >= self.next}
