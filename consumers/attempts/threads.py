"""Blocking calls, each in a daemon thread: no pool and no exit of the process waits for them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import structlog

log = structlog.get_logger(__name__)


async def in_thread(fn: Callable[..., Any], *args: Any) -> Any:
    """Run `fn` in a thread, with the caller's context variables.

    Under cancellation: it runs to its end and its result is dropped."""
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):  # a Future refuses it
            future.set_exception(RuntimeError("the step raised StopIteration"))
        else:
            future.set_exception(error)

    def body() -> None:
        value, error = None, None
        try:
            value = context.run(fn, *args)
        except BaseException as raised:  # noqa: BLE001  (told to the loop, whatever it was)
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the process is shutting down
            log.debug("step_ended_after_stop")

    threading.Thread(target=body, name="surefoot-step", daemon=True).start()
    return await future
