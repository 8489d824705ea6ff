"""docs/events.md tells of every type, field and header as they are."""

from __future__ import annotations

import re
from typing import get_args

from surefoot.state.machine.model import EventType
from tests.generate.event_pages import PAGE, TYPES, page
from tests.unit.state.test_event_headers import TRACE, headers


def test_the_page_is_what_the_schemas_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.generate.event_pages"


def test_every_type_is_told_of() -> None:
    assert set(TYPES) == set(get_args(EventType))


def test_every_header_is_told_of() -> None:
    told = set(re.findall(r"`((?:ce_|sf-)[a-z]+|content-type|traceparent)`", page()))
    assert told == {*headers(trace=TRACE), "sf-run", "sf-seq"}
