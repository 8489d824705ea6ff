"""The closed-loop benchmark makes steps of each kind, and reports every field of a row."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bench import QUICK, Bench
from surefoot.infra.broker.find import Broker


async def test_each_kind_reports(broker: Broker, app: str) -> None:
    bench = Bench(broker, 6, replace(QUICK, closed_s=0.3), in_flight=(4,), processes=(1,), app=app)
    rows = (await bench.run(["closed"]))["closed"]
    assert [row["kind"] for row in rows] == ["fsync", "embedded", "bare", "engine"]
    missing = {row["kind"]: {field for field in row if row[field] is None} for row in rows}
    of_a_cluster = {"broker_cpu_ms_per_step", "load_cpu_ms_per_step"}
    of_a_given_broker = set() if broker.pid else {"broker_cpu_ms_per_step"}
    assert missing == {
        "fsync": {"partitions", "steps_per_s_over_bare", "ms_p50_over_bare"} | of_a_cluster,
        "embedded": of_a_cluster,
        "bare": of_a_given_broker,
        "engine": of_a_given_broker,
    }
    for row in rows:
        # the CPU time that a system reports has steps of its own, so a short row may have none
        told = {field: value for field, value in row.items() if "cpu" not in field}
        numbers = [value for value in told.values() if value is not None and value != row["kind"]]
        assert min(numbers) > 0, row
        assert row["in_flight"] == 4
        assert row["steps"] >= 4
