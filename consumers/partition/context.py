"""What the parts of a partition's owner share: the partition, their ports, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from surefoot.state.declare.agent import Agent
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import Log
from surefoot.state.records.encoding import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """Limits of an owner."""

    #: number of runs that may wait for a slot, and of inputs for a commit, before reading pauses
    backlog: int = 256
    #: largest record, in bytes, including key and headers
    record_bytes: int = 1_000_000
    #: a step's task is carried forward after this long, so that offsets can advance
    forward_after_s: float = 30.0
    #: after this long with nothing to do, offsets are committed up to the transaction markers
    idle_commit_s: float = 1.0
    #: how long a step may have been running for decisions to wait for it, to share a transaction
    gather_s: float = 0.005
    #: delay before a step given up for lack of a lease is tried again
    lost_retry_s: float = 0.5
    #: at a rebalance, how long running steps may take to finish before their partition may move;
    #: the whole group waits that long
    handover_s: float = 3.0
    #: how long the receipt of a finished run is kept
    dedup_window_ms: int = 14 * 86_400_000
    #: how long signals for a run that has not begun are kept
    early_signals_ms: int = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext:
    """One partition of one agent, and the ports that its owner works with."""

    agent: Agent
    partition: int
    log: Log
    wire: Wire
    clock: Clock
    limits: OwnerLimits
    logger: structlog.stdlib.BoundLogger
