"""Measures the engine against a bare aiokafka loop that writes the same records.

    python -m benchmarks.bench [--quick] [--rows throughput,latency,...] [--in-flight 64]

One broker, started for it and ended with its data, serves every row. Tables go to stdout, all
numbers to benchmarks/results/latest.json, the picture of the row scale to scale.svg beside it.
`--quick` checks that it works; its numbers say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks import (
    archive,
    closed,
    control,
    dashboard,
    embedded,
    events,
    latency,
    recovery,
    scale,
    schedules,
    silent,
    stream,
    throughput,
    views,
    webhooks,
)
from benchmarks.records import STATE_BYTES
from benchmarks.report import machine, ratios, show
from benchmarks.site import Kind
from surefoot.infra.broker.find import Broker, start_broker
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.supervisor import HEALTHY_S

RESULTS = Path(__file__).resolve().parent / "results" / "latest.json"
#: of the row scale
PICTURE = RESULTS.with_name("scale.svg")
ROWS = (
    "throughput",
    "closed",
    "latency",
    "recovery",
    "scale",
    "executor",
    "call",
    "signal",
    "fork",
    "sleepers",
    "embedded",
    "events",
    "schedules",
    "views",
    "webhooks",
    "archive",
    "stream",
    "silent",
    "dashboard",
)
IN_FLIGHT = (64, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much of everything."""

    #: of a throughput row, as far as the rate so far can tell
    seconds: float
    #: how long each kind works uncounted first: a new JVM compiles for about a minute, which takes
    #: half of the broker's CPU time meanwhile
    warm_up_s: float
    runs_least: int
    #: of each row of the closed loop
    closed_s: float
    idle_warm_up: int
    idle_runs: int
    kills: int
    settle_s: float
    #: from one change of the number of processes to the next
    stage_s: float
    signals: int
    branches: int
    sleepers: int
    asleep_s: float
    #: steps of each row of the embedded log
    embedded_steps: int
    events: int
    schedules: int
    #: deliveries a second, and for how long
    webhooks: int
    webhooks_s: float
    #: of which the events are archived
    archived_runs: int
    #: idle connections to one gateway
    watchers: int
    #: events that pass by clients that do not read
    unread: int
    #: runs in a list, and events of a run; how often a page is opened
    listed_runs: int
    looks: int


FULL = Amounts(
    seconds=17.0,
    warm_up_s=40.0,
    runs_least=1_000,
    closed_s=10.0,
    idle_warm_up=50,
    idle_runs=500,
    kills=5,
    settle_s=HEALTHY_S + 1.0,
    stage_s=15.0,
    signals=300,
    branches=1_000,
    sleepers=100_000,
    asleep_s=20.0,
    embedded_steps=25_000,
    events=60_000,
    schedules=10_000,
    webhooks=500,
    webhooks_s=21.0,
    archived_runs=50_000,
    watchers=2_000,
    unread=20_000,
    listed_runs=100_000,
    looks=20,
)
QUICK = Amounts(
    seconds=1.0,
    warm_up_s=1.0,
    runs_least=60,
    closed_s=3.0,
    idle_warm_up=3,
    idle_runs=20,
    kills=1,
    settle_s=1.0,
    stage_s=4.0,
    signals=20,
    branches=50,
    sleepers=300,
    asleep_s=1.0,
    embedded_steps=3_000,
    events=2_000,
    schedules=300,
    webhooks=50,
    webhooks_s=3.0,
    archived_runs=500,
    watchers=20,
    unread=2_000,
    listed_runs=1_000,
    looks=3,
)


