"""Several processes on one event loop under virtual time: who runs next is drawn from a seed.

Every handle of asyncio carries the context that it was made in, and the context tells the process.
So a process can be killed (from some handle on nothing of it runs any more, no `finally` either) or
frozen (its handles wait, and go on when it thaws) at any await. Within a process handles run in the
order in which they became ready, as on a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

from surefoot.infra.simulation.time import VirtualClock, VirtualLoop

#: the process that a handle belongs to; None: the world around them
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


#: of one process, in one life: thousands are usual
STEPS_MOST = 2_000_000


class Endless(Exception):
    """A life that does not end by itself."""


class Process:
    """What can be killed and frozen as one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        #: handles run so far
        self.steps = 0
        #: dies before this handle
        self.dies_at: int | None = None
        #: freezes before this handle, and who is told
        self.freezes_at: int | None = None
        self.on_freeze: Callable[[Process], None] | None = None
        self.ready: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return self.name


class _Ready:
    """Takes the place of the loop's queue of ready handles."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._world = Process("world")
        #: those with a handle that may run
        self._runnable: list[Process] = []
        self._count = 0
        #: of everything that ran: who, in which order
        self.trace = 0

    def append(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS) or self._world  # type: ignore[attr-defined]
        if not process.alive:
            return
        process.ready.append(handle)
        if process.frozen:
            return
        self._count += 1
        if len(process.ready) == 1:
            self._runnable.append(process)

    def popleft(self) -> asyncio.Handle:
        """The loop counts the handles before it runs them: those of a process that dies or freezes
        in between are missing in the end."""
        runnable = self._runnable
        if not runnable:
            return _NOTHING
        at = int(self._random.random() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[at]
        process.steps += 1
        if process.steps > STEPS_MOST:
            raise Endless(f"{process} has run {STEPS_MOST} handles, and time does not pass")
        if process.dies_at is not None and process.steps >= process.dies_at:
            self.kill(process)
            return _NOTHING
        if process.freezes_at is not None and process.steps >= process.freezes_at:
            process.freezes_at = None
            self.freeze(process)
            if process.on_freeze is not None:
                process.on_freeze(process)
            return _NOTHING
        self.trace = zlib.crc32(process.name.encode(), self.trace)
        handle = process.ready.popleft()
        self._count -= 1
        if not process.ready:
            runnable.pop(at)
        return handle

    def kill(self, process: Process) -> None:
        self._take_out(process)
        process.ready.clear()
        process.alive = False

    def freeze(self, process: Process) -> None:
        self._take_out(process)
        process.frozen = True

    def thaw(self, process: Process) -> None:
        process.frozen = False
        self._count += len(process.ready)
        if process.ready:
            self._runnable.append(process)

    def _take_out(self, process: Process) -> None:
        if process in self._runnable:
            self._runnable.remove(process)
            self._count -= len(process.ready)

    def clear(self) -> None:
        for process in self._runnable:
            process.ready.clear()
        self._runnable.clear()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[asyncio.Handle]:
        return iter(())


class _Nothing(asyncio.Handle):
    """A handle that was cancelled before it ran."""

    def __init__(self) -> None:
        self._cancelled = True


_NOTHING = _Nothing()


class SimLoop(VirtualLoop):
    """A virtual loop whose handles belong to processes."""

    def __init__(self, clock: VirtualClock, random: Random) -> None:
        super().__init__(clock)
        self.queue = _Ready(random)
        self._ready: Any = self.queue
        #: asyncio holds tasks weakly; one that is collected would run its `finally`
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **kw: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **kw)
        if len(self._tasks) > 4_000:
            self._tasks = [each for each in self._tasks if not each.done()]
        self._tasks.append(task)
        return task

    def spawn(self, process: Process | None, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task as that process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return context.run(self.create_task, coro)
