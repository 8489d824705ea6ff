"""What is told of batches that can never be read, and that it is no outage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka import codec as codecs
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.errors import KafkaConnectionError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c_py

from surefoot.infra.kafka_client.batches import readable, unpacks
from surefoot.infra.kafka_client.transactions import Batch, ProducerEpoch, record_batch
from surefoot.state.errors import ConfigError, StateError
from surefoot.state.ports.log import ProducerRecord

PLACE = TopicPartition("shop.orders", 3)
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def batch(codec: int, values: list[bytes], headers: Any = ()) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1_000_000)
    for offset, value in enumerate(values):
        builder.append(offset, 1_000, None, value, list(headers))
    return bytearray(builder.build())


class _State:
    paused, position = False, 0

    def consumed_to(self, position: int) -> None:
        self.position = position


class _Assignment:
    active = True

    def __init__(self) -> None:
        self.state = _State()

    def state_value(self, _tp: TopicPartition) -> _State:
        return self.state


async def read(data: bytearray) -> list[bytes]:
    """What aiokafka does with the bytes of a fetch."""
    records = PartitionRecords(
        PLACE, MemoryRecords(bytes(data)), [], 0, None, None, True, "read_committed"
    )
    got = FetchResult(
        PLACE, assignment=_Assignment(), partition_records=records, backoff=0
    ).getall()
    return [record.value for record in got]


@pytest.fixture
def no_codecs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "cramjam", None)
        yield


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_of_kafka_is_installed(codec: str) -> None:
    assert unpacks(codec)
    assert await readable(read(batch(CODECS[codec], [b"one", b"two"]))) == [b"one", b"two"]


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
async def test_a_codec_that_is_not_there_is_told_with_its_name_and_place(
    codec: str, request: pytest.FixtureRequest
) -> None:
    packed = batch(CODECS[codec], [b"one"])
    request.getfixturevalue("no_codecs")
    with pytest.raises(ConfigError) as caught:
        await readable(read(packed))
    assert caught.value.number == "SF3067"
    assert "topic shop.orders, partition 3, offset 0" in caught.value.message
    assert f"is packed with {codec}," in caught.value.message


async def test_a_codec_that_nobody_knows_is_told_by_its_number() -> None:
    packed = batch(0, [b"one"])
    packed[22] |= 6  # the lower byte of a batch's attributes
    with pytest.raises(ConfigError, match="packed with codec 6,"):
        await readable(read(_sealed(packed)))


def _sealed(data: bytearray) -> bytearray:
    """With the checksum that its bytes have now."""
    data[17:21] = calc_crc32c_py(bytes(data[21:])).to_bytes(4, "big")
    return data


@pytest.mark.parametrize("codec", [0, *CODECS.values()])
async def test_damaged_bytes_are_damage_whatever_takes_them_apart(codec: int) -> None:
    whole = batch(codec, [b"one" * 50, b"two" * 50])
    bad_sum, bad_body = bytearray(whole), bytearray(whole)
    bad_sum[-1] ^= 0xFF
    bad_body[61:] = b"\xff" * (len(whole) - 61)
    for damaged in (bad_sum, _sealed(bad_body)):
        with pytest.raises(StateError) as caught:
            await readable(read(damaged))
        assert caught.value.number == "SF3068"
        assert "topic shop.orders, partition 3, offset 0" in caught.value.message


async def test_an_outage_stays_an_outage() -> None:
    async def away() -> None:
        raise KafkaConnectionError("no broker")

    with pytest.raises(KafkaConnectionError):
        await readable(away())


@pytest.mark.usefixtures("no_codecs")
@pytest.mark.parametrize(
    ("compression", "can"),
    [
        ("producer", True),
        ("uncompressed", True),
        ("gzip", True),
        ("snappy", False),
        ("lz4", False),
        ("zstd", False),
        ("brotli", False),
    ],
)
def test_which_topics_can_be_read_without_the_extras(compression: str, can: bool) -> None:
    assert unpacks(compression) is can


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_a_transactions_batch_is_packed_as_the_settings_say(codec: str) -> None:
    outs = [ProducerRecord("t", 3, b"k%d" % n, b"value " * 50, [("h", b"1")]) for n in range(4)]
    number = {"none": 0, **CODECS}[codec]
    packed = record_batch(Batch(PLACE, outs, 7, 1_000), ProducerEpoch(5, 2), number)
    records = MemoryRecords(packed)
    found = records.next_batch()
    assert found is not None
    assert (found.attributes & 0b111, found.is_transactional) == (number, True)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (5, 2, 7)
    assert [(r.key, r.value, list(r.headers)) for r in found] == [
        (out.key, out.value, list(out.headers)) for out in outs
    ]
    assert not records.has_next()
    assert codec == "none" or len(packed) < 300
