"""Ends the process by its deadline, whatever hangs.

Everything that is closed has a deadline of its own, except a library that swallows a cancellation,
or a thread that the exit waits for. So once a process is to end, a thread of its own counts the
time.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import structlog

from surefoot.infra.runtime.exits import EXIT_STUCK

log = structlog.get_logger(__name__)

#: time to close everything after the drain, in seconds. A second later the supervisor kills, as
#: does a platform configured as docs/operations.md says.
END_S = 9.0
#: most tasks that are reported
_TOLD_MAX = 20


class Stop(asyncio.Event):
    """Set on the process's loop when it is to end.

    The process then has `drain_s` seconds, or until `abort()`, to finish what is running, and
    `END_S` to close; after that it is ended."""

    def __init__(self, drain_s: float) -> None:
        super().__init__()
        self._overdue = _Overdue(asyncio.get_running_loop(), drain_s)

    def set(self) -> None:
        if not self.is_set():
            self._overdue.start()
        super().set()

    def abort(self) -> None:
        """End the drain now."""
        self._overdue.hurried.set()


class _Overdue(threading.Thread):
    """Counts the time; a daemon, so it does not hold up a process that ends in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, drain_s: float) -> None:
        super().__init__(name="surefoot-overdue", daemon=True)
        self.hurried = threading.Event()
        self._loop = loop
        self._drain_s = drain_s

    def run(self) -> None:
        self.hurried.wait(self._drain_s)
        threading.Event().wait(END_S)
        log.error(
            "end_overdue", drain_s=self._drain_s, close_s=END_S, hangs=list(_unfinished(self._loop))
        )
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(EXIT_STUCK)


def _unfinished(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Yield what the process waits for.

    Tasks, named ones first, with where each is; and threads that its exit waits for."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name().startswith("Task-"))
    for task in tasks[:_TOLD_MAX]:
        yield f"{task.get_name()}: {_stands(task.get_coro())}"
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            yield f"thread {thread.name}"


def _stands(inner: Any) -> str:
    """Return the chain of awaits, and the line of the innermost."""
    frames: list[FrameType] = []
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        frames += [frame] if frame is not None else []
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    names = " > ".join(frame.f_code.co_qualname for frame in frames)
    return f"{names} ({frames[-1].f_code.co_filename}:{frames[-1].f_lineno})" if frames else "over"
