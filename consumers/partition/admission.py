"""Which run, and which step, may begin: the lanes and rates of an agent with flow control.

Without flow control every run and every step may begin at once.
"""

from __future__ import annotations

import heapq

from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.context import PartitionContext
from surefoot.consumers.partition.in_flight import StepsInFlight
from surefoot.consumers.partition.transaction import InputPosition
from surefoot.state.admission.lanes import Lanes
from surefoot.state.machine.model import Defer, Failure, Run, StartRun
from surefoot.state.machine.operations import Cancel
from surefoot.state.names.partitioner import affinity, affinity_order


class Admission:
    """Runs of one key share a lane. A run that may not begin yet waits there for its turn."""

    def __init__(
        self, context: PartitionContext, committer: Committer, steps: StepsInFlight
    ) -> None:
        self._agent = context.agent
        self._clock = context.clock
        self._committer = committer
        self._steps = steps
        self._lanes = Lanes(self._agent.flow) if self._agent.flow is not None else None
        #: steps held back by their rate, and when each may run: epoch ms
        self._rate_limited: list[tuple[int, str]] = []

    @property
    def next_ms(self) -> int | None:
        """When the next lane or rate-limited step may advance: epoch ms, or None."""
        due = [self._rate_limited[0][0]] if self._rate_limited else []
        if self._lanes is not None and self._lanes.due_ms is not None:
            due.append(self._lanes.due_ms)
        return min(due, default=None)

    @property
    def rate_limits(self) -> bool:
        """Whether a step waits for its rate."""
        return bool(self._rate_limited)

    def skips(self, run: Run) -> Failure | None:
        """Return why a requested run is to be skipped, or None."""
        if self._lanes is None or self._agent.flow is None or self._agent.flow.singleton != "skip":
            return None
        others = self._others(self._lanes, affinity(run.run_id))
        if not others:
            return None
        message = f"run {others[0]} of its key is under way, and the flow skips a second one"
        return Failure(code="skipped", message=message)

    def admit(self, start: StartRun, run: Run, source: InputPosition) -> bool:
        """Return whether a requested run may begin at once; otherwise keep it for later."""
        lanes, flow = self._lanes, self._agent.flow
        if lanes is None or flow is None:
            return True
        name, now_ms = affinity(run.run_id), self._clock.now_ms()
        if flow.singleton == "cancel":
            self._replace(self._others(lanes, name), run)
        elif flow.debounce_ms:
            self._replace(lanes.not_begun(name), run)
        if lanes.is_free(name, now_ms):
            lanes.begin(name, run.run_id, now_ms)
            return True
        # Commit their starts first. A worker that takes over would find this run alone in its lane,
        # and begin it before them.
        for before in lanes.under_way(name):
            self._steps.commit_start(before)
        lanes.expect(name, run.run_id, self._agent.priority_of(run.payload))
        self._steps.decide(self._steps.add(run, source, pending=(start,)), Defer())
        return False

    def moved(self, run: Run) -> None:
        """Update the lane of a run that has changed; the lane may have room for another run."""
        if self._lanes is None:
            return
        name = affinity(run.run_id)
        if run.terminal or run.status == "attention":
            self._lanes.leave(name, run.run_id)
        elif run.status == "pending":
            self._lanes.wait(name, run.run_id, run.created_ms)
        else:
            self._lanes.come_back(name, run.run_id)
        self._serve(self._lanes, name)

    def serve(self) -> None:
        """Begin the runs whose turn has come, in every lane."""
        if self._lanes is not None:
            for name in self._lanes.names():
                self._serve(self._lanes, name)

    def begin_due(self) -> None:
        """Begin the runs and steps whose time has come."""
        now_ms = self._clock.now_ms()
        while self._rate_limited and self._rate_limited[0][0] <= now_ms:
            self._steps.queue_again(heapq.heappop(self._rate_limited)[1])
        if self._lanes is not None:
            for name in self._lanes.due(now_ms):
                self._serve(self._lanes, name)

    def slows_down(self, run: Run) -> bool:
        """Return whether the step's rate holds it back. It is queued again when it may run."""
        step = self._agent.steps.get(run.step)
        if self._lanes is None or step is None or step.rate is None:
            return False
        name, now_ms = affinity(run.run_id), self._clock.now_ms()
        at_ms = self._lanes.step_at_ms(name, run.step, step.rate, now_ms)
        if at_ms:
            heapq.heappush(self._rate_limited, (at_ms, run.run_id))
            self._committer.wake.set()
        return bool(at_ms)

    def tidy(self) -> None:
        """Forget empty lanes."""
        if self._lanes is not None:
            self._lanes.tidy(self._clock.now_ms())

    def restore(self, runs: list[Run]) -> None:
        """Rebuild the lanes.

        Args: runs: those that are neither over nor set aside for a person.
        """
        lanes, flow = self._lanes, self._agent.flow
        if lanes is None or flow is None:
            return
        rates = any(step.rate is not None for step in self._agent.steps.values())
        if rates or flow.throttle is not None:
            for run_id, receipt in self._committer.store.receipts.items():
                lanes.restore(affinity(run_id), receipt.updated_ms)
        latest: dict[str, Run] = {}
        # Runs of the same millisecond stay in the order of their commits, which is that of their
        # requests.
        for run in sorted(runs, key=lambda run: (affinity_order(run.run_id), run.created_ms)):
            name = affinity(run.run_id)
            if run.status != "pending":
                lanes.restore(name, run.updated_ms, run.run_id)
                continue
            before = latest.get(name)
            if flow.debounce_ms and before is not None:
                self._replace([before.run_id], run)
            latest[name] = run
            lanes.expect(name, run.run_id, self._agent.priority_of(run.payload))
            lanes.wait(name, run.run_id, run.created_ms)

    def _others(self, lanes: Lanes, name: str) -> list[str]:
        return [*lanes.under_way(name), *lanes.not_begun(name)]

    def _replace(self, others: list[str], run: Run) -> None:
        """Cancel the runs whose place this run takes.

        The command's id is a function of this run, so that repeating the command changes nothing.
        """
        for other in others:
            self._steps.submit(other, Cancel(id=f"flow:{run.run_id}", by=f"run {run.run_id}"))

    def _serve(self, lanes: Lanes, name: str) -> None:
        """Begin the runs of the lane whose turn has come."""
        live = self._committer.store.live
        while (run_id := lanes.take(name, self._clock.now_ms())) is not None:
            run = live.get(run_id)
            if run is not None and run.status == "pending" and run_id not in self._steps.by_run:
                self._steps.queue(run)
            elif run is None or run.status != "running":
                lanes.leave(name, run_id)
