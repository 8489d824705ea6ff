"""Exports the metrics to Prometheus, on a port of their own.

So whoever can reach the gateway cannot reach them, and every kind of process has them in the same
way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from threading import Thread
from typing import Any, Protocol, runtime_checkable

import structlog

from surefoot.infra.runtime.settings import Settings
from surefoot.infra.telemetry.health import beside
from surefoot.state.errors import ConfigError
from surefoot.state.telemetry import metrics
from surefoot.state.telemetry.metrics import METRICS, Metric

log = structlog.get_logger(__name__)

#: how often a worker's gauges are updated, in seconds
MEASURE_S = 2.0


class Prometheus:
    """Implements metrics.Sink. Args: registry: a CollectorRegistry of prometheus-client."""

    def __init__(self, registry: Any) -> None:
        import prometheus_client  # noqa: PLC0415

        self._families: dict[Metric, Any] = {}
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        for metric in METRICS:
            make: Any = getattr(prometheus_client, metric.kind.capitalize())
            more = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
            self._families[metric] = make(
                metric.name, metric.help, metric.labels, registry=registry, **more
            )

    def add(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._child(metric, labels).inc(value)

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._child(metric, labels).set(value)

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._child(metric, labels).observe(value)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        """Return the labelled metric, cached: the client's lookup costs more than an update."""
        found = self._children.get((metric, labels))
        if found is None:
            family = self._families[metric]
            found = family.labels(*labels) if metric.labels else family
            self._children[metric, labels] = found
        return found


def serve_metrics(settings: Settings) -> str | None:
    """Serve this process's metrics and health as long as it lives, in a thread of their own.

    Returns: their address; None when no port is set.

    Raises: ConfigError — the port is taken, or prometheus-client is not installed.
    """
    if settings.metrics_port is None:
        return None
    try:
        import prometheus_client as prometheus  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "SF1020",
            "SUREFOOT_METRICS_PORT needs prometheus-client: pip install 'surefoot[metrics]'",
        ) from error
    from surefoot.infra.http.server import listen, server, url_of  # noqa: PLC0415

    host = settings.metrics_host
    listener = listen(host, settings.metrics_port, "SUREFOOT_METRICS")
    registry = prometheus.CollectorRegistry()
    for collect in (prometheus.ProcessCollector, prometheus.PlatformCollector):
        collect(registry=registry)
    metrics.use_sink(Prometheus(registry))
    app, drain_s = beside(prometheus.make_asgi_app(registry)), settings.deadlines.drain_s
    serving = server(app, settings.hosts(host), drain_s=drain_s, sockets=False)
    Thread(
        target=lambda: asyncio.run(serving.serve(sockets=[listener])), name="metrics", daemon=True
    ).start()
    url = f"{url_of(host, listener)}/metrics"
    log.info("metrics_ready", url=url)
    return url


def port_of_child(settings: Settings, number: int) -> dict[str, str]:
    """Return the environment of child process `number`, from 0: a port of its own."""
    if settings.metrics_port is None:
        return {}
    port = settings.metrics_port + number if settings.metrics_port else 0
    return {"SUREFOOT_METRICS_PORT": str(port)}


class Measured(Protocol):
    """Something that reports its gauges from time to time."""

    def measure(self) -> None:
        """Set the gauges."""


@runtime_checkable
class Lagging(Protocol):
    """A log that knows how much open transactions hold back."""

    def lso_lag(self) -> int: ...


async def measure(workers: Sequence[Measured], logs: Iterable[tuple[str, object]]) -> None:
    """Update the gauges every few seconds, until cancelled. `logs`: by agent."""
    lagging = [(agent, each) for agent, each in logs if isinstance(each, Lagging)]
    while True:
        for worker in workers:
            worker.measure()
        for agent, each in lagging:
            metrics.LSO_LAG.set(each.lso_lag(), agent)
        await asyncio.sleep(MEASURE_S)
