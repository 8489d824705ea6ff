"""Wait for a signal instead of sleeping: poll a condition until it holds, or say what did not."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_POLL_S = 0.02


@overload
async def until(
    condition: Callable[[], Awaitable[T]], *, timeout_s: float = ..., what: str
) -> T: ...
@overload
async def until(condition: Callable[[], T], *, timeout_s: float = ..., what: str) -> T: ...
async def until(condition: Callable[[], Any], *, timeout_s: float = 180.0, what: str) -> Any:
    """Return the first true value of `condition`, which may be sync or async.

    An AssertionError names `what` was awaited and the last value seen. A condition that raises
    ends the wait with its exception.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await asyncio.wait_for(value, max(_POLL_S, deadline - time.monotonic()))
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(what, timeout_s, value))
        await asyncio.sleep(_POLL_S)


def until_sync(condition: Callable[[], T], *, timeout_s: float = 180.0, what: str) -> T:
    """`until` for tests without an event loop, as those that watch subprocesses."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(what, timeout_s, value))
        time.sleep(_POLL_S)


def _failure(what: str, timeout_s: float, value: object) -> str:
    return f"waited {timeout_s:g} s for {what}; the last value was {value!r}"
