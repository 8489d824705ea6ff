"""What a terminal may be shown."""

from __future__ import annotations

import sys

from rich.console import Console

#: columns, where there is no terminal that could be too narrow
_WIDE = 200


def printable(text: str) -> str:
    """Text from outside, with everything that a terminal would act upon made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain_console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is: nothing in it is markup. Honours NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else _WIDE,
    )
