"""Threads for the mappings of one webhook source, which are user code and may hang.

A thread cannot be stopped. So each source has a few of its own: hanging ones take none from other
sources, and as daemons they do not hold up the exit of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Hangs(Exception):
    """There was no result within the limit."""


class MappingThreads:
    """At most `size` threads, started on demand and kept."""

    def __init__(self, name: str, *, size: int, within_s: float) -> None:
        self._name = f"surefoot-mapping-{name}"
        self._size = size
        self._within_s = within_s
        self._begun = 0
        self._work = SimpleQueue[_Work]()
        self._given_up: list[Future[Any]] = []

    @property
    def hanging(self) -> int:
        """How many threads are still busy with abandoned work."""
        self._given_up = [each for each in self._given_up if not each.done()]
        return len(self._given_up)

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run `fn` in a thread.

        Raises: Hangs — not within the limit, waiting for a thread included; at once when every
        thread hangs; whatever `fn` raises.
        Under cancellation: as after Hangs, `fn` runs to its end and its result is dropped.
        """
        if self.hanging >= self._size:
            raise Hangs
        made: Future[T] = Future()
        self._work.put((made, fn, args))
        if self._begun < self._size:
            self._begun += 1
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.wrap_future(made)
        except TimeoutError:
            if not made.cancelled():
                self._given_up.append(made)
            raise Hangs from None

    def _serve(self) -> None:
        while True:
            made, fn, args = self._work.get()
            if not made.set_running_or_notify_cancel():
                continue  # abandoned
            try:
                made.set_result(fn(*args))
            except BaseException as error:  # noqa: BLE001  (told to the loop, whatever it was)
                made.set_exception(error)
