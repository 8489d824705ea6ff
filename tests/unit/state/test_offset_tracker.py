"""The committed offset never passes a record that is still in work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    assert not progress._done


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
