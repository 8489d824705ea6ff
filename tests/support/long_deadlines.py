"""The deadlines that the product gives to people's requests, as long as a busy machine needs.

A gateway answers 503 or 202 when the log takes longer than a person would wait. Under a test that
is no finding: it says how much else the machine had to do. A test of a deadline sets its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from surefoot.commands import operate, runs, webhooks
from surefoot.commands import schedules as schedule_commands
from surefoot.infra.http import server
from surefoot.infra.kafka import log as kafka_log
from surefoot.infra.kafka_client import appender as kafka_client
from surefoot.infra.kafka_client import clients as kafka_shared
from surefoot.infra.processes import gateway as gateway_main
from surefoot.infra.readers import replay_range
from surefoot.infra.readers import runs as run_reader
from surefoot.infra.registry.confluent import Registry
from surefoot.infra.views import http
from surefoot.producers.api.app import GatewayLimits
from surefoot.producers.commands import schedules

LONG_S = 60.0

#: settings of a cluster in which nobody dies: no stall of the machine looks like a death
PATIENT = {
    "producer_request_timeout_ms": 60_000,
    "transaction_timeout_ms": 90_000,
    "session_timeout_ms": 120_000,
    "rebalance_timeout_ms": 180_000,
}
#: the same where a topic is named that there is not: it is looked for as long as a request may take
PATIENT_WITHOUT_A_TOPIC = PATIENT | {"producer_request_timeout_ms": 4_000}


def log_is_read_within(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """How long a question to the log may take before it is Unavailable."""
    bounded = run_reader.bounded.__wrapped__  # type: ignore[attr-defined]
    patch.setattr(bounded, "__defaults__", (seconds,))


def gateways_wait(patch: pytest.MonkeyPatch, *, start_s: float, answer_s: float) -> None:
    """How long a gateway that is started from now on waits for the log to take a start or a
    command, and for the owner of a run to answer."""
    patch.setattr(
        gateway_main, "GatewayLimits", partial(GatewayLimits, start_s=start_s, answer_s=answer_s)
    )


@contextmanager
def patience() -> Iterator[None]:
    """In this process, and while it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        log_is_read_within(patch, LONG_S)
        gateways_wait(patch, start_s=LONG_S, answer_s=LONG_S)
        patch.setattr(gateway_main, "_VERIFY_S", LONG_S)
        patch.setattr(server, "_DRAIN_S", int(LONG_S))
        patch.setattr(kafka_shared, "_START_S", LONG_S)
        patch.setattr(kafka_log, "RESTORE_DEADLINE_S", 2 * LONG_S)
        patch.setattr(kafka_client, "_READY_DEADLINE_S", LONG_S)
        patch.setattr(kafka_client, "_READY_REQUEST_MS", int(LONG_S * 1_000))
        patch.setattr(kafka_client, "_READY_TRANSACTION_MS", int(LONG_S * 1_000))
        patch.setattr(http, "_ANSWER_S", LONG_S)
        patch.setattr(replay_range, "_DEADLINE_S", LONG_S)
        defaults = Registry.__init__.__kwdefaults__
        assert defaults is not None
        patch.setitem(defaults, "timeout_s", LONG_S)
        patch.setattr(runs, "START_S", LONG_S)
        patch.setattr(webhooks, "_START_S", LONG_S)
        for module in (operate, schedule_commands, schedules):
            patch.setattr(module, "SEND_S", LONG_S)
        yield
