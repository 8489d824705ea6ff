"""The relay: a worker of the built-in outbox, delivering over HTTP."""

from __future__ import annotations

from surefoot.consumers.builtin.outbox import HttpDelivery, outbox_agent
from surefoot.consumers.builtin.signing import signers_of
from surefoot.consumers.builtin.webhooks_out import WebhookDelivery
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.processes.worker import run_worker
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent
from surefoot.state.egress.policy import parse_allowed

#: time limit for a receiver of webhooks, in seconds; a hanging one holds a slot of the relay
HOOK_TIMEOUT_S = 15.0


def relay_agent(settings: Settings) -> Agent:
    """Return the outbox agent, with a real HTTP client.

    Raises: ConfigError — a secret for signing webhooks is invalid.
    """
    clock, allowed = SystemClock(), parse_allowed(settings.out_allow)
    patient = HttpDeliver(allowed, timeout_s=HOOK_TIMEOUT_S)
    return outbox_agent(
        HttpDelivery(HttpDeliver(allowed), clock),
        WebhookDelivery(patient, clock, signers_of(settings.hook_secrets())),
    )


def run_relay(settings: Settings, *, slot: int) -> int:
    """Run the relay; like worker.run_worker."""
    return run_worker([relay_agent(settings)], settings, slot=slot)
