"""How the author's functions are called, wherever they are.

What is declared `async` runs on the loop that it is called from; anything else gets a thread, since
it may block, or run a loop of its own. Whatever it gives that can be awaited is awaited: a plain
decorator around an async function gives a coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it does nothing yet but make a coroutine. What it wraps does not count: a
    wrapper that is a plain `def` may do anything."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(type(fn), "__call__", None)  # noqa: B004  (of an object that can be called)
    )


def finished(value: Any) -> Any:
    """What a function has come to: an awaitable is run to its end, on a loop of its own. Call it in
    the thread that has called the function, where no loop is running."""
    if not inspect.isawaitable(value):
        return value

    async def to_its_end() -> Any:
        return await value

    return asyncio.run(to_its_end())


def label(fn: Callable[..., Any]) -> str:
    """What messages call it."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__
