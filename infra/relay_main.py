"""The relay: a worker of the built-in outbox, delivering over HTTP."""

from __future__ import annotations

from surefoot.consumers.relay import outbox_agent
from surefoot.infra.clock import SystemClock
from surefoot.infra.http import HttpDeliver
from surefoot.infra.settings import Settings
from surefoot.infra.worker_main import run_worker
from surefoot.state.agent import Agent


def relay_agent() -> Agent:
    """The outbox agent, with a real HTTP client."""
    return outbox_agent(HttpDeliver(), SystemClock())


def run_relay(settings: Settings, *, slot: int) -> int:
    """As worker_main.run_worker."""
    return run_worker([relay_agent()], settings, slot=slot)
