"""The one owner of one partition: takes it over, decides, and has the decisions committed.

Everything here runs on the engine's loop, and nothing else touches the partition's runs: no locks.
Memory changes only after the log has accepted the change.

Takeover, in this order because each step makes the next one valid:
 1. own: a new producer epoch fences the former owner and settles its open transaction
 2. committed: only now are the committed offsets final
 3. restore: the runs, up to the high watermark
 4. compare the state's own offsets with the group's, and begin at the lower of the two
 5. check what was restored, re-arm timers, resume reading
(1 to 4 are Committer.take, 5 is Takeover.take and Owner._take.)

Its parts, each of which knows only those before it: the committer; the steps in flight; the runner,
which hands them to the executor; admission, timers and expiry; the inputs; the takeover.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog

from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.consumers.partition.admission import Admission
from surefoot.consumers.partition.committer import BATCH_MAX, Committer
from surefoot.consumers.partition.context import OwnerLimits, PartitionContext
from surefoot.consumers.partition.in_flight import EndingSteps, StepsInFlight
from surefoot.consumers.partition.inputs import Inputs
from surefoot.consumers.partition.step_runner import StepRunner
from surefoot.consumers.partition.takeover import Takeover
from surefoot.consumers.partition.timers import Expiry, Timers
from surefoot.consumers.partition.transaction import PendingInput, RunChange
from surefoot.state.declare.agent import Agent
from surefoot.state.machine.model import Run, TimedOut
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import INPUT_KINDS, ConsumerRecord, InputGone, InputKind, Log
from surefoot.state.records.encoding import Wire
from surefoot.state.records.run_store import RunStore
from surefoot.state.telemetry import metrics, spans


class Dispatch(Protocol):
    """Distributes the worker's slots."""

    @property
    def ending(self) -> EndingSteps:
        """The worker's steps that may be about to end."""

    def ready(self, owner: Owner) -> None:
        """Announce that the owner has a step to begin."""

    def release(self) -> None:
        """Return a slot."""


