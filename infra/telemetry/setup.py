"""Starts a process's metrics and traces, as the settings say."""

from __future__ import annotations

from surefoot.infra.runtime.settings import Settings
from surefoot.infra.telemetry.metrics import serve_metrics
from surefoot.infra.telemetry.tracing import start_tracing


def start_telemetry(settings: Settings) -> None:
    """Start telemetry. Call once, before anything runs.

    Raises: ConfigError — a port is taken, or a library is not installed.
    """
    serve_metrics(settings)
    start_tracing(settings)
