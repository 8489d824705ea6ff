"""What the parts of one partition's owner share: where they work, with what, and what they allow
themselves."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from surefoot.state.declare.agent import Agent
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import Log
from surefoot.state.records.encoding import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """What an owner allows itself."""

    #: runs that may wait for a slot before reading is paused
    backlog: int = 256
    #: largest record, in bytes, key and headers included
    record_bytes: int = 1_000_000
    #: after this long a step's task is carried forward so that offsets can move on
    forward_after_s: float = 30.0
    #: with nothing to do for this long, offsets are committed up to the markers
    idle_commit_s: float = 1.0
    #: how long decisions that are ready wait for steps that are running, to share a transaction
    gather_s: float = 0.005
    #: before a step that was given up for want of a lease is tried again
    lost_retry_s: float = 0.5
    #: at a rebalance, how long running steps may take to finish before their partition may move;
    #: the whole group waits for that
    handover_s: float = 3.0
    #: how long the receipt of a finished run is kept
    dedup_window_ms: int = 14 * 86_400_000
    #: how long signals for a run that has not begun are kept
    early_signals_ms: int = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext:
    """One partition of one agent, and what its owner works with."""

    agent: Agent
    partition: int
    log: Log
    wire: Wire
    clock: Clock
    limits: OwnerLimits
    logger: structlog.stdlib.BoundLogger
