"""`surefoot broker`."""

from __future__ import annotations

from surefoot.commands.groups import commands
from surefoot.infra.dev.command import run_broker

app = commands()


@app.command()
def broker() -> None:
    """Run a local Kafka broker and print its address. Its data is deleted when it ends."""
    run_broker()
