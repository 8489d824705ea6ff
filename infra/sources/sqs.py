"""Starts runs from the messages of one SQS queue.

1. receive messages, by long polling, one poll at a time
2. map each, and start its runs, under run_ids that are the same on every delivery
3. keep the messages invisible to others meanwhile, also while Kafka is away
4. delete each as soon as the log has acknowledged its starts, independently of the others

A message that cannot be used is left to the queue: it becomes visible again, and in the end the
queue's redrive policy moves it to its dead letter queue, where AWS's own tools can inspect it and
send it back.

From a FIFO queue one message is received at a time. SQS returns no message of a group before the
earlier ones are deleted or moved, so a group stays in order, and a message that cannot be used
holds back those behind it. Messages received together with it would have to be left as well; each
receive would count towards the redrive policy, which would move messages that were never tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog

from surefoot.consumers.backoff import backoff
from surefoot.infra.aws.client import Aws, AwsRefused
from surefoot.infra.sources.starter import BadEvent, Mappings, Starter, name_of
from surefoot.producers.sources.sqs_messages import (
    NotThatShape,
    events_in,
    message_of,
    queue_run_id,
)
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.sources import QueueMessage, QueueTrigger
from surefoot.state.errors import ConfigError, Unavailable

log = structlog.get_logger(__name__)

#: batches processed at a time
READERS = 4
#: messages per batch
BATCH, BATCH_FIFO = 10, 1
#: most concurrent calls to AWS: each reader has a message to receive, delete or keep
SQS_CALLS_MAX = 2 * READERS
#: how long a poll waits for a message, and so how long stopping may take, in seconds
RECEIVE_WAIT_S = 5
#: how long the last deletes may take while stopping, in seconds
_LEAVE_S = 5.0
_NO_QUEUE = frozenset({"NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"})

Raw = dict[str, Any]


class SqsSource:
    """Reads one queue. `triggers`: those of every agent; a message is received once for all."""

    def __init__(
        self,
        queue: str,
        triggers: Sequence[tuple[Agent, QueueTrigger]],
        starter: Starter,
        aws: Aws,
        *,
        visibility_s: int = 60,
        wait_s: int = RECEIVE_WAIT_S,
    ) -> None:
        self.name = f"sqs {queue}"
        self._queue = queue
        self._batch = BATCH_FIFO if queue.endswith(".fifo") else BATCH
        #: held by the polling reader: an empty queue costs one long poll, not one per reader
        self._polling = asyncio.Lock()
        self._triggers = triggers
        self._mappings = Mappings(self.name)
        self._starter = starter
        self._aws = aws
        self._visibility_s = visibility_s
        self._wait_s = wait_s

    async def run(self) -> None:
        """Read until cancelled.

        Raises: ConfigError — there is no such queue.
        Under cancellation: acknowledged messages are deleted, the others are given back.
        """
        url = await self._find()
        log.info("queue_ready", queue=self._queue, url=url)
        try:
            async with asyncio.TaskGroup() as readers:
                for _ in range(READERS):
                    readers.create_task(self._read(url))
        finally:
            self._aws.close()

    async def _find(self) -> str:
        """Return the queue's URL; waits for AWS to answer."""
        for wait_s in backoff(self._starter.clock):
            try:
                url = self._queue
                if "://" not in url:
                    found = await self._aws.call("get_queue_url", QueueName=self._queue)
                    url = found["QueueUrl"]
                told = await self._aws.call(
                    "get_queue_attributes", QueueUrl=url, AttributeNames=["RedrivePolicy"]
                )
            except AwsRefused as error:
                if error.code in _NO_QUEUE:
                    raise ConfigError(
                        "SF1021",
                        f"there is no SQS queue {self._queue!r}; check SUREFOOT_AWS_REGION, or "
                        "give the queue's URL",
                    ) from error
                raise ConfigError(
                    "SF1021", f"cannot use the SQS queue {self._queue!r}: {error}"
                ) from error
            except Unavailable as error:
                log.warning("queue_unavailable", queue=self._queue, reason=str(error))
                await asyncio.sleep(wait_s)
            else:
                if "RedrivePolicy" not in told.get("Attributes", {}):
                    log.warning(
                        "queue_without_redrive",
                        queue=self._queue,
                        advice="a message that cannot be used is received again until the queue's "
                        "retention ends, and blocks its group in a FIFO queue; give the "
                        "queue a redrive policy",
                    )
                return str(url)
        raise AssertionError

    async def _read(self, url: str) -> None:
        waits = backoff(self._starter.clock)
        while True:
            try:
                async with self._polling:
                    messages = await self._receive(url)
            except (AwsRefused, Unavailable) as error:
                log.warning("queue_unavailable", queue=self._queue, reason=str(error))
                await asyncio.sleep(next(waits))
                continue
            waits = backoff(self._starter.clock)
            if messages:
                await self._take(url, messages)

    async def _receive(self, url: str) -> list[Raw]:
        """Receive a batch.

        Under cancellation: messages that the poll under way still returns are given back, so that
        nobody has to wait for them."""
        polling = asyncio.ensure_future(
            self._aws.call(
                "receive_message",
                QueueUrl=url,
                MaxNumberOfMessages=self._batch,
                WaitTimeSeconds=self._wait_s,
                VisibilityTimeout=self._visibility_s,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["MessageGroupId", "MessageDeduplicationId"],
            )
        )
        try:
            answer = await asyncio.shield(polling)
        except asyncio.CancelledError:
            with suppress(TimeoutError, AwsRefused, Unavailable):
                async with asyncio.timeout(self._wait_s + _LEAVE_S):
                    found = (await polling).get("Messages", [])
                    await self._tell(url, "change_message_visibility_batch", found, 0)
            raise
        return list(answer.get("Messages", []))

    async def _take(self, url: str, messages: list[Raw]) -> None:
        """Start the runs that the messages ask for, and delete each message once acknowledged."""
        held = {asyncio.create_task(self._start(raw)): raw for raw in messages}
        keeping = asyncio.create_task(self._keep(url, held))
        waits = backoff(self._starter.clock)
        try:
            while held:
                await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
                if not await self._let_go(url, held):
                    await asyncio.sleep(next(waits))
        finally:
            keeping.cancel()
            for start in held:
                start.cancel()
            await asyncio.wait([*held, keeping])
            back = [message for start, message in held.items() if start.cancelled()]
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._let_go(url, held)
                    await self._tell(url, "change_message_visibility_batch", back, 0)

    async def _let_go(self, url: str, held: dict[asyncio.Task[bool], Raw]) -> bool:
        """Delete processed messages, and leave unusable ones to the queue.

        False: AWS has not deleted some for now; they are still held."""
        ended = {start: message for start, message in held.items() if start.done()}
        done = {
            start: message
            for start, message in ended.items()
            if not start.cancelled() and start.result()
        }
        later = await self._tell(url, "delete_message_batch", list(done.values()))
        for start, message in ended.items():
            if message not in later:
                del held[start]
        return not later

    async def _start(self, raw: Raw) -> bool:
        """Whether the message was used. Its failure affects no other message."""
        try:
            faults = await self._started(message_of(self._queue, raw))
        except Exception as error:
            log.exception("message_failed", queue=self._queue, message=raw.get("MessageId"))
            faults = [f"{type(error).__name__}: {error}"]
        for fault in faults:
            log.warning("message_bad", queue=self._queue, message=raw.get("MessageId"), error=fault)
        return not faults

    async def _started(self, message: QueueMessage) -> list[str]:
        """Start all runs of the message that can be started. Returns what is wrong with it."""
        runs, faults = await self._mapped(message)
        for agent, run_id, payload in runs:
            try:
                await self._starter.start(agent, run_id, payload)
            except BadEvent as error:
                faults.append(str(error))
        return faults

    async def _mapped(
        self, message: QueueMessage
    ) -> tuple[list[tuple[str, str, bytes]], list[str]]:
        """Return (agent, run_id, payload) of the runs to start, and what is wrong with the message.

        Of an agent's triggers, the first one that wants the message takes it."""
        wanted: dict[str, list[tuple[str, str, bytes]]] = {}
        strange, faults = [], []
        for agent, trigger in self._triggers:
            if agent.name in wanted:
                continue
            try:
                events = events_in(message, trigger.shape)
            except NotThatShape as error:
                strange.append(str(error))
                continue
            for event in events:
                try:
                    payload = await self._mappings.payload_of(agent, trigger.fn, event)
                    if payload is not None:
                        named = name_of(agent, queue_run_id(event, self._queue), payload)
                        wanted.setdefault(agent.name, []).append((agent.name, named, payload))
                except BadEvent as error:
                    faults.append(str(error))
        if len(strange) == len(self._triggers):
            faults = strange
        if not wanted and not faults:
            log.info("message_ignored", queue=self._queue, message=message.id)
        return [run for runs in wanted.values() for run in runs], faults

    async def _keep(self, url: str, held: dict[asyncio.Task[bool], Raw]) -> None:
        """Keep held messages invisible to others."""
        while True:
            await asyncio.sleep(self._visibility_s / 3)
            await self._tell(
                url, "change_message_visibility_batch", list(held.values()), self._visibility_s
            )

    async def _tell(
        self, url: str, operation: str, messages: Sequence[Raw], visibility_s: int | None = None
    ) -> list[Raw]:
        """Send a batch operation. Returns the messages to retry.

        A message for which it fails is received again, and is then the same run."""
        more = {} if visibility_s is None else {"VisibilityTimeout": visibility_s}
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"], **more}
            for number, message in enumerate(messages)
        ]
        if not entries:
            return []
        try:
            answer = await self._aws.call(operation, QueueUrl=url, Entries=entries)
        except (AwsRefused, Unavailable) as error:
            log.warning("queue_unavailable", queue=self._queue, reason=str(error))
            return list(messages)
        if failed := answer.get("Failed"):
            log.warning("messages_not_told", queue=self._queue, operation=operation, failed=failed)
        return [messages[int(each["Id"])] for each in failed or () if not each["SenderFault"]]
