"""W3C trace context, and ids that need nobody to tell them."""

from __future__ import annotations

import pytest

from surefoot.schemas.trace import (
    Trace,
    carried,
    carried_by,
    carried_on,
    child,
    parse_traceparent,
    span_id,
    trace_id,
    valid,
)

TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_is_read_and_written_as_it_stands() -> None:
    read = parse_traceparent(TEXT)
    assert read == Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")
    assert str(read) == TEXT == valid(TEXT)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        TEXT.upper(),
        TEXT + "\r\nX-Evil: 1",
        TEXT + "\n",
        " " + TEXT,
        TEXT + "-more",
        "ff" + TEXT[2:],
        "01" + TEXT[2:] + "more",
        "01" + TEXT[2:] + "-m\n",
        "01" + TEXT[2:] + "-" * 250,
        TEXT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        TEXT.replace("b7ad6b7169203331", "0" * 16),
        TEXT.replace("0af7", "0AF\u0667"),
    ],
)
def test_what_is_no_context_is_none(text: str | None) -> None:
    assert parse_traceparent(text) is None
    assert valid(text) is None


@pytest.mark.parametrize(
    "text", ["01" + TEXT[2:], "cc" + TEXT[2:] + "-what-the_future.will=be-like"]
)
def test_a_version_to_come_is_read_as_far_as_it_is_known(text: str) -> None:
    """W3C: what is behind the flags, and flags but the one for sampled, are for who knows them."""
    read = parse_traceparent(text.replace("-01", "-ff", 1) if text.endswith("-01") else text)
    assert read == Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")
    assert str(read) == TEXT
    assert valid(text) == text


STATE, BAGGAGE = "rojo=00f067aa0ba902b7,t61@congo=ucfJifl5GOE", "userId=amelie;p=1,days=%20 , n = 1"


def test_what_goes_on_together() -> None:
    all_ = carried([TEXT], [STATE], [BAGGAGE])
    assert all_ == {
        "traceparent": TEXT,
        "tracestate": STATE,
        "baggage": "userId=amelie;p=1,days=%20,n = 1",
    }
    assert carried([TEXT], ["a=1 ,", "b=2"], ["x=1", "y=2"]) == {
        "traceparent": TEXT,
        "tracestate": "a=1,b=2",
        "baggage": "x=1,y=2",
    }
    assert carried([], [STATE], [BAGGAGE]).keys() == {"baggage"}
    assert carried([TEXT, TEXT], [STATE], []) == {}
    assert carried_on(None, STATE, "x=1") == {"baggage": "x=1"}
    assert carried_on(TEXT, STATE, None) == {"traceparent": TEXT, "tracestate": STATE}
    assert carried_by(dict.fromkeys(("traceparent", "tracestate", "baggage"))) == {}
    assert carried_by({"traceparent": TEXT, "tracestate": "a=\n", "baggage": "x=1,\u00e9=1"}) == {
        "traceparent": TEXT,
        "baggage": "x=1",
    }


@pytest.mark.parametrize(
    "state", ["A=1", "a", "a=1,b", "a=1,a=2", "a=b=c", "a=\t", "=1", "a=1\r\nX: 1"]
)
def test_a_tracestate_with_something_wrong_in_it_is_dropped(state: str) -> None:
    assert carried([TEXT], [state], []) == {"traceparent": TEXT}


@pytest.mark.parametrize("wrong", ["a", "=1", "a b=1", 'a="q"', "a=1;;", "a=\u0667", "a=1\r\nX: 1"])
def test_a_member_of_the_baggage_that_is_wrong_is_left_out(wrong: str) -> None:
    assert carried([], [], [f"x=1,{wrong}", "y=2;p"]) == {"baggage": "x=1,y=2;p"}


def test_what_goes_on_is_bounded() -> None:
    many = [f"k{n}=1" for n in range(40)]
    assert carried([TEXT], [",".join(many)], [])["tracestate"] == ",".join(many[:32])
    large = f"large={'v' * 200}"
    state = ",".join([large, *(f"s{n}={'v' * 50}" for n in range(9))])
    told = carried([TEXT], [state], [])["tracestate"]
    assert told == state.removeprefix(large + ",")
    items = [f"b{n:03}={'v' * 120}" for n in range(100)]
    assert carried([], [], [",".join(items)])["baggage"] == ",".join(items[:64])
    assert carried([], [], [",".join(["x=1", f"y={'v' * 8200}"])])["baggage"] == "x=1"


def test_ids_are_those_of_their_names_and_of_no_others() -> None:
    assert (len(trace_id("a", 1)), len(span_id("a", 1))) == (32, 16)
    assert span_id("a", 1) == span_id("a", "1") != span_id("a1")
    assert span_id("\ud800") != span_id("\ud801")
    below = child(Trace("1" * 32, "2" * 16, "00"), "step", 3)
    assert below == Trace("1" * 32, span_id("step", 3), "00")
    assert valid(str(below)) is not None
