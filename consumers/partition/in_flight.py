"""The steps of one partition that are asked for, and the inputs of its runs on their way to a
commit.

A step is in flight from when a record, a timer or a takeover asks for it until its outcome is
committed. Those of runs that are under way begin before those of runs that start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from surefoot.consumers.attempts.attempt import StepCall
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.transaction import InputPosition, PendingInput
from surefoot.state.machine.model import Input, Operation, Refusal, Run, StartRun
from surefoot.state.ports.clock import Clock


@dataclass(slots=True, kw_only=True, eq=False)
class StepInFlight:
    """A run whose step is to be run, is running, or has ended and is being committed."""

    run: Run
    #: inputs that brought the run here and are not committed yet (its start)
    pending: tuple[Input, ...] = ()
    #: records that ask for this step; done when it is
    sources: list[InputPosition] = field(default_factory=list)
    call: StepCall | None = None
    #: what has become of the step, once it has ended
    item: PendingInput | None = None
    since_s: float = 0.0
    #: when it was asked for
    asked_s: float

    def holds(self, run: Run | None) -> bool:
        """Whether the run, as it is now, still is where this step began."""
        return (
            run is not None
            and run.status in ("pending", "running", "waiting", "paused")
            and run.wait is None
            and (run.seq, run.attempt, run.epoch)
            == (self.run.seq, self.run.attempt, self.run.epoch)
        )

    def take_pending(self) -> tuple[Input, ...]:
        """Whoever takes them has them committed."""
        pending, self.pending = self.pending, ()
        return pending

    def take_sources(self) -> tuple[InputPosition, ...]:
        """Whoever takes them has them marked as done."""
        sources, self.sources = self.sources, []
        return tuple(sources)


class StepsInFlight:
    """At most one a run. Whatever moves a run goes to the committer from here, behind what the run
    has pending."""

    def __init__(self, committer: Committer, clock: Clock, ready: Callable[[], None]) -> None:
        """`ready`: called when there is a step to begin."""
        self.by_run: dict[str, StepInFlight] = {}
        #: runs of a newer version of the agent: left alone for a worker that knows it
        self.held: set[str] = set()
        self._committer = committer
        self._clock = clock
        self._ready = ready
        self._tasks: deque[str] = deque()
        self._starts: deque[str] = deque()

    @property
    def queued(self) -> int:
        """Runs that wait for a slot."""
        return len(self._tasks) + len(self._starts)

    @property
    def oldest_s(self) -> float:
        """For how long the oldest step that is not committed has been asked for."""
        now_s = self._clock.monotonic_s()
        return max((now_s - flight.asked_s for flight in self.by_run.values()), default=0.0)

    def may_run(self, run: Run) -> bool:
        """Whether the run asks for its step to be run, and this worker knows its version."""
        return run.status == "running" and run.run_id not in self.held

    def add(
        self, run: Run, *sources: InputPosition, pending: tuple[Input, ...] = ()
    ) -> StepInFlight:
        """In flight, and not to be begun yet."""
        asked_s = self._clock.monotonic_s()
        flight = StepInFlight(run=run, pending=pending, sources=[*sources], asked_s=asked_s)
        self.by_run[run.run_id] = flight
        return flight

    def start(self, run: Run, source: InputPosition, start: StartRun) -> None:
        """Begin the run's first step; the start is committed with its outcome."""
        self.add(run, source, pending=(start,))
        self._starts.append(run.run_id)
        self._ready()

    def queue(self, run: Run, *sources: InputPosition) -> None:
        """Begin the step that the run's checkpoint names."""
        self.add(run, *sources)
        self.queue_again(run.run_id)

    def queue_again(self, run_id: str) -> None:
        """Begin the step that is in flight; it was not to be begun before."""
        self._tasks.append(run_id)
        self._ready()

    def next(self) -> StepInFlight | None:
        """Take the next step that is to be begun out of the queue."""
        while self._tasks or self._starts:
            run_id = self._tasks.popleft() if self._tasks else self._starts.popleft()
            flight = self.by_run.get(run_id)
            if flight is not None and flight.call is None and flight.item is None:
                return flight
        return None

    def decide(self, flight: StepInFlight, event: Input) -> None:
        """The step is over, or the run is to be kept for later: make that part of the next
        transaction."""
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
        """Have an input of a run decided, after what has come before it."""
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
        """The step is over, or it is not asked for any more: so are the records that asked."""
        del self.by_run[flight.run.run_id]
        self._committer.done(*flight.sources)
