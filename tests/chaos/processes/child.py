"""A worker process that has itself killed (or frozen) at a named point of the engine.

    python -m tests.chaos.processes.child --agents chain outbox --slot 0 [--at POINT [--skip N]]

The product has no hooks: the points are wrapped around its functions, and aiokafka's, from here.
They are the requests of a commit; of two that go out together, one waits for the answer to the
other. The first agent's first arrival at the point counts (after N that are let pass). It is noted
in the journal, so that a test can tell that its fault has bitten. `--without` takes a safety rule
out.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import select
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from aiokafka.conn import AIOKafkaConnection

from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.kafka import txn as kafka_txn
from surefoot.infra.kafka.log import KafkaLog, KafkaOwnership
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.infra.kafka_client.clients import close_client
from surefoot.infra.kafka_client.transactions import TransactionClient
from surefoot.infra.processes import overdue
from surefoot.infra.processes import worker as worker_main
from surefoot.infra.processes.relay import relay_agent
from surefoot.infra.processes.worker import run_worker
from surefoot.infra.runtime.logging import configure
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.schemas.codec.codec import decode
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import (
    APPLIED_KEY,
    AgentTopics,
    dead_topic,
    transactional_ids,
)
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.records.run_store import RunStore
from tests.chaos.faults.disabled_rules import without
from tests.chaos.faults.proxy import Api
from tests.chaos.processes import agents


class Trap:
    """Sends this process a signal when `agent` first arrives at `point`."""

    def __init__(
        self, settings: Settings, agent: str, number: int, *, skip: int = 0, slot: int = 0
    ) -> None:
        self.sprung = False
        #: arrivals that are let pass
        self._skip = skip
        self._agent = agent
        self._number = number
        group = AgentTopics(settings.app, agent).group
        self._ids = {*transactional_ids(f"{group}.{settings.instance}.{slot}")}
        self._dead = dead_topic(settings.app)
        #: by transactional id, the records of the transaction in progress, if it has more in it
        #: than offsets
        self._working: dict[str, list[ProducerRecord]] = {}
        #: by transactional id: all records, or the offsets, of that transaction are acknowledged
        self._written: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._offsets: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def set(self, point: str) -> None:
        """Wrap the function that the point is in."""
        bite = functools.partial(self._bite, point)
        getattr(self, "at_" + point.replace("-", "_"))(bite)
        _before(TransactionalProducer, "_transact", self._note_transaction)

    def _bite(self, point: str) -> None:
        self._skip -= 1
        if self.sprung or self._skip >= 0:
            return
        self.sprung = True
        agents.note(f"bitten {point}")
        # To this thread: one for the process stops this thread some time later on a busy machine.
        signal.pthread_kill(threading.get_ident(), self._number)

    def _note_transaction(
        self, txn: TransactionalProducer, records: list[ProducerRecord], *_: Any
    ) -> None:
        identity = txn.transactional_id
        self._working.pop(identity, None)
        self._written[identity].clear()
        self._offsets[identity].clear()
        if identity in self._ids and any(record.key != APPLIED_KEY for record in records):
            self._working[identity] = records

    def _at_work(self, client: TransactionClient) -> bool:
        return client.transactional_id in self._working

    # Committing ------------------------------------------------------------------------------

    def at_before_begin(self, bite: Callable[[], None]) -> None:
        def arrive(txn: TransactionalProducer, *_: Any) -> None:
            if txn.transactional_id in self._working:
                bite()

        _before(TransactionalProducer, "_transact", arrive)

    def at_partitions_added(self, bite: Callable[[], None]) -> None:
        """Of a cluster where they are added by a request of their own."""
        self._after("add_partitions", bite, self._at_work)

    def at_first_batch_acknowledged(self, bite: Callable[[], None]) -> None:
        self._after("produce", bite, self._at_work)

    def at_all_sent(self, bite: Callable[[], None]) -> None:
        self._once_written(bite, self._at_work)

    def at_dead_letter_sent(self, bite: Callable[[], None]) -> None:
        def mine(client: TransactionClient) -> bool:
            records = self._working.get(client.transactional_id, ())
            return any(record.topic == self._dead for record in records)

        self._once_written(bite, mine)

    def at_offsets_alone(self, bite: Callable[[], None]) -> None:
        """The broker has the transaction's offsets, and none of its records. Of a cluster where
        both go out together."""
        original = TransactionClient.produce

        async def produce(client: TransactionClient, *args: Any) -> Any:
            if self._at_work(client):
                await self._offsets[client.transactional_id].wait()
                bite()
            return await original(client, *args)

        self._after_offsets()
        _replace(TransactionClient, "produce", produce)

    def at_offsets_sent(self, bite: Callable[[], None]) -> None:
        def arrive(client: TransactionClient, *_: Any, **__: Any) -> None:
            if self._at_work(client):
                bite()

        _before(TransactionClient, "end", arrive)

    def at_end_written(self, bite: Callable[[], None]) -> None:
        """The broker has answered EndTxn; nobody here has read it."""
        self._answered(Api.END_TXN, lambda name: name in self._working, bite)

    def at_asleep(self, bite: Callable[[], None]) -> None:
        """A run has gone to sleep, and nobody here knows it yet."""

        def mine(client: TransactionClient) -> bool:
            return any(map(_sleeps, self._working.get(client.transactional_id, ())))

        self._after("end", bite, mine)

    def at_end_replied(self, bite: Callable[[], None]) -> None:
        self._after("end", bite, self._at_work)

    # Taking over -----------------------------------------------------------------------------

    def at_assigned(self, bite: Callable[[], None]) -> None:
        def arrive(worker: Worker, *_: Any) -> None:
            if worker.agent.name == self._agent:
                bite()

        _before(Worker, "_changed", arrive)

    def at_own(self, bite: Callable[[], None]) -> None:
        """The broker has answered InitProducerId; nobody here has read it."""
        self._answered(Api.INIT_PRODUCER_ID, lambda name: name in self._ids, bite)

    def at_owned(self, bite: Callable[[], None]) -> None:
        def arrive(ownership: KafkaOwnership) -> None:
            if ownership._topics.agent == self._agent:
                bite()

        _before(KafkaOwnership, "committed", arrive)

    def at_restore(self, bite: Callable[[], None]) -> None:
        def arrive(_store: RunStore, records: list[ConsumerRecord]) -> None:
            if any(f".{self._agent}." in record.topic for record in records):
                bite()

        _before(RunStore, "apply", arrive)

    # Delivering, and ending ------------------------------------------------------------------

    def at_attempt(self, bite: Callable[[], None]) -> None:
        """On the loop of the steps, before the body of the first one."""

        def arrive(_executor: Executor, call: Any) -> None:
            if call.agent.name == self._agent:
                bite()

        _before(Executor, "_attempt", arrive)

    def at_draining(self, bite: Callable[[], None]) -> None:
        _before(Worker, "_drain", lambda *_: bite())

    def at_left(self, bite: Callable[[], None]) -> None:
        original = KafkaLog._leave

        async def leave(log: KafkaLog, consumer: Any) -> None:
            try:
                await original(log, consumer)
            finally:  # it may have been given up
                bite()

        setattr(KafkaLog, "_leave", leave)  # noqa: B010  (mypy: a method)

    # Helpers ---------------------------------------------------------------------------------

    def _after(
        self, name: str, bite: Callable[[], None], mine: Callable[[TransactionClient], bool]
    ) -> None:
        """Bite once that request of a transaction is answered."""
        original = getattr(TransactionClient, name)

        async def called(client: TransactionClient, *args: Any, **kw: Any) -> Any:
            result = await original(client, *args, **kw)
            if mine(client):
                bite()
            return result

        _replace(TransactionClient, name, called)

    def _once_written(
        self, bite: Callable[[], None], mine: Callable[[TransactionClient], bool]
    ) -> None:
        """Bite once all records are acknowledged, and before the offsets are sent."""
        write, commit_offsets = TransactionalProducer._write, TransactionClient.commit_offsets

        async def writing(txn: TransactionalProducer, *args: Any) -> Any:
            written = await write(txn, *args)
            self._written[txn.transactional_id].set()
            return written

        async def offsets(client: TransactionClient, *args: Any) -> None:
            if mine(client):
                await self._written[client.transactional_id].wait()
                bite()
            await commit_offsets(client, *args)

        _replace(TransactionalProducer, "_write", writing)
        _replace(TransactionClient, "commit_offsets", offsets)

    def _after_offsets(self) -> None:
        commit_offsets = TransactionClient.commit_offsets

        async def offsets(client: TransactionClient, *args: Any) -> None:
            await commit_offsets(client, *args)
            self._offsets[client.transactional_id].set()

        _replace(TransactionClient, "commit_offsets", offsets)

    def _answered(self, api: Api, mine: Callable[[str], bool], bite: Callable[[], None]) -> None:
        original = AIOKafkaConnection.send

        def send(connection: AIOKafkaConnection, request: Any, *args: Any, **kw: Any) -> Any:
            reply = original(connection, request, *args, **kw)
            if api == request.API_KEY and mine(connection._client_id):
                socket = connection._writer.get_extra_info("socket")
                select.select([socket], [], [], 10.0)
                bite()
            return reply

        AIOKafkaConnection.send = send


def _replace(owner: type, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _before(owner: type, name: str, arrive: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def called(*args: Any, **kw: Any) -> Any:
        arrive(*args, **kw)
        return original(*args, **kw)

    _replace(owner, name, called)


def _sleeps(record: ProducerRecord) -> bool:
    if not record.topic.endswith(".state") or not record.value or b"|" in (record.key or b""):
        return False
    name, checkpoint = decode(record.value)
    return name == "Checkpoint" and checkpoint["status"] == "waiting"


def _start_again() -> None:
    """A worker that cannot reach Kafka within its deadline ends its process, for a supervisor to
    start it anew. Here there is none, and the machine may stand still for longer."""
    original = KafkaLog.start

    async def start(log: KafkaLog, *args: Any) -> None:
        while True:
            try:
                return await original(log, *args)
            except Unavailable:
                assert log._consumer is not None
                await close_client(log._consumer)

    setattr(KafkaLog, "start", start)  # noqa: B010  (mypy: a method)


def _a_minute(settings: Settings) -> float:
    del settings
    return 60.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", nargs="+", required=True)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--at")
    parser.add_argument("--signal", default="KILL")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--patient", action="store_true")
    parser.add_argument("--without", choices=("R1", "R3", "R4"))
    given = parser.parse_args()
    settings = load_settings()
    configure(json=True)
    _start_again()
    overdue.END_S = 60.0  # a machine that stands still is no process that hangs
    if given.at:
        number = signal.Signals[f"SIG{given.signal}"]
        trap = Trap(settings, given.agents[0], number, skip=given.skip, slot=given.slot)
        trap.set(given.at)
    if given.patient:
        # So that only the fence is left to stop a commit that comes too late, and at a rebalance
        # steps and commits are waited for.
        kafka_txn.commit_deadline_s = _a_minute
        patient = functools.partial(OwnerLimits, handover_s=60.0)
        setattr(worker_main, "OwnerLimits", patient)  # noqa: B010  (mypy: a class)
    if given.without:
        without(given.without)
    chosen = [
        relay_agent(settings) if name == "outbox" else getattr(agents, name)
        for name in given.agents
    ]
    return run_worker(chosen, settings, slot=given.slot)


if __name__ == "__main__":
    sys.exit(main())
