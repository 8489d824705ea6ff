"""Starts an agent's runs from one topic: one member of that trigger's consumer group.

One task polls, from start to end; each assigned partition has a task that serves it. A rebalance
ends them all, after the transactions that have begun; the next owner of a partition takes it over
from the log alone.
"""

from __future__ import annotations

import asyncio

import structlog

from surefoot.consumers.backoff import Denials, backoff
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.consumers.partition.ending import to_its_end
from surefoot.consumers.polling import poll_on
from surefoot.consumers.topic_triggers.mapping import EventMapping
from surefoot.consumers.topic_triggers.owner import TriggerOwner
from surefoot.state.errors import FencedError, NotAllowed, Unavailable
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.ports.sources import OffsetGone, SourceLog

#: pause before a partition that was fenced, or whose owner failed, is taken over again, in seconds
AGAIN_S = 1.0


class EventWorker:
    """A source (see infra.sources.supervise): `run` continues until it is cancelled."""

    def __init__(
        self,
        *,
        mapping: EventMapping,
        log: SourceLog,
        clock: Clock,
        settle_s: float,
        deadlines: ConsumerDeadlines = DEADLINES,
    ) -> None:
        self.name = f"events of {mapping.trigger.topic} for {mapping.agent.name}"
        #: when the poll task was last seen alive, for the watchdog; monotonic seconds
        self.polled_s = float("inf")
        self._mapping = mapping
        self._log = log
        self._clock = clock
        #: how long transactions that have begun may take to end
        self._settle_s = settle_s
        self._deadlines = deadlines
        self._intakes: dict[int, TriggerOwner] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._stopping = False
        #: whether this member of the group knows its partitions, which may be none
        self._joined = False
        #: why no partition can be taken over, once it is certain
        self._denied: NotAllowed | None = None
        self._logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__).bind(
            agent=mapping.agent.name, topic=mapping.trigger.topic
        )

    @property
    def ready(self) -> bool:
        """Whether every assigned partition is being read."""
        return bool(self._intakes) and all(intake.ready for intake in self._intakes.values())

    @property
    def in_service(self) -> bool:
        """Whether this member of the group does its part: it may have no partition and stand by.

        For any thread."""
        return self._joined and all(intake.ready for intake in list(self._intakes.values()))

    async def run(self) -> None:
        """Raises what ended it, a right that stays denied too; it can then be run again.
        Cancelled, it finishes the transactions that have begun, leaves the group, and closes."""
        self._stopping = False
        await self._settle_start()
        polling: asyncio.Task[None] | None = None
        try:
            await self._log.start(self._assigned, self._revoked)
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
            await asyncio.shield(polling)
        finally:
            self._stopping = True
            await to_its_end(self._close(polling))

    async def _close(self, polling: asyncio.Task[None] | None) -> None:
        await self._revoked()
        if polling is not None:
            await asyncio.wait({polling})
            if not polling.cancelled():
                polling.exception()  # `run` raises it
        await self._log.stop()
        self.polled_s = float("inf")

    async def _settle_start(self) -> None:
        denials = Denials(self._clock, self._deadlines.denied_s)
        for wait_s in backoff(self._clock):
            try:
                await self._log.settle_start(self._mapping.trigger.start)
            except Unavailable as error:
                self._logger.warning("start_retry", error=str(error))
                denials.look(error)
            else:
                return
            await asyncio.sleep(wait_s)

    def _polls_on(self) -> bool:
        if self._denied is not None:
            raise self._denied
        self.polled_s = self._clock.monotonic_s()
        return not self._stopping

    async def _poll(self, timeout_s: float) -> list[ConsumerRecord]:
        try:
            return await self._log.poll(timeout_s)
        except OffsetGone as gone:
            if gone.partition in self._intakes:
                self._intakes[gone.partition].again()
            return []

    def _take(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            intake = self._intakes.get(record.partition)
            if intake is not None and intake.ready:
                intake.ingest(record)

    def _assigned(self, partitions: frozenset[int]) -> None:
        self._logger.info("assignment", partitions=sorted(partitions))
        self._joined = True
        for partition in sorted(partitions):
            self._adopt(partition, after_s=0.0)

    async def _revoked(self) -> None:
        self._joined = False
        for intake in self._intakes.values():
            intake.finish()
        serving = set(self._serving.values())
        self._intakes.clear()
        self._serving.clear()
        if serving:
            _, late = await asyncio.wait(serving, timeout=self._settle_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _adopt(self, partition: int, *, after_s: float) -> None:
        if self._stopping:
            return
        intake = TriggerOwner(
            mapping=self._mapping,
            partition=partition,
            log=self._log,
            clock=self._clock,
            deadlines=self._deadlines,
        )
        self._intakes[partition] = intake
        self._serving[partition] = asyncio.create_task(self._serve(intake, after_s))

    async def _serve(self, intake: TriggerOwner, after_s: float) -> None:
        """Serve a partition. When its owner ends, a new one takes over while it stays assigned."""
        try:
            await asyncio.sleep(after_s)
            await intake.serve()
        except FencedError as error:
            self._logger.warning("fenced", partition=intake.partition, error=str(error))
        except NotAllowed as error:
            self._denied = error
        except Exception:
            self._logger.exception("intake_failed", partition=intake.partition)
        finally:
            await intake.close()
        if self._intakes.get(intake.partition) is intake:
            self._log.pause(intake.partition)
            self._adopt(intake.partition, after_s=AGAIN_S)
