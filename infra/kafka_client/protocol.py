"""Requests of Kafka's transaction protocol, and what brokers tell of themselves.

Each in the versions that Surefoot speaks; aiokafka speaks version 0, or none. Source: the message
definitions of Apache Kafka
(clients/src/main/resources/common/message); KIP-98, KIP-447 (generation of the member, stable
offsets), KIP-584 (features), KIP-890 (an epoch for each transaction).
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from aiokafka.errors import BrokerResponseError, KafkaError, ProducerFenced, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

_Field = tuple[str, Any]

_TEXT = CompactString("utf-8")
_TAGS: _Field = ("tags", TaggedFields)
_THROTTLE: _Field = ("throttle_time_ms", Int32)
_ERROR: _Field = ("error_code", Int16)

#: the feature whose level 2 gives each transaction an epoch of its own (KIP-890)
TRANSACTION_VERSION = "transaction.version"
_API_VERSIONS_KEY = 18
#: tag of the finalized features in the response to ApiVersions
_FINALIZED_FEATURES = 2


class FencedInstanceId(BrokerResponseError):
    """Another process has joined the group under this member's name (KIP-345)."""

    errno = 82
    message = "FENCED_INSTANCE_ID"


class UnstableOffsetCommit(BrokerResponseError):
    """A transaction that has the offset is still open (KIP-447)."""

    errno = 88
    message = "UNSTABLE_OFFSET_COMMIT"


class OffsetNotAvailable(BrokerResponseError):
    """A new leader does not know yet what its followers have (KIP-207)."""

    errno = 78
    message = "OFFSET_NOT_AVAILABLE"
    retriable = True


class TransactionAbortable(BrokerResponseError):
    """The transaction has to be aborted (KIP-890)."""

    errno = 120
    message = "TRANSACTION_ABORTABLE"


_ERRORS: dict[int, type[KafkaError]] = {
    78: OffsetNotAvailable,
    82: FencedInstanceId,
    88: UnstableOffsetCommit,
    90: ProducerFenced,
    120: TransactionAbortable,
}


def error_of(code: int) -> KafkaError | None:
    """Return the error that a response means by this code; None for 0, which is no error."""
    if not code:
        return None
    known = _ERRORS.get(code) or for_code(code)
    return known(f"error {code}") if known.__name__ == "UnknownError" else known()


class Api:
    """One request in one flexible version: what it asks, and what is answered."""

    def __init__(
        self, key: int, version: int, asks: tuple[_Field, ...], answers: tuple[_Field, ...]
    ) -> None:
        common = {"API_KEY": key, "API_VERSION": version}
        response = type("_Response", (Response,), {**common, "SCHEMA": Schema(*answers, _TAGS)})
        more = {
            **common,
            "RESPONSE_TYPE": response,
            "FLEXIBLE_VERSION": True,
            "SCHEMA": Schema(*asks, _TAGS),
        }
        if key == _API_VERSIONS_KEY:  # its response has no tags in the header (KIP-511)
            more["parse_response_header"] = lambda _, buffer: ResponseHeader_v0.decode(buffer)
        struct: Any = type("_Struct", (RequestStruct,), more)

        class Prepared(Request[struct]):
            API_KEY = key
            required_acks = -1

            def __init__(self, fields: tuple[Any, ...]) -> None:
                self._fields = fields

            def build(self, request_struct_class: Any) -> Any:
                return request_struct_class(*self._fields, {})

        self._prepared = Prepared
        self._key, self._version = key, version

    def offered(self, versions: Any) -> bool:
        """Whether the broker that gave this response to ApiVersions takes the request."""
        return any(
            key == self._key and least <= self._version <= most
            for key, least, most, _ in versions.api_versions
        )

    def __call__(self, *fields: Any) -> Any:
        """Return the request with these fields, for aiokafka's client to send."""
        return self._prepared(fields)


def by_topic(*partition: _Field) -> _Field:
    """An array of topics with an array of partitions each."""
    return "topics", CompactArray(
        ("name", _TEXT), ("partitions", CompactArray(*partition, _TAGS)), _TAGS
    )


def _both(
    key: int,
    old: int,
    new: int,
    asks: tuple[_Field, ...],
    answers: tuple[_Field, ...],
    more: tuple[_Field, ...] = (),
) -> dict[bool, Api]:
    """A request whose newer version, under KIP-890, adds to the transaction by itself, or answers
    `more`. By whether each transaction has an epoch of its own."""
    return {
        False: Api(key, old, asks, answers),
        True: Api(key, new, asks, (*answers, *more)),
    }


_PRODUCER: tuple[_Field, ...] = (("producer_id", Int64), ("producer_epoch", Int16))
_ID: _Field = ("transactional_id", _TEXT)
_GROUP: _Field = ("group", _TEXT)
_PLACES: _Field = (
    "topics",
    CompactArray(("name", _TEXT), ("partitions", CompactArray(Int32)), _TAGS),
)
_ERROR_EACH = by_topic(("partition", Int32), _ERROR)

