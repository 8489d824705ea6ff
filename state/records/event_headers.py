"""Headers that make a record of the events topic a CloudEvent in binary mode. Pure.

Any Kafka client can route by them, and kcat or a Kafka UI shows them, without Avro. The trace is
that of the command that started the run, if it had one.
Source: CloudEvents 1.0.2, "Kafka Protocol Binding" 3.2; W3C Trace Context
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from surefoot.state.ports.log import Headers

#: prefix of an event's type
TYPE_PREFIX = "surefoot."
CONTENT_TYPE = "application/avro"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def event_headers(
    *,
    source: str,
    kind: str,
    run_id: str,
    at_ms: int,
    value: bytes,
    headers: Headers,
    number: int,
    traceparent: str | None,
) -> Headers:
    """Return `headers`, which name the event's transaction and input, plus those of CloudEvents.

    Args:    source: app/agent; value: the record's, in single-object encoding;
             number: distinguishes the events of one decision; -1: it has only one
    """
    told = dict(headers)
    origin = told.get("sf-src", b"").decode().rpartition("/")[2]
    identity = f"{told.get('sf-txn', b'').decode()}.{run_id}.{origin}.{number}"
    made = (
        ("ce_specversion", b"1.0"),
        ("ce_id", identity.encode()),
        ("ce_source", f"/surefoot/{source}".encode()),
        ("ce_type", f"{TYPE_PREFIX}{kind}".encode()),
        ("ce_subject", run_id.encode()),
        ("ce_time", _time(at_ms)),
        ("ce_dataschema", b"urn:surefoot:avro:crc64:" + value[2:10].hex().encode()),
        ("content-type", CONTENT_TYPE.encode()),
    )
    trace = () if traceparent is None else (("traceparent", traceparent.encode()),)
    return (*headers, *made, *trace)


@lru_cache(maxsize=16)
def _time(at_ms: int) -> bytes:
    """Format as RFC 3339. Cached: the events of a batch have few different times."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
