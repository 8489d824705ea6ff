"""Every numbered error, in one table: what it means, why it is likely, what mends it. Pure.

A number is never used again for something else, since it stands in logs and in other people's
notes. docs/errors.md is made from this table: `python -m tests.generate.errors_page`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from surefoot.state.errors.catalogue.declaring import DECLARING_PAGES
from surefoot.state.errors.catalogue.http import HTTP_PAGES
from surefoot.state.errors.catalogue.kafka import KAFKA_PAGES
from surefoot.state.errors.catalogue.page import Page
from surefoot.state.errors.catalogue.payloads import PAYLOADS_PAGES
from surefoot.state.errors.catalogue.runs import RUNS_PAGES
from surefoot.state.errors.catalogue.starting import STARTING_PAGES
from surefoot.state.errors.catalogue.testing import REPLAY_PAGES, TESTING_PAGES

#: the first digits of a number, and what it is about
THEMES: Mapping[str, str] = {
    "SF10": "settings and the command line",
    "SF11": "declaring an agent",
    "SF12": "what a step does",
    "SF20": "payloads and schemas",
    "SF30": "Kafka and topics",
    "SF31": "the embedded log",
    "SF40": "runs that stop",
    "SF41": "commands that are refused",
    "SF50": "HTTP",
    "SF51": "webhooks",
    "SF60": "replay",
    "SF70": "tests of agents",
}

ERROR_PAGES: Mapping[str, Page] = {
    page.number: page
    for page in sorted(
        (
            *STARTING_PAGES,
            *DECLARING_PAGES,
            *PAYLOADS_PAGES,
            *KAFKA_PAGES,
            *RUNS_PAGES,
            *HTTP_PAGES,
            *REPLAY_PAGES,
            *TESTING_PAGES,
        ),
        key=lambda page: page.number,
    )
}
_BY_CODE: Mapping[str, str] = {
    code: page.number for page in ERROR_PAGES.values() for code in page.codes
}


def number_of(code: str) -> str | None:
    """The number of a failure's or a refusal's code; None for one of another version."""
    return _BY_CODE.get(code)


def numbered(code: str) -> str:
    """The code with its number before it."""
    number = number_of(code)
    return code if number is None else f"{number} {code}"


def find(text: str) -> Page | None:
    """The page of a number, however it is written (SF1103, sf1103, 1103), or of a code."""
    wanted = text.strip().upper()
    if wanted.isdigit():
        wanted = f"SF{wanted}"
    return ERROR_PAGES.get(wanted) or ERROR_PAGES.get(_BY_CODE.get(text.strip().lower(), ""))


def closest(text: str) -> list[Page]:
    """At most three pages that may have been meant."""
    wanted = text.strip().upper()
    if wanted.isdigit():
        wanted = f"SF{wanted}"
    close = get_close_matches(wanted, ERROR_PAGES, n=10, cutoff=0.6)
    close.sort(key=lambda number: number[:4] != wanted[:4])  # mistyped at its end, more likely
    codes = get_close_matches(text.strip().lower(), _BY_CODE, n=3, cutoff=0.6)
    numbers = dict.fromkeys((*close, *(_BY_CODE[code] for code in codes)))
    return [ERROR_PAGES[number] for number in numbers][:3]
