"""`surefoot topics`: create and check topics, and show their lag."""

from __future__ import annotations

import asyncio

import typer

from surefoot.commands.admin import lag
from surefoot.commands.groups import group
from surefoot.commands.options import AgentFiles
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings

app = group("Create and check topics, and show their lag.")


@app.command()
def apply(agent_files: AgentFiles) -> None:
    """Create missing topics and check all of them. Existing topics are not altered."""
    _checked(agent_files, create=True)


@app.command()
def verify(agent_files: AgentFiles) -> None:
    """Check every topic's configuration; print the fix for each fault."""
    _checked(agent_files, create=False)


def _checked(agent_files: AgentFiles, *, create: bool) -> None:
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    names, settings = names_of(load_agents(agent_files)), load_settings()
    specs = specs_for(names, settings)

    async def check() -> list[str]:
        async with (
            open_backend(settings, SystemClock(), access="make" if create else "read") as backend,
            backend.topics() as topics,
        ):
            if create:
                return await topics.apply(specs)
            await topics.verify(specs)
            return []

    for name in asyncio.run(check()):
        typer.echo(f"created {name}")
    typer.echo(f"all {len(specs)} topics are correct")


app.add_typer(lag.app)
