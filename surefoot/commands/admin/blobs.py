"""`surefoot blobs`: large payloads, which are stored outside the log."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from surefoot.commands.groups import group
from surefoot.infra.blobs.stores import open_blobs
from surefoot.infra.blobs.sweep import Swept, sweep
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import ConfigError

app = group("Manage large payloads outside of the log.")


@app.command()
def gc(
    keep_days: Annotated[
        int, typer.Option(min=2, max=10_000, help="Keep payloads younger than this.")
    ] = 7,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many, and delete nothing.")
    ] = False,
) -> None:
    """Delete payloads in SUREFOOT_BLOBS that no record of this app refers to.

    Reads all of the app's records. Safe while everything runs, and to repeat.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    settings, clock = load_settings(), SystemClock()

    async def run() -> Swept:
        blobs = open_blobs(settings)
        if blobs is None:
            raise ConfigError("SF1023", "no store is set; set SUREFOOT_BLOBS as for the workers")
        async with open_backend(settings, clock, access="read") as backend:
            return await sweep(
                settings,
                backend,
                blobs,
                now_ms=clock.now_ms(),
                keep_days=keep_days,
                dry_run=dry_run,
            )

    done = asyncio.run(run())
    what = "to delete" if dry_run else "deleted"
    typer.echo(f"{what}: {done.deleted} ({done.deleted_bytes} bytes); still needed: {done.kept}")
