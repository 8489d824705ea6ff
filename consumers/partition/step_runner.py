"""Hands the steps of one partition to the executor, and has their outcomes committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from surefoot.consumers.attempts.attempt import (
    AttemptFailed,
    AttemptLost,
    AttemptOutcome,
    EntryRequest,
    StepCall,
)
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.context import PartitionContext
from surefoot.consumers.partition.in_flight import EndingSteps, StepInFlight, StepsInFlight
from surefoot.consumers.partition.transaction import PendingInput
from surefoot.state.declare.retry import delay_ms
from surefoot.state.machine.model import (
    BudgetExceeded,
    CarryForward,
    Failure,
    Input,
    OutputPiece,
    Park,
    Refusal,
    Run,
    StepFailed,
    StepReturned,
    Work,
)

#: number of answered commands above the lowest record in progress, beyond which all running steps
#: are carried forward
ANSWERED_MAX = 1_000


class StepRunner:
    """Runs steps. A step takes a slot when it begins and returns it when it is over."""

    def __init__(
        self,
        context: PartitionContext,
        committer: Committer,
        steps: StepsInFlight,
        executor: Executor,
        ending: EndingSteps,
        release: Callable[[], None],
    ) -> None:
        """`release` is called when a slot is free again."""
        #: a step's task is carried forward after this long
        self.forward_after_s = context.limits.forward_after_s
        self._context = context
        self._committer = committer
        self._steps = steps
        self._executor = executor
        self._ending = ending
        self._release = release
        #: runs that continue after a wait or a takeover: the author's checks run first
        self._resumed: set[str] = set()
        self._look_for_long_s = 0.0

    def resumes(self, run: Run) -> None:
        """Run the author's checks before the run's next step."""
        if self._context.agent.verifiers:
            self._resumed.add(run.run_id)

    def moved(self, before: Run | None, run: Run) -> None:
        """After a run was at rest, have the author's checks run before its next step."""
        if run.terminal:
            self._resumed.discard(run.run_id)
        elif before is not None and _rests(before):
            self.resumes(run)

    def begin(self, flight: StepInFlight) -> None:
        """Run the step in a slot already taken for it."""
        run, store = flight.run, self._committer.store
        flight.since_s = self._context.clock.monotonic_s()
        try:
            messages = store.messages(run)
        except KeyError as error:
            message = f"message {error} of its thread is not in the state topic"
            failure = Failure(code="state_unreadable", message=message)
            self._steps.decide(flight, Park(failure=failure))
            self._release()
            return
        flight.call = StepCall(
            agent=self._context.agent,
            run=run,
            partition=self._context.partition,
            journal=store.journal(run),
            messages=messages,
            signals=store.signals(run.run_id),
            resumed=run.run_id in self._resumed,
            lease_left_s=self._context.log.lease_left_s,
            exclusive_from_s=self._committer.exclusive_from_s,
            on_done=lambda outcome: self._ended(flight, outcome),
            on_note=self._note,
            on_output=self._output,
            on_beside=lambda former: self._beside(flight, former),
        )
        self._resumed.discard(run.run_id)
        self._ending.begin(flight.call)
        self._executor.submit(flight.call)

    def carry_forward(self) -> None:
        """Append the task of a long step again, so that its old offset can be committed.

        The copy is recognised as a request for the step in progress.
        """
        now_s = self._context.clock.monotonic_s()
        if now_s < self._look_for_long_s:
            return
        self._look_for_long_s = now_s + self.forward_after_s / 30
        pressing = len(self._committer.answered) > ANSWERED_MAX
        for flight in self._steps.by_run.values():
            old = pressing or now_s - flight.since_s >= self.forward_after_s
            if flight.call is not None and flight.item is None and flight.sources and old:
                flight.since_s = now_s
                sources = flight.take_sources()
                if flight.run.status == "running":
                    self._steps.submit(flight.run.run_id, CarryForward(), *sources)
                else:  # a paused run needs no task
                    self._committer.add(PendingInput(sources=sources))

    def drop(self, flight: StepInFlight) -> None:
        """Drop a step that is over or no longer requested."""
        self._steps.forget(flight)
        if flight.call is not None:
            self._executor.give_up(flight.call)
            self._ending.end(flight.call)
            self._release()

    def abandon(self) -> None:
        """Give up what is running; none of it counts as an attempt."""
        for flight in self._steps.by_run.values():
            if flight.call is not None:
                self._executor.give_up(flight.call)
                self._ending.end(flight.call)
                self._release()
        self._steps.by_run.clear()

    # What the executor tells -----------------------------------------------------------------

    def _note(self, note: EntryRequest) -> None:
        """Commit an entry that a running step wants kept.

        The step waits for that commit, so the commit does not wait for the step.
        """
        call = note.call
        self._ending.end(call)

        def committed(refused: Refusal | None) -> None:
            flight = self._steps.by_run.get(call.run.run_id)
            if refused is None and flight is not None and flight.call is call:
                self._ending.begin(call)
                self._executor.recorded(note)

        self._steps.submit(call.run.run_id, note.journaled, on_done=committed)

    def _beside(self, flight: StepInFlight, former: StepCall) -> None:
        """Record on the run why it does not advance: an attempt given up has not ended."""
        run = former.run
        self._context.logger.warning(
            "attempt_abandoned",
            run_id=run.run_id,
            step=run.step,
            seq=run.seq,
            attempt=run.attempt,
            epoch=run.epoch,
        )
        if flight.run.status != "running":
            return
        message = (
            f"attempt {run.attempt + 1} of step {run.step!r} was given up and has not ended; "
            "the step was begun again beside it"
        )
        failure = Failure(
            code="attempt_abandoned", message=message, step=run.step, attempt=run.attempt
        )
        self._steps.submit(run.run_id, CarryForward(failure=failure))

    def _output(self, piece: OutputPiece) -> None:
        """Publish partial output to the stream topic, without waiting."""
        agent = self._context.agent.home or self._context.agent
        now_ms = self._context.clock.now_ms()
        self._context.log.publish([self._context.wire.piece(agent.name, piece, now_ms)])

    def _ended(self, flight: StepInFlight, outcome: AttemptOutcome) -> None:
        assert flight.call is not None
        self._ending.end(flight.call)
        match outcome:
            case AttemptLost():
                if flight.call.resumed:  # it may not have reached its checks
                    self._resumed.add(flight.run.run_id)
                asyncio.get_running_loop().call_later(
                    self._context.limits.lost_retry_s, self._again, flight
                )
                return
            case AttemptFailed():
                self._steps.decide(flight, self._failed(flight.run, outcome))
            case StepReturned() | BudgetExceeded():
                self._steps.decide(flight, outcome)
        flight.call = None
        self._release()

    def _again(self, flight: StepInFlight) -> None:
        if self._steps.by_run.get(flight.run.run_id) is flight:
            flight.call = None
            self._release()
            self._steps.queue_again(flight.run.run_id)

    def _failed(self, run: Run, outcome: AttemptFailed) -> Input:
        failure = outcome.failure
        self._context.logger.info(
            "step_failed",
            run_id=run.run_id,
            step=run.step,
            seq=run.seq,
            attempt=run.attempt,
            code=failure.code,
            kind=failure.kind,
            error=failure.message,
            frames=list(failure.frames),
        )
        work = Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)
        if outcome.park:
            return Park(failure=failure, work=work)
        wait_ms: int | None = None
        if outcome.retryable and run.attempt + 1 < outcome.retry.attempts:
            chance = self._context.clock.random()
            wait_ms = delay_ms(outcome.retry, run.attempt, chance, outcome.retry_after_s)
        return StepFailed(
            work=work,
            failure=failure,
            retry_in_ms=wait_ms,
            started_ms=outcome.started_ms,
            took_ms=outcome.took_ms,
        )


def _rests(run: Run) -> bool:
    """Whether the run needs something external to continue."""
    return run.wait is not None or run.status in ("paused", "attention", "failed")