@dataclass(slots=True)
class Bench:
    """One measurement: rows on one broker, each with topics of its own; but for `embedded`, which
    has a file of its own and no broker."""

    broker: Broker
    partitions: int
    amounts: Amounts
    #: runs at a time, and worker processes, of the closed loop
    in_flight: Sequence[int] = closed.IN_FLIGHT
    processes: Sequence[int] = closed.PROCESSES
    #: begins the prefix of every row's topics
    app: str = "bench"
    #: latest rate of each kind, in steps/s
    rates: dict[Kind, float] = field(default_factory=dict)
    _apps: int = 0

    async def run(self, rows: Sequence[str]) -> dict[str, Any]:
        """The results by row."""
        if not {*rows} <= {"embedded"}:
            await self._warm_up()
        results: dict[str, Any] = {}
        for row in rows:
            results[row] = await getattr(self, row)()
        return results

    async def _warm_up(self) -> None:
        kinds: tuple[Literal["bare", "engine"], ...] = ("bare", "engine")
        for kind in kinds:
            row = await closed.measure(
                closed.Setup(kind, IN_FLIGHT[0], self.partitions),
                self._settings(f"warm-up-{kind}", IN_FLIGHT[0]),
                seconds=self.amounts.warm_up_s,
                broker_pid=self.broker.pid,
            )
            self.rates[kind] = row["steps_per_s"]

    async def throughput(self) -> list[dict[str, Any]]:
        kinds: tuple[Kind, ...] = ("bare", "engine")
        return [
            await self._throughput(kind, in_flight, self._runs(kind))
            for in_flight in IN_FLIGHT
            for kind in kinds
        ]

    async def closed(self) -> list[dict[str, Any]]:
        rows = []
        for setup in closed.setups(self.in_flight, self.processes, self.partitions):
            settings = self._settings(
                f"closed-{setup.kind}-{setup.in_flight}", setup.in_flight, setup.partitions
            )
            rows.append(
                await closed.measure(
                    setup, settings, seconds=self.amounts.closed_s, broker_pid=self.broker.pid
                )
            )
        return closed.compared(rows)

    async def executor(self) -> list[dict[str, Any]]:
        kinds: tuple[Kind, ...] = ("engine", "one_loop")
        runs = self._runs("engine")
        return [await self._throughput(kind, IN_FLIGHT[0], runs) for kind in kinds]

    async def call(self) -> list[dict[str, Any]]:
        kinds: tuple[Kind, ...] = ("engine", "calling")
        runs = self._runs("engine")
        return [
            await self._throughput(kind, in_flight, runs)
            for in_flight in IN_FLIGHT
            for kind in kinds
        ]

    async def signal(self) -> dict[str, Any]:
        return await control.signals(
            self._settings("signal", IN_FLIGHT[0]),
            warm_up=self.amounts.idle_warm_up,
            count=self.amounts.signals,
        )

    async def fork(self) -> list[dict[str, Any]]:
        return [
            await control.fork(
                self._settings(f"fork-{processes}", IN_FLIGHT[0]),
                branches=self.amounts.branches,
                processes=processes,
            )
            for processes in (1, 4)
        ]

    async def sleepers(self) -> dict[str, Any]:
        return await control.sleepers(
            self._settings("sleepers", IN_FLIGHT[0]),
            runs=self.amounts.sleepers,
            idle_s=self.amounts.asleep_s,
        )

    async def schedules(self) -> list[dict[str, Any]]:
        """All within an hour; a tenth of them within a minute, and in one second; all in one."""
        kinds: tuple[tuple[int, schedules.When], ...] = (
            (1, "hour"),
            (10, "minute"),
            (10, "at once"),
            (1, "at once"),
        )
        return [
            await schedules.measure(
                self._settings(f"schedules-{number}", IN_FLIGHT[0]),
                schedules=self.amounts.schedules // part,
                when=when,
            )
            for number, (part, when) in enumerate(kinds)
        ]

    async def webhooks(self) -> dict[str, Any]:
        return await webhooks.measure(
            self._settings("webhooks", IN_FLIGHT[0]),
            rate=self.amounts.webhooks,
            seconds=self.amounts.webhooks_s,
            broker_pid=self.broker.pid,
        )

    async def archive(self) -> list[dict[str, Any]]:
        return [
            await archive.measure(
                kind,
                self._settings(f"archive-{kind}", IN_FLIGHT[0]),
                runs=self.amounts.archived_runs,
            )
            for kind in ("s3", "folder")
        ]

    async def stream(self) -> list[dict[str, Any]]:
        rows: tuple[tuple[stream.Transport, int], ...] = (
            ("sse", 0),
            ("sse", self.amounts.watchers),
            ("websocket", self.amounts.watchers),
        )
        return [
            await stream.measure(
                transport,
                self._settings(f"stream-{transport}-{idle}", IN_FLIGHT[0]),
                idle=idle,
                warm_up=self.amounts.idle_warm_up,
                count=self.amounts.idle_runs,
            )
            for transport, idle in rows
        ]

    async def silent(self) -> dict[str, Any]:
        return await silent.measure(
            self._settings("silent", IN_FLIGHT[0]), silent=20, events=self.amounts.unread
        )

    async def dashboard(self) -> list[dict[str, Any]]:
        return await dashboard.measure(
            self._settings("dashboard", IN_FLIGHT[0]),
            runs=self.amounts.listed_runs,
            looks=self.amounts.looks,
        )

    async def embedded(self) -> list[dict[str, Any]]:
        return [
            await embedded.measure(
                kind,
                steps=steps,
                in_flight=IN_FLIGHT[-1],
                runs=self.amounts.embedded_steps // steps,
            )
            for steps in (1, throughput.STEPS)
            for kind in embedded.KINDS
        ]

    async def events(self) -> list[dict[str, Any]]:
        return [
            await events.measure(
                kind, self._settings(f"events-{kind}", IN_FLIGHT[0]), events=self.amounts.events
            )
            for kind in ("json", "avro")
        ]

    async def views(self) -> list[dict[str, Any]]:
        return [
            await views.measure(
                kind,
                self._settings(f"views-{kind}".replace(" ", "-"), IN_FLIGHT[-1]),
                events=self.amounts.events,
            )
            for kind in views.KINDS
        ]

    async def latency(self) -> list[dict[str, Any]]:
        kinds: tuple[Kind, ...] = ("bare", "engine")
        return [
            await latency.measure(
                kind,
                self._settings(f"idle-{kind}", IN_FLIGHT[0]),
                warm_up=self.amounts.idle_warm_up,
                count=self.amounts.idle_runs,
            )
            for kind in kinds
        ]

    async def recovery(self) -> dict[str, Any]:
        return await recovery.measure(
            self._settings("recovery", IN_FLIGHT[0]),
            kills=self.amounts.kills,
            settle_s=self.amounts.settle_s,
        )

    async def scale(self) -> list[dict[str, Any]]:
        rows = await scale.measure(
            self._settings("scale", scale.RUNS, scale.PARTITIONS), stage_s=self.amounts.stage_s
        )
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(scale.picture(rows), encoding="utf-8")
        return rows

    async def _throughput(self, kind: Kind, in_flight: int, runs: int) -> dict[str, Any]:
        settings = self._settings(f"{kind}-{in_flight}", in_flight)
        row = await throughput.measure(kind, settings, runs=runs, broker_pid=self.broker.pid)
        self.rates[kind] = row["steps_per_s"]
        return row

    def _runs(self, kind: Kind) -> int:
        wanted = int(self.rates[kind] * self.amounts.seconds / throughput.STEPS)
        return max(self.amounts.runs_least, wanted)

    def _settings(self, name: str, in_flight: int, partitions: int | None = None) -> Settings:
        """Topics of its own for every row."""
        self._apps += 1
        app = f"{self.app}-{self._apps}-{name.replace('_', '-')}"
        sys.stderr.write(f"{app}\n")
        return load_settings(
            app=app,
            bootstrap_servers=self.broker.bootstrap,
            partitions=partitions or self.partitions,
            in_flight=in_flight,
            instance="bench",
        )


