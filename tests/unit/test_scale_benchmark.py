"""What the benchmark of coming and going processes makes of the commits that it has seen."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from benchmarks.scale import Commit, Stage, longest_pause, picture, rates, repeated, row

STAGE = Stage(2, 100.0, 102.0)


def test_a_body_that_begins_again_is_a_repeated_step() -> None:
    lines = ["r1 0 1.5", "r2 0 1.5", "r1 1 2.0", "r1 0 2.5", "r1 0 3.0"]
    assert repeated(lines) == [2.5, 3.0]


def test_a_pause_counts_where_it_ends() -> None:
    assert longest_pause([99.0, 100.5, 101.0, 101.75], STAGE) == 1.5
    assert longest_pause([99.0, 100.5, 101.0, 101.75], Stage(1, 102.0, 103.0)) == 1.25


def test_a_pause_that_lasts_is_cut_off_at_the_end_of_the_stage() -> None:
    assert longest_pause([100.25, 110.0], STAGE) == 1.75
    assert longest_pause([], STAGE) == 2.0


def test_rates_are_of_whole_bins() -> None:
    commits = [Commit(0, at_s) for at_s in (100.0, 100.25, 101.75, 102.125)]
    assert rates(commits, Stage(1, 100.0, 102.25)) == [4.0, 0.0, 0.0, 2.0]


def test_a_row_is_of_its_stage_alone() -> None:
    commits = [Commit(0, 99.5), Commit(1, 99.75), Commit(0, 100.5), Commit(1, 101.5)]
    found = row(STAGE, [*commits, Commit(0, 102.5)], [99.0, 101.0, 102.0])
    assert (found["processes"], found["seconds"], found["repeated"]) == (2, 2.0, 1)
    assert (found["steps_per_s"], found["pause_s"], found["partition_pause_s"]) == (1.0, 1.0, 1.75)


def test_the_picture_has_a_point_for_each_bin_and_a_bar_for_each_stage() -> None:
    stages = [row(STAGE, [Commit(0, 100.5), Commit(0, 101.0)], [])] * 3
    svg = ET.fromstring(picture(stages))
    space = "{http://www.w3.org/2000/svg}"
    (line,) = svg.findall(f"{space}polyline")
    assert len(line.attrib["points"].split()) == 3 * 4
    counts = [each.text for each in svg.findall(f"{space}text")].count("2")
    assert counts == 3
