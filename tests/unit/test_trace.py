"""W3C trace context, and ids that need nobody to tell them."""

from __future__ import annotations

import pytest

from surefoot.schemas.trace import Trace, child, parse, span_id, trace_id, valid

TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_is_read_and_written_as_it_stands() -> None:
    read = parse(TEXT)
    assert read == Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")
    assert str(read) == TEXT == valid(TEXT)


@pytest.mark.parametrize(
    "text",
    [
        None, "", TEXT.upper(), TEXT + "\r\nX-Evil: 1", TEXT + "\n", " " + TEXT, TEXT + "-more",
        "01" + TEXT[2:], TEXT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        TEXT.replace("b7ad6b7169203331", "0" * 16), TEXT.replace("0af7", "0AF\u0667"),
    ],
)  # fmt: skip
def test_what_is_no_context_is_none(text: str | None) -> None:
    assert parse(text) is None
    assert valid(text) is None


def test_ids_are_those_of_their_names_and_of_no_others() -> None:
    assert (len(trace_id("a", 1)), len(span_id("a", 1))) == (32, 16)
    assert span_id("a", 1) == span_id("a", "1") != span_id("a1")
    assert span_id("\ud800") != span_id("\ud801")
    below = child(Trace("1" * 32, "2" * 16, "00"), "step", 3)
    assert below == Trace("1" * 32, span_id("step", 3), "00")
    assert valid(str(below)) is not None
