"""One trace of a run, wherever its steps ran; and nothing in it that a run was given or said.

The workers are the real ones, in memory; the spans are those of the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from surefoot import Agent, Call, Context, Done, Handoff, Next, Parallel
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry import tracing
from surefoot.infra.telemetry.tracing import OpenTelemetry, start_tracing
from surefoot.state.errors import ConfigError
from surefoot.state.telemetry import spans
from surefoot.testing import Simulation
from tests.support.fake_engine import a_run

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "canary-4f1c"
#: what OpenTelemetry says is the current span in the second step
SEEN: list[otel.Span] = []
#: every attribute that a span may have
ALLOWED = {
    "surefoot.agent",
    "surefoot.run_id",
    "surefoot.seq",
    "surefoot.epoch",
    "surefoot.step",
    "surefoot.attempt",
    "surefoot.partition",
    "surefoot.outcome",
    "surefoot.status",
}


def two_steps() -> Agent:
    agent = Agent("traced")

    @agent.step(start=True)
    async def first(ctx: Context, payload: str) -> Next:
        return Next(second, payload)

    @agent.step
    def second(ctx: Context, payload: str) -> Done:
        SEEN.append(otel.get_current_span())
        ctx.outbox.http("POST", "https://x.test/", json=payload)
        return Done(payload)

    return agent


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    with exporting(TracerProvider()) as kept:
        yield kept


@contextmanager
def exporting(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    before = spans.use_spans(OpenTelemetry(provider, "app"))
    try:
        yield kept
    finally:
        spans.use_spans(before)


def start(sim: Simulation, payload: str = '"x"', traceparent: str | None = TRACE) -> None:
    (name,) = {agent.name for agent in sim._agents.values()} - {"outbox"}
    sim._started.append((name, "r1"))
    sim._send("r1", "start", payload=payload.encode(), traceparent=traceparent)
    sim.settle()


def named(kept: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """The latest of each."""
    found = {}
    for span in kept.get_finished_spans():
        of = span.attributes or {}
        if "surefoot.agent" in of:
            found[f"{of['surefoot.agent']!s}.{of.get('surefoot.step', 'run')!s}"] = span
    return found


def identity(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def above(span: ReadableSpan) -> str | None:
    return f"{span.parent.span_id:016x}" if span.parent is not None else None


def test_one_trace_over_two_workers_and_an_effect(exporter: InMemorySpanExporter) -> None:
    with Simulation(two_steps) as sim:
        sim.kill_at(2)  # the second step has run, and dies with its worker before its commit
        start(sim)
        assert len(sim._graves) == 1
        (request,) = sim.requests
    found = named(exporter)
    assert set(found) == {
        "traced.first",
        "traced.second",
        "traced.run",
        "outbox.deliver_effect",
        "outbox.run",
    }
    traces = {f"{s.context.trace_id:032x}" for s in found.values() if s.context is not None}
    assert traces == {"0af7651916cd43dd8448eb211c80319c"}
    run = found["traced.run"]
    assert above(run) == "b7ad6b7169203331"  # whoever asked for the run
    assert above(found["traced.first"]) == above(found["traced.second"]) == identity(run)
    (link,) = found["traced.second"].links
    assert f"{link.context.span_id:016x}" == identity(found["traced.first"])
    assert f"{SEEN[-1].get_span_context().span_id:016x}" == identity(found["traced.second"])
    assert above(found["outbox.run"]) == identity(found["traced.second"])
    sent = found["outbox.deliver_effect"]
    assert request.headers["traceparent"].split("-")[1:3] == [
        "0af7651916cd43dd8448eb211c80319c",
        identity(sent),
    ]


def test_a_run_without_a_trace_has_one_of_its_own(exporter: InMemorySpanExporter) -> None:
    with Simulation(two_steps()) as sim:
        start(sim, traceparent=None)
        (request,) = sim.requests
    found = named(exporter)
    assert above(found["traced.run"]) is None
    assert len({s.context.trace_id for s in found.values() if s.context is not None}) == 1
    assert request.headers["traceparent"].endswith("-01")


def test_children_are_below_their_parent(exporter: InMemorySpanExporter) -> None:
    agent = Agent("parent")

    @agent.step(start=True)
    async def fork(ctx: Context, payload: str) -> Parallel:
        return Parallel([(leaf, payload)], join=join)

    @agent.step
    async def leaf(ctx: Context, payload: str) -> Done:
        return Done(payload)

    @agent.step
    async def join(ctx: Context, payload: list[object]) -> Done:
        return Done()

    with Simulation(agent) as sim:
        start(sim)
    runs = {
        str(span.attributes["surefoot.run_id"]): span
        for span in exporter.get_finished_spans()
        if span.name == "surefoot.run" and span.attributes
    }
    parent = runs.pop("r1")
    (below,) = runs.values()
    assert above(below) == identity(parent)


@pytest.mark.parametrize("sampler", [ParentBased(ALWAYS_OFF), ParentBased(TraceIdRatioBased(0))])
def test_what_is_not_sampled_is_told_nowhere_and_says_so(sampler: ParentBased) -> None:
    with exporting(TracerProvider(sampler=sampler)) as kept, Simulation(two_steps()) as sim:
        start(sim, traceparent=None)
        (request,) = sim.requests
        assert kept.get_finished_spans() == ()
        assert request.headers["traceparent"].endswith("-00")


def test_a_span_says_what_came_of_it_and_never_what_it_was_given(
    exporter: InMemorySpanExporter,
) -> None:
    agent = Agent("fails")

    @agent.step
    async def boom(ctx: Context, payload: str) -> Done:
        raise ValueError(payload)

    with Simulation(agent) as sim:
        start(sim, f'"{CANARY}"')
    told = exporter.get_finished_spans()
    assert told[0].attributes is not None
    assert told[0].attributes["surefoot.outcome"] == "failed"
    for span in told:
        assert set(span.attributes or {}) <= ALLOWED
        assert CANARY not in span.to_json()
        assert not span.events
        assert span.status.status_code is otel.StatusCode.ERROR


def test_while_nothing_is_traced_the_context_goes_on_as_it_came() -> None:
    with Simulation(two_steps()) as sim:
        start(sim)
        (request,) = sim.requests
    assert request.headers["traceparent"] == TRACE


@pytest.mark.parametrize("given", [None, "", "00-1", TRACE + "\r\nX-Evil: 1"])
def test_what_is_no_context_goes_no_further(given: str | None) -> None:
    with spans.step(a_run(traceparent=given), 0) as span:
        assert span.traceparent is None
    with Simulation(two_steps()) as sim:
        start(sim, traceparent=given)
        (request,) = sim.requests
    assert "traceparent" not in request.headers


CARRIED = {"traceparent": TRACE, "tracestate": "rojo=1,congo=t61", "baggage": "userId=amelie"}


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if name.lower() in CARRIED}


def a_parent() -> tuple[Agent, Agent]:
    """Effects of a run, of its child, and of whom it hands over to."""
    parent, child = Agent("parent"), Agent("child")

    @parent.step
    async def first(ctx: Context, payload: str) -> Call:
        ctx.outbox.http("GET", "https://x.test/parent")
        return Call(child, "c", then=after)

    @parent.step
    async def after(ctx: Context, result: str) -> Handoff:
        assert (ctx.tracestate, ctx.baggage) == (CARRIED["tracestate"], CARRIED["baggage"])
        return Handoff(child, "h")

    @child.step
    async def does(ctx: Context, payload: str) -> Done:
        ctx.outbox.http("GET", f"https://x.test/{payload}")
        return Done(payload)

    return parent, child


@pytest.mark.parametrize("killed", [None, 2])
def test_tracestate_and_baggage_go_on_to_children_and_effects(killed: int | None) -> None:
    with Simulation(*a_parent()) as sim:
        if killed is not None:
            sim.kill_at(killed)
        sim._started.append(("parent", "r1"))
        sim._send("r1", "start", agent="parent", payload=b'"x"', **CARRIED)
        sim.settle()
        requests = {request.url: carried(request.headers) for request in sim.requests}
    names = ("parent", "c", "h")
    assert requests == {f"https://x.test/{name}": CARRIED for name in names}


def test_baggage_needs_no_trace_and_a_tracestate_does() -> None:
    with Simulation(two_steps()) as sim:
        sim._started.append(("traced", "r1"))
        sim._send("r1", "start", payload=b'"x"', tracestate="a=1", baggage="x=1")
        sim.settle()
        (request,) = sim.requests
    assert carried(request.headers) == {"baggage": "x=1"}


def test_a_header_that_the_step_has_set_itself_is_left_alone() -> None:
    agent = Agent("own")

    @agent.step
    async def sends(ctx: Context, payload: str) -> Done:
        ctx.outbox.http("GET", "https://x.test/", headers={"TraceParent": "mine"})
        return Done()

    with Simulation(agent) as sim:
        start(sim)
        (request,) = sim.requests
    assert {n: v for n, v in request.headers.items() if n.lower() == "traceparent"} == {
        "TraceParent": "mine"
    }


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none,nowhere")
    with pytest.raises(ConfigError, match="no exporter 'nowhere' is installed"):
        tracing._provider(load_settings())
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="otlp_proto_grpc"):
        tracing._provider(load_settings())


def test_spans_of_others_are_left_to_whoever_sets_that_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    before = spans._spans
    try:
        start_tracing(load_settings(traces=True))
        assert isinstance(spans._spans, OpenTelemetry)
    finally:
        spans.use_spans(before)
    assert not isinstance(otel.get_tracer_provider(), TracerProvider)


def test_nothing_is_traced_unless_it_is_asked_for() -> None:
    before = spans._spans
    start_tracing(load_settings())
    assert spans._spans is before


def test_the_service_is_the_app_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    made = tracing._provider(load_settings(app="shop"))
    assert made.resource.attributes["service.name"] == "shop"
    made.shutdown()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    made = tracing._provider(load_settings(app="shop"))
    assert made.resource.attributes["service.name"] == "mine"
    made.shutdown()
