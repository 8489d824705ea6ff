"""The alerts of the runbooks fire on what they are for, and not on what is usual."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.required_programs import program

ALERTS = Path(__file__).parents[3] / "infra" / "prometheus" / "alerts.yml"
#: one value a minute, for as long as the longest alert looks back
MINUTES = 20

STARTED = 'process_start_time_seconds{instance="a:9100",job="surefoot"}'
OURS = 'surefoot_sse_connections{instance="a:9100",job="surefoot"}'
OTHERS = 'surefoot_sse_connections{instance="b:9100",job="surefoot"}'
DEAD = 'surefoot_dead_letters_total{agent="shop"}'
REFUSED = 'surefoot_requests_refused_total{status="%s"}'

#: (alert, series and their values as promtool spells them, whether it fires)
CASES = [
    ("SurefootProcessRestarts", {STARTED: f"1000+60x{MINUTES}", OURS: f"0x{MINUTES}"}, True),
    ("SurefootProcessRestarts", {STARTED: f"1000x{MINUTES}", OURS: f"0x{MINUTES}"}, False),
    ("SurefootProcessRestarts", {STARTED: f"1000+60x{MINUTES}", OTHERS: f"0x{MINUTES}"}, False),
    ("SurefootPoisonStorm", {DEAD: f"0+120x{MINUTES}"}, True),
    ("SurefootPoisonStorm", {DEAD: f"0+30x{MINUTES}"}, False),
    ("SurefootStrangers", {REFUSED % 401: f"0+2x{MINUTES}"}, True),
    ("SurefootStrangers", {REFUSED % 401: f"0+1x{MINUTES}"}, False),
    ("SurefootStrangers", {REFUSED % 403: f"0+2x{MINUTES}"}, False),
]


@pytest.mark.parametrize(("alert", "series", "fires"), CASES)
def test_an_alert_fires_on_what_it_is_for(
    alert: str, series: dict[str, str], fires: bool, tmp_path: Path
) -> None:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    case = {
        "rule_files": [str(ALERTS)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": firing,
                        "eval_time": f"{MINUTES}m",
                        "exp_samples": [{"value": 1}] if fires else [],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "case.yml"
    path.write_text(yaml.safe_dump(case))
    checked = subprocess.run(
        [program("promtool"), "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
