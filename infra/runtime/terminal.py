"""What may be printed to a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: columns where output is not a terminal
_WIDE = 200


def printable(text: str) -> str:
    """Escape everything in untrusted text that a terminal would act upon."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Escape the same in a text that has lines of its own, such as a traceback."""
    return "\n".join(map(printable, text.split("\n")))


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is, without markup. Honours NO_COLOR."""
    from rich.console import Console  # noqa: PLC0415  (slow to import, and few need it)

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else _WIDE,
    )