API_VERSIONS = Api(
    _API_VERSIONS_KEY,
    3,
    (("software_name", _TEXT), ("software_version", _TEXT)),
    (
        _ERROR,
        (
            "api_versions",
            CompactArray(("api_key", Int16), ("min_version", Int16), ("max_version", Int16), _TAGS),
        ),
        _THROTTLE,
    ),
)
INIT_PRODUCER_ID = Api(
    22,
    4,
    (_ID, ("transaction_timeout_ms", Int32), *_PRODUCER),
    (_THROTTLE, _ERROR, *_PRODUCER),
)
ADD_PARTITIONS_TO_TXN = Api(24, 3, (_ID, *_PRODUCER, _PLACES), (_THROTTLE, _ERROR_EACH))
ADD_OFFSETS_TO_TXN = Api(25, 3, (_ID, *_PRODUCER, _GROUP), (_THROTTLE, _ERROR))
PRODUCE = _both(
    0,
    9,
    12,
    (
        _ID,
        ("required_acks", Int16),
        ("timeout_ms", Int32),
        by_topic(("partition", Int32), ("records", CompactBytes)),
    ),
    (
        by_topic(
            ("partition", Int32),
            _ERROR,
            ("base_offset", Int64),
            ("log_append_time_ms", Int64),
            ("log_start_offset", Int64),
            ("record_errors", CompactArray(("index", Int32), ("message", _TEXT), _TAGS)),
            ("error_message", _TEXT),
        ),
        _THROTTLE,
    ),
)
#: who commits these offsets
_MEMBER_AND_OFFSETS: tuple[_Field, ...] = (
    ("generation", Int32),
    ("member_id", _TEXT),
    ("group_instance_id", _TEXT),
    by_topic(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", _TEXT)),
)
TXN_OFFSET_COMMIT = _both(
    28,
    3,
    5,
    (_ID, _GROUP, *_PRODUCER, *_MEMBER_AND_OFFSETS),
    (_THROTTLE, _ERROR_EACH),
)
OFFSET_COMMIT = Api(8, 8, (_GROUP, *_MEMBER_AND_OFFSETS), (_THROTTLE, _ERROR_EACH))
END_TXN = _both(26, 3, 5, (_ID, *_PRODUCER, ("committed", Boolean)), (_THROTTLE, _ERROR), _PRODUCER)
#: the first version that asks for stable offsets
OFFSET_FETCH = Api(
    9,
    7,
    (_GROUP, _PLACES, ("require_stable", Boolean)),
    (
        _THROTTLE,
        by_topic(
            ("partition", Int32),
            ("offset", Int64),
            ("leader_epoch", Int32),
            ("metadata", _TEXT),
            _ERROR,
        ),
        _ERROR,
    ),
)

#: what a broker knows of the producers that write to its partitions (KIP-664)
DESCRIBE_PRODUCERS = Api(
    61,
    0,
    (_PLACES,),
    (
        _THROTTLE,
        by_topic(
            ("partition", Int32),
            _ERROR,
            ("error_message", _TEXT),
            (
                "producers",
                CompactArray(
                    ("producer_id", Int64),
                    ("producer_epoch", Int32),
                    ("last_sequence", Int32),
                    ("last_timestamp_ms", Int64),
                    ("coordinator_epoch", Int32),
                    ("transaction_start_offset", Int64),
                    _TAGS,
                ),
            ),
        ),
    ),
)
#: the transactions that a broker coordinates (KIP-664)
LIST_TRANSACTIONS = Api(
    66,
    0,
    (("states", CompactArray(_TEXT)), ("producer_ids", CompactArray(Int64))),
    (
        _THROTTLE,
        _ERROR,
        ("unknown_states", CompactArray(_TEXT)),
        (
            "transactions",
            CompactArray(_ID, ("producer_id", Int64), ("state", _TEXT), _TAGS),
        ),
    ),
)
#: the folders of a broker's logs, with the room that their disks have (KIP-827)
DESCRIBE_LOG_DIRS = Api(
    35,
    4,
    (_PLACES,),
    (
        _THROTTLE,
        _ERROR,
        (
            "folders",
            CompactArray(
                _ERROR,
                ("path", _TEXT),
                by_topic(
                    ("partition", Int32),
                    ("bytes", Int64),
                    ("offset_lag", Int64),
                    ("is_future", Boolean),
                ),
                ("total_bytes", Int64),
                ("usable_bytes", Int64),
                _TAGS,
            ),
        ),
    ),
)

_FEATURES = CompactArray(("name", _TEXT), ("max_level", Int16), ("min_level", Int16), _TAGS)


def feature_level(versions: Any, name: str) -> int:
    """Return a feature's finalized level, from a response to ApiVersions; 0 if there is none."""
    told = versions.tags.get(_FINALIZED_FEATURES)
    features: list[Any] = (_FEATURES.decode(BytesIO(told)) or []) if told else []
    return next((most for feature, most, _, _ in features if feature == name), 0)
