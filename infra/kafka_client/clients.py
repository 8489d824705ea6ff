"""What every Kafka client needs: a shared start, a bounded stop, a replacement.

aiokafka's calls have no deadlines, and a cancelled caller must not take a client away from others,
so clients start and stop in tasks of their own. Stop all of them with `close_client`: while
stopping, aiokafka cancels its own tasks, waits for them, and swallows a CancelledError of its
caller as if it were theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import LeaveGroupRequest

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.kafka_client.errors import start_client

log = structlog.get_logger(__name__)

#: how long an abandoned client may take to flush and close
_STOP_S = 5.0
#: how long leaving a group may take
_LEAVE_S = 5.0


class Startable(Protocol):
    """A client of aiokafka; `close_client` stops it."""

    async def start(self) -> None: ...


C = TypeVar("C", bound=Startable)


async def open_client(make: Callable[[], C], within_s: float) -> C:
    """Start a client.

    Raises: TimeoutError; whatever the client raises when it cannot start. Nothing is left open
    then."""
    client = make()
    try:
        async with asyncio.timeout(within_s):
            await start_client(client)
    except BaseException:
        await close_client(client)
        raise
    return client


@never_cut_short
async def close_client(*clients: Any, within_s: float = _STOP_S) -> None:
    """Stop each client, whatever its state.

    A client that does not stop within the deadline is cut off, which takes at most as long again.
    Under cancellation: the clients are closed first."""
    for client in clients:
        await _close(client, within_s)
        if isinstance(client, AIOKafkaProducer):
            _look_at_failures(client)


async def _close(client: Any, within_s: float) -> None:
    stop = client.stop if hasattr(client, "stop") else client.close
    for way in (stop, partial(_cut_off, client)):
        closing = asyncio.create_task(way())
        await asyncio.wait({closing}, timeout=within_s)
        if not closing.done():
            closing.cancel()
            closing.add_done_callback(_failed)
            log.warning("client_cut_off", client=type(client).__name__, timeout_s=within_s)
        elif _failed(closing):
            # It failed earlier; errors while it stops only matter to the log.
            error = "cancelled" if closing.cancelled() else repr(closing.exception())
            log.warning("client_stop_failed", client=type(client).__name__, error=error)
        else:
            return


async def leave_group(consumer: AIOKafkaConsumer) -> None:
    """Leave the group now, giving up after a deadline.

    aiokafka does not leave for a static member (KIP-345), whose partitions would then wait for the
    session timeout."""
    coordinator = consumer._coordinator
    if coordinator.generation > 0:
        request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
        try:
            async with asyncio.timeout(_LEAVE_S):
                await coordinator._send_req(request)
        except (TimeoutError, KafkaError) as error:
            log.warning("leave_failed", group=coordinator.group_id, error=repr(error))


async def _cut_off(client: Any) -> None:
    """Close the sockets of a client that does not stop by itself, and end its retries."""
    inner = client
    if isinstance(client, AIOKafkaProducer):
        if client._sender.sender_task is not None:
            client._sender.sender_task.cancel()
        inner = client.client
    elif hasattr(client, "_client"):
        inner = client._client
    for connection in list(inner._conns.values()):
        connection.close()
        transport = connection._protocol._transport
        if transport is not None:
            transport.abort()  # close() would wait for the peer to read the pending bytes
    inner._conns.clear()
    await inner.close()


def _look_at_failures(producer: Any) -> None:
    """Retrieve the exceptions of aiokafka's own futures that nobody awaits.

    Otherwise the event loop reports them as errors when they are collected."""
    batches = producer._message_accumulator._batches.values()
    futures = [batch._drain_waiter for queue in batches for batch in queue]
    if producer._txn_manager is not None:
        futures.append(producer._txn_manager._transaction_waiter)
    for future in futures:
        if future is not None and future.done() and not future.cancelled():
            future.exception()


class Background:
    """Tasks that outlive the call that started them; owned here, and awaited at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run it in the background to completion. It must not raise."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def open(self, make: Callable[[], C], within_s: float) -> C:
        """`open_client`, except that a cancelled caller stops waiting at once.

        The client that was being opened is then closed in the background."""
        opening = asyncio.create_task(open_client(make, within_s))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self.spawn(_close_opened(opening))
            raise

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks))


async def _close_opened(opening: asyncio.Task[C]) -> None:
    await asyncio.wait([opening])
    if not _failed(opening):
        await close_client(opening.result())


class Shared(Generic[C]):
    """One client, started on first use and replaced once retired.

    Callers that arrive during the start share it; a caller that stops waiting does not cancel it.
    """

    def __init__(self, make: Callable[[], C], connect_s: float) -> None:
        self._make = make
        self._connect_s = connect_s
        self._start: asyncio.Task[C] | None = None
        self._background = Background()

    async def get(self) -> C:
        """Return the started client.

        Raises: KafkaError, OSError, TimeoutError — it cannot start now; try again."""
        if self._start is None or (self._start.done() and _failed(self._start)):
            self._start = asyncio.create_task(open_client(self._make, self._connect_s))
        return await asyncio.shield(self._start)

    def retire(self, client: C) -> None:
        """Stop handing out this client, and close it in the background."""
        start = self._start
        if start is None or not start.done() or _failed(start) or start.result() is not client:
            return  # already retired by another caller
        self._start = None
        self._background.spawn(close_client(client))

    @never_cut_short
    async def stop(self) -> None:
        """Close it, within a deadline. Safe to call twice."""
        start, self._start = self._start, None
        if start is not None:
            start.cancel()  # no effect if it is done
            await asyncio.wait([start])
            if not _failed(start):
                await close_client(start.result())
        await self._background.wait()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


#: bytes of records per batch; a larger record gets a batch of its own
BATCH_BYTES = 262_144
