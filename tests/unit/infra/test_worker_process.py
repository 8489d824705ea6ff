"""A worker process ends itself when it is stuck, and drains when its supervisor is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.infra.processes.worker import follow_supervisor

ROOT = Path(__file__).parents[3]

STUCK = """
import threading
from types import SimpleNamespace
from surefoot.infra.processes import worker
from surefoot.infra.runtime.clock import SystemClock

worker.STUCK_S = 0.2
clock = SystemClock()
worker.Watchdog([SimpleNamespace(polled_s=clock.monotonic_s() - 10)], clock).start()
threading.Event().wait()
"""

POLLING = """
import threading
from surefoot.infra.processes import worker
from surefoot.infra.runtime.clock import SystemClock

class Worker:
    looks = threading.Semaphore(0)

    @property
    def polled_s(self):
        self.looks.release()
        return float("inf")

worker.STUCK_S = 0.2
worker.Watchdog([Worker()], SystemClock()).start()
for _ in range(20):
    Worker.looks.acquire()
"""

ORPHAN = """
import asyncio
from surefoot.infra.processes.worker import follow_supervisor

async def main():
    stop = asyncio.Event()
    following = asyncio.create_task(follow_supervisor(stop, every_s=0.02))
    await asyncio.sleep(0)  # it has seen who started it
    print("following", flush=True)
    await asyncio.gather(following, stop.wait())
    print("drained", flush=True)

asyncio.run(main())
"""

#: starts the orphan-to-be, waits until it follows, and is gone
SUPERVISOR = """
import os, subprocess, sys
env = os.environ | {"SUREFOOT_SUPERVISOR_PID": str(os.getpid())}
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True, env=env
)
assert child.stdout.readline() == "following\\n"
subprocess.Popen([sys.executable, "-c", "import sys; print(sys.stdin.read())"], stdin=child.stdout)
"""


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_process_that_stops_polling_ends_itself_and_shows_where_it_stood() -> None:
    ended = python(STUCK)
    assert ended.returncode == 70
    assert "Thread" in ended.stderr
    assert "wait" in ended.stderr


def test_a_process_that_polls_is_left_alone() -> None:
    ended = python(POLLING)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_orphan_drains() -> None:
    ended = python(SUPERVISOR, ORPHAN)
    assert "drained" in ended.stdout, ended.stderr


async def test_a_process_of_a_shell_does_not_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that `surefoot worker FILE --slot 0 &` starts: the shell is gone, and it works on."""
    monkeypatch.delenv("SUREFOOT_SUPERVISOR_PID", raising=False)
    monkeypatch.setattr("os.getppid", iter([4711, 1]).__next__)
    stop = asyncio.Event()
    await follow_supervisor(stop, every_s=0)
    assert not stop.is_set()
