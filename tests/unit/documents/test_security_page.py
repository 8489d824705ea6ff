"""The page about security promises nothing that no test holds."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "security.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)(?:\[(\w+)\])?`")
#: how a threat that no test is about says so
WITHOUT = re.compile(r"(^|\. )(Out of scope|Not yet): ")


def rows() -> list[list[str]]:
    """What Surefoot does about each threat, and what holds it."""
    _, *tables = PAGE.read_text().split(
        "| threat | what Surefoot does | held by |\n|---|---|---|\n"
    )
    lines = [line for table in tables for line in table.split("\n\n")[0].splitlines()]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def missing(page: str) -> list[str]:
    """The tests that a page names and that there are not."""
    found = []
    for path, name, case in NAMED.findall(page):
        file = TESTS / path
        source = file.read_text() if file.is_file() else ""
        if any(
            not re.search(rf"^ *(async )?def {each}\(", source, re.MULTILINE)
            for each in (name, case)
            if each
        ):
            found.append(f"{path}::{name}")
    return found


def test_each_test_that_the_page_names_exists() -> None:
    assert missing(PAGE.read_text()) == []
    here = "unit/documents/test_security_page.py"
    for planted in (f"{here}::test_nothing", f"{here}::missing[nothing]", "unit/no.py::missing"):
        assert len(missing(f"`{planted}`")) == 1
    assert missing(f"`{here}::missing`") == []


def test_each_threat_has_a_test_or_says_why_not() -> None:
    assert len(rows()) >= 50
    for threat, does, held in rows():
        cited = [each for each in held.split(", ") if each]
        assert all(NAMED.fullmatch(each) for each in cited), threat
        assert cited or WITHOUT.search(does), threat
