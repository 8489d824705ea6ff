"""Runs from the messages of one SQS queue.

1. receive messages, by long polling, one poll at a time
2. map each, and ask for its runs, under run_ids that are the same on every delivery
3. keep them invisible to others for as long as that takes, also while Kafka is away
4. delete each as soon as the log has acknowledged its starts, whatever becomes of the others

A message that cannot be used is left to the queue: it is seen again, and in the end moved by the
queue's redrive policy to its dead letter queue, where AWS's own tools look at it and send it back.

Of a FIFO queue one message is received at a time. SQS gives out none of a group before the earlier
ones are deleted or moved, so a group is in order, and what cannot be used holds back what is behind
it. Received together with it, that would have to be left as well, each time would count towards the
redrive policy, and messages that nobody has tried would be moved.
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
from surefoot.producers.sources.sqs_messages import NotThatShape, events_in, message_of, run_id_of
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.sources import QueueMessage, QueueTrigger
from surefoot.state.errors import ConfigError, Unavailable

log = structlog.get_logger(__name__)

#: batches in work at a time
READERS = 4
#: messages to a batch
BATCH, BATCH_FIFO = 10, 1
#: calls to AWS at a time: each reader has a message to receive, delete or keep
AT_ONCE = 2 * READERS
#: how long a poll waits for a message, in seconds; it is how long it may take to go down, too
POLL_S = 5
#: on the way down, how long the last deletes may take, in seconds
_LEAVE_S = 5.0
_NO_QUEUE = frozenset({"NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"})

Raw = dict[str, Any]


class SqsSource:
    """`triggers`: those of every agent that listens to the queue, as a message is received once."""

    def __init__(
        self,
        queue: str,
        triggers: Sequence[tuple[Agent, QueueTrigger]],
        starter: Starter,
        aws: Aws,
        *,
        visibility_s: int = 60,
        wait_s: int = POLL_S,
    ) -> None:
        self.name = f"sqs {queue}"
        self._queue = queue
        self._batch = BATCH_FIFO if queue.endswith(".fifo") else BATCH
        #: held by the reader that polls: a queue without messages costs one long poll, not one each
        self._polling = asyncio.Lock()
        self._triggers = triggers
        self._mappings = Mappings(self.name)
        self._starter = starter
        self._aws = aws
        self._visibility_s = visibility_s
        self._wait_s = wait_s

    async def run(self) -> None:
        """Raises: ConfigError — there is no such queue.
        Under cancellation: what has been acknowledged is deleted, what has not is given back.
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
        """The queue's URL; waits for AWS to answer."""
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
                        f"there is no SQS queue {self._queue!r}; look at SUREFOOT_AWS_REGION, or "
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
                        advice="a message that cannot be used is seen again until the queue's "
                        "retention is over, and in a FIFO queue its group waits for that; give the "
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
        """Under cancellation: what the poll that is under way still brings is given back, so that
        nobody has to wait for it."""
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
        """Start what they ask for, and let go of each when that is acknowledged."""
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
        """Delete what is done with, and leave what cannot be used to the queue. False: there is
        something that AWS has not deleted just now; it is still held."""
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
        """Whether the message is done with. What goes wrong with it, it does to no other."""
        try:
            faults = await self._started(message_of(self._queue, raw))
        except Exception as error:
            log.exception("message_failed", queue=self._queue, message=raw.get("MessageId"))
            faults = [f"{type(error).__name__}: {error}"]
        for fault in faults:
            log.warning("message_bad", queue=self._queue, message=raw.get("MessageId"), error=fault)
        return not faults

    async def _started(self, message: QueueMessage) -> list[str]:
        """What is wrong with it, once all runs that it asks for and that can be have been."""
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
        """(agent, run_id, payload) of the runs that it asks for, and what is wrong with it. Of an
        agent's triggers the first one that wants the message takes it."""
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
                        named = name_of(agent, run_id_of(event, self._queue), payload)
                        wanted.setdefault(agent.name, []).append((agent.name, named, payload))
                except BadEvent as error:
                    faults.append(str(error))
        if len(strange) == len(self._triggers):
            faults = strange
        if not wanted and not faults:
            log.info("message_ignored", queue=self._queue, message=message.id)
        return [run for runs in wanted.values() for run in runs], faults

    async def _keep(self, url: str, held: dict[asyncio.Task[bool], Raw]) -> None:
        """Keep what is held out of the sight of others."""
        while True:
            await asyncio.sleep(self._visibility_s / 3)
            await self._tell(
                url, "change_message_visibility_batch", list(held.values()), self._visibility_s
            )

    async def _tell(
        self, url: str, operation: str, messages: Sequence[Raw], visibility_s: int | None = None
    ) -> list[Raw]:
        """Returns those of which AWS may be told again. What it does not take in is seen again, and
        is then the same run."""
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
