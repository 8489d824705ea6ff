"""What an owner does with its findings at a takeover.

They are restored runs, commands that retention deleted unread, and steps that no record requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.consumers.attempts.attempt import unknown_step
from surefoot.consumers.partition.admission import Admission
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.context import PartitionContext
from surefoot.consumers.partition.in_flight import StepsInFlight
from surefoot.consumers.partition.step_runner import StepRunner
from surefoot.consumers.partition.timers import Timers
from surefoot.consumers.partition.transaction import PendingInput
from surefoot.schemas.payload import strict_json
from surefoot.state.declare.agent import Agent
from surefoot.state.machine.model import Failure, Park, Run
from surefoot.state.ports.log import INPUT_KINDS, ConsumerRecord, InputKind
from surefoot.state.telemetry import metrics

#: most waiting runs listed in a dead letter about lost commands
WAITING_TOLD = 100


class Takeover:
    """Brings one partition to where its former owner left it."""

    def __init__(
        self,
        context: PartitionContext,
        committer: Committer,
        steps: StepsInFlight,
        runner: StepRunner,
        admission: Admission,
        timers: Timers,
    ) -> None:
        #: whether the runs that no record requested have been adopted
        self.swept = False
        self._context = context
        self._committer = committer
        self._steps = steps
        self._runner = runner
        self._admission = admission
        self._timers = timers

    async def take(self) -> dict[InputKind, int | None]:
        """Own the partition, restore and check its runs, arm their timers. See Committer.take.

        Returns: the offset to begin reading each input at (None: the beginning).
        """
        starts = await self._committer.take()
        self._check_restored()
        if self._committer.lost is not None:
            self.tell_lost(*self._committer.lost)
        return starts

    def _check_restored(self) -> None:
        agent, store, logger = self._context.agent, self._committer.store, self._context.logger
        for run_id, reason in store.broken.items():
            logger.error("checkpoint_unreadable", run_id=run_id, error=reason)
        in_lanes: list[Run] = []
        for run in list(store.live.values()):
            if run.status in ("attention", "failed"):
                continue
            if run.version > agent.version:
                self._steps.held.add(run.run_id)
                logger.warning("run_held", run_id=run.run_id, version=run.version)
                continue
            if run.status != "paused" and _is_stranded(run, agent):
                failure = unknown_step(agent, run.step, run.version)
                logger.error("run_attention", run_id=run.run_id, code=failure.code)
                self._steps.submit(run.run_id, Park(failure=failure))
                continue
            self._runner.resumes(run)
            self._timers.arm(run)
            in_lanes.append(run)
        self._admission.restore(in_lanes)

    def tell_lost(self, start: int, end: int) -> None:
        """Report commands that retention deleted unread.

        The commit that skips them writes a dead letter. What a run waits for arrives as a command:
        it may have been among them, and nobody will send it again unprompted. So waiting runs are
        listed.
        """
        context = self._context
        waiting = [
            run.run_id
            for run in self._committer.store.live.values()
            if run.wait is not None and run.status in ("waiting", "paused")
        ]
        told = waiting[:WAITING_TOLD]
        message = f"offsets {start} to {end - 1} of the commands were deleted before they were read"
        if waiting:
            message += (
                f"; {len(waiting)} runs wait for what may have been among them: {', '.join(told)}"
            )
        failure = Failure(code="commands_lost", message=message)
        metrics.INPUTS_LOST.add(context.agent.name, "commands", by=end - start)
        context.logger.error(
            "commands_lost", start=start, end=end, runs_waiting=len(waiting), waiting=told
        )
        topic, now_ms = context.wire.topics.commands, context.clock.now_ms()
        place = ConsumerRecord(topic, context.partition, start, now_ms, None, None)
        more = (
            ("sf-dead-until", b"%d" % end),
            ("sf-dead-waiting", strict_json(told)),
        )
        self._committer.add(
            PendingInput(outs=lambda h: [context.wire.dead_input(place, failure, (*h, *more))])
        )

    def sweep(self, positions: Mapping[InputKind, int]) -> None:
        """Once both inputs were read to their end, run what no record requests but should run.

        That happens when somebody moved the group's offsets, or when the log's retention was
        shorter than the wait.
        """
        if self.swept or len(positions) < len(INPUT_KINDS):
            return
        self.swept = True
        for run in list(self._committer.store.live.values()):
            if run.run_id not in self._steps.by_run and self._steps.may_run(run):
                self._context.logger.warning("run_adopted", run_id=run.run_id, seq=run.seq)
                self._steps.queue(run)
        self._admission.serve()


def _is_stranded(run: Run, agent: Agent) -> bool:
    """Whether the run is at a step that no longer exists, with no upcaster to map it."""
    mapped = any(run.version <= number for number in agent.upcasters)
    return run.step not in agent.steps and not mapped
