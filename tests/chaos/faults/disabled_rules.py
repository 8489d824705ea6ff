"""The engine with one of its safety rules taken out, for the tests that must then find a violation.

R1  a taker reads offsets that are stable, and then the state up to the high watermark
R3  everything is read committed
R4  offsets carry the generation of the member that commits them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from surefoot.infra.kafka import log as kafka_log
from surefoot.infra.kafka_client import transactions
from surefoot.infra.kafka_client.transactions import (
    Membership,
    ProducerEpoch,
    TransactionClient,
)

#: of ListOffsets
_READ_COMMITTED = 1


def without(rule: str) -> None:
    """Take it out of this process, for good."""
    {
        "R1": _read_what_may_change,
        "R3": _read_uncommitted,
        "R4": _name_no_member,
    }[rule]()


def _read_what_may_change() -> None:
    committed = TransactionClient.committed

    async def now(client: TransactionClient, group: str, places: Any, *, stable: bool) -> Any:
        del stable
        return await committed(client, group, places, stable=False)

    setattr(TransactionClient, "committed", now)  # noqa: B010  (mypy: a method)
    setattr(transactions, "_READ_UNCOMMITTED", _READ_COMMITTED)  # noqa: B010  (mypy: a literal)


def _read_uncommitted() -> None:
    def made(**options: Any) -> Any:
        return AIOKafkaConsumer(**{**options, "isolation_level": "read_uncommitted"})

    setattr(kafka_log, "AIOKafkaConsumer", made)  # noqa: B010


def _name_no_member() -> None:
    commit_offsets = TransactionClient.commit_offsets

    async def by_nobody(
        client: TransactionClient,
        by: ProducerEpoch,
        member: Membership,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        nobody = replace(member, generation=-1, member_id="", instance_id=None)
        await commit_offsets(client, by, nobody, offsets)

    setattr(TransactionClient, "commit_offsets", by_nobody)  # noqa: B010  (mypy: a method)
