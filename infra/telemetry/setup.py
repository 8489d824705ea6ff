"""What a process tells about itself beside its log, as the settings want it."""

from __future__ import annotations

from surefoot.infra.runtime.settings import Settings
from surefoot.infra.telemetry.metrics import serve_metrics
from surefoot.infra.telemetry.tracing import start_tracing


def start_telemetry(settings: Settings) -> None:
    """Call once, before anything runs.

    Raises: ConfigError — a port is taken, or a library is not installed.
    """
    serve_metrics(settings)
    start_tracing(settings)
