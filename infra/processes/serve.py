"""Everything in one process: gateway, triggers, workers of every agent and pool, and the relay.

The embedded log requires it, as it allows one process; on Kafka it suits small installations.
Gateway and triggers stop first, so that nothing new comes in while work is being finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.gateway import serve_gateway
from surefoot.infra.processes.relay import relay_agent
from surefoot.infra.processes.trigger import trigger
from surefoot.infra.processes.webhooks_out import require_secrets
from surefoot.infra.processes.worker import spare_what_is_loaded, until_signalled, work
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent


def run_serve(agents: Sequence[Agent], settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns a worker's exit status (worker.run_worker).

    Raises: ConfigError — it cannot start.
    """

    async def run() -> int:
        stop, abort = until_signalled(settings.drain_timeout_s)
        async with open_backend(settings, SystemClock(), owner=True) as backend:
            spare_what_is_loaded()
            return await serve(agents, settings, backend, stop, abort)

    return asyncio.run(run())


async def serve(
    agents: Sequence[Agent],
    settings: Settings,
    backend: Backend,
    stop: asyncio.Event,
    abort: asyncio.Event,
    on_listening: Callable[[str], None] = lambda _url: None,
) -> int:
    """Create the topics, and serve on the running loop until `stop` is set.

    Returns: the exit status.

    Raises: ConfigError — a topic is wrong, a webhook has no secret, or the port is taken.
    """
    async with backend.topics() as topics:
        await topics.apply(specs_for(names_of(agents), settings))
    pools = [agent.pool(name) for agent in agents for name in agent.pools]
    require_secrets(agents, settings)
    everyone = [*agents, *pools, relay_agent(settings)]
    drain = asyncio.Event()
    serving = asyncio.create_task(serve_gateway(agents, settings, backend, stop, on_listening))
    working = asyncio.create_task(
        work(everyone, settings, backend, SystemClock(), drain, abort, slot=0)
    )
    triggering = asyncio.create_task(
        trigger(agents, settings, backend, SystemClock(), stop, slot=0)
    )
    try:
        await asyncio.wait({serving, triggering, working}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait({serving, triggering})
        drain.set()
        code = await working
        serving.result()
        triggering.result()
        return code
    finally:
        for part in (serving, triggering, working):
            part.cancel()
        await asyncio.wait({serving, triggering, working})
