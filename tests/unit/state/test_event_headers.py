"""A record of the events topic is a CloudEvent in binary mode."""

from __future__ import annotations

from surefoot.schemas.codec.codec import decode
from surefoot.schemas.foreign import cloudevents
from surefoot.state.machine.model import EventRecord
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import Headers
from surefoot.state.records.encoding import Wire

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SOURCE = ("sf-src", b"app.orders.tasks/1/77")
HEADERS: Headers = (("sf-txn", b"t1"), SOURCE)
WIRE = Wire("app", AgentTopics("app", "orders"), 2)
EVENT = EventRecord(
    type="run.failed",
    run_id="r1",
    agent="orders",
    version=3,
    status="failed",
    seq=2,
    at_ms=1_700_000_000_123,
)


def headers(
    number: int = 0, trace: str | None = None, given: Headers = HEADERS
) -> dict[str, bytes]:
    out = WIRE.out(EVENT, "r1", 1, given, 5, number=number, traceparent=trace)
    assert out.value is not None
    assert decode(out.value)[0] == "Event"
    return {name: value or b"" for name, value in out.headers}


def test_the_events_topic_has_cloudevents_that_any_reader_of_them_takes() -> None:
    told = headers()
    event = cloudevents.binary(b"", told, told["content-type"].decode())
    schema = event.attributes.pop("dataschema")
    assert event.attributes == {
        "specversion": "1.0",
        "id": "t1.r1.77.0",
        "source": "/surefoot/app/orders",
        "type": "surefoot.run.failed",
        "subject": "r1",
        "time": "2023-11-14T22:13:20.123Z",
        "datacontenttype": "application/avro",
    }
    assert schema.startswith("urn:surefoot:avro:crc64:")
    assert "traceparent" not in told
    assert told["sf-txn"] == b"t1"


def test_the_trace_of_the_start_goes_along() -> None:
    assert headers(trace=TRACE)["traceparent"] == TRACE.encode()


def test_no_two_events_have_one_id() -> None:
    other = (("sf-txn", b"t2"), SOURCE)
    timer = (("sf-txn", b"t1"), ("sf-src", b"timer"))
    ids = {
        headers(*each)["ce_id"]
        for each in (
            (0,),
            (1,),
            (0, None, other),
            (0, None, timer),
            (-1,),
        )
    }
    assert len(ids) == 5
