"""`surefoot audit`: what accounts did, and what they were refused."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import Json
from surefoot.commands.output import print_each
from surefoot.commands.readers import require_partitions, require_topic
from surefoot.infra.access.audit import AuditReader
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.access.audit import AuditEntry, audit_json
from surefoot.state.declare.durations import duration_s
from surefoot.state.names.topics import audit_topic
from surefoot.state.reading.explain import clock_time

app = commands()


@app.command()
def audit(
    since: Annotated[str, typer.Option(help="How far back: 1h, 30d.")] = "1d",
    who: Annotated[str | None, typer.Option(help="Only of this account.")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Only what concerns this run.")
    ] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    as_json: Json = False,
) -> None:
    """Show what accounts did, and what they were refused.

    What they did through a gateway, oldest first; and tokens that were created or revoked.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    settings, clock = load_settings(), SystemClock()
    since_ms = clock.now_ms() - int((duration_s(since) or 0) * 1000)

    def wanted(entry: AuditEntry) -> bool:
        return (
            who in (None, entry.who)
            and run in (None, entry.run_id)
            and (not refused or entry.status >= 400)  # noqa: PLR2004  (HTTP's errors)
        )

    async def read() -> list[AuditEntry]:
        topic = audit_topic(settings.app)
        async with open_backend(settings, clock, access="read") as backend:
            require_partitions(topic, await require_topic(topic, backend), settings)
            reader = AuditReader(settings, backend)
            try:
                return await reader.entries(since_ms, wanted)
            finally:
                await reader.stop()

    titles = ("TIME", "WHO", "FROM", "ACTION", "ON", "ANSWER", "NOTE")
    print_each(asyncio.run(read()), audit_json, titles, _cells, wraps="NOTE", as_json=as_json)


def _cells(entry: AuditEntry) -> tuple[str, ...]:
    more = f" ({entry.unrecorded} more tries before)" if entry.unrecorded else ""
    return (
        clock_time(entry.at_ms),
        entry.who or "nobody",
        entry.origin or "",
        entry.action,
        "/".join(part for part in (entry.agent, entry.run_id) if part),
        str(entry.status),
        f"{entry.note or ''}{more}",
    )
