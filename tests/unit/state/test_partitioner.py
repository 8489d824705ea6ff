"""Partitions: the Java producer's hash, and one lane for all effects of a run."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from surefoot.state.names.partitioner import affinity, murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
        (b"\xff", -311467685),
    ],
)
def test_the_hash_is_that_of_the_java_client(data: bytes, hashed: int):
    assert murmur2(data) == hashed


@given(st.binary(max_size=300))
def test_the_hash_agrees_with_aiokafkas_on_any_bytes(data: bytes):
    assert murmur2(data) & 0xFFFFFFFF == aiokafka_murmur2(data) & 0xFFFFFFFF


@pytest.mark.parametrize("key", [b"", b"\xff", b"\xff\xfe\xfd", "Å".encode(), "A\u030a".encode()])
def test_the_hash_agrees_with_aiokafkas_on_odd_keys(key: bytes):
    assert murmur2(key) & 0x7FFFFFFF == aiokafka_murmur2(key) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("run_id", "partitions", "partition"),
    [
        ("TT0124", 15, 10),
        ("TT0124", 32, 22),
        ("fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 15, 1),
        ("fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 32, 26),
        ("gh-1", 6, 3),
    ],
)
def test_a_run_has_the_partition_that_a_java_producer_would_choose(
    run_id: str, partitions: int, partition: int
):
    assert partition_of(run_id, partitions) == partition


@given(st.text(min_size=1), st.integers(1, 1000))
def test_a_partition_is_always_one_that_exists(run_id: str, partitions: int):
    try:
        run_id.encode()
    except UnicodeEncodeError:  # no run is called so
        return
    assert 0 <= partition_of(run_id, partitions) < partitions


@pytest.mark.parametrize(
    ("run_id", "lane"),
    [
        ("gh-1", "gh-1"),
        ("triage:gh-1:3:0", "triage:gh-1"),
        ("triage:gh:7:12:0", "triage:gh:7"),
        ("triage:gh-1~e2:3:0", "triage:gh-1"),
        ("triage:gh-1~c:3:0", "triage:gh-1"),
        ("triage:gh-1~e2~c:3:0", "triage:gh-1"),
        ("triage:gh-1~2~0:3:0", "triage:gh-1~2~0"),
        ("outbox:triage:gh-1:3:0:0:1", "outbox:triage:gh-1:3:0"),
        ("gh:1", "gh:1"),
        ("gh:1:x", "gh:1:x"),
        ("gh:1:2x", "gh:1:2x"),
        ("gh:1:2\n", "gh:1:2\n"),
        ("gh:٣:٤", "gh:٣:٤"),
    ],
)
def test_only_what_an_effect_adds_to_its_run_is_left_out(run_id: str, lane: str):
    assert affinity(run_id) == lane


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~=+-]{0,40}", fullmatch=True), st.integers(1, 64))
def test_all_effects_of_a_run_share_a_partition(run_id: str, partitions: int):
    lanes = {
        partition_of(f"triage:{run_id}:{seq}:{index}", partitions)
        for seq in (0, 1, 10, 10**6)
        for index in range(3)
    }
    assert len(lanes) == 1


def test_many_runs_spread_over_all_partitions():
    counts = [0] * 6
    for number in range(6000):
        counts[partition_of(f"gh-{number}", 6)] += 1

    assert min(counts) > 800
