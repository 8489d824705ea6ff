"""Outgoing webhooks: the workers that turn events into them, and their secrets."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence

from surefoot.consumers.builtin.signing import secret_variable
from surefoot.consumers.builtin.webhooks_out import hook_mapping
from surefoot.consumers.topic_triggers.worker import EventWorker
from surefoot.infra.kafka.txn import commit_deadline_s
from surefoot.infra.log.ports import Backend
from surefoot.infra.processes.worker import record_room
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.subscriptions import Subscription
from surefoot.state.declare.webhooks import SECRET_MIN_BYTES
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.records.encoding import Wire


def hook_workers(
    agents: Sequence[Agent], settings: Settings, backend: Backend, clock: Clock, slot: int
) -> list[EventWorker]:
    """Return one worker per subscription: it makes effects of events, as a trigger makes runs."""
    return [
        _worker(agent, subscription, settings, backend, clock, slot)
        for agent in agents
        for subscription in agent.subscriptions.values()
    ]


def _worker(
    agent: Agent,
    subscription: Subscription,
    settings: Settings,
    backend: Backend,
    clock: Clock,
    slot: int,
) -> EventWorker:
    topics = AgentTopics(settings.app, agent.name)
    worker = EventWorker(
        mapping=hook_mapping(
            agent,
            subscription,
            Wire(settings.app, topics, settings.partitions),
            record_room(settings),
        ),
        log=backend.source(topics, topics.events, topics.hook_group(subscription.name), slot),
        clock=clock,
        settle_s=commit_deadline_s(settings),
    )
    worker.name = f"webhooks of {agent.name} for {subscription.name}"
    return worker


def without_secret(agents: Sequence[Agent], settings: Settings) -> list[str]:
    """Return the names of the subscriptions without a secret here."""
    named = {name for agent in agents for name in agent.subscriptions}
    return sorted(named - settings.hook_secrets().keys())


def require_secrets(agents: Sequence[Agent], settings: Settings) -> None:
    """Raises: ConfigError — a subscription has no secret, and this process has to sign."""
    if missing := without_secret(agents, settings):
        variables = ", ".join(secret_variable(name) for name in missing)
        raise ConfigError(
            "SF1039", f"subscriptions have no secret to sign with; set {variables} (whsec_...)"
        )


def new_secret() -> str:
    """Return a strong secret in Standard Webhooks' format."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_MIN_BYTES)).decode()
