"""Writes docs/errors from the table of errors: python -m tests.generate.error_pages"""

from __future__ import annotations

from pathlib import Path

from surefoot.state.errors.catalogue import PAGES, THEMES
from surefoot.state.errors.catalogue.page import Page

FOLDER = Path(__file__).parents[2] / "docs" / "errors"

HEAD = """\
# Errors by their numbers

What a person can come to see has a number: a message begins with it, and a failure's or refusal's
code has one. `surefoot explain SF1203` shows the page at the terminal, without a network.

Generated from `state/errors/catalogue` by `python -m tests.generate.error_pages`; a test holds that
it is up to date.
"""


def markdown(page: Page) -> str:
    lines = [f"# {page.number}: {page.title}", "", page.means, "", "Likely because:", ""]
    lines += [f"- {cause}" for cause in page.causes]
    lines += ["", "What to do:", ""]
    lines += [f"- {step}" for step in page.mend]
    if page.codes:
        codes = ", ".join(f"`{code}`" for code in page.codes)
        lines += ["", f"In records and in answers its code is {codes}."]
    return "\n".join([*lines, "", "[All errors](README.md)", ""])


def index() -> str:
    lines = [HEAD]
    for digits, theme in THEMES.items():
        lines += [f"## {digits}: {theme}", "", "| | | code |", "|---|---|---|"]
        lines += [
            f"| [{page.number}]({page.number}.md) | {page.title} | "
            f"{', '.join(f'`{code}`' for code in page.codes)} |"
            for page in PAGES.values()
            if page.number.startswith(digits)
        ]
        lines.append("")
    return "\n".join(lines)


def files() -> dict[str, str]:
    """Every file of the folder, by its name."""
    return {"README.md": index()} | {f"{each.number}.md": markdown(each) for each in PAGES.values()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    wanted = files()
    for old in FOLDER.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, "utf-8")
