"""Where a reader stands, as a text that comes back unchanged or is refused."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from surefoot.state.errors import BadArgument
from surefoot.state.feeds.event_id import PATTERN, join, parse_event_id, part
from surefoot.state.feeds.feed import EventFilter


def test_a_position_is_read_as_it_was_written_and_needs_no_escaping() -> None:
    at = {"orders": [12, 0, 2**63 - 1], "to-bill-7": [3, 4, 5]}
    text = join({agent: part(agent, offsets) for agent, offsets in at.items()})
    assert parse_event_id(text) == at
    assert quote(text, safe="") == text
    assert re.fullmatch(PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "a",
        "a_",
        "a_1_",
        "a_-1",
        "a_1.",
        "a_1.a_2",
        "a_1b_2",
        "A_1",
        "a_1 ",
        "a_\u0661",
        f"a_{2**63}",
        "a_1\n",
        "a" + "_1" * 40_000,
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="SF5004"):
        parse_event_id(text)


def test_what_is_chosen_meets_every_filter_that_is_given() -> None:
    event: Any = {"type": "step.completed", "status": "running", "step": "a", "next_step": "b"}
    assert EventFilter()(event)
    assert EventFilter(types=frozenset({"step.completed", "x"}), steps=frozenset({"b"}))(event)
    assert not EventFilter(types=frozenset({"step.completed"}), statuses=frozenset({"failed"}))(
        event
    )
    assert not EventFilter(steps=frozenset({"c"}))(event)
