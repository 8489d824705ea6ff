"""Writes docs/metrics.md from the table of metrics: python -m tests.generate.metrics_page"""

from __future__ import annotations

from pathlib import Path

from surefoot.state.telemetry.metrics import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

HEAD = """\
# Metrics

What a process tells Prometheus when `SUREFOOT_METRICS_PORT` is set
([telemetry](how-to/telemetry.md)).
Durations are in seconds. A label never has a run_id, a key or anything else that comes in from
outside.

Generated from `state/telemetry/metrics.py` by `python -m tests.generate.metrics_page`; a test
holds that it is up to date.

| metric | kind | labels | |
|---|---|---|---|
"""


def page() -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{n}`' for n in metric.labels)} | "
        f"{metric.help} |\n"
        for metric in METRICS
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
