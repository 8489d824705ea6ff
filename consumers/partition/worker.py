"""A worker of one agent: one member of its consumer group, and the owners of its partitions.

One task polls from start to end, also with nothing assigned and while draining: a group evicts a
member that stops polling, and a cancelled poll disables that very safeguard. Each assigned
partition has one task that serves it. A partition that was fenced, or whose owner failed, is taken
over again for as long as it stays assigned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import structlog

from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.ending import to_its_end
from surefoot.consumers.partition.in_flight import EndingSteps
from surefoot.consumers.partition.owner import Owner
from surefoot.consumers.polling import poll_on
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import FencedError, NotAllowed
from surefoot.state.names.topics import OUTBOX
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import Assignment, ConsumerRecord, InputGone, InputKind, Log
from surefoot.state.records.encoding import Wire
from surefoot.state.telemetry import metrics


class Slots:
    """Bounds the steps in flight, and shares them among the partitions in turn."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.free = limit
        self.ending = EndingSteps(clock)
        self._ring: deque[Owner] = deque()
        self._waiting: set[Owner] = set()

    def ready(self, owner: Owner) -> None:
        """Announce that the owner has a step to begin."""
        if owner not in self._waiting:
            self._waiting.add(owner)
            self._ring.append(owner)
        self._fill()

    def release(self) -> None:
        """Return a slot."""
        self.free += 1
        self._fill()

    def _fill(self) -> None:
        while self.free > 0 and self._ring:
            owner = self._ring.popleft()
            if owner.dispatch_one():
                self.free -= 1
                self._ring.append(owner)
            else:
                self._waiting.discard(owner)


