"""The bytes of Kafka's transaction protocol.

Written down by hand from the message definitions of Apache Kafka
(clients/src/main/resources/common/message): INT fields are big-endian; a compact string, array or
bytes begins with its length plus one as a varint, 0 for null; each struct ends with its tagged
fields, 00 for none.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from aiokafka.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    ProducerFenced,
    UnknownError,
)

from surefoot.infra.kafka_client.protocol import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    FencedInstanceId,
    OffsetNotAvailable,
    TransactionAbortable,
    UnstableOffsetCommit,
    error_of,
    feature_level,
)

#: "id", "g", "t"
ID, GROUP, TOPIC = "03 6964", "02 67", "02 74"
#: producer 7 in epoch 2
BY = "0000000000000007 0002"
NO_TAGS = "00"
#: of partition 3: 9, of no leader epoch, committed with "x"
OFFSETS = f"02 00000003 0000000000000009 ffffffff 02 78 {NO_TAGS}"

REQUESTS = [
    (API_VERSIONS("app", "1"), 18, 3, f"04 617070 02 31 {NO_TAGS}"),
    (
        INIT_PRODUCER_ID("id", 5_000, -1, -1),
        22,
        4,
        f"{ID} 00001388 ffffffffffffffff ffff {NO_TAGS}",
    ),
    (
        ADD_PARTITIONS_TO_TXN("id", 7, 2, [("t", [0, 1], {})]),
        24,
        3,
        f"{ID} {BY} 02 {TOPIC} 03 00000000 00000001 {NO_TAGS} {NO_TAGS}",
    ),
    (ADD_OFFSETS_TO_TXN("id", 7, 2, "g"), 25, 3, f"{ID} {BY} {GROUP} {NO_TAGS}"),
    *(
        (
            PRODUCE[bumps]("id", -1, 1_000, [("t", [(3, b"\xaa\xbb", {})], {})]),
            0,
            version,
            f"{ID} ffff 000003e8 02 {TOPIC} 02 00000003 03 aabb {NO_TAGS} {NO_TAGS} {NO_TAGS}",
        )
        for bumps, version in ((False, 9), (True, 12))
    ),
    *(
        (
            TXN_OFFSET_COMMIT[bumps](
                "id", "g", 7, 2, 5, "m", instance, [("t", [(3, 9, -1, "x", {})], {})]
            ),
            28,
            version,
            f"{ID} {GROUP} {BY} 00000005 02 6d {told} 02 {TOPIC} {OFFSETS} {NO_TAGS} {NO_TAGS}",
        )
        for bumps, version in ((False, 3), (True, 5))
        for instance, told in ((None, "00"), ("i", "02 69"))
    ),
    (
        OFFSET_COMMIT("g", 5, "m", "i", [("t", [(3, 9, -1, "x", {})], {})]),
        8,
        8,
        f"{GROUP} 00000005 02 6d 02 69 02 {TOPIC} {OFFSETS} {NO_TAGS} {NO_TAGS}",
    ),
    *(
        (END_TXN[bumps]("id", 7, 2, commit), 26, version, f"{ID} {BY} {told} {NO_TAGS}")
        for bumps, version in ((False, 3), (True, 5))
        for commit, told in ((True, "01"), (False, "00"))
    ),
    (
        OFFSET_FETCH("g", [("t", [3], {})], True),
        9,
        7,
        f"{GROUP} 02 {TOPIC} 02 00000003 {NO_TAGS} 01 {NO_TAGS}",
    ),
]


def struct_of(request: Any) -> Any:
    """What aiokafka sends to a broker that takes all versions."""
    return request.prepare({request.API_KEY: (0, 99)})


@pytest.mark.parametrize(
    ("request_", "key", "version", "body"), REQUESTS, ids=lambda each: type(each).__name__
)
def test_a_request_is_what_its_definition_says(
    request_: Any, key: int, version: int, body: str
) -> None:
    struct = struct_of(request_)
    assert key == struct.API_KEY
    assert version == struct.API_VERSION
    assert struct.encode() == bytes.fromhex(body)
    header = struct.build_request_header(correlation_id=6, client_id="c").encode()
    head = f"{key:04x} {version:04x} 00000006 0001 63 {NO_TAGS}"
    assert header == bytes.fromhex(head)


def response(request: Any, data: str) -> Any:
    """What aiokafka makes of an answer without its correlation id."""
    struct = struct_of(request)
    buffer = BytesIO(bytes.fromhex(f"00000006 {data}"))
    assert struct.parse_response_header(buffer).correlation_id == 6
    told = struct.RESPONSE_TYPE.decode(buffer)
    assert buffer.read() == b""
    return told


THROTTLE, NO_ERROR, FENCED = "00000000", "0000", "005a"


def test_a_new_epoch_is_read() -> None:
    request = INIT_PRODUCER_ID("id", 5_000, -1, -1)
    told = response(request, f"00 {THROTTLE} {NO_ERROR} {BY} {NO_TAGS}")
    assert (told.error_code, told.producer_id, told.producer_epoch) == (0, 7, 2)


def test_the_epoch_of_the_next_transaction_is_read_where_each_has_its_own() -> None:
    told = response(END_TXN[True]("id", 7, 1, True), f"00 {THROTTLE} {FENCED} {BY} {NO_TAGS}")
    assert (told.error_code, told.producer_id, told.producer_epoch) == (90, 7, 2)
    told = response(END_TXN[False]("id", 7, 1, True), f"00 {THROTTLE} {FENCED} {NO_TAGS}")
    assert told.error_code == 90


@pytest.mark.parametrize(
    "request_",
    [
        ADD_PARTITIONS_TO_TXN("id", 7, 2, [("t", [3], {})]),
        TXN_OFFSET_COMMIT[False]("id", "g", 7, 2, 5, "m", None, []),
        TXN_OFFSET_COMMIT[True]("id", "g", 7, 2, 5, "m", None, []),
        OFFSET_COMMIT("g", 5, "m", None, []),
    ],
    ids=lambda each: str(each.API_KEY),
)
def test_an_error_of_each_partition_is_read(request_: Any) -> None:
    told = response(
        request_,
        f"00 {THROTTLE} 02 {TOPIC} 02 00000003 {FENCED} {NO_TAGS} {NO_TAGS} {NO_TAGS}",
    )
    assert told.topics == [("t", [(3, 90, {})], {})]


@pytest.mark.parametrize("bumps", [False, True])
def test_where_a_batch_is_and_why_it_is_not_is_read(bumps: bool) -> None:
    place = f"0000000000000028 ffffffffffffffff 0000000000000000 01 00 {NO_TAGS}"
    refused = (
        "00000004 000a ffffffffffffffff ffffffffffffffff ffffffffffffffff "
        f"02 00000001 00 {NO_TAGS} 04 626967 {NO_TAGS}"
    )
    told = response(
        PRODUCE[bumps]("id", -1, 1_000, []),
        f"00 02 {TOPIC} 03 00000003 {NO_ERROR} {place} {refused} {NO_TAGS} {THROTTLE} {NO_TAGS}",
    )
    ((topic, (good, bad), _),) = told.topics
    assert (topic, good[:3], bad[:3]) == ("t", (3, 0, 40), (4, 10, -1))
    assert bad[5:7] == ([(1, None, {})], "big")


def test_offsets_are_read_with_who_committed_them() -> None:
    told = response(
        OFFSET_FETCH("g", [("t", [3, 4], {})], True),
        f"00 {THROTTLE} 02 {TOPIC} 03 "
        f"00000003 0000000000000009 ffffffff 02 78 {NO_ERROR} {NO_TAGS} "
        f"00000004 ffffffffffffffff ffffffff 00 0058 {NO_TAGS} "
        f"{NO_TAGS} {NO_ERROR} {NO_TAGS}",
    )
    assert told.error_code == 0
    assert told.topics == [("t", [(3, 9, -1, "x", 0, {}), (4, -1, -1, None, 88, {})], {})]


def versions(tags: str) -> Any:
    """An answer to ApiVersions, whose header has no tags: EndTxn in versions 0 to 5."""
    return response(API_VERSIONS("app", "1"), f"{NO_ERROR} 02 001a 0000 0005 00 {THROTTLE} {tags}")


#: "transaction.version" as a compact string, finalized from level 1 to level 2
FEATURE = "14 7472616e73616374696f6e2e76657273696f6e 0002 0001 00"


@pytest.mark.parametrize(
    ("tags", "level"),
    [
        ("00", 0),
        ("01 02 01 01", 0),
        (f"01 02 1a 02 {FEATURE}", 2),
        (f"02 00 01 01 02 1a 02 {FEATURE}", 2),
    ],
    ids=["none told", "none finalized", "finalized", "beside others"],
)
def test_the_level_of_a_feature_is_what_the_cluster_has_finalized(tags: str, level: int) -> None:
    assert feature_level(versions(tags), "transaction.version") == level


def test_a_feature_of_another_name_is_none() -> None:
    assert feature_level(versions(f"01 02 1a 02 {FEATURE}"), "metadata.version") == 0


def test_a_request_is_offered_by_a_broker_that_takes_its_version() -> None:
    told = versions("00")
    assert END_TXN[True].offered(told)
    assert END_TXN[False].offered(told)
    assert not PRODUCE[True].offered(told)
    (old,) = told.api_versions
    told.api_versions = [(*old[:2], 4, {})]
    assert not END_TXN[True].offered(told)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (47, InvalidProducerEpoch),
        (51, ConcurrentTransactions),
        (78, OffsetNotAvailable),
        (82, FencedInstanceId),
        (88, UnstableOffsetCommit),
        (90, ProducerFenced),
        (120, TransactionAbortable),
        (999, UnknownError),
    ],
)
def test_a_code_is_an_error(code: int, kind: type[Exception]) -> None:
    assert type(error_of(code)) is kind


def test_a_code_that_nobody_knows_is_told_and_zero_is_none() -> None:
    assert "999" in str(error_of(999))
    assert error_of(0) is None
