"""What was measured, where, and how it compares."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from surefoot.infra.broker.find import Broker

Row = Mapping[str, Any]

#: "one loop": with the author's code on the loop of the Kafka clients
NAMES = {
    "bare": "bare loop",
    "engine": "engine",
    "one_loop": "engine, one loop",
    "calling": "engine, a call a step",
}


def machine(broker: Broker) -> dict[str, Any]:
    """Where it was measured; `load_1m` is what else was going on when it began."""
    return {
        "cpu": _cpu_model(),
        "cores": len(psutil.Process().cpu_affinity() or ()) or os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "aiokafka": version("aiokafka"),
        "broker": broker.version,
        "broker_kind": broker.kind,
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Engine over bare, two threads over one, and so on, within this measurement."""
    found: dict[str, float] = {}
    rows = {(row["kind"], row["in_flight"]): row for row in results.get("throughput", ())}
    for (kind, in_flight), row in rows.items():
        if kind == "engine":
            bare = rows["bare", in_flight]
            found[f"steps_per_s_{in_flight}"] = row["steps_per_s"] / bare["steps_per_s"]
    idle = {row["kind"]: row for row in results.get("latency", ())}
    if idle:
        found["idle_ms_p50"] = idle["engine"]["ms_p50"] / idle["bare"]["ms_p50"]
    executor = {row["kind"]: row for row in results.get("executor", ())}
    if executor:
        found["own_thread_steps_per_s"] = (
            executor["engine"]["steps_per_s"] / executor["one_loop"]["steps_per_s"]
        )
    calls = {(row["kind"], row["in_flight"]): row for row in results.get("call", ())}
    for (kind, in_flight), row in calls.items():
        if kind == "calling":
            without = calls["engine", in_flight]
            found[f"call_steps_per_s_{in_flight}"] = row["steps_per_s"] / without["steps_per_s"]
    forks = {row["processes"]: row for row in results.get("fork", ())}
    if forks:
        found["fork_4_over_1"] = forks[4]["branches_per_s"] / forks[1]["branches_per_s"]
    files = {(row["kind"], row["steps_per_run"]): row for row in results.get("embedded", ())}
    for (kind, steps), row in files.items():
        if kind != "bare":
            bare = files["bare", steps]
            found[f"embedded_{kind}_steps_per_s_{steps}"] = row["steps_per_s"] / bare["steps_per_s"]
    return found


def show(report: Mapping[str, Any]) -> None:
    """Tables for a person, on stdout."""
    console = Console(width=110)
    where, results = report["machine"], report["results"]
    console.print(
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB; Python "
        f"{where['python']}, Kafka {where['broker']}; load {where['load_1m']} at the start"
    )
    for name in ("throughput", "executor", "call"):
        if name in results:
            console.print(_throughput(name, results[name]))
    if "latency" in results:
        console.print(_latency(results["latency"]))
    if "recovery" in results:
        console.print(_recovery(results["recovery"]))
    for name in (
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
    ):
        if name in results:
            rows = results[name] if isinstance(results[name], list) else [results[name]]
            console.print(_plain(name, rows))
    for name, value in report["ratios"].items():
        console.print(f"{name}: {value:.2f}")


def _throughput(name: str, rows: Sequence[Row]) -> Table:
    table = Table(title=name, title_justify="left")
    table.add_column("")
    for heading in (
        "in flight",
        "steps",
        "per txn",
        "steps/s",
        "p50 ms",
        "p99 ms",
        "CPU ms/step",
        "broker",
        "peak MB",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            NAMES[row["kind"]],
            str(row["in_flight"]),
            str(row["steps"]),
            f"{row['steps_per_transaction']:.1f}",
            f"{row['steps_per_s']:.0f}",
            f"{row['step_ms_p50']:.0f}",
            f"{row['step_ms_p99']:.0f}",
            _number(row["cpu_ms_per_step"]),
            _number(row["broker_cpu_ms_per_step"]),
            f"{row['rss_peak_mb']:.0f}",
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _plain(name: str, rows: Sequence[Row]) -> Table:
    table = Table(title=name, title_justify="left")
    for heading in rows[0]:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (_cell(value) for value in row.values())
        table.add_row(*cells)
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:.2f}"
    return str(value)


def _latency(rows: Sequence[Row]) -> Table:
    table = Table(title="a single step, idle", title_justify="left")
    table.add_column("")
    for heading in ("runs", "p50 ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = (f"{row[key]:.1f}" for key in ("ms_p50", "ms_p99", "ms_max"))
        table.add_row(NAMES[row["kind"]], str(row["runs"]), *numbers)
    return table


def _recovery(row: Row) -> Table:
    table = Table(title=f"after kill -9 ({row['kills']} times)", title_justify="left")
    table.add_column("")
    for heading in ("p50 s", "max s", "each"):
        table.add_column(heading, justify="right")
    for name, key in (
        ("first committed step", "first_step_s"),
        ("every partition again", "all_partitions_s"),
    ):
        each = " ".join(f"{value:.2f}" for value in row[key])
        table.add_row(name, f"{row[f'{key}_p50']:.2f}", f"{row[f'{key}_max']:.2f}", each)
    return table
