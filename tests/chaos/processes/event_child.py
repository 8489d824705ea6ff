"""A trigger process of a test, that has itself killed at a named point of a commit or a takeover.

python -m tests.chaos.processes.event_child TOPIC [--at POINT]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from surefoot import Agent, Context, Done
from surefoot.infra.processes.trigger import run_trigger
from surefoot.infra.runtime.logging import configure
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import AgentTopics, fence_id
from tests.chaos.processes.child import Trap

AGENT = "listener"


def listener(topic: str, **declared: Any) -> Agent:
    """An agent that starts a run from each number on a topic; 13 raises, below 0 is not for it."""
    agent = Agent(AGENT)

    @agent.step
    async def count(ctx: Context, number: int) -> Done:
        return Done(number)

    @agent.on_event(topic=topic, start="earliest", where=lambda number: number >= 0, **declared)
    def on_number(number: int) -> int:
        if number == 13:
            raise ValueError("unlucky")
        return number

    return agent


class EventTrap(Trap):
    """Its transactions are those of the trigger."""

    def __init__(self, settings: Settings, topic: str) -> None:
        super().__init__(settings, AGENT, 9)
        topics = AgentTopics(settings.app, AGENT)
        self._ids = {fence_id(topics.trigger_group(topic), p) for p in range(8)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("topic")
    parser.add_argument("--at")
    given = parser.parse_args()
    settings = load_settings()
    configure(json=True)
    if given.at:
        EventTrap(settings, given.topic).set(given.at)
    return run_trigger([listener(given.topic)], settings, slot=0)


if __name__ == "__main__":
    sys.exit(main())
