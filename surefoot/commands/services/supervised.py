"""Processes of one service, supervised and restarted when they die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from surefoot.infra.kafka_client.topics import Topics, specs_for
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.runtime.supervisor import DRAIN_GRACE_S, Child, Spare, Supervisor
from surefoot.infra.telemetry.metrics import port_of_child


async def supervise(
    args: Sequence[str], agents: Sequence[str], processes: int, settings: Settings
) -> int:
    """Check the topics, then supervise the processes; returns the exit status.

    Raises at once what no restart would fix: no Kafka there, or wrong topics.
    """
    async with Topics(settings) as topics:
        await topics.verify(specs_for(agents, settings))
    supervisor = Supervisor(
        [
            Child(
                name=f"{args[0]}-{slot}",
                args=[*args, "--slot", str(slot)],
                env=port_of_child(settings, slot),
            )
            for slot in range(processes)
        ],
        grace_s=settings.drain_timeout_s + DRAIN_GRACE_S,
        spare=Spare(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    return await supervisor.run()
