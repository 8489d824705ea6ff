"""The table of metrics: what is in it is told, documented and served, and shows no run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from surefoot import Agent, Context, Done, Flow, Next, Retry, Sleep, Tick
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.metrics import Prometheus, measure, port_of_child, serve_metrics
from surefoot.producers.event_stream import EventStreams
from surefoot.state.egress.policy import parse_allowed
from surefoot.state.errors import ConfigError, OutcomeUnknown, RetryableError
from surefoot.state.feeds.feed import FeedMessage
from surefoot.state.ports.http import HttpRequest
from surefoot.state.ports.log import Committed, InputKind, ProducerRecord
from surefoot.state.telemetry import metrics
from surefoot.state.telemetry.metrics import METRICS, Metric, Nowhere
from surefoot.testing import HttpResponse, Simulation
from tests.generate.metrics_page import PAGE, page
from tests.support.free_ports import deaf_port
from tests.support.long_deadlines import LONG_S
from tests.support.required_programs import program
from tests.unit.consumers.test_committer import owned

ROOT = Path(__file__).parents[3]
ROOMS = ("consumers", "producers", "infra")
CANARY = "canary-4f1c"
AWAY = HttpResponse(status=503, headers={}, body=b"")


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Where this test's metrics go."""
    made = CollectorRegistry()
    before = metrics.use_sink(Prometheus(made))
    yield made
    metrics.use_sink(before)


def constants() -> dict[str, Metric]:
    return {name: each for name, each in vars(metrics).items() if isinstance(each, Metric)}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.generate.metrics_page"


def test_every_metric_is_told_by_some_line_of_code() -> None:
    source = "".join(path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    for name, metric in constants().items():
        verbs = {"counter": "add", "gauge": "set", "histogram": "observe"}
        assert f"metrics.{name}.{verbs[metric.kind]}(" in source, f"nobody tells {metric.name}"


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"surefoot_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") or metric.kind != "histogram"
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert not {"run_id", "key", "id"} & set(metric.labels)
        assert metric.help.endswith(".")


def shop() -> Agent:
    agent = Agent("shop", flow=Flow(concurrency=1))

    @agent.step(start=True)
    async def pack(ctx: Context, payload: str) -> Next:
        return Next(send, payload)

    @agent.step(retry=Retry(attempts=2))
    async def send(ctx: Context, payload: str) -> Done:
        if ctx.attempt == 0:
            raise ValueError(payload)
        ctx.outbox.http("POST", f"https://x.test/?token={payload}", json=payload)
        return Done(payload)

    return agent


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_a_run_is_counted_from_its_start_to_its_effects(registry: CollectorRegistry) -> None:
    with Simulation(shop()) as sim:
        assert sim.run(CANARY).status == "completed"
        process = sim._process
        assert process is not None
        for worker, _ in process._workers:
            worker.measure()
    steps = "surefoot_steps_total"
    assert value(registry, steps, agent="shop", step="pack", outcome="completed") == 1
    assert value(registry, steps, agent="shop", step="send", outcome="failed") == 1
    assert value(registry, steps, agent="shop", step="send", outcome="completed") == 1
    assert value(registry, "surefoot_step_seconds_count", agent="shop", step="send") == 2
    assert value(registry, "surefoot_runs_started_total", agent="shop") == 1
    assert value(registry, "surefoot_runs_ended_total", agent="outbox", status="completed") == 1
    assert value(registry, "surefoot_runs_ended_total", agent="shop", status="completed") == 1
    assert (value(registry, "surefoot_txn_seconds_count", agent="shop") or 0) >= 3
    assert (value(registry, "surefoot_txn_inputs_total", agent="shop") or 0) >= 3
    assert value(registry, "surefoot_state_restore_seconds_count", agent="shop") == 2
    assert value(registry, "surefoot_rebalances_total", agent="shop") == 1
    assert value(registry, "surefoot_partitions_owned", agent="shop") == 2
    assert value(registry, "surefoot_runs_live", agent="shop") == 0
    assert value(registry, "surefoot_oldest_task_seconds", agent="shop") == 0
    assert value(registry, "surefoot_outbox_pending") == 0
    assert CANARY not in generate_latest(registry).decode()


def test_a_run_that_needs_a_person_and_an_input_that_is_none(registry: CollectorRegistry) -> None:
    agent = Agent("lost")

    @agent.step
    async def only(ctx: Context, payload: int) -> Done:
        return Done()

    with Simulation(agent) as sim:
        sim._started.append(("lost", "r1"))
        sim._send("r1", "start", payload=b"1", step=f"no-such-step-{CANARY}")
        sim.settle()
        sim._started.append(("lost", "r2"))
        sim._send("r2", "start", payload=f'"{CANARY}"'.encode())
        sim.settle()
    assert value(registry, "surefoot_dead_letters_total", agent="lost") == 1
    ended = value(registry, "surefoot_runs_ended_total", agent="lost", status="failed") or 0
    assert ended + (value(registry, "surefoot_runs_attention_total", agent="lost") or 0) == 1
    assert CANARY not in generate_latest(registry).decode()


