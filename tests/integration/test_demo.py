"""A short demo, through the real command line: what it promises, it shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import until_sync

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "surefoot", "demo", "examples/triage.py"]

pytestmark = pytest.mark.timeout(240)


def test_a_short_demo_loses_and_doubles_nothing(bootstrap: str) -> None:
    done = subprocess.run(
        [*DEMO, "--deliveries", "30", "--kills", "1", "--seed", "11"],
        env={**os.environ, "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap, "CI": "true"},
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["runs"] == told["completed"] == 30
    assert told["steps_committed"] == 150
    assert told["worker_kills"] == len(told["recovery_first_step_s"]) == 1
    assert told["duplicate_deliveries"] == 3
    assert told["rejected_deliveries"] == 3
    assert told["effects_received"] == told["effects_expected"] > 60
    for nothing in ("steps_lost", "steps_committed_twice", "effects_duplicated", "unfinished"):
        assert told[nothing] == 0
    assert told["broker"].startswith("4.")


def test_ctrl_c_ends_the_demo_and_all_its_processes(bootstrap: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen(
            [*DEMO, "--deliveries", "1000"],
            env={**os.environ, "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap, "CI": "true"},
            cwd=ROOT, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        until_sync(
            lambda: "deliveries begin" in (tmp_path / "out").read_text(),
            timeout_s=90,
            what="the deliveries to begin",
        )
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 4
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in (tmp_path / "out").read_text()
    finally:
        if demo.poll() is None:
            demo.kill()
