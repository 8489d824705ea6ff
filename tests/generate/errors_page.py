"""`python -m tests.generate.errors_page` writes docs/errors.md from the table of errors."""

from __future__ import annotations

from pathlib import Path

from surefoot.state.errors.catalogue import ERROR_PAGES, THEMES
from surefoot.state.errors.catalogue.page import Page

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"

HEAD = """\
# Errors

Every error has a number: its message begins with it, and the code of a failure or a refusal has
one. `surefoot explain SF1203` prints the same text at the terminal, without a network.

`python -m tests.generate.errors_page` writes this page from `state/errors/catalogue`; a test checks
that it is up to date.
"""


def entry(page: Page) -> list[str]:
    """One error; links lead to its number: errors.md#SF1203."""
    lines = [f'### <a id="{page.number}"></a>{page.number}: {page.title}', "", page.means, ""]
    lines += ["Likely causes:", "", *(f"- {cause}" for cause in page.causes), ""]
    lines += ["What to do:", "", *(f"- {step}" for step in page.mend), ""]
    if page.codes:
        codes = ", ".join(f"`{code}`" for code in page.codes)
        lines += [f"In records and answers: {codes}.", ""]
    return lines


def contents() -> list[str]:
    lines = ["| | code |", "|---|---|"]
    for page in ERROR_PAGES.values():
        codes = ", ".join(f"`{code}`" for code in page.codes)
        lines.append(f"| [{page.number}: {page.title}](#{page.number}) | {codes} |")
    return lines


def text() -> str:
    lines = [HEAD, *contents(), ""]
    for digits, theme in THEMES.items():
        lines += [f"## {digits}: {theme}", ""]
        for page in ERROR_PAGES.values():
            if page.number.startswith(digits):
                lines += entry(page)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
