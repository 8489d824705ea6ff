"""Virtual time, which passes only when there is nothing left to do: a clock and its event loop.

The loop never waits. When nothing is ready it moves its clock to the next timer, so sleeping for
three days takes no time, and the same work in the same order gives the same times. It has no
sockets, pipes or signals. Work for a thread runs to completion at once, while time stands still: no
two threads ever run at the same time, so none can interfere.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import threading
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVarTuple

from surefoot.state.errors import Numbered

_Args = TypeVarTuple("_Args")

#: one second, in ticks of the virtual clock
_SECOND = 1_000_000

#: why the loop stopped: settled; nothing due before the deadline; nothing due at all
Ending = Literal["settled", "deadline", "stuck"]


class VirtualClock:
    """Implements ports.Clock. Deterministic, given `start_ms` and `seed`."""

    def __init__(self, *, start_ms: int, seed: int) -> None:
        self._start_ms = start_ms
        self._ticks = 0
        self._made = 0
        self._random = random.Random(seed)  # noqa: S311  (chance that can be repeated)

    def now_ms(self) -> int:
        return self._start_ms + self._ticks * 1000 // _SECOND

    def monotonic_s(self) -> float:
        return self._ticks / _SECOND

    def random(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        self._made += 1
        return f"{self.now_ms():012x}{self._made:020x}"

    def move_to(self, monotonic_s: float) -> None:
        """Advance to that time; never goes back."""
        self._ticks = max(self._ticks, math.ceil(monotonic_s * _SECOND))


class NotSimulated(Numbered, RuntimeError):
    """Code asked the virtual event loop for something that only a real one has."""


def _refuse(*_args: Any, **_kw: Any) -> NoReturn:
    raise NotSimulated(
        "SF7005",
        "under virtual time, the event loop has no network, subprocesses or signals; "
        "give the step a fake instead, or call a plain `def` function through ctx.call",
    )


_REFUSED: Any = _refuse


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is that of a VirtualClock."""

    #: of BaseEventLoop: a heap, next timer first
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self._clock_resolution = 1 / _SECOND
        self._selector = self
        self._settled: Callable[[], bool] | None = None
        self._deadline_s = math.inf
        self._ending: Ending | None = None

    def time(self) -> float:
        return self.clock.monotonic_s()

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Args], object],
        *args: *_Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a timer, at the earliest with the next tick.

        A timer less than a tick ahead would fire now, and whoever waits for a time would wait for
        ever, as time would stand still."""
        now = self.time()
        if now < when < now + self._clock_resolution:
            when = now + self._clock_resolution
        return super().call_at(when, callback, *args, context=context)

    def run_until(self, settled: Callable[[], bool], *, deadline_s: float) -> Ending | None:
        """Run until nothing is ready and `settled` holds, or nothing is due before the deadline.

        The clock then stands at the last due time. None: something else stopped the loop. Can be
        called again; everything continues where it stopped.
        """
        self._settled, self._deadline_s, self._ending = settled, deadline_s, None
        try:
            self._run_on()
        finally:
            self._settled, self._deadline_s = None, math.inf
        return self._ending

    def _run_on(self) -> None:
        while True:
            try:
                return self.run_forever()
            except SystemExit:
                # asyncio lets it out of the loop, although it ends only one task.
                continue

    # What BaseEventLoop asks of a selector ---------------------------------------------------

    def select(self, timeout_s: float | None) -> list[Any]:
        """Called by `_run_once`.

        `timeout_s`: 0 if something is ready; else the time until the next timer, or None if there
        is none."""
        if timeout_s == 0:
            return []
        if self._settled is not None and self._settled():
            self._end("settled")
        elif timeout_s is None:
            if self._settled is None:
                raise NotSimulated("SF7005", "nothing is ready, and there is no timer to wait for")
            self._end("stuck")
        else:
            # Not `timeout_s`: it is capped at a day.
            next_s = self._scheduled[0].when()
            if next_s > self._deadline_s:
                self._end("deadline")
            else:
                self.clock.move_to(next_s)
        return []

    def _end(self, ending: Ending) -> None:
        self._ending = ending
        self.stop()

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no I/O events."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never waits, so it need not be woken."""

    # Threads ---------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it to completion before anything else happens; `executor` is not used."""
        del executor
        future = self.create_future()
        value, error = in_thread(func, *args)
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
        return future

    # Not supported ---------------------------------------------------------------------------

    create_connection = create_datagram_endpoint = create_server = _REFUSED
    create_unix_connection = create_unix_server = sock_connect = _REFUSED
    subprocess_exec = subprocess_shell = connect_read_pipe = connect_write_pipe = _REFUSED
    add_reader = add_writer = add_signal_handler = _REFUSED

    # Ending ----------------------------------------------------------------------------------

    def bury(self) -> None:
        """Close a loop that was left in the middle of its work.

        Cancels its remaining tasks without reporting how they end. Time passes on a clock of its
        own."""
        self.clock = VirtualClock(start_ms=self.clock.now_ms(), seed=0)
        self.set_exception_handler(lambda _loop, _context: None)
        for _ in range(_CANCELLED_MOST):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_until(lambda: not asyncio.all_tasks(self), deadline_s=_CANCELLED_S)
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  (asyncio)
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()


#: how often, and for how long in (virtual) seconds, tasks are asked to end
_CANCELLED_MOST = 3
_CANCELLED_S = 1_000_000.0


def in_thread(fn: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Run a function to completion in a thread without an event loop. Returns (value, error)."""
    value: Any = None
    error: BaseException | None = None
    context = contextvars.copy_context()

    def body() -> None:
        nonlocal value, error
        try:
            value = context.run(fn, *args)
        except StopIteration as raised:  # a Future refuses it
            error = RuntimeError("StopIteration was raised")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001  (told to whoever asked, whatever it was)
            error = raised

    thread = threading.Thread(target=body, name="surefoot-simulated", daemon=True)
    thread.start()
    thread.join()
    return value, error
