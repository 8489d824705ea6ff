"""Processes in memory, under virtual time, that can be killed at every commit.

The workers are the real ones; what is replaced is their surroundings: a broker in memory, a clock
that jumps, an executor that runs steps on the same loop. A killed process stops in the middle of
its work: none of its code runs any more, not even `finally`, as after SIGKILL. What it leaves is in
the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from surefoot.consumers.attempts.attempt import StepCall
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog, EmbeddedOwnership
from surefoot.infra.embedded.memory import MemoryBroker
from surefoot.infra.simulation.time import VirtualClock, VirtualLoop, in_thread
from surefoot.state.declare.agent import Agent
from surefoot.state.machine.model import Run
from surefoot.state.names.topics import AgentTopics, agent_specs, dead_spec
from surefoot.state.ports.log import Committed, ConsumerRecord, InputKind, ProducerRecord
from surefoot.state.records.encoding import Wire

#: largest record, in bytes
RECORD_BYTES = 1_000_000
_OVERHEAD = 512
#: interval for all periodic work of the engine, in seconds: nobody watches, and a virtual year
#: should not consist of half seconds
_SELDOM_S = 30 * 86_400.0

LIMITS = OwnerLimits(
    record_bytes=RECORD_BYTES - _OVERHEAD, forward_after_s=_SELDOM_S, idle_commit_s=_SELDOM_S
)

#: where a commit can be cut off: before it takes effect, or after it, before its owner knows
Moment = Literal["before", "after"]


class Point(NamedTuple):
    """A point at which a process can be killed."""

    #: number of the commit, from 1
    commit: int
    moment: Moment


@dataclass(slots=True)
class World:
    """What survives a process."""

    clock: VirtualClock
    partitions: int
    app: str = "surefoot"
    #: where to kill the process
    kill_at: Point | None = None
    #: the records of each commit that was begun, in order
    commits: list[Sequence[ProducerRecord]] = field(default_factory=list)
    #: called for each attempt that begins
    on_attempt: Callable[[Run], None] = lambda _run: None
    broker: MemoryBroker = field(init=False)
    groups: dict[str, EmbeddedGroup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker = MemoryBroker(self.clock)
        self.broker.create([dead_spec(self.app, RECORD_BYTES)])

    def topics(self, agent: str) -> AgentTopics:
        return AgentTopics(self.app, agent)

    def group(self, agent: str) -> EmbeddedGroup:
        """Return an agent's consumer group; creates the agent's topics."""
        self.broker.create(agent_specs(self.app, agent, self.partitions, RECORD_BYTES))
        return self.groups.setdefault(agent, EmbeddedGroup(self.partitions))


class Process:
    """The workers of some agents, on one event loop."""

    def __init__(self, world: World, agents: Sequence[Agent]) -> None:
        self.world = world
        self.loop = VirtualLoop(world.clock)
        self.killed = False
        #: the error that ended the process by itself; None is the normal case
        self.failure: BaseException | None = None
        self._workers: list[tuple[Worker, _Log]] = []
        self._executor: _Executor | None = None
        self._all: list[asyncio.Task[Any]] = []
        self.loop.set_exception_handler(self._reported)
        self._main = self.loop.create_task(self._run(agents))

    async def _run(self, agents: Sequence[Agent]) -> None:
        executor = self._executor = _Executor(self.world)
        for agent in agents:
            topics = self.world.topics(agent.name)
            log = _Log(self, topics=topics, group=self.world.group(agent.name))
            worker = Worker(
                agent=agent,
                log=log,
                wire=Wire(self.world.app, topics, self.world.partitions),
                executor=executor,
                clock=self.world.clock,
                limits=LIMITS,
                in_flight=256,
            )
            self._workers.append((worker, log))
        never = asyncio.Event()
        try:
            await asyncio.gather(
                *(worker.run(never, drain_s=0.0, abort=never) for worker, _ in self._workers)
            )
        except Exception as error:  # noqa: BLE001  (raised where the process is driven)
            self._fail(error)

    def _reported(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Handle an error that asyncio found unretrieved."""
        error = context.get("exception")
        self._fail(error if isinstance(error, BaseException) else RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.loop.stop()

    # For the driver --------------------------------------------------------------------------

    def settled(self) -> bool:
        """Whether nothing will happen by itself: every run is over, or waits for outside input.

        A wait with a time limit counts as settled, a wait for time alone does not."""
        return bool(self._workers) and all(worker.settled for worker, _ in self._workers)

    def busy(self) -> list[str]:
        """Return the attempts in progress, longest first."""
        return self._executor.busy() if self._executor is not None else []

    # Killing ---------------------------------------------------------------------------------

    async def reach(self, number: int, moment: Moment) -> None:
        """Hook: a commit has reached this point. Kills the process if it is to die here."""
        if self.killed or self.world.kill_at == (number, moment):
            self.kill()
            await self.loop.create_future()

    def kill(self) -> None:
        """Kill the process: none of its code runs any more, and nothing is cleaned up."""
        self.killed = True
        self._all = list(asyncio.all_tasks(self.loop))  # asyncio holds them only weakly
        for _, log in self._workers:
            log.vanish()
        self.loop.stop()

    def bury(self) -> None:
        """End what is left of the process, without reports, once nobody looks at the world."""
        if not self.killed:
            self.kill()
        self._all.clear()
        self.loop.bury()


class _Log(EmbeddedLog):
    """Reports each point of a commit at which the process can be killed."""

    def __init__(self, process: Process, *, topics: AgentTopics, group: EmbeddedGroup) -> None:
        super().__init__(broker=process.world.broker, group=group, topics=topics, slot=0)
        self._process = process

    async def poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        """Poll with a long timeout: news wakes it, so frequent polls would find nothing."""
        return await super().poll(max(timeout_s, _SELDOM_S))

    def _owned(self, partition: int, epoch: int) -> _Ownership:
        return _Ownership(self._process, self._topics, partition, epoch)


class _Ownership(EmbeddedOwnership):
    def __init__(self, process: Process, topics: AgentTopics, partition: int, epoch: int) -> None:
        super().__init__(process.world.broker, topics, partition, epoch)
        self._process = process
        self._number = 0

    async def commit(
        self, records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        commits = self._process.world.commits
        commits.append(records)
        self._number = len(commits)
        return await super().commit(records, offsets)

    async def _end(self) -> None:
        await super()._end()
        await self._process.reach(self._number, "before")

    async def _answer(self) -> None:
        await super()._answer()
        await self._process.reach(self._number, "after")


class _Executor(Executor):
    """Runs steps on the engine's loop; a step that is not `async def`, in one go."""

    def __init__(self, world: World) -> None:
        super().__init__(world.clock)
        self._world = world

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def start(self) -> None:
        """Do nothing: the loop already runs."""

    def stop(self) -> None:
        """Do nothing: the loop belongs to the process."""

    def _begin(self, call: StepCall) -> None:
        self._world.on_attempt(call.run)
        super()._begin(call)

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        value, error = in_thread(fn, *args)
        if error is not None:
            raise error
        return value
