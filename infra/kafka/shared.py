"""Transactions that the partitions of one group member share: one for all that is ready.

A transaction costs the broker the same whatever is in it. While one is being written, the
partitions that have something to commit wait for the next.

The fence is the group (KIP-447): each transaction has the offsets of every partition whose state it
writes, with the member's generation, and the broker refuses those of a member that the group has
put out. Two transactional ids take turns, since a broker accepts nothing for an id while it writes
the markers of that id's last transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from surefoot.infra.kafka.txn import RETIRE_S, TransactionalProducer, commit_deadline_s
from surefoot.infra.kafka_client.errors import unavailable
from surefoot.infra.kafka_client.protocol import UnstableOffsetCommit
from surefoot.infra.kafka_client.transactions import CommittedOffset, Membership
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import FencedError, OutcomeUnknown, RecordRefused, Unavailable
from surefoot.state.names.topics import transactional_ids
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ProducerRecord

log = structlog.get_logger(__name__)

#: how long an open transaction may hold an offset before its member's ids are fenced, in seconds
UNSTABLE_S = 0.5
#: between two looks at an offset that is not stable, in seconds
_UNSTABLE_POLL_S = 0.01


@dataclass(slots=True, eq=False)
class Holding:
    """A partition, from its taking to its loss."""

    partition: int
    #: the ids of the members whose transactions are the latest in the group's offsets
    former: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class _Share:
    """What one partition has in a transaction."""

    holding: Holding
    records: Sequence[ProducerRecord]
    offsets: Mapping[TopicPartition, int]
    #: in a transaction of its own: the records of one that it was together with were refused
    alone: bool = False
    done: asyncio.Future[list[int]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def succeed(self, offsets: list[int]) -> None:
        if not self.done.done():
            self.done.set_result(offsets)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # its owner may have gone


class SharedTransactions:
    """The transactions of one member of a group. For one event loop."""

    def __init__(self, instance: str, settings: Settings, clock: Clock) -> None:
        """`instance` is the member's group.instance.id: a process that starts under the same name
        fences the transactions of this one."""
        self._instance = instance
        self._settings = settings
        self._clock = clock
        first, second = transactional_ids(instance)
        self._idle = deque(
            (
                TransactionalProducer(first, settings, clock),
                TransactionalProducer(second, settings, clock),
            )
        )
        self._producers = tuple(self._idle)
        self._starting = asyncio.Lock()
        self._waiting: deque[_Share] = deque()
        #: the partitions that have a share in the transaction being written
        self._writing: frozenset[int] = frozenset()
        self._written = asyncio.Event()
        self._written.set()
        self._writer: asyncio.Task[None] | None = None
        self._member: Membership | None = None
        self._partitions: frozenset[int] = frozenset()
        #: by partition
        self._holdings: dict[int, Holding] = {}
        self._admitted = asyncio.Event()

    def admit(self, member: Membership, partitions: frozenset[int], kept: frozenset[int]) -> None:
        """Commit as this member, for these partitions only.

        What waits for a partition that was not `kept` is refused: another member may have had the
        partition meanwhile."""
        for holding in list(self._holdings.values()):
            if holding.partition not in kept:
                self.drop(holding)
        self._member, self._partitions = member, partitions
        self._admitted.set()

    async def hold(self) -> None:
        """Begin no transaction until `admit`, and wait for the one being written, for a while.

        Not to wait for it is safe: the broker refuses its offsets once the group has moved on."""
        self._admitted.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(RETIRE_S):
                await self._written.wait()

    async def take(self, partition: int) -> Holding:
        """Make sure that nothing of the partition is being written, and that the next can begin.

        A former holding of the partition commits nothing more.

        Raises: Unavailable.
        """
        if (former := self._holdings.get(partition)) is not None:
            self.drop(former)
        holding = self._holdings[partition] = Holding(partition)
        while partition in self._writing:
            await self._written.wait()
        async with self._starting:
            for producer in list(self._idle):
                if not producer.ready:
                    await producer.start()
        return holding

    def drop(self, holding: Holding) -> None:
        """Commit nothing more for it; what is being written continues. Safe to call twice."""
        if self._holdings.get(holding.partition) is holding:
            del self._holdings[holding.partition]
        for share in self._waiting:
            self._holds(share)

    async def commit(
        self,
        holding: Holding,
        records: Sequence[ProducerRecord],
        offsets: Mapping[TopicPartition, int],
    ) -> list[int]:
        """Write them in the next transaction, together with those of other partitions.

        Returns: the offset of each record, in the order given.
        Raises: as ports.Ownership.commit. What one partition's records are refused for does not
            concern the others.
        Under cancellation: the transaction continues."""
        share = _Share(holding, records, offsets)
        if self._holds(share):
            self._waiting.append(share)
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._write())
        return await share.done

    async def committed(
        self, holding: Holding, group: str, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's offsets once they are final.

        Raises: Unavailable.
        """
        producer = self._producers[0]
        began_s, fenced = self._clock.monotonic_s(), False
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                while True:
                    try:
                        found = await producer.committed(group, places, stable=True)
                    except UnstableOffsetCommit:
                        if not fenced and self._clock.monotonic_s() - began_s > UNSTABLE_S:
                            fenced = True
                            last = await producer.committed(group, places, stable=False)
                            await self.fence(_members(group, last))
                    else:
                        holding.former = _members(group, found)
                        return found
                    await asyncio.sleep(_UNSTABLE_POLL_S)
        except (TimeoutError, KafkaError) as error:
            raise unavailable("committed offsets", error, self._settings) from error

    async def name(self, holding: Holding, offsets: Mapping[TopicPartition, int]) -> None:
        """Have the metadata of these offsets, which are the committed ones, name this member.

        In no transaction, so whole or not at all: a member that dies in its first transaction of
        the partition has its name there.

        Raises: Unavailable; OutcomeUnknown — no transaction begins before the next `admit`: a
            commit that arrives late would set the offsets back, until the generation is over."""
        if holding.former == {self._instance}:
            return
        await self._admitted.wait()
        if not self._has(holding):
            raise Unavailable("SF3002", f"partition {holding.partition} was given up")
        member = self._member
        assert member is not None, "admit() comes first"
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                await self._producers[0].name(member, offsets)
        except (TimeoutError, OutcomeUnknown) as error:
            self._admitted.clear()
            raise OutcomeUnknown(f"offsets of partition {holding.partition}: {error!r}") from error
        except KafkaError as error:
            raise unavailable("committing offsets", error, self._settings) from error

    async def fence(self, members: frozenset[str]) -> None:
        """End the open transactions of former owners: one that died cannot, until its timeout.

        Raises: Unavailable.
        """
        for member in sorted(members - {self._instance}):
            log.info("former_owner_fenced", member=member)
            for identity in transactional_ids(member):
                producer = TransactionalProducer(identity, self._settings, self._clock)
                await producer.start()
                await producer.retire()

    async def high_watermark(self, place: TopicPartition) -> int:
        """Return the end of the partition: everything acknowledged lies before it.

        Raises: KafkaError.
        """
        return await self._producers[0].high_watermark(place)

    async def close(self) -> None:
        """Write nothing more; an open transaction is left to be fenced. Safe to call twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        for share in self._waiting:
            share.fail(OutcomeUnknown("the worker has stopped"))
        for producer in self._producers:
            await producer.retire()

    async def _write(self) -> None:
        while self._waiting:
            await self._admitted.wait()
            if shares := self._next_shares():
                await self._transact(shares)

    def _next_shares(self) -> list[_Share]:
        """Take what the next transaction has from what waits: all of it, or one share alone."""
        while self._waiting and self._waiting[0].alone:
            share = self._waiting.popleft()
            if self._holds(share):
                return [share]
        shares, self._waiting = list(self._waiting), deque()
        return [share for share in shares if self._holds(share)]

    def _holds(self, share: _Share) -> bool:
        """Return whether the share may be written; refuse it if its partition was lost."""
        if share.done.done():
            return False
        if self._has(share.holding):
            return True
        share.fail(FencedError(f"partition {share.holding.partition} was given up"))
        return False

    def _has(self, holding: Holding) -> bool:
        partition = holding.partition
        return partition in self._partitions and self._holdings.get(partition) is holding

    async def _transact(self, shares: Sequence[_Share]) -> None:
        """Write the shares in one transaction; if the records of one are refused, each of them
        waits for one of its own."""
        member = self._member
        assert member is not None, "admit() comes first"
        self._writing = frozenset(share.holding.partition for share in shares)
        self._written.clear()
        producer: TransactionalProducer | None = None
        try:
            producer = await self._next_producer()
            self._idle.remove(producer)
            records = [out for share in shares for out in share.records]
            offsets = {place: at for share in shares for place, at in share.offsets.items()}
            written = iter(await producer.transact(records, offsets, member))
            for share in shares:
                share.succeed([next(written) for _ in share.records])
        except RecordRefused as error:
            if len(shares) == 1:
                shares[0].fail(error)
            else:
                for share in shares:
                    share.alone = True
                self._waiting.extendleft(reversed(shares))
        except FencedError as error:
            for each in self._idle:  # whoever fenced one id fences the other
                each.end_epoch()
            _fail(shares, error)
        except (OutcomeUnknown, Unavailable) as error:
            _fail(shares, OutcomeUnknown(str(error)))
        except BaseException as error:
            _fail(shares, OutcomeUnknown(repr(error)))
            if not isinstance(error, Exception):
                raise
            log.exception("transaction_failed")
        finally:
            if producer is not None:
                self._idle.append(producer)
            self._writing = frozenset()
            self._written.set()

    async def _next_producer(self) -> TransactionalProducer:
        """Return the one whose last transaction is longer ago, if it is ready.

        Raises: Unavailable.
        """
        async with self._starting:
            ready = next((each for each in self._idle if each.ready), None)
            if ready is None:
                ready = self._idle[0]
                await ready.start()
            return ready


def _fail(shares: Sequence[_Share], error: Exception) -> None:
    for share in shares:
        share.fail(error)


def _members(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> frozenset[str]:
    """Return who committed these offsets. Whoever else may set a group's offsets can leave any text
    beside them: a name that no member of the group has is nobody's."""
    named = (offset.metadata for offset in offsets.values())
    return frozenset(name for name in named if name.startswith(f"{group}."))
