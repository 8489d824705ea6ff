"""How commands print their results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import typer
from rich.table import Table

from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.state.reading.explain import clock_time

Listed = TypeVar("Listed")

#: what Kubernetes takes as the name of a resource
KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, wraps: str) -> Table:
    """Build a table of text from outside; the column `wraps` may take several lines."""
    made = Table(box=None, pad_edge=False)
    for title in titles:
        made.add_column(title, no_wrap=title != wraps)
    for row in rows:
        made.add_row(*(printable(cell) for cell in row))
    return made


def print_each(
    found: Sequence[Listed],
    fields: Callable[[Listed], Any],
    titles: Sequence[str],
    cells: Callable[[Listed], Sequence[str]],
    *,
    wraps: str,
    as_json: bool,
) -> None:
    """Print a line of JSON for each item, or a table with a row for each."""
    if as_json:
        for each in found:
            typer.echo(json.dumps(fields(each)))
    else:
        plain_console().print(table(titles, [cells(each) for each in found], wraps=wraps))


def format_field(field: str, value: Any) -> str:
    """Format one value for people, according to the name of its field."""
    if field.endswith("_ms"):
        return clock_time(value)
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
