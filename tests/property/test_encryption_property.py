"""What is sealed comes back as it was, in its place alone; any bytes get a clean answer."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from surefoot.infra.encryption.cipher import DataKey
from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.encryption.keyring import Keyring
from surefoot.schemas.codec.codec import encode
from surefoot.schemas.codec.payload_fields import is_concealed, is_sealed
from surefoot.state.errors import KeyMissing
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from tests.property.test_codec_property import RECORDS

ENVELOPE = Envelope("app", Keyring({"k1": DataKey(b"1" * 32)}))
STRANGER = Envelope("app", Keyring())
TOPIC, KEY, SECRET = "app.a.events", b"run", b"4111-1111-1111-1111"

KEYS = st.none() | st.binary(max_size=8)


def read(out: ProducerRecord) -> ConsumerRecord:
    return ConsumerRecord(out.topic, out.partition, 0, 0, out.key, out.value, out.headers)


def sealed(value: bytes, topic: str = TOPIC, key: bytes | None = KEY) -> ConsumerRecord:
    return read(ENVELOPE.seal(ProducerRecord(topic, 0, key, value, ())))


@given(RECORDS.filter(lambda pair: pair[0] != "Sealed"), KEYS)
def test_every_record_comes_back_as_it_was(pair: tuple[str, dict[str, Any]], key: bytes | None):
    value = encode(*pair)
    record = sealed(value, key=key)

    assert ENVELOPE.open(record).value == value
    assert ENVELOPE.show(record).value == value
    if record.value != value:
        assert is_sealed(record.value)
        assert is_concealed(STRANGER.show(record).value) or not is_concealed(record.value)


@given(st.binary(min_size=12))
def test_what_is_no_record_of_ours_is_sealed_whole(value: bytes):
    record = sealed(value)

    assert value not in (record.value or b"")
    assert ENVELOPE.open(record).value == value


@given(KEYS, KEYS, st.sampled_from(["app.a.events", "app.a.state", "app.b.events"]))
def test_a_record_opens_in_its_place_alone(was: bytes | None, now: bytes | None, topic: str):
    record = sealed(SECRET, key=was)
    moved = record._replace(topic=topic, key=now)
    same = (was or b"", TOPIC) == (now or b"", topic)

    assert (ENVELOPE.open(moved).value == SECRET) == same
    assert is_concealed(ENVELOPE.show(moved).value) != same


@given(st.data())
def test_a_changed_record_does_not_open_and_is_never_an_error(data: st.DataObject):
    record = sealed(SECRET)
    raw = bytearray(record.value or b"")
    position = data.draw(st.integers(0, len(raw) - 1))
    end = data.draw(st.integers(position, position + 2))
    put = data.draw(st.binary(max_size=2))
    raw[position:end] = put
    changed = record._replace(value=bytes(raw))

    ENVELOPE.show(changed)
    STRANGER.show(changed)
    try:
        opened = ENVELOPE.open(changed)
    except KeyMissing:
        return  # the key's id was changed
    assert changed in (opened, record)
