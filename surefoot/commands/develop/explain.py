"""Explains an error. Works offline: the table is part of the package."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.state.errors import ConfigError
from surefoot.state.errors.catalogue import ERROR_PAGES, THEMES, closest, find
from surefoot.state.errors.catalogue.page import Page

_COLUMNS = 88


app = commands()


@app.command()
def explain(
    number: Annotated[
        str | None, typer.Argument(metavar="[SF1203]", help="A number, or a failure's code.")
    ] = None,
) -> None:
    """Explain an error and its fix, offline. Without a number, list all errors."""
    if number is None:
        _list()
        return
    page = find(number)
    if page is None:
        raise ConfigError("SF1012", _not_there(number))
    typer.echo("\n".join(_told(page)))


def _list() -> None:
    for digits, theme in THEMES.items():
        typer.echo(f"{digits}  {theme}")
        for page in ERROR_PAGES.values():
            if page.number.startswith(digits):
                typer.echo(f"  {page.number}  {page.title}")


def _not_there(text: str) -> str:
    near = closest(text)
    told = f"there is no error {text[:40]!r}; `surefoot explain` lists all of them"
    if near:
        told += ". Similar: " + ", ".join(f"{page.number} ({page.title})" for page in near)
    return told


def _told(page: Page) -> list[str]:
    lines = [f"{page.number}: {page.title}", "", *textwrap.wrap(page.means, _COLUMNS)]
    lines += ["", "Likely causes:"]
    for cause in page.causes:
        lines += _item(cause)
    lines += ["", "What to do:"]
    for step in page.mend:
        lines += _item(step)
    if page.codes:
        lines += ["", f"Codes in records and answers: {', '.join(page.codes)}"]
    return lines


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent="- ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
