"""The long-running parts, and the topics that they need."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import typer

from surefoot.infra.kafka_client.topics import Topics, names_of, specs_for
from surefoot.infra.open_log import capabilities, open_backend, require_many_processes
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents, pool_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.supervisor import Child, Supervisor
from surefoot.infra.telemetry.metrics import port_of_child
from surefoot.infra.telemetry.setup import start_telemetry

#: beyond the workers' own drain deadline, before they are killed; in seconds
GRACE_S = 10.0


def worker(agent_file: Path, processes: int, slot: int | None, pool: str | None) -> int:
    """Supervise worker processes; with a slot, be one. With a pool, of the steps of that pool.

    Raises: ConfigError — no agent in the file has such a pool.
    """
    logging.configure()
    agents = load_agents([agent_file])
    args = ["worker", str(agent_file)]
    names = names_of(agents)
    if pool is not None:
        agents = pool_agents(agents, pool)
        args += ["--pool", pool]
    settings = load_settings()
    require_many_processes(settings, "worker")
    if slot is not None:
        from surefoot.infra.processes.worker import run_worker  # noqa: PLC0415

        start_telemetry(settings)
        return run_worker(agents, settings, slot=slot)
    return asyncio.run(_supervise(args, names, processes, settings))


def relay(processes: int, slot: int | None) -> int:
    """Supervise relay processes; with a slot, be one."""
    logging.configure()
    settings = load_settings()
    require_many_processes(settings, "relay")
    if slot is not None:
        from surefoot.infra.processes.relay import run_relay  # noqa: PLC0415

        start_telemetry(settings)
        return run_relay(settings, slot=slot)
    return asyncio.run(_supervise(["relay"], [], processes, settings))


def trigger(agent_file: Path, processes: int, slot: int | None) -> int:
    """Supervise trigger processes; with a slot, or where there can be but one, be one."""
    from surefoot.infra.processes.trigger import require_sources, run_trigger  # noqa: PLC0415

    logging.configure()
    agents, settings = load_agents([agent_file]), load_settings()
    require_sources(agents)
    if slot is not None or not capabilities(settings).many_processes:
        start_telemetry(settings)
        return run_trigger(agents, settings, slot=slot or 0)
    args = ["trigger", str(agent_file)]
    return asyncio.run(_supervise(args, names_of(agents), processes, settings))


async def _supervise(
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


def gateway(agent_files: Sequence[Path]) -> None:
    from surefoot.infra.processes.gateway import run_gateway  # noqa: PLC0415

    logging.configure()
    settings = load_settings()
    require_many_processes(settings, "gateway")
    agents = load_agents(agent_files)
    start_telemetry(settings)
    run_gateway(agents, settings)


def views(agent_files: Sequence[Path]) -> None:
    from surefoot.infra.processes.views import run_views  # noqa: PLC0415

    logging.configure()
    run_views([agent.name for agent in load_agents(agent_files)], load_settings())


def serve(agent_files: Sequence[Path]) -> int:
    """Gateway, workers and relay in this process; returns the exit status."""
    from surefoot.infra.processes.serve import run_serve  # noqa: PLC0415

    logging.configure()
    agents, settings = load_agents(agent_files), load_settings()
    start_telemetry(settings)
    return run_serve(agents, settings)


def topics_apply(agent_files: Sequence[Path]) -> None:
    logging.configure(level="CRITICAL")  # what matters is raised
    names, settings = _names(agent_files), load_settings()

    async def apply() -> list[str]:
        async with (
            open_backend(settings, SystemClock(), access="make") as backend,
            backend.topics() as topics,
        ):
            return await topics.apply(specs_for(names, settings))

    created = asyncio.run(apply())
    for name in created:
        typer.echo(f"created {name}")
    typer.echo(f"all {len(specs_for(names, settings))} topics are as they must be")


def topics_verify(agent_files: Sequence[Path]) -> None:
    logging.configure(level="CRITICAL")  # what matters is raised
    names, settings = _names(agent_files), load_settings()

    async def verify() -> None:
        async with (
            open_backend(settings, SystemClock(), access="read") as backend,
            backend.topics() as topics,
        ):
            await topics.verify(specs_for(names, settings))

    asyncio.run(verify())
    typer.echo(f"all {len(specs_for(names, settings))} topics are as they must be")


def _names(agent_files: Sequence[Path]) -> list[str]:
    return names_of(load_agents(agent_files))
