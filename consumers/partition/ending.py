"""What has to come to its end although whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a task of its own and wait for that. Whoever is cancelled meanwhile gets the
    CancelledError when the work is done: `work` itself sees none, so it cannot swallow one that is
    not meant for it."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # the cancelled have no use for it
        raise cancelled
    return task.result()


def never_cut_short(
    stop: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Of a function that closes several things: `to_its_end`, so that it leaves none open."""

    @wraps(stop)
    async def stopping(*args: P.args, **kw: P.kwargs) -> T:
        return await to_its_end(stop(*args, **kw))

    return stopping


class Stoppable(Protocol):
    async def stop(self) -> None: ...


@never_cut_short
async def stop_all(*parts: Stoppable) -> None:
    """One after the other."""
    for part in parts:
        await part.stop()
