"""A short demo, through the real command line: what it promises, it shows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from tests.support.eventually import until_sync

ROOT = Path(__file__).parents[3]
DEMO = [sys.executable, "-m", "surefoot", "demo"]
TRIAGE = ROOT / "examples" / "triage.py"
#: begins each run's last step, which does not end before the file is there
HELD = """
    while not os.path.exists({file!r}):
        await asyncio.sleep(0.05)
"""


def test_a_short_demo_loses_and_doubles_nothing(bootstrap: str, tmp_path: Path) -> None:
    """One kill is its own; another one is that of the dashboard's button."""
    go_on = tmp_path / "go-on"
    (tmp_path / "triage.py").write_text(holding(TRIAGE.read_text(), go_on))
    with (tmp_path / "out").open("wb") as out, (tmp_path / "told").open("wb") as told_to:
        demo = subprocess.Popen(
            [*DEMO, tmp_path / "triage.py", "--deliveries", "30", "--kills", "1", "--seed", "11"],
            env={**os.environ, "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap, "CI": "true"},
            cwd=ROOT,
            stdout=out,
            stderr=told_to,
        )
        try:
            crash_a_worker(tmp_path / "told")
            go_on.touch()
            code = demo.wait(300)
        finally:
            if demo.poll() is None:
                demo.terminate()
                demo.wait(60)
    written = (tmp_path / "out").read_text()
    assert code == 0, f"{written}\n{(tmp_path / 'told').read_text()}"
    told = json.loads(written.splitlines()[-1])
    assert told["runs"] == told["completed"] == 30
    assert told["steps_committed"] == 150
    assert told["worker_kills"] == len(told["recovery_first_step_s"]) == 2
    assert told["duplicate_deliveries"] == 3
    assert told["rejected_deliveries"] == 3
    assert told["effects_received"] == told["effects_expected"] > 60
    for nothing in ("steps_lost", "steps_committed_twice", "effects_duplicated", "unfinished"):
        assert told[nothing] == 0
    assert told["broker"].startswith("4.")


def holding(triage: str, until: Path) -> str:
    """The example, whose runs are under way until that file is there."""
    closes = '"""A duplicate is closed; every other issue stays open for people."""\n'
    assert triage.count(closes) == 1
    return triage.replace(closes, closes + HELD.format(file=str(until)))


def crash_a_worker(told: Path) -> None:
    """As the button does, once runs are under way; again, when at that moment none was at a worker
    that served its partitions."""
    found = until_sync(
        lambda: re.search(r"(http://\S+)/ui/now", told.read_text()),
        what="its address",
    )
    assert found is not None
    with httpx.Client(base_url=found[1], timeout=60) as client:

        def under_way() -> bool:
            answer = client.get("/runs/triage?status=running")
            return bool(answer.is_success and answer.json()["matches"] > 1)

        until_sync(under_way, what="runs to be under way")
        assert b"data-demo" in client.get("/ui/now").content
        asked = 0

        def both_killed() -> bool:
            nonlocal asked
            said = told.read_text()
            if said.count("SIGKILL to") == 2:
                return True
            if said.count("none is killed") == asked:
                asked += 1
                assert client.post("/ui/demo/crash", json={}).status_code == 202
            return False

        until_sync(both_killed, what="two workers to be killed")


def test_ctrl_c_ends_the_demo_and_all_its_processes(bootstrap: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen(
            [*DEMO, TRIAGE, "--deliveries", "1000"],
            env={**os.environ, "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap, "CI": "true"},
            cwd=ROOT,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        until_sync(
            lambda: "deliveries begin" in (tmp_path / "out").read_text(),
            what="the deliveries to begin",
        )
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 4
        demo.send_signal(signal.SIGINT)
        assert demo.wait(240) == 130
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in (tmp_path / "out").read_text()
    finally:
        if demo.poll() is None:
            demo.kill()
