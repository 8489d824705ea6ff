"""What a piece of code costs, counted: lines of Python that it goes through, whatever the machine
does meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


def steps(fn: Callable[[], Any]) -> int:
    """How many lines are run until `fn` returns or raises."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(Exception):
            fn()
    finally:
        sys.settrace(before)
    return count


class Counted(str):
    """A text that counts how often one of its kind is compared with another."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__
