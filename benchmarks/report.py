"""What was measured, where, and how it compares."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from surefoot.infra.broker.find import Broker

Row = Mapping[str, Any]
#: heading, field, and how it is formatted
Column = tuple[str, str, str]

#: "one loop": with the author's code on the loop of the Kafka clients
NAMES = {
    "bare": "bare loop",
    "engine": "engine",
    "one_loop": "engine, one loop",
    "calling": "engine, a call a step",
    "embedded": "embedded",
    "fsync": "file",
    "waiting": "engine, waiting steps",
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


@dataclass(frozen=True, slots=True)
class Ratio:
    """One kind's value over another's. Rows that give `name` the same text are compared."""

    row: str
    #: field that tells the two apart, and what it holds in the one and in the other
    field: str
    over: object
    under: object
    value: str
    #: template, filled in from the row
    name: str


_RATIOS = (
    Ratio("throughput", "kind", "engine", "bare", "steps_per_s", "steps_per_s_{in_flight}"),
    Ratio("latency", "kind", "engine", "bare", "ms_p50", "idle_ms_p50"),
    Ratio("executor", "kind", "engine", "one_loop", "steps_per_s", "own_thread_steps_per_s"),
    Ratio("call", "kind", "calling", "engine", "steps_per_s", "call_steps_per_s_{in_flight}"),
    Ratio("fork", "processes", 4, 1, "branches_per_s", "fork_4_over_1"),
    Ratio(
        "embedded", "kind", "log", "bare", "steps_per_s", "embedded_log_steps_per_s_{steps_per_run}"
    ),
    Ratio(
        "embedded",
        "kind",
        "engine",
        "bare",
        "steps_per_s",
        "embedded_engine_steps_per_s_{steps_per_run}",
    ),
)


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Engine over bare, two threads over one, and so on, within this measurement."""
    return {name: value for ratio in _RATIOS for name, value in _ratio(ratio, results).items()}


def _ratio(ratio: Ratio, results: Mapping[str, Any]) -> dict[str, float]:
    values: dict[object, dict[str, float]] = defaultdict(dict)
    for row in results.get(ratio.row, ()):
        values[row[ratio.field]][ratio.name.format(**row)] = row[ratio.value]
    under = values[ratio.under]
    return {name: value / under[name] for name, value in values[ratio.over].items()}


def show(report: Mapping[str, Any]) -> None:
    """Tables for a person, on stdout."""
    console = Console(width=130)
    where = report["machine"]
    console.print(
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB; Python "
        f"{where['python']}, Kafka {where['broker']}; load {where['load_1m']} at the start"
    )
    for name, found in report["results"].items():
        rows = found if isinstance(found, list) else [found]
        console.print(_TABLES.get(name, _plain)(name, rows))
    for name, value in report["ratios"].items():
        console.print(f"{name}: {value:.2f}")


def _chosen(columns: Sequence[Column], name: str, rows: Sequence[Row]) -> Table:
    """These columns, after the kind in words."""
    table = Table("", title=name, title_justify="left")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = ("" if row[key] is None else format(row[key], spec) for _, key, spec in columns)
        table.add_row(NAMES[row["kind"]], *cells)
    return table


def _plain(name: str, rows: Sequence[Row]) -> Table:
    """Every field, as it is named."""
    table = Table(title=name, title_justify="left")
    for heading in rows[0]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:.2f}"
    return str(value)


def _recovery(_: str, rows: Sequence[Row]) -> Table:
    (row,) = rows
    table = Table("", title=f"after kill -9 ({row['kills']} times)", title_justify="left")
    for heading in ("p50 s", "max s", "each"):
        table.add_column(heading, justify="right")
    for name, key in (
        ("first committed step", "first_step_s"),
        ("every partition again", "all_partitions_s"),
    ):
        each = " ".join(f"{value:.2f}" for value in row[key])
        table.add_row(name, f"{row[f'{key}_p50']:.2f}", f"{row[f'{key}_max']:.2f}", each)
    return table


_THROUGHPUT: Sequence[Column] = (
    ("in flight", "in_flight", "d"),
    ("steps", "steps", "d"),
    ("per txn", "steps_per_transaction", ".1f"),
    ("steps/s", "steps_per_s", ".0f"),
    ("p50 ms", "step_ms_p50", ".0f"),
    ("p99 ms", "step_ms_p99", ".0f"),
    ("CPU ms/step", "cpu_ms_per_step", ".3f"),
    ("broker", "broker_cpu_ms_per_step", ".3f"),
    ("peak MB", "rss_peak_mb", ".0f"),
)
_LATENCY: Sequence[Column] = (
    ("runs", "runs", "d"),
    ("p50 ms", "ms_p50", ".1f"),
    ("p99 ms", "ms_p99", ".1f"),
    ("max ms", "ms_max", ".1f"),
)
_CLOSED: Sequence[Column] = (
    ("in flight", "in_flight", "d"),
    ("parts", "partitions", "d"),
    ("procs", "processes", "d"),
    ("steps/s", "steps_per_s", ".0f"),
    ("p50 ms", "ms_p50", ".1f"),
    ("p99 ms", "ms_p99", ".1f"),
    ("CPU ms", "cpu_ms_per_step", ".3f"),
    ("broker", "broker_cpu_ms_per_step", ".3f"),
    ("load", "load_cpu_ms_per_step", ".3f"),
    ("rate /bare", "steps_per_s_over_bare", ".2f"),
    ("p50 /bare", "ms_p50_over_bare", ".2f"),
    ("rate /fsync", "steps_per_s_over_fsync", ".3f"),
    ("p50 /fsync", "ms_p50_over_fsync", ".1f"),
)
_SCALE: Sequence[Column] = (
    ("procs", "processes", "d"),
    ("seconds", "seconds", ".0f"),
    ("steps/s", "steps_per_s", ".0f"),
    ("pause s", "pause_s", ".2f"),
    ("of one partition", "partition_pause_s", ".2f"),
    ("steps repeated", "repeated", "d"),
)
#: how a row is shown, where its fields as they are would be hard to read
_TABLES: Mapping[str, Callable[[str, Sequence[Row]], Table]] = {
    "throughput": partial(_chosen, _THROUGHPUT),
    "executor": partial(_chosen, _THROUGHPUT),
    "call": partial(_chosen, _THROUGHPUT),
    "latency": partial(_chosen, _LATENCY),
    "closed": partial(_chosen, _CLOSED),
    "recovery": _recovery,
    "scale": partial(_chosen, _SCALE),
}