def main() -> None:
    """Measure, show, write down."""
    options = _options()
    logging.configure()
    # Whoever ends this ends what it has started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with start_broker(options.bootstrap, ways=("java",)) as broker:
        bench = Bench(
            broker,
            options.partitions,
            QUICK if options.quick else FULL,
            in_flight=options.in_flight,
            processes=options.processes,
        )
        report: dict[str, Any] = {
            "machine": machine(broker),
            "settings": {
                "quick": options.quick,
                "partitions": options.partitions,
                "steps_per_run": throughput.STEPS,
                "state_bytes": STATE_BYTES,
            },
            "results": asyncio.run(bench.run(options.rows)),
        }
    report["ratios"] = ratios(report["results"])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    show(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny numbers: does it work?")
    parser.add_argument("--rows", type=_rows, default=ROWS, help=f"of {','.join(ROWS)}")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument(
        "--in-flight", type=_numbers, default=closed.IN_FLIGHT, help="of the row closed: 64,256"
    )
    parser.add_argument(
        "--processes", type=_numbers, default=closed.PROCESSES, help="of the row closed: 1,2"
    )
    parser.add_argument("--bootstrap", help="a broker that runs already, instead of starting one")
    return parser.parse_args()


def _rows(text: str) -> list[str]:
    rows = text.split(",")
    if unknown := set(rows) - set(ROWS):
        raise argparse.ArgumentTypeError(f"no such row: {', '.join(sorted(unknown))}")
    return rows


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
