"""`surefoot archive`: events and finished runs, kept for good."""

from __future__ import annotations

from pathlib import Path

import typer

from surefoot.infra.processes.archive import run_archive
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings


def archive(agent_file: Path, *, once: bool) -> int:
    """Raises: ConfigError, Unavailable."""
    logging.configure()
    status, archivers = run_archive(load_agents([agent_file]), load_settings(), once=once)
    if once:
        for each in archivers:
            typer.echo(f"{each.agent}: {each.events} events in {each.files} files")
    return status
