"""Defines what a process counts and measures, in one table. Pure.

As with logging, code reports a value in one line; each process decides once where it goes
(`infra.telemetry.metrics`). Before that it goes nowhere. No decision depends on a metric.

A label has few values: declared names and words of ours. Never a run_id, a key or anything that
comes from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

MetricKind = Literal["counter", "gauge", "histogram"]

#: upper bounds in seconds
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STEP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Sink(Protocol):
    """Where it goes. Called from any thread; must not block or raise."""

    def add(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Of a counter, or of a gauge."""

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Of a gauge."""

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Of a histogram."""


class Nowhere:
    """Implements Sink."""

    def add(self, metric: Metric, labels: tuple[str, ...], value: float) -> None: ...

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None: ...

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None: ...


_sink: Sink = Nowhere()


def use_sink(sink: Sink) -> Sink:
    """Send everything there from now on. Returns where it went so far."""
    global _sink
    before, _sink = _sink, sink
    return before


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One row of the table."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    #: of a histogram
    buckets: tuple[float, ...] = ()

    def add(self, *labels: str, by: float = 1.0) -> None:
        """So many more; `labels` in the order of the table."""
        _sink.add(self, labels, by)

    def set(self, value: float, *labels: str) -> None:
        """It is this much now."""
        _sink.set(self, labels, value)

    def observe(self, value: float, *labels: str) -> None:
        """It took this many seconds."""
        _sink.observe(self, labels, value)


STEP_SECONDS = Metric(
    "surefoot_step_seconds",
    "histogram",
    "How long an attempt of a step took, from its input being decoded to its outcome.",
    ("agent", "step"),
    _STEP,
)
STEPS = Metric(
    "surefoot_steps_total",
    "counter",
    "Attempts of steps that have ended: completed, failed (it may be tried again), overspent (a "
    "budget), lost (given up with the partition or the lease, and not counted as an attempt).",
    ("agent", "step", "outcome"),
)
THREADS_LEFT = Metric(
    "surefoot_threads_left",
    "gauge",
    "Threads of steps that were given up or timed out and have not ended. A value that stays up "
    "means a step that hangs.",
    ("agent",),
)
TXN_SECONDS = Metric(
    "surefoot_txn_seconds",
    "histogram",
    "How long a transaction took, from its first record to the answer to its commit.",
    ("agent",),
    _QUICK,
)
TXN_INPUTS = Metric(
    "surefoot_txn_inputs_total",
    "counter",
    "Inputs that transactions have committed: outcomes of steps, commands, timers, entries. "
    "Divided by the count of surefoot_txn_seconds: inputs per transaction.",
    ("agent",),
)
TXN_AMBIGUOUS = Metric(
    "surefoot_txn_ambiguous_total",
    "counter",
    "Commits whose outcome was unknown and was read back from the log.",
    ("agent",),
)
PRODUCER_FENCED = Metric(
    "surefoot_producer_fenced_total",
    "counter",
    "Owners that were fenced: another worker has their partition.",
    ("agent",),
)
OWNER_FAILED = Metric(
    "surefoot_owner_failed_total",
    "counter",
    "Owners that ended with an unexpected error; the partition is taken over again.",
    ("agent",),
)
RESTORE_SECONDS = Metric(
    "surefoot_state_restore_seconds",
    "histogram",
    "How long it took to become the owner of a partition: fence, offsets, restore.",
    ("agent",),
    _SLOW,
)
REBALANCES = Metric(
    "surefoot_rebalances_total", "counter", "Assignments that a worker was given.", ("agent",)
)
PARTITIONS = Metric(
    "surefoot_partitions_owned", "gauge", "Partitions that a worker serves.", ("agent",)
)
LSO_LAG = Metric(
    "surefoot_lso_lag",
    "gauge",
    "Offsets between the last stable offset and the end of the inputs that a worker reads, at its "
    "latest fetch: what open transactions hold back. A value that stays up means a transaction "
    "that hangs. Kafka only.",
    ("agent",),
)
RUNS_STARTED = Metric("surefoot_runs_started_total", "counter", "Runs that have begun.", ("agent",))
RUNS_ENDED = Metric(
    "surefoot_runs_ended_total",
    "counter",
    "Runs that are over, by how: completed, failed, cancelled.",
    ("agent", "status"),
)
RUNS_ATTENTION = Metric(
    "surefoot_runs_attention_total",
    "counter",
    "Times that a run was parked for a person.",
    ("agent",),
)
RUNS_LIVE = Metric(
    "surefoot_runs_live", "gauge", "Runs of a worker's partitions that are not over.", ("agent",)
)
OLDEST_TASK = Metric(
    "surefoot_oldest_task_seconds",
    "gauge",
    "Age of the oldest task that was read and whose step is not committed. Tasks that are not "
    "read yet are the lag of the consumer group.",
    ("agent",),
)
DEAD_LETTERS = Metric(
    "surefoot_dead_letters_total",
    "counter",
    "Inputs that could not be used and went to the dead letters.",
    ("agent",),
)
INPUTS_LOST = Metric(
    "surefoot_inputs_lost_total",
    "counter",
    "Offsets of commands, and of events of triggers, that retention had deleted before they were "
    "read.",
    ("agent", "input"),
)
OUTBOX_PENDING = Metric(
    "surefoot_outbox_pending",
    "gauge",
    "Effects of a relay's partitions that are committed and not delivered.",
)
OUTBOX_DELIVERIES = Metric(
    "surefoot_outbox_deliveries_total",
    "counter",
    "Requests that a relay has sent, by the answer: 2xx, 3xx, 4xx, 5xx, none.",
    ("answer",),
)
WEBHOOKS = Metric(
    "surefoot_webhook_deliveries_total",
    "counter",
    "Outcomes of deliveries, by source: started, ignored, answered, failed, refused, "
    "unavailable. A source that no agent listens to is `unknown`.",
    ("source", "verdict"),
)
TICK_LATENESS = Metric(
    "surefoot_schedule_lateness_seconds",
    "histogram",
    "Time from a schedule's tick to the decision to start its run.",
    ("agent",),
    _SLOW,
)
SSE_CONNECTIONS = Metric(
    "surefoot_sse_connections", "gauge", "Event streams that are open at a gateway."
)
REQUESTS_REFUSED = Metric(
    "surefoot_requests_refused_total",
    "counter",
    "Requests that a gateway with authentication refused, by status: 401 nobody is signed in, 403 "
    "the role does not allow it, 404 an agent that the account may not see.",
    ("status",),
)
ACCOUNT_USED = Metric(
    "surefoot_account_last_used_timestamp_seconds",
    "gauge",
    "When an account last sent a request to this gateway, seconds since 1970.",
    ("account",),
)

#: the table, in the order in which it is shown
METRICS: tuple[Metric, ...] = tuple(each for each in globals().values() if isinstance(each, Metric))
