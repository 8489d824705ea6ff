"""The one owner of one partition: takes it over, decides, and has the decisions committed.

Everything here runs on the engine's loop, and a run is touched by nobody else: no locks. Memory
changes only after the log has taken the change.

Taking over, in this order because each line makes the next one true:
 1. own: a new producer epoch fences the former owner and settles its open transaction
 2. committed: only now are the committed offsets final
 3. restore: the runs, up to the high watermark
 4. compare the state's own offsets with the group's, and begin at the lower of the two
 5. check what was restored, re-arm timers, resume reading
(1 to 4 are Committer.take.)
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from surefoot.consumers.attempts.attempt import (
    AttemptFailed,
    AttemptLost,
    AttemptOutcome,
    EntryRequest,
    StepCall,
    unknown_step,
)
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.partition.committer import BATCH_MAX, Committer
from surefoot.consumers.partition.transaction import InputPosition, PendingInput, RunChange
from surefoot.schemas import trace
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.payload import digest, strict_json
from surefoot.state.admission.lanes import Lanes
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.retry import delay_ms
from surefoot.state.machine.decide import decide, ignored_start
from surefoot.state.machine.model import (
    OPERATIONS,
    BudgetExceeded,
    Cancel,
    CarryForward,
    Defer,
    Failure,
    Input,
    OutputPiece,
    Park,
    Refusal,
    Run,
    StartRun,
    State,
    StepFailed,
    StepReturned,
    TimedOut,
    Work,
)
from surefoot.state.names.partitioner import affinity, affinity_order
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import (
    INPUT_KINDS,
    ConsumerRecord,
    Headers,
    InputGone,
    InputKind,
    Log,
    ProducerRecord,
)
from surefoot.state.records.encoding import (
    Wire,
    actions_of,
    decode_command,
    decode_task,
    input_of,
    memory_of,
    parent_of,
)
from surefoot.state.records.run_store import RunStore
from surefoot.state.telemetry import metrics, spans

#: so many answered commands may stand above the lowest record in work, before it is let go
ANSWERED_MAX = 1_000
#: so many runs that may wait in vain are named
WAITING_TOLD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """What an owner allows itself."""

    #: runs that may wait for a slot before reading is paused
    backlog: int = 256
    #: largest record, in bytes, key and headers included
    record_bytes: int = 1_000_000
    #: after this long a step's task is carried forward so that offsets can move on
    forward_after_s: float = 30.0
    #: with nothing to do for this long, offsets are committed up to the markers
    idle_commit_s: float = 1.0
    #: how long decisions that are ready wait for steps that are running, to share a transaction
    gather_s: float = 0.005
    #: before a step that was given up for want of a lease is tried again
    lost_retry_s: float = 0.5
    #: at a rebalance, how long running steps may take to finish before their partition may move;
    #: the whole group waits for that
    handover_s: float = 3.0
    #: how long the receipt of a finished run is kept
    dedup_window_ms: int = 14 * 86_400_000
    #: how long signals for a run that has not begun are kept
    early_signals_ms: int = 86_400_000


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


class Dispatch(Protocol):
    """Who hands out the worker's slots."""

    def ready(self, owner: Owner) -> None:
        """The owner has something to begin."""

    def release(self) -> None:
        """A slot is free again."""


