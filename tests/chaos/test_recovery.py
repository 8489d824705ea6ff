"""What is told of a partition that stood still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.chaos.faults.recovery import Recovery, Serving, recovery

NOBODY: Any = SimpleNamespace()


def serving(*looks: tuple[float, set[int]]) -> Serving:
    made = Serving(NOBODY, "app", "agent", 2)
    made.looks += [(at_s, frozenset(served)) for at_s, served in looks]
    return made


def test_the_cluster_s_part_ends_with_the_last_look_at_which_it_did_not_serve() -> None:
    commits = {0: [9.0, 10.5, 19.0, 19.5], 1: [9.5, 10.25, 10.5, 20.0]}
    looks = serving((9.0, {0, 1}), (11.0, {0}), (16.0, {0}), (17.0, {0, 1}), (19.0, {0, 1}))
    found = recovery(commits, looks, fault_s=10.0, end_s=20.5)
    # 1 stood still from 10.5 to 20, and was not served before 16; 0 was, all the time.
    assert found == Recovery(first_s=0.25, all_s=9.5, cluster_s=5.5, ours_s=8.5)


def test_a_partition_that_does_not_go_on_stands_still_to_the_end() -> None:
    found = recovery({0: [9.0]}, serving((11.0, set())), fault_s=10.0, end_s=15.0)
    assert found == Recovery(first_s=5.0, all_s=5.0, cluster_s=1.0, ours_s=4.0)
