"""`surefoot demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.infra.demo.demo import run_demo

app = commands()


@app.command()
def demo(
    agent_file: Annotated[
        Path | None, typer.Argument(metavar="[AGENT.py]", help="Default: the built-in example.")
    ] = None,
    deliveries: Annotated[
        int, typer.Option(min=10, max=100_000, help="How many deliveries.")
    ] = 200,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How many workers to kill.")] = 2,
    seed: Annotated[
        int | None, typer.Option(help="Seed of deliveries, kills and faults; default: random.")
    ] = None,
) -> None:
    """Kill workers under a load of webhooks, then audit every step.

    Uses Kafka if it can, and starts a broker if needed; otherwise the embedded log. The agent must
    map GitHub's `issues` event. The last line of the output is one JSON object; the exit status
    is 0 only if nothing was lost, doubled or left unfinished.
    """
    raise typer.Exit(run_demo(agent_file, deliveries=deliveries, kills=kills, seed=seed))
