"""How the engine calls an author's functions.

An `async` function runs on the caller's loop. Any other gets a thread, since it may block or run a
loop of its own. An awaitable result is awaited: a plain decorator around an async function returns
a coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` only makes a coroutine. What it wraps does not count: a wrapper that is
    a plain `def` may do anything."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(type(fn), "__call__", None)  # noqa: B004  (for a callable object)
    )


def finished(value: Any) -> Any:
    """Return a function's result, running an awaitable to its end on a loop of its own. Call it in
    the thread that called the function; no loop may be running there."""
    if not inspect.isawaitable(value):
        return value

    async def to_its_end() -> Any:
        return await value

    return asyncio.run(to_its_end())


def label(fn: Callable[..., Any]) -> str:
    """Return the function's name for messages."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__
