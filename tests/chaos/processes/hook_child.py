"""One trigger process that makes webhooks, and dies at a point of its commits when told to."""

from __future__ import annotations

import argparse
import sys

from surefoot import Agent, Context, Done
from surefoot.infra.processes.trigger import run_trigger
from surefoot.infra.runtime.logging import configure
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import AgentTopics, fence_id
from tests.chaos.processes.child import Trap

AGENT, HOOK = "shop", "crm"


def telling(url: str) -> Agent:
    """Its runs end with their number, and even ones are told of."""
    agent = Agent(AGENT)

    @agent.step
    async def ship(ctx: Context, number: int) -> Done:
        return Done(number)

    agent.subscribe(
        HOOK,
        url=url,
        events="run.completed",
        start="earliest",
        where=lambda event: event.result % 2 == 0,
    )
    return agent


class HookTrap(Trap):
    """Its transactions are those of the subscription."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, AGENT, 9)
        group = AgentTopics(settings.app, AGENT).hook_group(HOOK)
        self._ids = {fence_id(group, partition) for partition in range(settings.partitions)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--at")
    given = parser.parse_args()
    settings = load_settings()
    configure(json=True)
    if given.at:
        HookTrap(settings).set(given.at)
    return run_trigger([telling(given.url)], settings, slot=0)


if __name__ == "__main__":
    sys.exit(main())
