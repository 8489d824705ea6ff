"""The steps in flight of one partition. Inputs of runs reach the committer through here.

A step is in flight from the moment that a commit, a record, a timer or a takeover requests it until
its outcome is committed. Steps of runs in progress begin before first steps of new runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from surefoot.consumers.attempts.attempt import StepCall
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.transaction import InputPosition, PendingInput
from surefoot.state.machine.model import Input, Operation, Refusal, Run, StartRun
from surefoot.state.ports.clock import Clock


@dataclass(slots=True, kw_only=True, eq=False)
class StepInFlight:
    """A run whose step is queued, running, or being committed."""

    run: Run
    #: inputs that brought the run here and are not committed yet (its start)
    pending: tuple[Input, ...] = ()
    #: records that requested this step; done when the step is
    sources: list[InputPosition] = field(default_factory=list)
    call: StepCall | None = None
    #: the step's outcome, once it has ended
    item: PendingInput | None = None
    since_s: float = 0.0
    #: when it was requested; monotonic seconds
    asked_s: float

    def holds(self, run: Run | None) -> bool:
        """Whether the run is still at the attempt that this step began with."""
        return (
            run is not None
            and run.status in ("pending", "running", "waiting", "paused")
            and run.wait is None
            and (run.seq, run.attempt, run.epoch)
            == (self.run.seq, self.run.attempt, self.run.epoch)
        )

    def take_pending(self) -> tuple[Input, ...]:
        """Take the pending inputs. The caller must have them committed."""
        pending, self.pending = self.pending, ()
        return pending

    def take_sources(self) -> tuple[InputPosition, ...]:
        """Take the source records. The caller must have them marked as done."""
        sources, self.sources = self.sources, []
        return tuple(sources)


class EndingSteps:
    """The steps of one worker that may be about to end: so that what they come to, in whatever
    partition, shares a transaction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[StepCall] = set()
        #: when the latest of them began or went on; monotonic seconds
        self._began_s = 0.0
        self._quiet = asyncio.Event()
        #: commits in progress
        self._commits = 0
        self._committed = asyncio.Event()
        self._committed.set()

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Tell of a commit in progress."""
        self._commits += 1
        self._committed.clear()
        try:
            yield
        finally:
            self._commits -= 1
            if not self._commits:
                self._committed.set()

    def begin(self, call: StepCall) -> None:
        """Take in a step that begins, or goes on after a commit."""
        self._running.add(call)
        self._began_s = self._clock.monotonic_s()

    def end(self, call: StepCall) -> None:
        """Leave out a step that has ended, or waits for a commit."""
        self._running.discard(call)
        if not self._running:
            self._quiet.set()

    async def wait(self, most_s: float) -> None:
        """Wait for the commits in progress, then until no step is running.

        No transaction of the worker begins before those end, and steps that go on after them share
        the next one. A step that has been running for `most_s` takes its time: none waits for it.
        """
        await self._committed.wait()
        left_s = self._began_s + most_s - self._clock.monotonic_s()
        if self._running and left_s > 0:
            self._quiet.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._quiet.wait()


class StepsInFlight:
    """At most one step in flight per run.

    All inputs of a run pass through here to the committer, behind the run's pending ones.
    """

    def __init__(self, committer: Committer, clock: Clock, ready: Callable[[], None]) -> None:
        """`ready` is called when there is a step to begin."""
        self.by_run: dict[str, StepInFlight] = {}
        #: runs of a newer version of the agent, left to a worker that knows it
        self.held: set[str] = set()
        self._committer = committer
        self._clock = clock
        self._ready = ready
        self._tasks: deque[str] = deque()
        self._starts: deque[str] = deque()

    @property
    def queued(self) -> int:
        """Number of runs that wait for a slot."""
        return len(self._tasks) + len(self._starts)

    @property
    def oldest_s(self) -> float:
        """Age of the oldest request for a step that is not committed, in seconds."""
        now_s = self._clock.monotonic_s()
        return max((now_s - flight.asked_s for flight in self.by_run.values()), default=0.0)

    def may_run(self, run: Run) -> bool:
        """Whether the run's step may run, and this worker knows the run's version."""
        return run.status == "running" and run.run_id not in self.held

    def add(
        self, run: Run, *sources: InputPosition, pending: tuple[Input, ...] = ()
    ) -> StepInFlight:
        """Put the step in flight without queueing it."""
        asked_s = self._clock.monotonic_s()
        flight = StepInFlight(run=run, pending=pending, sources=[*sources], asked_s=asked_s)
        self.by_run[run.run_id] = flight
        return flight

    def start(self, run: Run, source: InputPosition, start: StartRun) -> None:
        """Queue the run's first step; the start is committed with its outcome."""
        self.add(run, source, pending=(start,))
        self._starts.append(run.run_id)
        self._ready()

    def queue(self, run: Run, *sources: InputPosition) -> None:
        """Queue the step that the run's checkpoint names."""
        self.add(run, *sources)
        self.queue_again(run.run_id)

    def queue_again(self, run_id: str) -> None:
        """Queue a step that is in flight but was held back."""
        self._tasks.append(run_id)
        self._ready()

    def next(self, *, starts: bool) -> StepInFlight | None:
        """Take the next step to begin out of the queue, or return None.

        Args: starts: whether it may be the first one of a new run.
        """
        while self._tasks or (starts and self._starts):
            run_id = self._tasks.popleft() if self._tasks else self._starts.popleft()
            flight = self.by_run.get(run_id)
            if flight is not None and flight.call is None and flight.item is None:
                return flight
        return None

    def decide(self, flight: StepInFlight, event: Input) -> None:
        """Add the step's outcome, or the run's deferral, to the next transaction."""
        flight.item = PendingInput(
            sources=flight.take_sources(),
            run_id=flight.run.run_id,
            inputs=(*flight.take_pending(), event),
        )
        self._committer.add(flight.item)

    def submit(
        self,
        run_id: str,
        event: Input,
        *sources: InputPosition,
        on_done: Callable[[Refusal | None], None] | None = None,
    ) -> None:
        """Have an input of a run decided, after the run's earlier ones."""
        flight = self.by_run.get(run_id)
        pending = flight.take_pending() if flight is not None else ()
        self._committer.add(
            PendingInput(
                sources=sources,
                run_id=run_id,
                inputs=(*pending, event),
                on_done=on_done,
                answers=isinstance(event, Operation),
            )
        )

    def commit_start(self, run_id: str) -> None:
        """Commit what the run has pending, without waiting for its step."""
        flight = self.by_run.get(run_id)
        if flight is not None and flight.pending:
            self._committer.add(PendingInput(run_id=run_id, inputs=flight.take_pending()))

    def forget(self, flight: StepInFlight) -> None:
        """Remove a step that is over or no longer requested; its source records are done."""
        del self.by_run[flight.run.run_id]
        self._committer.done(*flight.sources)