class Worker:
    """Runs an agent's steps until it is asked to stop."""

    def __init__(
        self,
        *,
        agent: Agent,
        log: Log,
        wire: Wire,
        executor: Executor,
        clock: Clock,
        limits: OwnerLimits,
        in_flight: int,
        deadlines: ConsumerDeadlines = DEADLINES,
    ) -> None:
        self.agent = agent
        #: when the poll task last ran, for the watchdog; monotonic seconds
        self.polled_s = clock.monotonic_s()
        self._log = log
        self._wire = wire
        self._executor = executor
        self._clock = clock
        self._limits = limits
        self._deadlines = deadlines
        self._slots = Slots(in_flight, clock)
        #: by partition
        self.owners: dict[int, Owner] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._draining = False
        #: whether the group has ever told this member its partitions, which may be none
        self._joined = False
        self._stopped = False
        #: why no partition can be taken over, once that is certain
        self._denied: NotAllowed | None = None
        self._announced = False
        self._logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__).bind(
            agent=agent.name
        )

    @property
    def ready(self) -> bool:
        """Whether every assigned partition is being served."""
        return all(owner.ready for owner in self.owners.values())

    @property
    def in_service(self) -> bool:
        """Whether this member of the group does its part: it may have no partition and stand by.

        For any thread."""
        proved = self._joined and self._log.lease_left_s() > 0
        return proved and not self._draining and all(o.ready for o in list(self.owners.values()))

    @property
    def partitions(self) -> list[int]:
        """The partitions assigned to this worker."""
        return sorted(self.owners)

    @property
    def settled(self) -> bool:
        """Whether nothing more will happen by itself, once every record has been read."""
        owners = self.owners.values()
        return bool(owners) and self.ready and all(owner.settled for owner in owners)

    def measure(self) -> None:
        """Update the gauges."""
        owners, name = self.owners.values(), self.agent.name
        live = sum(owner.runs_live for owner in owners)
        metrics.PARTITIONS.set(len(owners), name)
        metrics.RUNS_LIVE.set(live, name)
        metrics.OLDEST_TASK.set(max((owner.steps.oldest_s for owner in owners), default=0.0), name)
        if name == OUTBOX:
            metrics.OUTBOX_PENDING.set(live)

    async def run(self, stop: asyncio.Event, *, drain_s: float, abort: asyncio.Event) -> bool:
        """Work until `stop` is set, then drain.

        Draining begins nothing, finishes and commits what is running for up to `drain_s` seconds
        (or until `abort`), leaves the group, and closes.

        Returns: True if nothing had to be given up.
        Raises: whatever ended the poll task, if anything did; NotAllowed — the log denies a right.
            The process should then exit, for its supervisor to restart it.
        """
        await self._log.start(self._changed, self._rebalancing)
        polling = asyncio.create_task(
            poll_on(
                self._poll,
                self._take,
                clock=self._clock,
                alive=self._polls_on,
                logger=self._logger,
                denied_s=self._deadlines.denied_s,
            )
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            clean = not polling.done() and await self._drain(drain_s, abort)
        finally:
            stopping.cancel()
            self._stopped = True
            await to_its_end(self._end(polling))
        polling.result()
        return clean

    def _polls_on(self) -> bool:
        if self._denied is not None:
            raise self._denied
        self.polled_s = self._clock.monotonic_s()
        return not self._stopped

    async def _poll(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        try:
            return await self._log.poll(timeout_s)
        except InputGone as gone:
            owner = self.owners.get(gone.partition)
            if owner is not None and owner.ready:
                owner.missed(gone)
            return []

    def _take(self, records: list[tuple[InputKind, ConsumerRecord]]) -> None:
        for kind, record in records:
            owner = self.owners.get(record.partition)
            if owner is not None and owner.ready:
                owner.ingest(kind, record)
        if not self._announced and self.owners and self.ready:
            self._announced = True
            self._logger.info("worker_ready", partitions=self.partitions)

    # Partitions come and go ------------------------------------------------------------------

    async def _rebalancing(self) -> None:
        """Let running steps finish, so that the next owner of a partition does not run them again.

        Steps longer than `handover_s` are not waited for: they run again on the next owner.
        """
        for owner in self.owners.values():
            owner.hold()
        await self._settle(self._limits.handover_s, asyncio.Event())

    def _changed(self, change: Assignment) -> None:
        self._logger.info(
            "assignment",
            gained=sorted(change.gained),
            retained=sorted(change.retained),
            lost=sorted(change.lost),
        )
        metrics.REBALANCES.add(self.agent.name)
        self._joined = True
        self._announced = False
        for partition in (change.lost | change.gained) & self.owners.keys():
            self._drop(partition)
        for partition in change.retained & self.owners.keys():
            self.owners[partition].resumed()
        if not self._draining:
            for partition in sorted(change.gained):
                self._adopt(partition, after_s=0.0)

    def _adopt(self, partition: int, *, after_s: float) -> None:
        owner = Owner(
            agent=self.agent,
            partition=partition,
            log=self._log,
            wire=self._wire,
            executor=self._executor,
            dispatch=self._slots,
            clock=self._clock,
            limits=self._limits,
            deadlines=self._deadlines,
        )
        self.owners[partition] = owner
        self._serving[partition] = asyncio.create_task(
            self._serve(owner, after_s), name=f"serve {self.agent.name}/{partition}"
        )

    async def _serve(self, owner: Owner, after_s: float) -> None:
        """Serve until dropped. However an owner ends, a new one takes the partition over.

        The new one starts from the log alone and inherits nothing of the old one's memory.
        """
        try:
            await asyncio.sleep(after_s)
            await owner.serve()
        except FencedError as error:
            metrics.PRODUCER_FENCED.add(self.agent.name)
            self._logger.warning("fenced", partition=owner.partition, error=str(error))
        except asyncio.CancelledError:
            raise
        except NotAllowed as error:
            self._denied = error
        except Exception:
            metrics.OWNER_FAILED.add(self.agent.name)
            self._logger.exception("owner_failed", partition=owner.partition)
        if self.owners.get(owner.partition) is owner:
            self._log.pause(owner.partition)
            self._drop(owner.partition)
            if not self._draining:
                self._adopt(owner.partition, after_s=1.0)

    def _drop(self, partition: int) -> None:
        owner = self.owners.pop(partition)
        owner.abandon()
        task = self._serving.pop(partition)
        closing = asyncio.create_task(
            self._close(owner, task), name=f"close {self.agent.name}/{partition}"
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, owner: Owner, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await owner.close()

    # Ending ----------------------------------------------------------------------------------

    async def _drain(self, drain_s: float, abort: asyncio.Event) -> bool:
        self._draining = True
        for owner in self.owners.values():
            owner.drain()
        await self._settle(drain_s, abort)
        given_up = self._in_flight()
        self._logger.info("drained", given_up=given_up)
        return given_up == 0

    async def _settle(self, within_s: float, abort: asyncio.Event) -> None:
        """Wait until nothing is in flight, for at most `within_s` seconds or until `abort`."""
        deadline_s = self._clock.monotonic_s() + within_s
        while self._in_flight() and not abort.is_set():
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(0.02, left_s)):
                    await abort.wait()

    def _in_flight(self) -> int:
        return sum(owner.in_flight for owner in self.owners.values())

    async def _end(self, polling: asyncio.Task[None]) -> None:
        self._draining = True
        for partition in list(self.owners):
            self._drop(partition)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.wait({polling})
        await self._log.stop(leave=True)
