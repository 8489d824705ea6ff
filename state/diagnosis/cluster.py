"""Judges the brokers: who is there, which replicas are in sync, disks, open transactions. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from surefoot.state.diagnosis.findings import Diagnosis

#: the least part of a disk that is to be free
DISK_FREE_MIN = 0.1
#: a transaction that is open for longer hangs: workers end theirs within seconds
HANGS_MS = 60_000
#: partitions, topics or commands that a finding names
_NAMED = 5

_SERVER = "--bootstrap-server $SUREFOOT_BOOTSTRAP_SERVERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """Where the replicas of one partition are; brokers by their id."""

    topic: str
    partition: int
    #: None: nobody leads it, and nobody can read or write it
    leader: int | None
    replicas: frozenset[int]
    in_sync: frozenset[int]
    #: how many have to be in sync before a write is taken
    min_in_sync: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    #: those that the cluster lists
    brokers: frozenset[int]
    partitions: Sequence[PartitionReplicas]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A folder of a broker, on a disk."""

    broker: int
    path: str
    #: of the disk; None: the broker does not say
    total_bytes: int | None = None
    usable_bytes: int | None = None
    #: the error by which the broker has given it up
    failed: str | None = None
    #: bytes by topic
    topics: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that a partition waits for."""

    topic: str
    partition: int
    producer_id: int
    #: of its first record in the partition; nothing behind it can be read
    start_offset: int
    #: time of the producer's latest record there
    since_ms: int
    #: None: no coordinator has it in progress, and so nothing will end it (KIP-664)
    transactional_id: str | None


def judge_brokers(view: ClusterView) -> list[Diagnosis]:
    """Find brokers that have replicas and are not in the cluster."""
    missing = Counter(broker for each in view.partitions for broker in each.replicas - view.brokers)
    return [
        Diagnosis(
            code="broker_missing",
            what=f"broker {broker} is not in the cluster; it has replicas of {count} partitions",
            do=(
                f"start broker {broker} again, with its disk; its replicas catch up by themselves",
                f"kafka-topics {_SERVER} --describe --under-replicated-partitions",
            ),
        )
        for broker, count in sorted(missing.items())
    ]


def judge_replicas(view: ClusterView) -> list[Diagnosis]:
    """Find partitions that cannot be read, or not written."""
    headless = [each for each in view.partitions if each.leader is None]
    short = [
        each
        for each in view.partitions
        if each.leader is not None and len(each.in_sync) < each.min_in_sync
    ]
    found = []
    if headless:
        found.append(
            Diagnosis(
                code="no_leader",
                what=f"nobody leads {_some(headless)}: no run of theirs moves",
                do=(f"kafka-topics {_SERVER} --describe --unavailable-partitions",),
            )
        )
    if short:
        found.append(
            Diagnosis(
                code="under_min_isr",
                what=f"{_some(short)} have fewer replicas in sync than min.insync.replicas, and "
                "take no writes",
                do=(f"kafka-topics {_SERVER} --describe --under-min-isr-partitions",),
            )
        )
    return found


def judge_disks(directories: Iterable[LogDirectory]) -> list[Diagnosis]:
    """Find disks that have failed, or are nearly full."""
    found = []
    for each in directories:
        place = f"{each.path} of broker {each.broker}"
        look = f"kafka-log-dirs {_SERVER} --describe --broker-list {each.broker}"
        if each.failed is not None:
            found.append(
                Diagnosis(code="disk_failed", what=f"{place} is offline: {each.failed}", do=(look,))
            )
        elif each.total_bytes and each.usable_bytes is not None:
            free = each.usable_bytes / each.total_bytes
            if free < DISK_FREE_MIN:
                largest = sorted(each.topics, key=lambda topic: -each.topics[topic])[:_NAMED]
                most = f"; the largest topics there: {', '.join(largest)}" if largest else ""
                found.append(
                    Diagnosis(
                        code="disk_full",
                        what=f"the disk of {place} has {free:.0%} free{most}",
                        do=(look, f"give the disk of broker {each.broker} more space"),
                    )
                )
    return found


def judge_transactions(opened: Iterable[OpenTransaction], now_ms: int) -> list[Diagnosis]:
    """Find transactions that hold back what stands behind them."""
    producers: dict[int, list[OpenTransaction]] = {}
    for each in opened:
        if now_ms - each.since_ms > HANGS_MS:
            producers.setdefault(each.producer_id, []).append(each)
    return [
        Diagnosis(
            code="transaction_hangs",
            what=f"a transaction of {_who(places[0])} holds back "
            f"{', '.join(f'{each.topic}/{each.partition}' for each in places[:_NAMED])} since "
            f"{(now_ms - min(each.since_ms for each in places)) // 1000} s",
            do=tuple(_ending(places)),
        )
        for places in producers.values()
    ]


def _who(transaction: OpenTransaction) -> str:
    if transaction.transactional_id is None:
        return f"producer {transaction.producer_id}, which no coordinator has in progress,"
    return transaction.transactional_id


def _ending(places: Sequence[OpenTransaction]) -> Iterator[str]:
    """Yield what ends one producer's transaction: its coordinator does, if it has it."""
    tool = f"kafka-transactions {_SERVER}"
    if (name := places[0].transactional_id) is not None:
        yield f"{tool} forceTerminateTransaction --transactionalId {shlex.quote(name)}"
        return
    for each in places:
        yield (
            f"{tool} abort --topic {each.topic} --partition {each.partition} "
            f"--start-offset {each.start_offset}"
        )


def _some(partitions: Sequence[PartitionReplicas]) -> str:
    named = ", ".join(map(str, partitions[:_NAMED]))
    more = len(partitions) - _NAMED
    return f"{named} and {more} more" if more > 0 else named