def test_a_delivery_that_waits_is_pending(registry: CollectorRegistry) -> None:
    with Simulation(shop(), deliver=lambda _: AWAY) as sim:
        sim.start(CANARY)
        sim.advance("20s")
        process = sim._process
        assert process is not None
        for worker, _ in process._workers:
            worker.measure()
    assert value(registry, "surefoot_outbox_pending") == 1


async def test_requests_are_counted_by_their_answer(registry: CollectorRegistry) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    deliver = HttpDeliver(parse_allowed("127.0.0.1"), timeout_s=LONG_S)
    request = HttpRequest(method="GET", url=f"http://127.0.0.1:{port}/", headers={}, body=b"")
    await deliver(request)
    server.close()
    await server.wait_closed()
    with deaf_port() as deaf, pytest.raises(RetryableError):
        await deliver(replace(request, url=f"http://127.0.0.1:{deaf}/"))
    await deliver.close()
    assert value(registry, "surefoot_outbox_deliveries_total", answer="2xx") == 1
    assert value(registry, "surefoot_outbox_deliveries_total", answer="none") == 1


async def test_how_things_stand_is_told_again_and_again(registry: CollectorRegistry) -> None:
    class Looked:
        def measure(self) -> None:
            looked.set()

    class Kafka:
        def lso_lag(self) -> int:
            return 7

    looked = asyncio.Event()
    measuring = asyncio.create_task(measure([Looked()], [("a", Kafka()), ("b", object())]))
    await looked.wait()
    measuring.cancel()
    await asyncio.gather(measuring, return_exceptions=True)
    assert value(registry, "surefoot_lso_lag", agent="a") == 7
    assert value(registry, "surefoot_lso_lag", agent="b") is None


#: of who wants a WebSocket
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_metrics_are_served_on_a_port_of_their_own() -> None:
    before = metrics.use_sink(Nowhere())
    try:
        url = serve_metrics(load_settings(metrics_port=0, sasl_username=CANARY))
        assert url is not None
        metrics.STEPS.add("a", "s", "completed")
        told = httpx.get(url, trust_env=False, timeout=60).text
        assert httpx.get(url, headers=UPGRADE, trust_env=False, timeout=60).status_code == 200
        evil = UPGRADE | {"Host": "evil.example"}
        assert httpx.get(url, headers=evil, trust_env=False, timeout=60).status_code == 421
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(ConfigError, match=f"SF1004.*{port}.*SUREFOOT_METRICS_PORT"):
            serve_metrics(load_settings(metrics_port=port))
    finally:
        metrics.use_sink(before)
    names = {family.name for family in text_string_to_metric_families(told)}
    assert {metric.name.removesuffix("_total") for metric in METRICS} <= names
    assert "process_resident_memory_bytes" in names
    assert CANARY not in told


def test_nothing_is_served_unless_a_port_is_set() -> None:
    before = metrics._sink
    assert serve_metrics(load_settings()) is None
    assert metrics._sink is before


def test_each_child_has_a_port_of_its_own() -> None:
    assert port_of_child(load_settings(), 3) == {}
    assert port_of_child(load_settings(metrics_port=0), 3) == {"SUREFOOT_METRICS_PORT": "0"}
    assert port_of_child(load_settings(metrics_port=9100), 3) == {"SUREFOOT_METRICS_PORT": "9103"}


ALERTS = ROOT / "infra" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "infra" / "grafana" / "surefoot.json"


def unknown(expression: str) -> list[str]:
    """What the expression names that no process of ours has: metrics and labels."""
    series = {
        metric.name + suffix: {*metric.labels, "le"}
        for metric in METRICS
        for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
    }
    used = re.findall(r"\b(surefoot_\w+)(?:\{([^}]*)\})?", expression)
    wrong = [name for name, _ in used if name not in series]
    known = set[str]().union(*(series.get(name, set()) for name, _ in used))
    labels = [label for _, given in used for label in re.findall(r"(\w+)\s*[=!]", given)]
    for group in re.findall(r"by \(([^)]*)\)", expression):
        labels += [label.strip() for label in group.split(",")]
    return wrong + [label for label in labels if label not in known]