class Owner:
    """One partition of one agent. `serve` runs until it is cancelled, fenced, or fails."""

    def __init__(
        self,
        *,
        agent: Agent,
        partition: int,
        log: Log,
        wire: Wire,
        executor: Executor,
        dispatch: Dispatch,
        clock: Clock,
        limits: OwnerLimits,
        deadlines: ConsumerDeadlines = DEADLINES,
    ) -> None:
        logger = structlog.get_logger(__name__).bind(agent=agent.name, partition=partition)
        self.agent = agent
        self.partition = partition
        self.ready = False
        #: begin no further step: until the partition is known to stay, or for good
        self.holding = False
        self._draining = False
        self._paused = False
        self._log = log
        self._clock = clock
        self._limits = limits
        self._logger: structlog.stdlib.BoundLogger = logger
        context = PartitionContext(
            agent=agent,
            partition=partition,
            log=log,
            wire=wire,
            clock=clock,
            limits=limits,
            logger=logger,
        )
        self._ending = dispatch.ending
        self.committer = Committer(
            rules=agent.rules,
            partition=partition,
            log=log,
            wire=wire,
            clock=clock,
            record_bytes=limits.record_bytes,
            committing=self._ending.committing,
            deadlines=deadlines,
        )
        self._ready_to_begin = partial(dispatch.ready, self)
        self.steps = StepsInFlight(self.committer, clock, self._ready_to_begin)
        self.runner = StepRunner(
            context, self.committer, self.steps, executor, self._ending, dispatch.release
        )
        self._admission = Admission(context, self.committer, self.steps)
        self._timers = Timers()
        self.expiry = Expiry(context, self.committer, self._admission)
        self.inputs = Inputs(context, self.committer, self.steps, self._admission)
        self.takeover = Takeover(
            context, self.committer, self.steps, self.runner, self._admission, self._timers
        )

    async def serve(self) -> None:
        """Take the partition over, then serve it.

        Raises: FencedError — a newer owner exists.
        Under cancellation: an open transaction is left for the next owner to fence; call `close`
            afterwards.
        """
        await self._take()
        while True:
            await self._wait()
            self._end_waits()
            self._admission.begin_due()
            self.runner.carry_forward()
            self.expiry.forget_old()
            if self.committer:
                await self._ending.wait(self._limits.gather_s)
                await self._commit()
            else:
                await self._on_idle()
            self.inputs.take_uncommitted()

    async def close(self) -> None:
        """Give up the ownership. Safe to call twice."""
        await self.committer.close()

    async def _take(self) -> None:
        started_s = self._clock.monotonic_s()
        starts = await self.takeover.take()
        self.ready = True
        self._admission.serve()  # no record requests a run that was kept for later
        self._log.resume(self.partition, starts)
        took_s = self._clock.monotonic_s() - started_s
        metrics.RESTORE_SECONDS.observe(took_s, self.agent.name)
        self._logger.info(
            "partition_ready",
            runs=len(self.store.live),
            receipts=len(self.store.receipts),
            took_ms=round(took_s * 1000),
        )

    @property
    def store(self) -> RunStore:
        """The committed runs."""
        return self.committer.store

    # Inputs ----------------------------------------------------------------------------------

    def ingest(self, kind: InputKind, record: ConsumerRecord) -> None:
        """Take in one record, in offset order."""
        if not self.committer.progress[kind].begin(record.offset):
            return
        self.inputs.take(kind, record)
        self._pace()

    def _pace(self) -> None:
        """Read no further while too much of what was read waits to begin, or to be committed."""
        waits, most = self.steps.queued + len(self.committer), self._limits.backlog
        if not self._paused and waits > most:
            self._paused = True
            self._log.pause(self.partition)
        elif self._paused and waits <= most // 2 and not (self._draining or self.holding):
            self._paused = False
            self._log.resume(self.partition)

    def missed(self, gone: InputGone) -> None:
        """Handle records that retention deleted unread. Records read before are unaffected."""
        self._logger.error("input_gone", input=gone.kind, start=gone.start, end=gone.end)
        self.committer.progress[gone.kind].skip_to(gone.end)
        if gone.kind == "commands":
            self.takeover.tell_lost(gone.start, gone.end)
        else:
            self.takeover.swept = False  # adopt the runs whose tasks these were

    def resumed(self) -> None:
        """Continue after a rebalance that left the partition with this owner."""
        self.holding = False
        self._ready_to_begin()
        if self.ready:
            progress = self.committer.progress
            self._log.resume(self.partition, {kind: progress[kind].next for kind in INPUT_KINDS})
            if self._paused or self._draining:
                self._log.pause(self.partition)
            self._pace()

    # Running steps ---------------------------------------------------------------------------

    def dispatch_one(self) -> bool:
        """Begin one waiting step, of runs in progress first. Return False if there is none."""
        if self._draining or self.holding or not self.ready:
            return False
        if self.committer.under_way >= BATCH_MAX:  # commits are behind; `serve` goes on after one
            return False
        starts = len(self.committer) < BATCH_MAX
        while (flight := self.steps.next(starts=starts)) is not None:
            if not self._admission.slows_down(flight.run):
                self.runner.begin(flight)
                break
        self._pace()
        return flight is not None

    def _end_waits(self) -> None:
        for due_ms, run in self._timers.due(self._clock.now_ms(), self.store.live):
            if not run.timed or run.step in self.agent.rules.pools:
                self.steps.submit(run.run_id, TimedOut(due_ms=due_ms))
            elif run.run_id not in self.steps.by_run:
                self.steps.queue(run)

    # Committing ------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait for something to commit, for something due, or for `idle_commit_s` to pass."""
        if self.committer:
            return
        self.committer.wake.clear()
        limit_s = self._limits.idle_commit_s
        for due_ms in (self._timers.next_ms, self._admission.next_ms):
            if due_ms is not None:
                limit_s = min(limit_s, max(0.0, (due_ms - self._clock.now_ms()) / 1000))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.committer.wake.wait()

    async def _commit(self) -> None:
        items, changes = await self.committer.commit()
        for item in items:
            self._finished(item)
        for change in changes:
            self._reconcile(change)
        for change in changes:
            self.inputs.take_written(change)
        self._pace()
        self._ready_to_begin()

    def _finished(self, item: PendingInput) -> None:
        """Finish an item that was committed."""
        self.committer.done(*item.sources)
        flight = self.steps.by_run.get(item.run_id)
        if flight is not None and flight.item is item:
            self.runner.drop(flight)
        if item.on_done is not None:
            item.on_done(item.refused)

    def _reconcile(self, change: RunChange) -> None:
        """Make the step in flight match what the run, as it is now, requests."""
        before, run = change.before, change.after
        if run is None:
            return  # its start, if in flight, is not decided yet
        flight = self.steps.by_run.get(run.run_id)
        if flight is not None:
            parked = run.status == "paused" and flight.call is None
            if flight.holds(run) and not (parked and flight.item is None):
                flight.run = run
            else:
                self.runner.drop(flight)
                flight = None
        if run is before:
            return
        self._tell(before, run)
        if before is None or (before.status, before.due_ms) != (run.status, run.due_ms):
            self._arm(run)
        self.runner.moved(before, run)
        if before is None and run.seq == 0 and run.status == "running" and flight is None:
            self.steps.queue(run)
        self._admission.moved(run)

    def _arm(self, run: Run) -> None:
        if run.run_id not in self.steps.held:
            self._timers.arm(run)

    def _tell(self, before: Run | None, run: Run) -> None:
        """Update metrics and traces for a run that has changed."""
        if before is None:
            metrics.RUNS_STARTED.add(self.agent.name)
        if run.status == "attention" and (before is None or before.status != "attention"):
            metrics.RUNS_ATTENTION.add(self.agent.name)
        if run.terminal and (before is None or not before.terminal):
            metrics.RUNS_ENDED.add(self.agent.name, run.status)
            spans.ended(run)

    async def _on_idle(self) -> None:
        """Use the time with nothing to commit.

        Skip transaction markers, so that an idle group shows no lag, and run what the inputs should
        have requested but did not.
        """
        positions = await self._log.positions(self.partition)
        for kind, position in positions.items():
            self.committer.progress[kind].skip_to(position)
        self.takeover.sweep(positions)
        if not self.committer:
            await self.committer.commit_offsets()

    # How it stands ---------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of running steps and of inputs not committed yet."""
        running = sum(flight.call is not None for flight in self.steps.by_run.values())
        return running + len(self.committer) + self.committer.busy

    @property
    def runs_live(self) -> int:
        """Number of runs that are not over."""
        return len(self.store.live)

    @property
    def settled(self) -> bool:
        """Whether every run is over or waits for something external.

        A time limit of such a wait does not count as pending; a wait for time alone does.
        """
        return not (self.in_flight or self._admission.rate_limits) and not any(
            (run.timed or run.status in ("pending", "running"))
            and run.run_id not in self.steps.held
            for run in self.store.live.values()
        )

    # Ending ----------------------------------------------------------------------------------

    def hold(self) -> None:
        """Begin no further step until the partition is known to stay."""
        self.holding = True

    def drain(self) -> None:
        """Begin no further step; what is running is still committed."""
        self._draining = True
        if self.ready:
            self._log.pause(self.partition)

    def abandon(self) -> None:
        """Give up what is running; none of it counts as an attempt."""
        self._draining = True
        self.ready = False
        self.runner.abandon()
