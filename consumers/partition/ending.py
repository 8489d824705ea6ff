"""Work that must finish even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a task of its own, and wait for it to finish.

    Under cancellation: the caller gets the CancelledError once the work is done. `work` itself sees
        none, so it cannot swallow one that is meant for its caller.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it
        raise cancelled
    return task.result()


def never_cut_short(
    stop: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a function that closes several things: it runs `to_its_end`, leaving none open."""

    @wraps(stop)
    async def stopping(*args: P.args, **kw: P.kwargs) -> T:
        return await to_its_end(stop(*args, **kw))

    return stopping


class Stoppable(Protocol):
    async def stop(self) -> None: ...


@never_cut_short
async def stop_all(*parts: Stoppable) -> None:
    """Stop the parts one after the other."""
    for part in parts:
        await part.stop()
