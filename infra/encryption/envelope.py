"""Records and blobs as they are stored, and as the engine sees them.

A record with payload is stored in an envelope (schemas/avro/Sealed.avsc): the whole record,
encrypted, beside the same record with its payload concealed. The envelope is bound to its place, so
that it opens nowhere else: not in another topic, nor for another run or entry, nor as a header.
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from surefoot.infra.encryption.cipher import Tampered
from surefoot.infra.encryption.keyring import Keyring
from surefoot.schemas.codec.codec import UndecodableError, decode, encode
from surefoot.schemas.codec.payload_fields import (
    conceal,
    is_concealed,
    is_sealed,
    placeholder,
    readable_without_key,
)
from surefoot.state.errors import KeyMissing
from surefoot.state.names.topics import dead_topic
from surefoot.state.ports.log import ConsumerRecord, Headers, ProducerRecord

log = structlog.get_logger(__name__)

_VALUE = b"value"
#: the header of a dead letter that may quote payload
_QUOTES = "sf-dead-message"


class Envelope:
    """Seals and opens the records of one app. `keys` without any: seals nothing."""

    def __init__(self, app: str, keys: Keyring) -> None:
        self._keys = keys
        self._own = f"{app}."
        self._dead = dead_topic(app)
        #: topics of which it was told that somebody writes to them without encryption
        self._told: set[str] = set()

    @property
    def seals(self) -> bool:
        """Whether there is a key to seal with."""
        return self._keys.newest is not None

    def seal(self, out: ProducerRecord) -> ProducerRecord:
        """Return the record as it is to be written. Records of other applications' topics, without
        payload, or sealed already, stay as they are."""
        key = self._keys.newest
        if key is None or not out.topic.startswith(self._own):
            return out
        if out.topic == self._dead:
            out = out._replace(headers=self._sealed_headers(out, key))
        if out.value is None:
            return out
        shown = conceal(out.value, key)
        if shown is out.value:
            return out
        return out._replace(value=self.seal_bytes(out.value, shown, out.topic, out.key, _VALUE))

    def open(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return the record as it was before `seal`. One that was changed or moved stays sealed,
        and thus cannot be decoded.

        Raises: KeyMissing — the process does not have its key.
        """
        if record.topic == self._dead:
            record = record._replace(headers=self._shown_headers(record))
        if not is_sealed(record.value):
            self._tell_open(record)
            return record
        opened = self._opened(record)
        if opened is None:
            log.error(
                "record_not_opened",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                advice="somebody has changed it, or copied it from another place",
            )
            return record
        return record._replace(value=opened)

    def show(self, record: ConsumerRecord) -> ConsumerRecord:
        """Like `open`; a record that cannot be opened has placeholders in place of its payload."""
        if record.topic == self._dead:
            record = record._replace(headers=self._shown_headers(record))
        if not is_sealed(record.value):
            return record
        opened = None
        with suppress(KeyMissing):
            opened = self._opened(record)
        if opened is None:
            opened = readable_without_key(record.value)
        return record._replace(value=opened)

    def refuse_concealed(self, out: ProducerRecord, what: str) -> None:
        """Raises: KeyMissing — the record was made of one that could not be opened here."""
        if is_concealed(out.value):
            raise KeyMissing(
                "SF2090",
                f"{what} was not written: what it is made of is encrypted, and this process does "
                "not have the key; name a file with it in SUREFOOT_ENCRYPTION",
            )

    def seal_bytes(
        self, plain: bytes, shown: bytes, topic: str, key: bytes | None, part: bytes
    ) -> bytes:
        """Return bytes in an envelope that opens only there."""
        newest = self._keys.newest
        assert newest is not None
        data_key = self._keys.get(newest)
        assert data_key is not None
        nonce, sealed = data_key.seal(plain, _place(topic, key, part, newest, shown))
        return encode("Sealed", {"key": newest, "nonce": nonce, "shown": shown, "sealed": sealed})

    def open_bytes(self, envelope: bytes, topic: str, key: bytes | None, part: bytes) -> bytes:
        """Return the bytes in an envelope.

        Raises: KeyMissing; Tampered — also if it is of another place, or no envelope.
        """
        try:
            fields = decode(envelope, "Sealed")[1]
        except UndecodableError:
            raise Tampered from None
        data_key = self._keys.get(fields["key"])
        if data_key is None:
            raise KeyMissing(
                "SF2090",
                f"{topic} has payloads that are encrypted with the key {fields['key'][:64]!r}, "
                "which this process does not have; name a file with it in SUREFOOT_ENCRYPTION",
            )
        place = _place(topic, key, part, fields["key"], fields["shown"])
        return data_key.open(fields["nonce"], fields["sealed"], place)

    def _tell_open(self, record: ConsumerRecord) -> None:
        """Log, once for each topic, that commands arrive as everybody can read them."""
        topic = record.topic
        if self.seals and topic.endswith(".commands") and topic not in self._told:
            self._told.add(topic)
            log.warning(
                "command_not_encrypted",
                topic=topic,
                partition=record.partition,
                offset=record.offset,
                advice="if it is new, its sender has no SUREFOOT_ENCRYPTION",
            )

    def _opened(self, record: ConsumerRecord) -> bytes | None:
        """Return None for a record that was changed or moved. Raises KeyMissing."""
        try:
            return self.open_bytes(record.value or b"", record.topic, record.key, _VALUE)
        except Tampered:
            return None

    def _sealed_headers(self, out: ProducerRecord, key: str) -> Headers:
        shown = placeholder(key).encode()
        return tuple(
            (name, self.seal_bytes(value, shown, out.topic, out.key, name.encode()))
            if name == _QUOTES
            else (name, value)
            for name, value in out.headers
        )

    def _shown_headers(self, record: ConsumerRecord) -> Headers:
        return tuple(
            (name, self._shown_header(record, name, value)) for name, value in record.headers
        )

    def _shown_header(self, record: ConsumerRecord, name: str, value: bytes) -> bytes:
        if not is_sealed(value):
            return value
        try:
            return self.open_bytes(value, record.topic, record.key, name.encode())
        except (KeyMissing, Tampered):
            return readable_without_key(value) or b""


def _place(topic: str, key: bytes | None, part: bytes, key_id: str, shown: bytes) -> bytes:
    """Return the additional data of a ciphertext; no two places have the same."""
    parts = (b"surefoot", topic.encode(), key or b"", part, key_id.encode(), shown)
    return b"".join(len(each).to_bytes(4, "big") + each for each in parts)
