"""The committed offset never passes a record that is still in work, or is yet to be read."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from surefoot.state.records.offset_tracker import OffsetTracker


def test_the_lowest_record_in_work_is_the_watermark() -> None:
    progress = OffsetTracker(0)
    for offset in range(4):
        assert progress.begin(offset)
    progress.done(1)
    progress.done(3)
    assert progress.watermark() == 0
    assert progress.watermark({0}) == 2
    progress.done(0)
    assert progress.watermark() == 2
    progress.done(2)
    assert progress.watermark() == 4


def test_offset_zero_is_an_offset() -> None:
    progress = OffsetTracker(0)
    progress.begin(0)
    assert progress.watermark() == 0
    progress.done(0)
    assert progress.watermark() == 1


def test_a_record_read_before_is_left_alone() -> None:
    progress = OffsetTracker(7)
    assert not progress.begin(6)
    assert progress.begin(7)
    assert not progress.begin(7)


def test_gaps_of_markers_and_compaction_are_stepped_over() -> None:
    progress = OffsetTracker(0)
    progress.begin(10)
    progress.done(10)
    assert progress.watermark() == 11
    progress.skip_to(15)
    assert progress.watermark() == 15


def test_markers_are_not_stepped_over_while_a_record_is_in_work() -> None:
    progress = OffsetTracker(0)
    progress.begin(3)
    progress.skip_to(9)
    assert progress.watermark() == 3


def test_done_twice_is_done_once_and_leaves_nothing_behind() -> None:
    progress = OffsetTracker(0)
    progress.begin(0)
    progress.done(0)
    progress.done(0)
    assert progress.begin(1)
    assert progress.watermark() == 1


@given(st.permutations(range(12)), st.integers(0, 12))
def test_in_any_order_the_watermark_is_the_end_of_the_finished_prefix(
    order: list[int], count: int
) -> None:
    progress = OffsetTracker(0)
    for offset in range(12):
        progress.begin(offset)
    finished = set(order[:count])
    for offset in order[:count]:
        progress.done(offset)
    expected = next((o for o in range(12) if o not in finished), 12)
    assert progress.watermark() == expected


def test_a_record_begun_before_it_is_read_is_in_work_and_not_begun_again() -> None:
    progress = OffsetTracker(0)
    assert progress.begin_unread(0)
    assert progress.watermark() == 0
    assert not progress.begin(0)
    assert progress.watermark() == 0
    progress.done(0)
    assert progress.watermark() == 1


def test_a_record_done_before_it_is_read_waits_for_the_unread_ones_before_it() -> None:
    progress = OffsetTracker(0)
    progress.begin_unread(2)
    progress.done(2)
    assert progress.watermark() == 0
    assert progress.begin(1)
    assert not progress.begin(2)
    assert progress.watermark() == 1
    progress.done(1)
    assert progress.watermark() == 3


def test_a_record_that_was_read_before_its_place_was_known_is_told() -> None:
    progress = OffsetTracker(0)
    assert progress.begin(0)
    assert not progress.begin_unread(0)
    progress.done(0)
    assert progress.watermark() == 1


def test_a_record_that_retention_takes_unread_stays_in_work_until_it_is_done() -> None:
    progress = OffsetTracker(0)
    progress.begin_unread(3)
    progress.skip_to(5)
    assert progress.watermark() == 3
    progress.done(3)
    assert progress.watermark() == 5


class Partition(RuleBasedStateMachine):
    """A partition with its own owner's records and those of others, read and done in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = OffsetTracker(0)
        #: of each offset, whether the owner wrote it, or None for a marker
        self.log: list[bool | None] = []
        self.read = 0
        #: records that were handed out for work, and how often
        self.begun: dict[int, int] = {}
        self.done: set[int] = set()

    def _hand_out(self, offset: int, begun: bool) -> None:
        self.begun[offset] = self.begun.get(offset, 0) + begun

    @rule(read_first=st.booleans())
    def owner_writes(self, read_first: bool) -> None:
        """`read_first`: it is read before the commit is acknowledged."""
        self.log += [True, None]
        while read_first and self.read < len(self.log):
            self.read_one()
        offset = len(self.log) - 2
        self._hand_out(offset, self.progress.begin_unread(offset))

    @rule()
    def others_write(self) -> None:
        self.log.append(False)

    @precondition(lambda self: self.read < len(self.log))
    @rule()
    def read_one(self) -> None:
        if self.log[self.read] is not None:
            self._hand_out(self.read, self.progress.begin(self.read))
        self.read += 1

    @precondition(lambda self: self.read == len(self.log))
    @rule()
    def idle(self) -> None:
        self.progress.skip_to(self.read)

    @rule()
    def resumed(self) -> None:
        """Records are read again from where the tracker says."""
        self.read = self.progress.next

    @precondition(lambda self: self.begun.keys() - self.done)
    @rule(random=st.randoms())
    def finish(self, random: Random) -> None:
        offset = random.choice(sorted(self.begun.keys() - self.done))
        self.progress.done(offset)
        self.done.add(offset)

    @invariant()
    def nothing_is_begun_twice_or_passed_over(self) -> None:
        assert set(self.begun.values()) <= {1}
        watermark = self.progress.watermark()
        undone = [o for o, owned in enumerate(self.log) if owned is not None and o not in self.done]
        assert watermark <= min(undone, default=len(self.log))

    @invariant()
    def all_read_and_done_is_all_passed(self) -> None:
        if self.read == len(self.log) and self.begun.keys() == self.done:
            self.progress.skip_to(self.read)
            assert self.progress.watermark() == len(self.log)


TestPartition = Partition.TestCase
