"""Processes of one service, watched over and started again when they die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from surefoot.infra.kafka_client.topics import Topics, specs_for
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.runtime.supervisor import Child, Supervisor
from surefoot.infra.telemetry.metrics import port_of_child

#: beyond the workers' own drain deadline, before they are killed; in seconds
GRACE_S = 10.0


async def supervise(
    args: Sequence[str], agents: Sequence[str], processes: int, settings: Settings
) -> int:
    """What no restart would mend is told at once: no Kafka there, or topics that are wrong."""
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
        grace_s=settings.drain_timeout_s + GRACE_S,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    return await supervisor.run()
