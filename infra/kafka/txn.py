"""A producer of transactions. One at a time, each decided before the next begins.

Where each transaction has an epoch of its own (KIP-890), a request that arrives late belongs to an
epoch that is over, and the broker refuses it. So a request whose answer was lost is sent again, and
its outcome is known, EndTxn's too. Below that (KIP-98), a late EndTxn would decide a later
transaction of the same epoch (KAFKA-17754), and a late TxnOffsetCommit would set back the group's
offsets: each of these is sent once there, and without an answer the outcome is unknown.

Any outcome other than a clean commit ends the epoch. `start` takes a new one, once the broker has
decided what was open.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    InvalidProducerEpoch,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NotCoordinatorError,
    ProducerFenced,
    RecordListTooLargeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)

from surefoot.infra.kafka_client.clients import BATCH_BYTES, close_client
from surefoot.infra.kafka_client.errors import (
    is_denied,
    not_allowed,
    start_client,
    unavailable,
)
from surefoot.infra.kafka_client.protocol import FencedInstanceId
from surefoot.infra.kafka_client.transactions import (
    Batch,
    CommittedOffset,
    Membership,
    ProducerEpoch,
    TransactionClient,
)
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import (
    FencedError,
    NoSuchTopic,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
    SurefootError,
    TopicDenied,
)
from surefoot.state.names.topics import takes_other_commands
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.sizes import record_size

T = TypeVar("T")

#: valid topic names. Source: Kafka, org.apache.kafka.common.internals.Topic
_NAMED = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: how long a producer may take to close before it is cut off, in seconds
RETIRE_S = 2.0
#: between two attempts of a request, in seconds; doubled each time up to the longest. A broker
#: needs a few milliseconds for the markers of the last transaction.
_RETRY_S, _RETRY_MOST_S = 0.001, 0.1
#: the group has put this member out, or another producer has the transactional id
_FENCED = (
    ProducerFenced,
    InvalidProducerEpoch,
    UnknownMemberIdError,
    IllegalGenerationError,
    FencedInstanceId,
)
#: the broker was not asked, or has answered: what it was asked does not reach it any more
_OVER = (
    NodeNotReadyError,
    GroupCoordinatorNotAvailableError,
    NotCoordinatorError,
    CoordinatorLoadInProgressError,
    ConcurrentTransactions,
)
#: after these nothing will be committed, and nobody else has the id: its transaction ends now, as
#: readers wait behind what it has written
_ENDED_AT_ONCE = (RecordRefused, IllegalGenerationError, UnknownMemberIdError)
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


def commit_deadline_s(settings: Settings) -> float:
    """Seconds after which the broker has decided any transaction that it received."""
    return settings.transaction_timeout_ms / 1000 + 2.0


class TransactionalProducer:
    """One transactional id. For one event loop."""

    def __init__(self, transactional_id: str, settings: Settings, clock: Clock) -> None:
        self.transactional_id = transactional_id
        self._settings = settings
        self._clock = clock
        #: None before the first start, and once retired
        self._client: TransactionClient | None = None
        #: None until started, and from the beginning of a transaction to its clean commit
        self._by: ProducerEpoch | None = None
        #: the next sequence number of each partition, in this epoch
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def ready(self) -> bool:
        """Whether the next transaction can begin."""
        return self._by is not None

    async def start(self) -> None:
        """Take a new epoch: fence whoever had the id; what was open is decided when this returns.

        Raises: Unavailable — the producer is then retired.
        """
        try:
            async with asyncio.timeout(commit_deadline_s(self._settings)):
                if self._client is None:
                    self._client = TransactionClient(self.transactional_id, self._settings)
                    await start_client(self._client)
                self._begin(await self._insist(self._client.init_producer))
        except (TimeoutError, KafkaError) as error:
            await self.retire()
            raise unavailable(
                f"cannot start {self.transactional_id}", error, self._settings
            ) from error
        except asyncio.CancelledError:
            await self.retire()
            raise

    def end_epoch(self) -> None:
        """Begin no further transaction before the next start."""
        self._by = None

    async def transact(
        self,
        records: Sequence[ProducerRecord],
        offsets: Mapping[TopicPartition, int],
        member: Membership,
    ) -> list[int]:
        """Write everything in one transaction, or nothing.

        A missing right for a topic that takes other agents' commands refuses the record; for any
        other, the transaction.

        Returns: the offset of each record, in the order given.
        Raises: as ports.Ownership.commit. The producer may have to be started again then: see
            `ready`.
        Under cancellation: the transaction may or may not be committed."""
        task = asyncio.ensure_future(self._transact(records, offsets, member))
        deadline_s = commit_deadline_s(self._settings)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise OutcomeUnknown(f"{self.transactional_id}: no answer within {deadline_s:g} s")
        try:
            return task.result()
        except _FENCED as error:
            raise FencedError(f"{self.transactional_id}: {error!r}") from error
        except (KafkaError, asyncio.CancelledError) as error:
            raise OutcomeUnknown(f"{self.transactional_id}: {error!r}") from error

    async def _transact(
        self,
        records: Sequence[ProducerRecord],
        offsets: Mapping[TopicPartition, int],
        member: Membership,
    ) -> list[int]:
        client, by = self._client, self._by
        if client is None or by is None:
            raise OutcomeUnknown(f"{self.transactional_id} has to be started")
        for topic in dict.fromkeys(record.topic for record in records):
            await self._require(client, topic, member.group)
        self._by = None
        rounds = self._batches(records)
        try:
            if client.bumps_epochs:
                written = await self._write_at_once(client, by, rounds, offsets, member)
            else:
                written = await self._write_in_turn(client, by, rounds, offsets, member)
        except _ENDED_AT_ONCE:
            self._begin(await self._insist(client.init_producer))
            raise
        self._by = await self._sent_again(client, lambda: client.end(by, commit=True))
        if client.bumps_epochs:
            self._sequences.clear()
        offset_of = {place: iter(some) for place, some in written.items()}
        return [next(offset_of[TopicPartition(out.topic, out.partition)]) for out in records]

    async def _write_at_once(
        self,
        client: TransactionClient,
        by: ProducerEpoch,
        rounds: list[list[Batch]],
        offsets: Mapping[TopicPartition, int],
        member: Membership,
    ) -> dict[TopicPartition, list[int]]:
        writing, _ = await _all_or_first_error(
            self._write(client, by, rounds, member.group),
            self._insist(lambda: client.commit_offsets(by, member, offsets)),
        )
        written: dict[TopicPartition, list[int]] = writing
        return written

    async def _write_in_turn(
        self,
        client: TransactionClient,
        by: ProducerEpoch,
        rounds: list[list[Batch]],
        offsets: Mapping[TopicPartition, int],
        member: Membership,
    ) -> dict[TopicPartition, list[int]]:
        """Write as KIP-98 has it.

        While something is being added, a broker that verifies transactions refuses batches."""
        if rounds:
            places = [batch.place for batch in rounds[0]]
            try:
                await self._insist(lambda: client.add_partitions(by, places))
            except TopicAuthorizationFailedError as error:
                raise self._denied(str(error.args[0]), member.group, error) from error
        written = await self._write(client, by, rounds, member.group)
        await self._insist(lambda: client.add_offsets(by, member.group))
        await self._sent_again(client, lambda: client.commit_offsets(by, member, offsets))
        return written

    async def _write(
        self, client: TransactionClient, by: ProducerEpoch, rounds: list[list[Batch]], group: str
    ) -> dict[TopicPartition, list[int]]:
        """Write all batches; those of one partition one after the other."""
        written: dict[TopicPartition, list[int]] = {}
        for some in rounds:
            left = {batch.place: batch for batch in some}

            async def write(left: dict[TopicPartition, Batch] = left) -> None:
                told = await client.produce(by, list(left.values()))
                errors: list[KafkaError] = []
                for place, offset in told.items():
                    if isinstance(offset, KafkaError):
                        self._refuse(left[place], group, offset)
                        errors.append(offset)
                        continue
                    count = len(left.pop(place).records)
                    written.setdefault(place, []).extend(range(offset, offset + count))
                if errors:
                    raise next((error for error in errors if not _passes(error)), errors[0])

            await self._insist(write)
        return written

    def _refuse(self, batch: Batch, group: str, error: KafkaError) -> None:
        if is_denied(type(error)):
            raise self._denied(batch.place.topic, group, error) from error
        if isinstance(error, _TOO_LARGE):
            raise RecordTooLarge(
                "the broker refused a batch of records for its size",
                size=max(map(record_size, batch.records)),
                limit=self._settings.record_max_bytes,
            ) from error

    def _denied(self, topic: str, group: str, error: KafkaError) -> SurefootError:
        doing = f"{self.transactional_id} cannot write to {topic}"
        denied = not_allowed(doing, type(error), topic, self._settings, operation="Write")
        refused = TopicDenied if takes_other_commands(topic, group) else OutcomeUnknown
        return refused(str(denied))

    async def _require(self, client: TransactionClient, topic: str, group: str) -> None:
        """Raise NoSuchTopic if the topic does not exist: no retry would help.

        An invalid name is refused here: no request can hold it."""
        if not _NAMED.fullmatch(topic):
            raise NoSuchTopic(f"no topic can be called {topic!r}: check the agent's name")
        try:
            exists = await self._insist(lambda: client.topic_exists(topic))
        except TopicAuthorizationFailedError as error:
            raise self._denied(topic, group, error) from error
        if not exists:
            raise NoSuchTopic(
                f"there is no topic {topic}: check the agent's name, or run "
                "`surefoot topics apply` for that agent"
            )

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Send a request until it is answered, for as long as the caller waits.

        Raises: KafkaError — an error that no retry helps against, or the producer was retired."""
        client, wait_s = self._client, _RETRY_S
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if client is None or client is not self._client or not _passes(error):
                    raise
                if not isinstance(error, ConcurrentTransactions):
                    await client.refresh()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MOST_S)

    async def _sent_again(
        self, client: TransactionClient, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Send a request that a broker must not see later than its transaction.

        With one epoch for many transactions, it is sent again only if the one before cannot arrive
        any more."""
        if client.bumps_epochs:
            return await self._insist(attempt)

        async def once() -> T:
            try:
                return await attempt()
            except _OVER:
                raise
            except _FENCED:
                raise
            except KafkaError as error:
                raise OutcomeUnknown(f"{self.transactional_id}: {error!r}") from error

        return await self._insist(once)

    async def committed(
        self, group: str, places: Sequence[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets.

        Raises: UnstableOffsetCommit — `stable`, and an open transaction has one; KafkaError.
        Waits for the broker for as long as the caller does."""
        client = self._client
        if client is None:
            raise NodeNotReadyError(f"{self.transactional_id} has to be started")
        return await self._insist(lambda: client.committed(group, places, stable=stable))

    async def name(self, member: Membership, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets outside of any transaction; their metadata names the member.

        Raises: OutcomeUnknown — there was no answer: they may be committed at any time, as long as
            the member's generation lasts; KafkaError — they are not committed.
        Waits for the broker for as long as the caller does."""
        client = self._client
        if client is None:
            raise NodeNotReadyError(f"{self.transactional_id} has to be started")

        async def once() -> None:
            try:
                await client.name(member, offsets)
            except KafkaError as error:
                answered = isinstance(error, BrokerResponseError | NodeNotReadyError)
                if answered and not isinstance(error, RequestTimedOutError):
                    raise
                raise OutcomeUnknown(f"offsets of {member.group}: {error!r}") from error

        await self._insist(once)

    async def high_watermark(self, place: TopicPartition) -> int:
        """Return the end of the partition: everything acknowledged lies before it.

        Raises: KafkaError. Waits for the broker for as long as the caller does."""
        client = self._client
        if client is None:
            raise NodeNotReadyError(f"{self.transactional_id} has to be started")
        if not await self._insist(lambda: client.topic_exists(place.topic)):
            raise UnknownTopicOrPartitionError(place.topic)
        return await self._insist(lambda: client.high_watermark(place))

    def _begin(self, by: ProducerEpoch) -> None:
        self._by = by
        self._sequences.clear()

    def _batches(self, records: Sequence[ProducerRecord]) -> list[list[Batch]]:
        """Return the records as batches: the first of each partition, then the second, etc."""
        now_ms = self._clock.now_ms()
        limit = min(BATCH_BYTES, self._settings.record_max_bytes)
        by_place: dict[tuple[str, int], list[ProducerRecord]] = {}
        for out in records:
            by_place.setdefault((out.topic, out.partition), []).append(out)
        rounds: list[list[Batch]] = []
        for (topic, partition), outs in by_place.items():
            place = TopicPartition(topic, partition)
            for number, some in enumerate(_split(outs, limit)):
                if number == len(rounds):
                    rounds.append([])
                sequence = self._sequences.get(place, 0)
                rounds[number].append(Batch(place, some, sequence, now_ms))
                self._sequences[place] = (sequence + len(some)) % 2**31
        return rounds

    async def retire(self) -> None:
        """Close without commit or abort; the id's next epoch settles an open transaction."""
        client, self._client, self._by = self._client, None, None
        if client is not None:
            await close_client(client, within_s=RETIRE_S)


def _split(outs: list[ProducerRecord], limit: int) -> list[list[ProducerRecord]]:
    """Return them in order, in parts of at most `limit` bytes, or of one record."""
    sizes = [record_size(out) for out in outs]
    if sum(sizes) <= limit:
        return [outs]
    parts: list[list[ProducerRecord]] = [[]]
    room = limit
    for out, size in zip(outs, sizes, strict=True):
        if parts[-1] and size > room:
            parts.append([])
            room = limit
        parts[-1].append(out)
        room -= size
    return parts


def _passes(error: KafkaError) -> bool:
    """Whether the same request may succeed a moment later."""
    return error.retriable or isinstance(error, ConcurrentTransactions)


async def _all_or_first_error(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return all results; at the first error, or when cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
