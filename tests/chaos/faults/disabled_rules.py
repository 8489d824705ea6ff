"""The engine with one of its safety rules taken out, for the tests that must then find a violation.

R1  a new owner fences the former one before it reads offsets and state
R2  a producer whose EndTxn or TxnOffsetCommit was sent more than once is retired
R3  everything is read committed
"""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaConsumer

from surefoot.infra.kafka import log as kafka_log
from surefoot.infra.kafka.txn import TransactionalProducer
from surefoot.state.errors import OutcomeUnknown, Unavailable


def without(rule: str) -> None:
    """Take it out of this process, for good."""
    {"R1": _fence_late, "R2": _trust_every_end, "R3": _read_uncommitted}[rule]()


def _fence_late() -> None:
    """The producer is started when there is something to commit, as if it were a detail."""
    start, transact = TransactionalProducer.start, TransactionalProducer.transact
    started: set[TransactionalProducer] = set()

    async def not_yet(_producer: TransactionalProducer) -> None: ...

    async def transact_started(producer: TransactionalProducer, *args: Any) -> Any:
        if producer not in started:
            try:
                await start(producer)
            except Unavailable as error:
                raise OutcomeUnknown(str(error)) from error
            started.add(producer)
        return await transact(producer, *args)

    setattr(TransactionalProducer, "start", not_yet)  # noqa: B010  (mypy: a method)
    setattr(TransactionalProducer, "transact", transact_started)  # noqa: B010


def _trust_every_end() -> None:
    """Whatever aiokafka reports is believed."""
    count = property(lambda _producer: 1, lambda _producer, _count: None)
    for counted in ("_ends_sent", "_offsets_sent"):
        setattr(TransactionalProducer, counted, count)


def _read_uncommitted() -> None:
    def made(**options: Any) -> Any:
        return AIOKafkaConsumer(**{**options, "isolation_level": "read_uncommitted"})

    setattr(kafka_log, "AIOKafkaConsumer", made)  # noqa: B010