def test_the_dashboard_shows_what_there_is() -> None:
    board = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for expression in expressions:
        assert re.search(r"surefoot_\w+", expression)
        assert unknown(expression) == [], expression
    shown = " ".join(expressions)
    for metric in METRICS:
        assert metric.name in shown, f"{metric.name} is on no panel"
    for panel in board["panels"]:
        for target in panel["targets"]:
            in_legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert in_legend <= {each.strip() for group in grouped for each in group.split(",")}


def test_the_alerts_ask_for_what_there_is() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        assert re.search(r"surefoot_\w+", rule["expr"])
        assert unknown(rule["expr"]) == [], rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= {"agent", "source"}


def test_prometheus_takes_the_alerts() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", ALERTS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_unknown_metric_or_label_is_found() -> None:
    assert unknown("sum by (agent) (surefoot_runs_live)") == []
    assert unknown("sum by (run_id) (surefoot_runs_live)") == ["run_id"]
    assert unknown('surefoot_nothing{agent="a"}') == ["surefoot_nothing", "agent"]
    assert unknown("surefoot_step_seconds") == ["surefoot_step_seconds"]


def test_a_tick_tells_how_late_it_is(registry: CollectorRegistry) -> None:
    agent = Agent("report")

    @agent.step
    async def write(ctx: Context, payload: str) -> Done:
        return Done()

    @agent.schedule("0 * * * *")
    def hourly(tick: Tick) -> str:
        return CANARY

    with Simulation(agent) as sim:
        sim.schedule("hourly")
        sim.advance("2h")
    assert value(registry, "surefoot_schedule_lateness_seconds_count", agent="report") == 2
    assert value(registry, "surefoot_schedule_lateness_seconds_bucket", agent="report", le="1.0")
    assert CANARY not in generate_latest(registry).decode()


async def test_event_streams_are_counted_while_they_are_open(registry: CollectorRegistry) -> None:
    async def events() -> AsyncGenerator[FeedMessage, None]:
        yield FeedMessage("1", "run.started", "{}")

    streams = EventStreams(limit=2, heartbeat_s=1.0, send_s=1.0)
    async with streams.counted(events()), streams.counted(events()):
        assert value(registry, "surefoot_sse_connections") == 2
    assert value(registry, "surefoot_sse_connections") == 0


async def test_a_commit_with_an_unknown_outcome_is_counted_once(
    registry: CollectorRegistry,
) -> None:
    it = await owned(100_000)
    ownership = it.committer.ownership
    assert ownership is not None
    commit = ownership.commit

    async def lost(
        records: Sequence[ProducerRecord], offsets: Mapping[InputKind, int]
    ) -> Committed:
        await commit(records, offsets)
        raise OutcomeUnknown("no answer")

    ownership.commit = lost  # type: ignore[method-assign]
    it.add(b"1", [])
    assert await it.commit() == [None]  # it was read back, and had landed
    assert value(registry, "surefoot_txn_ambiguous_total", agent="a") == 1
    assert value(registry, "surefoot_txn_inputs_total", agent="a") == 2  # with the run's start


async def test_an_owner_that_breaks_is_counted(registry: CollectorRegistry) -> None:
    agent = Agent("breaks")

    @agent.step
    async def only(ctx: Context, payload: int) -> Done:
        return Done()

    class Broken:
        partition = 0

        async def serve(self) -> None:
            raise RuntimeError("a bug")

    nothing: Any = None
    worker = Worker(
        agent=agent,
        log=nothing,
        wire=nothing,
        executor=nothing,
        clock=SystemClock(),
        limits=OwnerLimits(),
        in_flight=1,
    )
    await worker._serve(Broken(), 0.0)  # type: ignore[arg-type]
    assert value(registry, "surefoot_owner_failed_total", agent="breaks") == 1


def test_a_step_that_there_is_no_more_is_called_unknown(registry: CollectorRegistry) -> None:
    def shop(version: int) -> Agent:
        agent = Agent("grown", version=version)

        async def begin(ctx: Context, payload: int) -> Sleep:
            return Sleep("1h", then=last, payload=payload)

        async def last(ctx: Context, payload: int) -> Done:
            return Done()

        last.__name__ = f"last_{version}"
        agent.step(start=True)(begin)
        agent.step(last)
        if version == 2:
            agent.upcast(from_version=1)(lambda _, payload: ("last_2", payload))
        return agent

    with Simulation(shop(1)) as sim:
        sim.start(1)
        sim.crash(shop(2))
        assert sim.advance("2h").status == "completed"
    completed = {"agent": "grown", "outcome": "completed"}
    assert value(registry, "surefoot_steps_total", step="unknown", **completed) == 1
    assert value(registry, "surefoot_steps_total", step="last_1", **completed) is None
