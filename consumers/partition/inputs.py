"""The records of a partition's inputs: what each one is, and how it is handled.

`read_command` and `read_task` classify a record and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from surefoot.consumers.attempts.attempt import unknown_step
from surefoot.consumers.partition.admission import Admission
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.context import PartitionContext
from surefoot.consumers.partition.in_flight import StepsInFlight
from surefoot.consumers.partition.transaction import InputPosition, PendingInput, RunChange
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.state.machine.decide import decide, ignored_start
from surefoot.state.machine.model import Failure, Input, Operation, StartRun, State
from surefoot.state.ports.log import ConsumerRecord, InputKind
from surefoot.state.records.encoding import decode_command, decode_task, input_of, start_of
from surefoot.state.telemetry import metrics, spans


@dataclass(frozen=True, slots=True)
class UnusableInput:
    """Nothing can be made of it."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A record that another partitioner put here: its run lives in another partition."""

    run_id: str


@dataclass(frozen=True, slots=True)
class RunInput:
    """A record that its run decides on."""

    run_id: str
    event: Input


@dataclass(frozen=True, slots=True)
class StepTask:
    """A record that requests a step of a run."""

    run_id: str
    seq: int


def read_command(
    record: ConsumerRecord, context: PartitionContext, broken: Mapping[str, str]
) -> UnusableInput | Misplaced | RunInput | StartRun:
    """`broken`: runs whose state cannot be read, with the reason."""
    agent = context.agent
    try:
        command = decode_command(record)
        event = None if command.kind == "start" else input_of(command)
    except UndecodableError as error:
        return UnusableInput(Failure(code="undecodable", message=str(error)))
    run_id = command.run_id
    if not context.wire.is_home(run_id, context.partition):
        return Misplaced(run_id)
    if run_id in broken:
        return UnusableInput(Failure(code="state_unreadable", message=broken[run_id]))
    if event is not None:
        return RunInput(run_id, event)
    start = start_of(command, agent.name, agent.version, agent.start_step.name)
    if start.step not in agent.steps:
        return UnusableInput(unknown_step(agent, start.step, agent.version))
    if start.traceparent is None and (begun := spans.begin(agent.name, run_id)) is not None:
        return replace(start, traceparent=begun)
    return start


def read_task(record: ConsumerRecord) -> UnusableInput | StepTask:
    """Whether its run lives here is for its owner to say: a run that is known does."""
    try:
        task = decode_task(record)
    except UndecodableError as error:
        return UnusableInput(Failure(code="undecodable", message=str(error)))
    return StepTask(task["run_id"], task["seq"])


