"""The end of a process comes by its deadline, whatever hangs.

Everything that ends has a deadline of its own, but a library that swallows a cancellation, or a
thread that the exit waits for, has none. So from the moment on at which a process is to end, a
thread of its own counts.
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

log = structlog.get_logger(__name__)

#: exit status of a process that was stuck
EXIT_STUCK = 70
#: beyond the drain, for what is to be closed; in seconds. A second later the supervisor kills, and
#: so does a platform that is set up as docs/operations.md says.
END_S = 9.0
#: tasks and threads that are told of
_TOLD_MAX = 20


class Stop(asyncio.Event):
    """Set when the process is to end, on its loop. It then has `drain_s` seconds to finish what is
    running, or until `hurry`, and `END_S` to close; after that it is ended."""

    def __init__(self, drain_s: float) -> None:
        super().__init__()
        self._overdue = _Overdue(asyncio.get_running_loop(), drain_s)

    def set(self) -> None:
        if not self.is_set():
            self._overdue.start()
        super().set()

    def abort(self) -> None:
        """The drain is over."""
        self._overdue.hurried.set()


class _Overdue(threading.Thread):
    """A daemon: it goes with the process, if that ends in time."""

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
    """What the process waits for: tasks, those with a name first, and where each stands; threads
    that its exit waits for."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name().startswith("Task-"))
    for task in tasks[:_TOLD_MAX]:
        yield f"{task.get_name()}: {_stands(task.get_coro())}"
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            yield f"thread {thread.name}"


def _stands(inner: Any) -> str:
    """Who awaits whom, and in which line the innermost stands."""
    frames: list[FrameType] = []
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        frames += [frame] if frame is not None else []
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    names = " > ".join(frame.f_code.co_qualname for frame in frames)
    return f"{names} ({frames[-1].f_code.co_filename}:{frames[-1].f_lineno})" if frames else "over"
