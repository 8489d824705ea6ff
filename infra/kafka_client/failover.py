"""Lets an aiokafka client go on while a broker does not answer.

aiokafka asks one broker at a time, opens one connection at a time, and waits for each as long as
for the slowest answer of all. A broker that stands still, or whose machine is gone, answers nothing
and breaks no connection: the client then learns only after that time who leads the partitions now.

Here whatever any broker can answer is asked of a second one when the first is slow; a connection
being opened delays no other; and a request that stays without an answer makes the client look
whether the cluster still lists its broker. If not, nobody waits for it any longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason, create_conn
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, for_code
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.metadata import MetadataRequest

log = logging.getLogger("aiokafka")  # in whose place this is said

#: a broker that has not answered for so long is slow: the next one is asked too, in seconds
ANOTHER_AFTER_S = 0.5
#: how often the client looks whether the cluster still lists a broker that owes it an answer;
#: longer than a fetch waits for new records, in seconds
SUSPECT_S = 1.0
#: how long opening a connection may take at first; twice as long each time that it fails, up to the
#: client's request timeout; in seconds
OPEN_S = 2.0

T = TypeVar("T")
#: node id and purpose of a connection
_Connection = tuple[Any, ConnectionGroup]
#: aiokafka's, while the cluster has told of no broker
_BOOTSTRAP: _Connection = ("bootstrap", ConnectionGroup.DEFAULT)


def with_failover(client: T, *, join_s: float = 0.0) -> T:
    """Have this consumer, producer or admin client, not yet started, go on without one broker.

    Args: join_s: how long the group's answer to a join may take, which waits for other members, if
        that is longer than other answers; in seconds
    """
    low_level: Any = client.client if hasattr(client, "client") else client._client  # type: ignore[attr-defined]
    low_level.__class__ = FailoverClient
    low_level._opening = defaultdict(asyncio.Lock)
    low_level._deadlines = {}
    low_level._open_s = {}
    low_level._join_s = join_s
    return client


class FailoverClient(AIOKafkaClient):
    """Made of an AIOKafkaClient by `with_failover`; aiokafka takes no class for its clients."""

    #: one connection of a kind at a time is opened to a broker
    _opening: defaultdict[_Connection, asyncio.Lock]
    #: of the connections that are being opened
    _deadlines: dict[_Connection, asyncio.Timeout]
    #: how long opening one may take the next time, by node id
    _open_s: dict[Any, float]
    #: time limit of requests that wait for other members of the group
    _join_s: float
    #: aiokafka's own, which asks for metadata
    _sync_task: asyncio.Task[None] | None

    async def bootstrap(self) -> None:
        asks = [partial(self._contact, host, port) for host, port, _ in self.hosts]
        answer = await _first_answer(asks)
        if answer is None or turned_away(answer):
            raise KafkaConnectionError(f"Unable to bootstrap from {self.hosts}")
        if not answer.brokers:
            await super().bootstrap()  # keeps its connection until there are brokers
            return
        self.cluster.update_metadata(answer)
        if self._sync_task is None:
            self._sync_task = asyncio.create_task(self._md_synchronizer())

    @property
    def _get_conn_lock(self) -> Any:
        return contextlib.nullcontext()  # `_opening` is what connections wait for

    async def _get_conn(
        self,
        node_id: Any,
        *,
        group: ConnectionGroup = ConnectionGroup.DEFAULT,
        no_hint: bool = False,
    ) -> Any:
        most_s = self._request_timeout_ms / 1000
        place = (node_id, group)
        async with self._opening[place]:
            within_s = self._open_s.get(node_id, min(OPEN_S, most_s))
            try:
                async with asyncio.timeout(within_s) as self._deadlines[place]:
                    found = await super()._get_conn(node_id, group=group, no_hint=no_hint)
            except TimeoutError:
                self._open_s[node_id] = min(2 * within_s, most_s)
                self.force_metadata_update()
                return None
            finally:
                self._deadlines.pop(place, None)
            self._open_s.pop(node_id, None)
            return found

    async def send(
        self, node_id: Any, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT
    ) -> Any:
        loop = asyncio.get_running_loop()
        suspicion: asyncio.TimerHandle

        def suspect() -> None:
            nonlocal suspicion
            self.force_metadata_update()
            suspicion = loop.call_later(SUSPECT_S, suspect)

        suspicion = loop.call_later(SUSPECT_S, suspect)
        try:
            if await self.ready(node_id, group=group):
                limit_s = self._request_timeout_ms / 1000
                if isinstance(request, JoinGroupRequest | SyncGroupRequest):
                    limit_s = max(limit_s, self._join_s)
                self._conns[node_id, group]._request_timeout = limit_s
            return await super().send(node_id, request, group=group)
        finally:
            suspicion.cancel()

    async def _metadata_update(self, cluster_metadata: Any, topics: Any) -> bool:
        request = MetadataRequest(list(topics) if topics else None)
        answer = await self._ask_any(request)
        if answer is None:
            cluster_metadata.failed_update(None)
            return False
        if not answer.brokers:  # topics are being created
            return False
        cluster_metadata.update_metadata(answer)
        self._forget({broker.nodeId for broker in self.cluster.brokers()})
        return True

    async def coordinator_lookup(self, coordinator_type: Any, coordinator_key: str) -> Any:
        answer = await self._ask_any(FindCoordinatorRequest(coordinator_key, coordinator_type))
        if answer is None:
            raise NodeNotReadyError("no broker answers who the coordinator is")
        if answer.error_code:
            error: type[KafkaError] = for_code(answer.error_code)
            raise error
        return answer.coordinator_id

    def _forget(self, listed: set[Any]) -> None:
        """Wait no longer for brokers that the cluster has given up."""
        now_s = asyncio.get_running_loop().time()
        for place, deadline in self._deadlines.items():
            if place[0] not in listed and not deadline.expired():
                deadline.reschedule(now_s)
        for place, connection in list(self._conns.items()):
            if place[0] not in listed:
                connection.close(reason=CloseReason.OUT_OF_SYNC)
        self._conns.pop(_BOOTSTRAP, None)  # the brokers are known now

    async def _ask_any(self, request: Any) -> Any:
        """Return some broker's answer; None: none of them answers."""
        nodes = [broker.nodeId for broker in self.cluster.brokers()]
        if _BOOTSTRAP in self._conns:
            nodes.append("bootstrap")
        random.shuffle(nodes)
        return await _first_answer([partial(self._ask, node, request) for node in nodes])

    async def _ask(self, node_id: Any, request: Any) -> Any:
        connection = await self._get_conn(node_id)
        if connection is None:
            return None
        try:
            return await connection.send(request)
        except (KafkaError, TimeoutError):
            return None

    async def _contact(self, host: str, port: int) -> Any:
        """Ask an address that the client was given who is in the cluster."""
        try:
            connection = await create_conn(
                host,
                port,
                client_id=self._client_id,
                request_timeout_ms=self._request_timeout_ms,
                ssl_context=self._ssl_context,
                security_protocol=self._security_protocol,
                sasl_mechanism=self._sasl_mechanism,
                sasl_plain_username=self._sasl_plain_username,
                sasl_plain_password=self._sasl_plain_password,
                sasl_oauth_token_provider=self._sasl_oauth_token_provider,
            )
            try:
                return await connection.send(MetadataRequest([]))
            finally:
                connection.close()
        except (KafkaError, OSError, TimeoutError) as error:
            log.error("Unable connect to %s:%s: %s", host, port, error)  # noqa: TRY400
            return None


def turned_away(metadata: Any) -> bool:
    """Whether this is what a broker tells a client whose token it has refused: not even the name of
    its cluster. aiokafka takes the refusal for a welcome (RFC 7628, 3.2.3)."""
    return not metadata.brokers and metadata.cluster_id is None


async def _first_answer(asks: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> Any:
    """Ask one after the other, not waiting for slow ones. Returns None if each says None."""
    left = deque(asks)
    asked: set[asyncio.Task[Any]] = set()
    try:
        while left or asked:
            if left:
                asked.add(asyncio.create_task(left.popleft()()))
            timeout_s = ANOTHER_AFTER_S if left else None
            done, asked = await asyncio.wait(
                asked, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            for answer in (task.result() for task in done):
                if answer is not None:
                    return answer
    finally:
        for task in asked:
            task.cancel()
    return None
