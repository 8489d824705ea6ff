"""Commands and tasks go together, evenly, and move as little as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surefoot.infra.kafka.assignor import Claim, CopartitionedSticky, claim, share_out

NOTHING: Claim = (-1, frozenset())


def test_partition_p_of_every_topic_goes_to_one_member() -> None:
    assignor = CopartitionedSticky(("c", "t"), 4)
    members = {name: assignor.metadata(["c", "t"]) for name in "ab"}
    for assignment in assignor.assign(None, members).values():
        parts = dict(assignment.assignment)
        assert parts["c"] == parts["t"]


def test_a_member_that_joins_takes_only_its_share() -> None:
    shares = share_out({"a": (3, frozenset(range(6))), "b": NOTHING}, 6)
    assert shares["a"] == {0, 1, 2}
    assert shares["b"] == {3, 4, 5}


def test_a_member_that_leaves_moves_only_what_it_had() -> None:
    shares = share_out({"a": (4, frozenset({0, 1})), "b": (4, frozenset({2, 3}))}, 6)
    assert {0, 1} <= shares["a"]
    assert {2, 3} <= shares["b"]


def test_the_newer_generation_is_believed() -> None:
    shares = share_out({"a": (1, frozenset({0, 1})), "b": (2, frozenset({0, 1}))}, 2)
    assert len(shares["a"]) == len(shares["b"]) == 1
    shares = share_out({"a": (1, frozenset({0})), "b": (2, frozenset({0})), "c": NOTHING}, 3)
    assert 0 in shares["b"]


def test_what_a_member_says_survives_the_wire_and_nonsense_is_nothing() -> None:
    assignor = CopartitionedSticky(("c",), 4)
    assignor.owned = (5, frozenset({1, 3}))
    assert claim(assignor.metadata(["c"]).user_data) == (5, frozenset({1, 3}))
    for bad in (b"", b"{", b"[]", b'{"generation": "x", "partitions": []}'):
        assert claim(bad) == NOTHING


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=2),
        st.tuples(st.integers(-1, 5), st.frozensets(st.integers(0, 15))),
        min_size=1,
    ),
    st.integers(1, 12),
)
def test_every_partition_once_and_balanced_to_within_one(
    claims: dict[str, Claim], partitions: int
) -> None:
    shares = share_out(claims, partitions)
    assert sorted(p for share in shares.values() for p in share) == list(range(partitions))
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
