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

_SPECVERSION = ("ce_specversion", b"1.0")
_CONTENT_TYPE = ("content-type", CONTENT_TYPE.encode())

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
    told, subject = dict(headers), run_id.encode()
    origin = (told.get("sf-src") or b"").rpartition(b"/")[2]
    made = (
        _SPECVERSION,
        ("ce_id", b"%b.%b.%b.%d" % (told.get("sf-txn") or b"", subject, origin, number)),
        ("ce_source", f"/surefoot/{source}".encode()),
        ("ce_type", f"{TYPE_PREFIX}{kind}".encode()),
        ("ce_subject", subject),
        ("ce_time", _time(at_ms)),
        ("ce_dataschema", b"urn:surefoot:avro:crc64:" + value[2:10].hex().encode()),
        _CONTENT_TYPE,
    )
    trace = () if traceparent is None else (("traceparent", traceparent.encode()),)
    return (*headers, *made, *trace)


@lru_cache(maxsize=16)
def _time(at_ms: int) -> bytes:
    """Format as RFC 3339. Cached: the events of a batch have few different times."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