class Owner:
    """One partition of one agent. `serve` runs until it is cancelled, fenced or fails."""

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
    ) -> None:
        self.agent = agent
        self.partition = partition
        self.ready = False
        self._log = log
        self._wire = wire
        self._executor = executor
        self._dispatch = dispatch
        self._clock = clock
        self._limits = limits
        self._committer = Committer(
            rules=agent.rules,
            partition=partition,
            log=log,
            wire=wire,
            clock=clock,
            record_bytes=limits.record_bytes,
        )
        self._flights: dict[str, StepInFlight] = {}
        self._tasks: deque[str] = deque()
        self._starts: deque[str] = deque()
        self._lanes = Lanes(agent.flow) if agent.flow is not None else None
        #: steps that may not be run so often, and when they may: epoch ms
        self._rate_limited: list[tuple[int, str]] = []
        self._timers: list[tuple[int, str]] = []
        #: tasks of the commit whose answer has not come yet
        self._uncommitted_tasks: list[ConsumerRecord] = []
        #: runs of a newer version of the agent: left alone for a worker that knows it
        self._held: set[str] = set()
        #: runs that go on after a wait or a takeover: the author's checks come first
        self._resumed: set[str] = set()
        self._look_for_long_s = 0.0
        self._look_for_old_s = 0.0
        self._swept = False
        self._paused = False
        self._draining = False
        self._holding = False
        self._wake = asyncio.Event()
        #: steps that may be about to end: their outcome has not come, and they wait for no commit
        self._running: set[StepCall] = set()
        self._quiet = asyncio.Event()
        self._logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__).bind(
            agent=agent.name, partition=partition
        )

    async def serve(self) -> None:
        """Take the partition over, then serve it.

        Raises: FencedError — a newer owner exists. Cancelling it leaves an open transaction to be
        fenced by the next owner; call `close` afterwards.
        """
        await self._take()
        while True:
            await self._wait()
            self._fire_timers()
            self._carry_forward()
            self._forget_old()
            if self._committer:
                await self._gather()
                items, moved = await self._committer.commit()
                for item in items:
                    self._finished(item)
                for each in moved:
                    self._reconcile(each)
                self._dispatch.ready(self)
                early, self._uncommitted_tasks = self._uncommitted_tasks, []
                for record in early:
                    self._task(record)
            else:
                await self._on_idle()

    async def close(self) -> None:
        """Give up the ownership. Safe to call twice."""
        await self._committer.close()

    async def _take(self) -> None:
        started_s = self._clock.monotonic_s()
        starts = await self._committer.take()
        self._check_restored()
        if self._committer.lost is not None:
            self._tell_lost(*self._committer.lost)
        self.ready = True
        self._serve_lanes()  # nobody asks for a run that was kept for later
        self._log.resume(self.partition, starts)
        metrics.RESTORE_SECONDS.observe(self._clock.monotonic_s() - started_s, self.agent.name)
        self._logger.info(
            "partition_ready",
            runs=len(self._store.live),
            receipts=len(self._store.receipts),
            took_ms=round((self._clock.monotonic_s() - started_s) * 1000),
        )

    @property
    def _store(self) -> RunStore:
        return self._committer.store

    def _check_restored(self) -> None:
        for run_id, reason in self._store.broken.items():
            self._logger.error("checkpoint_unreadable", run_id=run_id, error=reason)
        in_lanes: list[Run] = []
        for run in list(self._store.live.values()):
            if run.status in ("attention", "failed"):
                continue
            if run.version > self.agent.version:
                self._held.add(run.run_id)
                self._logger.warning("run_held", run_id=run.run_id, version=run.version)
                continue
            if run.status != "paused" and self._stranded(run):
                self._quarantine(run, unknown_step(self.agent, run.step, run.version))
                continue
            if self.agent.verifiers:
                self._resumed.add(run.run_id)
            self._arm(run)
            in_lanes.append(run)
        self._restore_lanes(in_lanes)

    def _tell_lost(self, start: int, end: int) -> None:
        """Retention has deleted commands that nobody had read; the commit that steps over them
        leaves a dead letter. What a run waits for comes by command: it may have been among them,
        and nobody will send it again by himself."""
        waiting = [
            run.run_id
            for run in self._store.live.values()
            if run.wait is not None and run.status in ("waiting", "paused")
        ]
        told = waiting[:WAITING_TOLD]
        now_ms = self._clock.now_ms()
        message = f"offsets {start} to {end - 1} of the commands were deleted before they were read"
        if waiting:
            message += (
                f"; {len(waiting)} runs wait for what may have been among them: {', '.join(told)}"
            )
        failure = Failure(code="commands_lost", message=message)
        metrics.INPUTS_LOST.add(self.agent.name, "commands", by=end - start)
        self._logger.error(
            "commands_lost", start=start, end=end, runs_waiting=len(waiting), waiting=told
        )
        place = ConsumerRecord(
            self._wire.topics.commands, self.partition, start, now_ms, None, None
        )
        more = (
            ("sf-dead-until", b"%d" % end),
            ("sf-dead-waiting", strict_json(told)),
        )
        self._add(PendingInput(outs=lambda h: [self._wire.dead_input(place, failure, (*h, *more))]))

    def _stranded(self, run: Run) -> bool:
        """Whether the run stands at a step that there is no more, and nothing can map it."""
        mapped = any(run.version <= number for number in self.agent.upcasters)
        return run.step not in self.agent.steps and not mapped

    def _arm(self, run: Run) -> None:
        """Look at the run again when its time has come, unless it is held for newer code."""
        if run.status == "waiting" and run.due_ms is not None and run.run_id not in self._held:
            heapq.heappush(self._timers, (run.due_ms, run.run_id))

    # Inputs ----------------------------------------------------------------------------------

    def ingest(self, kind: InputKind, record: ConsumerRecord) -> None:
        """Take in one record, in the order of offsets."""
        if not self._committer.progress[kind].begin(record.offset):
            return
        if kind == "commands":
            self._command(record)
        else:
            self._task(record)
        if not self._paused and len(self._tasks) + len(self._starts) > self._limits.backlog:
            self._paused = True
            self._log.pause(self.partition)

    def missed(self, gone: InputGone) -> None:
        """Reading has fallen behind retention. What was read before goes on."""
        self._logger.error("input_gone", input=gone.kind, start=gone.start, end=gone.end)
        self._committer.progress[gone.kind].leave_out(gone.end)
        if gone.kind == "commands":
            self._tell_lost(gone.start, gone.end)
        else:
            self._swept = False  # for the runs whose tasks these were

    def resumed(self) -> None:
        """A rebalance left the partition with this owner: go on where it stood."""
        self._holding = False
        self._dispatch.ready(self)
        if self.ready:
            progress = self._committer.progress
            self._log.resume(self.partition, {kind: progress[kind].next for kind in INPUT_KINDS})
            if self._paused or self._draining:
                self._log.pause(self.partition)

    def _command(self, record: ConsumerRecord) -> None:
        source: InputPosition = ("commands", record.offset)
        try:
            command = decode_command(record)
            event = None if command["kind"] == "start" else input_of(command)
        except UndecodableError as error:
            return self._dead_letter(
                source, record, Failure(code="undecodable", message=str(error))
            )
        run_id = command["run_id"]
        if self._reroute(source, record, run_id):
            return None
        if run_id in self._store.broken:
            failure = Failure(code="state_unreadable", message=self._store.broken[run_id])
            return self._dead_letter(source, record, failure)
        if isinstance(event, OPERATIONS) and self._committer.was_answered(source):
            self._committer.progress["commands"].done(record.offset)
            return None
        if event is not None:
            self._submit(run_id, event, source)
            return None
        came = trace.carried_by(command)
        step = command["step"] or self.agent.start_step.name
        if step not in self.agent.steps:
            failure = unknown_step(self.agent, step, self.agent.version)
            return self._dead_letter(source, record, failure)
        start = StartRun(
            run_id=run_id,
            agent=self.agent.name,
            version=self.agent.version,
            step=step,
            payload=command["payload"],
            input_digest=digest(command["payload"]),
            traceparent=came.get("traceparent") or spans.begin(self.agent.name, run_id),
            tracestate=came.get("tracestate"),
            baggage=came.get("baggage"),
            parent=parent_of(command),
            carry=command["carry"],
            memory=memory_of(command["memory"]),
            messages=tuple(command["messages"]),
            by=command["by"],
            actions=actions_of(command),
        )
        if self._digest_of(run_id) is None:
            return self._start(source, start, record)
        return self._repeated(source, start, record)

    def _digest_of(self, run_id: str) -> bytes | None:
        """Digest of the input that the run was started with; None: no such run."""
        flight = self._flights.get(run_id)
        known = flight.run if flight is not None else self._store.live.get(run_id)
        told = known or self._store.receipts.get(run_id)
        return told.input_digest if told is not None else None

    def _repeated(self, source: InputPosition, start: StartRun, record: ConsumerRecord) -> None:
        """The run exists: the first start holds. A different one is told in the history; a parent
        that asked for it would wait for ever, and is told that its branch has failed."""
        same = self._digest_of(start.run_id) == start.input_digest
        run = self._store.live.get(start.run_id)
        if same and start.parent is not None and (run is not None or not start.parent.fork):
            same = run is not None and run.parent == start.parent
        self._logger.info("start_repeated", run_id=start.run_id, same_input=same)
        if same:
            return self._asked_for(source, start.run_id, 0, None)
        message = f"there is another run {start.run_id} of agent {self.agent.name} already"
        return self._ignore(source, start, record, Failure(code="run_exists", message=message))

    def _ignore(
        self, source: InputPosition, start: StartRun, record: ConsumerRecord, failure: Failure
    ) -> None:
        """There will be no such run: the history says so."""
        now_ms = self._clock.now_ms()
        records = ignored_start(start, failure, now_ms)
        self._add(
            PendingInput(
                sources=(source,),
                outs=lambda h: [
                    self._wire.out(each, start.run_id, self.partition, h, now_ms)
                    for each in records
                ],
                record=record,
            )
        )

    def _start(self, source: InputPosition, start: StartRun, record: ConsumerRecord) -> None:
        """Begin the run. Its first step is run before the start is committed, so that a run of one
        step costs one transaction; but not when more than a step hangs on it."""
        decision = decide(self.agent.rules, State(None), start, self._clock.now_ms())
        run = decision.run
        assert run is not None
        if run.status != "running" or start.messages or start.actions:
            self._submit(start.run_id, start, source)
        elif self._lanes is None or self._may_begin(self._lanes, start, run, source, record):
            self._flights[start.run_id] = self._flight(run, [source], (start,))
            self._starts.append(start.run_id)
            self._dispatch.ready(self)

    def _task(self, record: ConsumerRecord) -> None:
        source: InputPosition = ("tasks", record.offset)
        try:
            task = decode_task(record)
        except UndecodableError as error:
            return self._dead_letter(
                source, record, Failure(code="undecodable", message=str(error))
            )
        run_id = task["run_id"]
        known = run_id in self._flights or run_id in self._store.live
        if not known and self._reroute(source, record, run_id):
            return None
        if run_id in self._store.broken:
            failure = Failure(code="state_unreadable", message=self._store.broken[run_id])
            return self._dead_letter(source, record, failure)
        return self._asked_for(source, run_id, task["seq"], record)

    def _asked_for(
        self, source: InputPosition, run_id: str, seq: int, task: ConsumerRecord | None
    ) -> None:
        """A record asks for a step: run it, if the run is there and nobody does yet. A task may
        be read before the answer to its own commit has come; it is then looked at again, also when
        it looks like a copy: the run may have been sent back to the step that is in work."""
        flight = self._flights.get(run_id)
        run = self._store.live.get(run_id)
        if flight is None and run is not None and run.seq == seq and self._runnable(run):
            self._queue_run(run, source)
        elif task is not None and self._committer.busy:
            self._uncommitted_tasks.append(task)
        elif flight is not None and flight.run.seq == seq:
            flight.sources.append(source)  # a copy of what asked for the step in work
        else:
            self._committer.progress[source[0]].done(source[1])
            self._logger.debug("task_skipped", run_id=run_id, seq=seq)

    def _runnable(self, run: Run) -> bool:
        return run.status == "running" and run.run_id not in self._held

    def _reroute(self, source: InputPosition, record: ConsumerRecord, run_id: str) -> bool:
        """A record that another partitioner put here goes on to the partition of its run."""
        if self._wire.is_home(run_id, self.partition):
            return False
        self._logger.warning("rerouted", run_id=run_id, topic=record.topic, offset=record.offset)
        self._add(
            PendingInput(
                sources=(source,),
                outs=lambda h: [self._wire.reroute(record, run_id, h)],
                record=record,
            )
        )
        return True

    def _dead_letter(self, source: InputPosition, record: ConsumerRecord, failure: Failure) -> None:
        if self._committer.was_answered(source):
            self._committer.progress[source[0]].done(source[1])
            return
        metrics.DEAD_LETTERS.add(self.agent.name)
        self._logger.error(
            "dead_letter",
            topic=record.topic,
            offset=record.offset,
            code=failure.code,
            error=failure.message,
        )
        self._add(
            PendingInput(
                sources=(source,),
                outs=lambda h: [self._wire.dead_input(record, failure, h)],
                answers=True,
            )
        )

    # Running steps ---------------------------------------------------------------------------

    def dispatch_one(self) -> bool:
        """Begin one step that is waiting, runs under way first. False: there is none."""
        if self._draining or self._holding or not self.ready:
            return False
        if len(self._committer) >= BATCH_MAX:  # commits do not keep up; `serve` goes on after one
            return False
        while self._tasks or self._starts:
            run_id = self._tasks.popleft() if self._tasks else self._starts.popleft()
            flight = self._flights.get(run_id)
            if flight is None or flight.call is not None or flight.item is not None:
                continue
            if not self._slowed_down(flight.run):
                self._begin(flight)
                break
        else:
            return False
        if self._paused and len(self._tasks) + len(self._starts) < self._limits.backlog // 2:
            self._paused = False
            self._log.resume(self.partition)
        return True

    def _begin(self, flight: StepInFlight) -> None:
        run = flight.run
        flight.since_s = self._clock.monotonic_s()
        try:
            messages = self._store.messages(run)
        except KeyError as error:
            message = f"message {error} of its thread is not in the state topic"
            self._decided(flight, Park(failure=Failure(code="state_unreadable", message=message)))
            self._dispatch.release()
            return
        flight.call = StepCall(
            agent=self.agent,
            run=run,
            partition=self.partition,
            journal=self._store.journal(run),
            messages=messages,
            signals=self._store.signals(run.run_id),
            resumed=run.run_id in self._resumed,
            lease_left_s=self._log.lease_left_s,
            exclusive_from_s=self._committer.exclusive_from_s,
            on_done=lambda outcome: self._ended(flight, outcome),
            on_note=self._note,
            on_output=self._output,
            on_beside=lambda former: self._beside(flight, former),
        )
        self._resumed.discard(run.run_id)
        self._running.add(flight.call)
        self._executor.submit(flight.call)

    def _note(self, note: EntryRequest) -> None:
        """Commit what a running step wants kept. It waits for that, so nothing waits for it."""
        call = note.call
        self._not_running(call)

        def committed(refused: Refusal | None) -> None:
            flight = self._flights.get(call.run.run_id)
            if refused is None and flight is not None and flight.call is call:
                self._running.add(call)
                self._executor.recorded(note)

        self._submit(call.run.run_id, note.journaled, on_done=committed)

    def _beside(self, flight: StepInFlight, former: StepCall) -> None:
        """Tell whoever asks why the run stands where it stands."""
        run = former.run
        self._logger.warning(
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
        self._submit(run.run_id, CarryForward(failure=failure))

    def _output(self, piece: OutputPiece) -> None:
        """Tell the stream topic; nobody waits for it."""
        agent = self.agent.home or self.agent
        self._log.publish([self._wire.piece(agent.name, piece, self._clock.now_ms())])

    def _ended(self, flight: StepInFlight, outcome: AttemptOutcome) -> None:
        assert flight.call is not None
        self._not_running(flight.call)
        match outcome:
            case AttemptLost():
                if flight.call.resumed:  # it may not have come to its checks
                    self._resumed.add(flight.run.run_id)
                asyncio.get_running_loop().call_later(
                    self._limits.lost_retry_s, self._again, flight
                )
                return
            case AttemptFailed():
                self._decided(flight, self._failed(flight.run, outcome))
            case StepReturned() | BudgetExceeded():
                self._decided(flight, outcome)
        flight.call = None
        self._dispatch.release()

    def _not_running(self, call: StepCall) -> None:
        self._running.discard(call)
        if not self._running:
            self._quiet.set()

    def _again(self, flight: StepInFlight) -> None:
        if self._flights.get(flight.run.run_id) is flight:
            flight.call = None
            self._dispatch.release()
            self._tasks.append(flight.run.run_id)
            self._dispatch.ready(self)

    def _failed(self, run: Run, outcome: AttemptFailed) -> Input:
        failure = outcome.failure
        self._logger.info(
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
        work = _work(run)
        if outcome.park:
            return Park(failure=failure, work=work)
        wait_ms: int | None = None
        if outcome.retryable and run.attempt + 1 < outcome.retry.attempts:
            chance = self._clock.random()
            wait_ms = delay_ms(outcome.retry, run.attempt, chance, outcome.retry_after_s)
        return StepFailed(
            work=work,
            failure=failure,
            retry_in_ms=wait_ms,
            started_ms=outcome.started_ms,
            took_ms=outcome.took_ms,
        )

    def _decided(self, flight: StepInFlight, event: Input) -> None:
        """The step is over, or the run is to be kept for later: make that part of the next
        transaction."""
        pending, flight.pending = flight.pending, ()
        sources, flight.sources = flight.sources, []
        flight.item = PendingInput(
            sources=tuple(sources), run_id=flight.run.run_id, inputs=(*pending, event)
        )
        self._add(flight.item)

    def _submit(
        self,
        run_id: str,
        event: Input,
        *sources: InputPosition,
        on_done: Callable[[Refusal | None], None] | None = None,
    ) -> None:
        """Have an input of a run decided, after what has come before it."""
        flight = self._flights.get(run_id)
        pending: tuple[Input, ...] = ()
        if flight is not None:
            pending, flight.pending = flight.pending, ()
        self._add(
            PendingInput(
                sources=sources,
                run_id=run_id,
                inputs=(*pending, event),
                on_done=on_done,
                answers=isinstance(event, OPERATIONS),
            )
        )

    def _quarantine(self, run: Run, failure: Failure) -> None:
        self._logger.error("run_attention", run_id=run.run_id, code=failure.code)
        self._submit(run.run_id, Park(failure=failure))

    def _queue_run(self, run: Run, *sources: InputPosition) -> None:
        """Dispatch the step that the run's checkpoint names."""
        self._flights[run.run_id] = self._flight(run, list(sources))
        self._tasks.append(run.run_id)
        self._dispatch.ready(self)

    def _flight(
        self, run: Run, sources: list[InputPosition], pending: tuple[Input, ...] = ()
    ) -> StepInFlight:
        asked_s = self._clock.monotonic_s()
        return StepInFlight(run=run, pending=pending, sources=sources, asked_s=asked_s)

    def _fire_timers(self) -> None:
        now_ms = self._clock.now_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, run_id = heapq.heappop(self._timers)
            run = self._store.live.get(run_id)
            if run is None or run.status != "waiting" or run.due_ms != due_ms:
                continue
            if run.timed and run.step not in self.agent.rules.pools:
                if run_id not in self._flights:
                    self._queue_run(run)
            else:
                self._submit(run_id, TimedOut(due_ms=due_ms))
        while self._rate_limited and self._rate_limited[0][0] <= now_ms:
            self._tasks.append(heapq.heappop(self._rate_limited)[1])
            self._dispatch.ready(self)
        if self._lanes is not None:
            for name in self._lanes.due(now_ms):
                self._serve_lane(self._lanes, name)

    def _carry_forward(self) -> None:
        """Append the task of a long step again, so that its old offset can be committed. The copy
        is recognised as the one already in work."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_for_long_s:
            return
        self._look_for_long_s = now_s + self._limits.forward_after_s / 30
        pressing = len(self._committer.answered) > ANSWERED_MAX
        for flight in self._flights.values():
            old = pressing or now_s - flight.since_s >= self._limits.forward_after_s
            if flight.call is not None and flight.item is None and flight.sources and old:
                flight.since_s = now_s
                sources, flight.sources = flight.sources, []
                if flight.run.status == "running":
                    self._submit(flight.run.run_id, CarryForward(), *sources)
                else:  # a paused run needs no task
                    self._add(PendingInput(sources=tuple(sources)))

    # Lanes of an agent with flow control -----------------------------------------------------

    def _may_begin(
        self, lanes: Lanes, start: StartRun, run: Run, source: InputPosition, record: ConsumerRecord
    ) -> bool:
        """Whether a run that is asked for may begin at once. It is kept for later otherwise, or
        skipped."""
        assert self.agent.flow is not None
        name, now_ms = affinity(run.run_id), self._clock.now_ms()
        others = [*lanes.under_way(name), *lanes.not_begun(name)]
        if self.agent.flow.singleton == "skip" and others:
            message = f"run {others[0]} of its key is under way, and the flow skips a second one"
            self._ignore(source, start, record, Failure(code="skipped", message=message))
            return False
        if self.agent.flow.singleton == "cancel":
            self._replace(others, run)
        elif self.agent.flow.debounce_ms:
            self._replace(lanes.not_begun(name), run)
        if lanes.is_free(name, now_ms):
            lanes.begin(name, run.run_id, now_ms)
            return True
        self._keep_begun(lanes, name)
        lanes.expect(name, run.run_id, self.agent.priority_of(run.payload))
        self._flights[run.run_id] = flight = self._flight(run, [source], (start,))
        self._decided(flight, Defer())
        return False

    def _replace(self, others: list[str], run: Run) -> None:
        """Cancel what the run takes the place of. The same run asks for it once, whoever decides
        it: a command that was taken before moves nothing."""
        for other in others:
            self._submit(other, Cancel(id=f"flow:{run.run_id}", by=f"run {run.run_id}"))

    def _keep_begun(self, lanes: Lanes, name: str) -> None:
        """Commit the starts of the lane's runs no later than that of one behind them: who takes
        the partition over would else find the one behind alone, and begin it first."""
        for run_id in lanes.under_way(name):
            flight = self._flights.get(run_id)
            if flight is not None and flight.pending:
                pending, flight.pending = flight.pending, ()
                self._add(PendingInput(sources=(), run_id=run_id, inputs=pending))

    def _in_lane(self, lanes: Lanes, run: Run) -> None:
        """The run has moved: its lane may have room for another one."""
        name = affinity(run.run_id)
        if run.terminal or run.status == "attention":
            lanes.leave(name, run.run_id)
        elif run.status == "pending":
            lanes.wait(name, run.run_id, run.created_ms)
        else:
            lanes.come_back(name, run.run_id)
        self._serve_lane(lanes, name)

    def _serve_lane(self, lanes: Lanes, name: str) -> None:
        """Begin the runs of the lane whose turn has come."""
        while (run_id := lanes.take(name, self._clock.now_ms())) is not None:
            run = self._store.live.get(run_id)
            if run is not None and run.status == "pending" and run_id not in self._flights:
                self._queue_run(run)
            elif run is None or run.status != "running":
                lanes.leave(name, run_id)

    def _serve_lanes(self) -> None:
        if self._lanes is not None:
            for name in self._lanes.names():
                self._serve_lane(self._lanes, name)

    def _restore_lanes(self, runs: list[Run]) -> None:
        """`runs`: those that are neither over nor a person's."""
        lanes = self._lanes
        if lanes is None:
            return
        assert self.agent.flow is not None
        rates = any(step.rate is not None for step in self.agent.steps.values())
        if rates or self.agent.flow.throttle is not None:
            for run_id, receipt in self._store.receipts.items():
                lanes.restore(affinity(run_id), receipt.updated_ms)
        # Those of one millisecond stand as they were committed, which is as they were asked for.
        runs.sort(key=lambda run: (affinity_order(run.run_id), run.created_ms))
        latest: dict[str, Run] = {}
        for run in runs:
            name = affinity(run.run_id)
            if run.status != "pending":
                lanes.restore(name, run.updated_ms, run.run_id)
                continue
            before = latest.get(name)
            if self.agent.flow.debounce_ms and before is not None:
                self._replace([before.run_id], run)
            latest[name] = run
            lanes.expect(name, run.run_id, self.agent.priority_of(run.payload))
            lanes.wait(name, run.run_id, run.created_ms)

    def _slowed_down(self, run: Run) -> bool:
        """Whether the step may not be run yet, as it was run too often of late."""
        step = self.agent.steps.get(run.step)
        if self._lanes is None or step is None or step.rate is None:
            return False
        name, now_ms = affinity(run.run_id), self._clock.now_ms()
        at_ms = self._lanes.step_at_ms(name, run.step, step.rate, now_ms)
        if at_ms:
            heapq.heappush(self._rate_limited, (at_ms, run.run_id))
            self._wake.set()
        return bool(at_ms)

    # Committing ------------------------------------------------------------------------------

    def _add(self, item: PendingInput) -> None:
        self._committer.add(item)
        self._wake.set()

    async def _wait(self) -> None:
        if self._committer:
            return
        self._wake.clear()
        limit_s = self._limits.idle_commit_s
        due = [heap[0][0] for heap in (self._timers, self._rate_limited) if heap]
        if self._lanes is not None and self._lanes.due_ms is not None:
            due.append(self._lanes.due_ms)
        if due:
            until_due_s = (min(due) - self._clock.now_ms()) / 1000
            limit_s = min(limit_s, max(0.0, until_due_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._wake.wait()

    async def _gather(self) -> None:
        """Let steps that are about to end share the transaction: a commit costs the same for one
        decision as for many. With nothing else running there is nothing to wait for."""
        if self._running:
            self._quiet.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.gather_s):
                    await self._quiet.wait()

    def _finished(self, item: PendingInput) -> None:
        """The item is committed."""
        for kind, offset in item.sources:
            self._committer.progress[kind].done(offset)
        flight = self._flights.get(item.run_id)
        if flight is not None and flight.item is item:
            self._drop(flight)
        if item.on_done is not None:
            item.on_done(item.refused)

    def _reconcile(self, moved: RunChange) -> None:
        """Have in flight what the run, as it is now, asks for, and nothing else."""
        before, run = moved.before, moved.after
        if run is None:
            return  # its start, if that is in flight, is still to be decided
        flight = self._flights.get(moved.run_id)
        if flight is not None:
            parked = run.status == "paused" and flight.call is None
            if flight.holds(run) and not (parked and flight.item is None):
                flight.run = run
            else:
                self._drop(flight)
                flight = None
        if run is before:
            return
        self._tell(before, run)
        if before is None or (before.status, before.due_ms) != (run.status, run.due_ms):
            self._arm(run)
        if run.terminal:
            self._resumed.discard(run.run_id)
        elif self.agent.verifiers and before is not None and _rests(before):
            self._resumed.add(run.run_id)
        if before is None and run.seq == 0 and run.status == "running" and flight is None:
            self._queue_run(run)
        if self._lanes is not None:
            self._in_lane(self._lanes, run)

    def _tell(self, before: Run | None, run: Run) -> None:
        """For metrics and traces: the run has moved."""
        if before is None:
            metrics.RUNS_STARTED.add(self.agent.name)
        if run.status == "attention" and (before is None or before.status != "attention"):
            metrics.RUNS_ATTENTION.add(self.agent.name)
        if run.terminal and (before is None or not before.terminal):
            metrics.RUNS_ENDED.add(self.agent.name, run.status)
            spans.ended(run)

    def _drop(self, flight: StepInFlight) -> None:
        """The step is over, or it is not asked for any more."""
        del self._flights[flight.run.run_id]
        for kind, offset in flight.sources:
            self._committer.progress[kind].done(offset)
        if flight.call is not None:
            self._executor.give_up(flight.call)
            self._not_running(flight.call)
            self._dispatch.release()

    async def _on_idle(self) -> None:
        """With nothing to commit: step over transaction markers, so that an idle group shows no
        lag; run what the inputs should have asked for and did not."""
        positions = await self._log.positions(self.partition)
        for kind, position in positions.items():
            self._committer.progress[kind].skip_to(position)
        if not self._swept and len(positions) == len(INPUT_KINDS):
            self._swept = True
            self._adopt_orphans()
        if not self._committer:
            await self._committer.commit_offsets()

    def _forget_old(self) -> None:
        """Tombstone the receipts whose dedup window is over, and signals for runs that never
        began."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        old = self._store.expired(now_ms - self._limits.dedup_window_ms)
        if now_s >= self._look_for_old_s:
            self._look_for_old_s = now_s + 60.0
            if self._lanes is not None:
                self._lanes.tidy(now_ms)
            early = self._store.early(now_ms - self._limits.early_signals_ms)
            for run_id in early:
                self._logger.warning("early_signals_expired", run_id=run_id)
            old += early
        for run_id in old:
            keys = list(self._store.keys(run_id))
            self._store.forget(run_id)
            self._add(PendingInput(outs=partial(self._tombstones, keys)))

    def _tombstones(self, keys: list[bytes], headers: Headers) -> list[ProducerRecord]:
        return [self._wire.tombstone(key, self.partition, headers) for key in keys]

    def _adopt_orphans(self) -> None:
        """Run what is to be run although both inputs have been read to their end: somebody moved
        the group's offsets, or the log's retention was shorter than the wait."""
        for run in list(self._store.live.values()):
            if run.run_id in self._flights or run.run_id in self._held:
                continue
            if run.status == "running":
                self._logger.warning("run_adopted", run_id=run.run_id, seq=run.seq)
                self._queue_run(run)
        self._serve_lanes()

    # Ending ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Steps that are running, and decisions that are not committed yet."""
        running = sum(flight.call is not None for flight in self._flights.values())
        return running + len(self._committer) + self._committer.busy

    @property
    def runs_live(self) -> int:
        """Runs that are not over."""
        return len(self._store.live)

    @property
    def oldest_s(self) -> float:
        """For how long the oldest step that is not committed has been asked for."""
        now_s = self._clock.monotonic_s()
        return max((now_s - flight.asked_s for flight in self._flights.values()), default=0.0)

    def hold(self) -> None:
        """Begin no further step until the partition is known to stay."""
        self._holding = True

    def drain(self) -> None:
        """Begin no further step; what is running is still committed."""
        self._draining = True
        if self.ready:
            self._log.pause(self.partition)

    def abandon(self) -> None:
        """Give up what is running; none of it counts as an attempt."""
        self._draining = True
        self.ready = False
        for flight in self._flights.values():
            if flight.call is not None:
                self._executor.give_up(flight.call)
                self._dispatch.release()
        self._flights.clear()


def _rests(run: Run) -> bool:
    """Whether it is for something from outside to let the run go on."""
    return run.wait is not None or run.status in ("paused", "attention", "failed")


def _work(run: Run) -> Work:
    return Work(seq=run.seq, attempt=run.attempt, epoch=run.epoch)
