"""A process that is to end has ended by its deadline, whatever hangs, and says what did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROCESS = """
import asyncio, signal, sys, threading
from surefoot.infra.processes import overdue
from surefoot.infra.processes.worker import until_signalled

async def deaf():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    overdue.END_S = 3.0
    stop, hurry = until_signalled(float(sys.argv[2]))
    signal.raise_signal(signal.SIGTERM)
    await stop.wait()
    match sys.argv[1]:
        case "task":
            await asyncio.gather(asyncio.create_task(deaf(), name="close counter/0"))
        case "cleanup":
            asyncio.create_task(deaf(), name="close counter/0")
            await asyncio.sleep(0)
        case "thread":
            asyncio.create_task(asyncio.to_thread(threading.Event().wait))
            await asyncio.sleep(0)
        case "hurry":
            signal.raise_signal(signal.SIGTERM)
            await hurry.wait()
            await deaf()

asyncio.run(main())
"""


def ended(how: str, drain_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROCESS, how, str(drain_s)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    ("how", "drain_s", "named"),
    [
        ("task", 3.0, "close counter/0: deaf > Event.wait ("),
        ("cleanup", 3.0, "close counter/0: deaf > Event.wait ("),
        ("thread", 3.0, "thread asyncio_0"),
        ("hurry", 100_000.0, "Task-1: main > deaf > Event.wait ("),
    ],
)
def test_a_process_that_does_not_end_is_ended_and_says_what_hangs(
    how: str, drain_s: float, named: str
) -> None:
    process = ended(how, drain_s)
    assert process.returncode == 70
    assert "end_overdue" in process.stdout
    assert named in process.stdout
    assert "Thread" in process.stderr


def test_a_process_that_ends_in_time_is_left_alone() -> None:
    process = ended("at once", 100_000.0)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
