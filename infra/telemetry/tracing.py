"""Exports runs and steps as OpenTelemetry spans, through the SDK.

The OTEL_... variables configure it. A run is a span, `surefoot.run`, exported when the run is over;
its steps, wherever they ran, are spans below it. Their ids derive from names, so a worker needs no
knowledge of the previous one, and nothing is stored. A span says where something ran and how it
ended, never its input, output or messages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import structlog

from surefoot.infra.runtime.settings import Settings
from surefoot.schemas import trace
from surefoot.schemas.trace import Trace
from surefoot.state.errors import ConfigError
from surefoot.state.machine.model import Run
from surefoot.state.telemetry import spans

log = structlog.get_logger(__name__)

_EXPORTERS = "opentelemetry_traces_exporter"
_MISSING = "SUREFOOT_TRACES needs OpenTelemetry's SDK: pip install 'surefoot[otel]'"


class OpenTelemetry:
    """Implements spans.Spans.

    Args: provider: a TracerProvider of the SDK; app: distinguishes the ids of installations
    """

    def __init__(self, provider: Any, app: str) -> None:
        from opentelemetry import context  # noqa: PLC0415
        from opentelemetry import trace as api  # noqa: PLC0415
        from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: PLC0415

        ids = threading.local()

        class Told(IdGenerator):
            def generate_span_id(self) -> int:
                return int(ids.next.span_id, 16)

            def generate_trace_id(self) -> int:
                return int(ids.next.trace_id, 16)

        self._api, self._context, self._ids = api, context, ids
        self._nothing = context.Context()
        self._app = app
        self._sampler: Any = provider.sampler
        tracer: Any = provider.get_tracer("surefoot")
        self._tracer = tracer
        tracer.id_generator = Told()  # only of this tracer: the provider may be the user's

    def begin(self, agent: str, run_id: str) -> str | None:
        trace_id = trace.trace_id(self._app, agent, run_id)
        decided = self._sampler.should_sample(self._nothing, int(trace_id, 16), "surefoot.run")
        flags = "01" if decided.decision.is_sampled() else "00"
        return str(Trace(trace_id, self._of_run(agent, run_id), flags))

    @contextmanager
    def step(self, run: Run, partition: int) -> Iterator[spans.Span]:
        whole = self._whole(run)
        mine = self._of_step(whole, run, run.seq, run.attempt)
        before = self._of_step(whole, run, run.seq - 1, 0) if run.seq else None
        self._ids.next = mine
        span = self._tracer.start_span(
            "surefoot.step",
            context=self._below(whole),
            kind=self._api.SpanKind.CONSUMER,
            attributes={
                **_named(run),
                "surefoot.step": run.step,
                "surefoot.attempt": run.attempt,
                "surefoot.partition": partition,
            },
            links=[self._api.Link(self._place(before))] if before is not None else [],
        )
        token = self._context.attach(self._api.set_span_in_context(span))
        try:
            sampled = span.get_span_context().trace_flags & self._api.TraceFlags.SAMPLED
            told = mine._replace(flags="01" if sampled else "00")
            yield _Step(span, str(told), self._api.StatusCode.ERROR)
        finally:
            self._context.detach(token)
            span.end()

    def ended(self, run: Run) -> None:
        whole = self._whole(run)
        if run.parent is not None:
            above = whole._replace(span_id=self._of_run(run.parent.agent, run.parent.run_id))
        else:
            above = trace.parse_traceparent(run.traceparent) or whole
        self._ids.next = whole
        span = self._tracer.start_span(
            "surefoot.run",
            # the first span of a trace has no parent
            context=self._below(above) if above.span_id != whole.span_id else self._nothing,
            start_time=run.created_ms * 1_000_000,
            attributes={**_named(run), "surefoot.status": run.status},
        )
        if run.status == "failed":
            span.set_status(self._api.StatusCode.ERROR)
        span.end(run.updated_ms * 1_000_000)

    def _whole(self, run: Run) -> Trace:
        """Return the run's span."""
        given = trace.parse_traceparent(run.traceparent) or trace.parse_traceparent(
            self.begin(run.agent, run.run_id)
        )
        assert given is not None
        return given._replace(span_id=self._of_run(run.agent, run.run_id))

    def _of_run(self, agent: str, run_id: str) -> str:
        return trace.span_id(self._app, agent, run_id)

    def _of_step(self, whole: Trace, run: Run, seq: int, attempt: int) -> Trace:
        return trace.child(whole, self._app, run.agent, run.run_id, run.epoch, seq, attempt)

    def _place(self, of: Trace) -> Any:
        flags = self._api.TraceFlags(int(of.flags, 16))
        ids = int(of.trace_id, 16), int(of.span_id, 16)
        return self._api.SpanContext(*ids, is_remote=True, trace_flags=flags)

    def _below(self, of: Trace) -> Any:
        span = self._api.NonRecordingSpan(self._place(of))
        return self._api.set_span_in_context(span, self._nothing)


class _Step:
    """Implements spans.Span."""

    def __init__(self, span: Any, traceparent: str, error: Any) -> None:
        self._span, self._error = span, error
        self.traceparent: str | None = traceparent

    def outcome(self, word: str) -> None:
        self._span.set_attribute("surefoot.outcome", word)
        if word in ("failed", "overspent"):
            self._span.set_status(self._error)


def _named(run: Run) -> dict[str, str | int]:
    return {
        "surefoot.agent": run.agent,
        "surefoot.run_id": run.run_id,
        "surefoot.seq": run.seq,
        "surefoot.epoch": run.epoch,
    }


def start_tracing(settings: Settings) -> None:
    """Export runs and steps to OpenTelemetry from now on, if the settings say so.

    Uses the provider that the user has set up, or else one configured by the OTEL_... variables.

    Raises: ConfigError — the SDK, or the configured exporter, is not installed.
    """
    if not settings.traces:
        return
    try:
        from opentelemetry import trace as api  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("SF1020", _MISSING) from error
    provider = api.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        # Not set globally: libraries would export to it unreviewed data, such as query strings.
        provider = _provider(settings)
    spans.use_spans(OpenTelemetry(provider, settings.app))
    log.info("tracing_ready")


def _provider(settings: Settings) -> Any:
    """Return a TracerProvider; the SDK reads resource, sampler and limits from the environment."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: settings.app}))
    provider = TracerProvider(resource=resource)
    for name in _exporter_names():
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    return provider


def _exporter_names() -> Sequence[str]:
    named = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    return [name.strip() for name in named if name.strip() not in ("", "none")]


def _exporter(name: str) -> Any:
    """Return the exporter that a package registers under this name; OTLP has one per protocol."""
    names = [name]
    if name == "otlp":
        protocol = os.environ.get(
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        )
        names = ["otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"]
    for entry in entry_points(group=_EXPORTERS):
        if entry.name in names:
            return entry.load()()
    raise ConfigError(
        "SF1020",
        f"SUREFOOT_TRACES: no exporter {names[0]!r} is installed; pip install "
        "opentelemetry-exporter-otlp-proto-http, or set OTEL_TRACES_EXPORTER=console",
    )