class Inputs:
    """Takes in the records of one partition, each kind in offset order."""

    def __init__(
        self,
        context: PartitionContext,
        committer: Committer,
        steps: StepsInFlight,
        admission: Admission,
    ) -> None:
        self._context = context
        self._committer = committer
        self._steps = steps
        self._admission = admission
        #: tasks read before the outcome of their own commit was known
        self.uncommitted_tasks: list[ConsumerRecord] = []

    def take(self, kind: InputKind, record: ConsumerRecord) -> None:
        """Handle one record."""
        if kind == "commands":
            self._command(record)
        else:
            self._task(record)

    def take_written(self, change: RunChange) -> None:
        """Handle the tasks that a commit has just written. They are ignored when they are read."""
        for seq, offset in change.tasks:
            self._asked_for(("tasks", offset), change.run_id, seq, None)

    def take_uncommitted(self) -> None:
        """Handle the deferred tasks again. The outcome of the commit is known now."""
        early, self.uncommitted_tasks = self.uncommitted_tasks, []
        for record in early:
            self._task(record)

    def _command(self, record: ConsumerRecord) -> None:
        source: InputPosition = ("commands", record.offset)
        match read_command(record, self._context, self._committer.store.broken):
            case UnusableInput(failure):
                self._dead_letter(source, record, failure)
            case Misplaced(run_id):
                self._reroute(source, record, run_id)
            case RunInput(run_id, event):
                if isinstance(event, Operation) and self._committer.was_answered(source):
                    self._committer.done(source)
                else:
                    self._steps.submit(run_id, event, source)
            case StartRun() as start if self._digest_of(start.run_id) is None:
                self._start(source, start, record)
            case StartRun() as start:
                self._repeated(source, start, record)

    def _task(self, record: ConsumerRecord) -> None:
        source: InputPosition = ("tasks", record.offset)
        read, store = read_task(record), self._committer.store
        if isinstance(read, UnusableInput):
            return self._dead_letter(source, record, read.failure)
        run_id = read.run_id
        known = run_id in self._steps.by_run or run_id in store.live
        if not known and not self._context.wire.is_home(run_id, self._context.partition):
            return self._reroute(source, record, run_id)
        if run_id in store.broken:
            failure = Failure(code="state_unreadable", message=store.broken[run_id])
            return self._dead_letter(source, record, failure)
        return self._asked_for(source, run_id, read.seq, record)

    def _digest_of(self, run_id: str) -> bytes | None:
        """Return the digest of the input that the run was started with, or None for no such run."""
        flight, store = self._steps.by_run.get(run_id), self._committer.store
        known = flight.run if flight is not None else store.live.get(run_id)
        told = known or store.receipts.get(run_id)
        return told.input_digest if told is not None else None

    def _start(self, source: InputPosition, start: StartRun, record: ConsumerRecord) -> None:
        """Begin the run.

        Its first step runs before the start is committed, so that a run of one step costs one
        transaction. A start with messages or inherited actions is committed first.
        """
        now_ms = self._context.clock.now_ms()
        run = decide(self._context.agent.rules, State(None), start, now_ms).run
        assert run is not None
        if run.status != "running":
            self._steps.submit(start.run_id, start, source)
        elif (skipped := self._admission.skips(run)) is not None:
            self._ignore(source, start, record, skipped)
        elif self._admission.admit(start, run, source):
            if start.messages or start.actions:  # its first step reads them from memory
                self._steps.submit(start.run_id, start, source)
            else:
                self._steps.start(run, source, start)

    def _repeated(self, source: InputPosition, start: StartRun, record: ConsumerRecord) -> None:
        """Handle a start of a run that exists: the first start holds.

        A different start is recorded in the history. Its parent would wait forever, and is told
        that its branch has failed.
        """
        same = self._digest_of(start.run_id) == start.input_digest
        run = self._committer.store.live.get(start.run_id)
        if same and start.parent is not None and (run is not None or not start.parent.fork):
            same = run is not None and run.parent == start.parent
        self._context.logger.info("start_repeated", run_id=start.run_id, same_input=same)
        if same:
            return self._asked_for(source, start.run_id, 0, None)
        agent = self._context.agent.name
        message = f"there is another run {start.run_id} of agent {agent} already"
        return self._ignore(source, start, record, Failure(code="run_exists", message=message))

    def _asked_for(
        self, source: InputPosition, run_id: str, seq: int, task: ConsumerRecord | None
    ) -> None:
        """Run the requested step, if its run is here and does not have it in flight.

        A task may be read before the outcome of its own commit is known. It is then kept and
        handled again, even if it looks like a copy: the run may have been rewound to the step in
        progress.
        """
        flight = self._steps.by_run.get(run_id)
        run = self._committer.store.live.get(run_id)
        if flight is None and run is not None and run.seq == seq and self._steps.may_run(run):
            self._steps.queue(run, source)
        elif task is not None and self._committer.busy:
            self.uncommitted_tasks.append(task)
        elif flight is not None and flight.run.seq == seq:
            flight.sources.append(source)  # a copy of the request for the step in progress
        else:
            self._committer.done(source)
            self._context.logger.debug("task_skipped", run_id=run_id, seq=seq)

    # Records that move no run ----------------------------------------------------------------

    def _ignore(
        self, source: InputPosition, start: StartRun, record: ConsumerRecord, failure: Failure
    ) -> None:
        """Record in the history that this run will not exist."""
        wire, partition = self._context.wire, self._context.partition
        now_ms = self._context.clock.now_ms()
        records = ignored_start(start, failure, now_ms)
        self._committer.add(
            PendingInput(
                sources=(source,),
                outs=lambda h: [
                    wire.out(each, start.run_id, partition, h, now_ms) for each in records
                ],
                record=record,
            )
        )

    def _reroute(self, source: InputPosition, record: ConsumerRecord, run_id: str) -> None:
        """Forward the record to the partition of its run."""
        wire = self._context.wire
        self._context.logger.warning(
            "rerouted", run_id=run_id, topic=record.topic, offset=record.offset
        )
        self._committer.add(
            PendingInput(
                sources=(source,),
                outs=lambda h: [wire.reroute(record, run_id, h)],
                record=record,
            )
        )

    def _dead_letter(self, source: InputPosition, record: ConsumerRecord, failure: Failure) -> None:
        if self._committer.was_answered(source):
            self._committer.done(source)
            return
        wire = self._context.wire
        metrics.DEAD_LETTERS.add(self._context.agent.name)
        self._context.logger.error(
            "dead_letter",
            topic=record.topic,
            offset=record.offset,
            code=failure.code,
            error=failure.message,
        )
        self._committer.add(
            PendingInput(
                sources=(source,),
                outs=lambda h: [wire.dead_input(record, failure, h)],
                answers=True,
            )
        )
