"""`surefoot version`."""

from __future__ import annotations

import typer

from surefoot import __version__
from surefoot.commands.groups import commands

app = commands()


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)
