"""A process that stands by becomes what it is told, and ends with whoever could tell it."""

from __future__ import annotations

import json
import subprocess
import sys

from surefoot import __version__


def spare(told: str) -> subprocess.CompletedProcess[str]:
    args = [sys.executable, "-m", "surefoot.spare"]
    return subprocess.run(args, input=told, capture_output=True, text=True, check=False)


def test_it_becomes_what_it_is_told() -> None:
    done = spare(json.dumps({"args": ["version"], "env": {}}) + "\n")
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


def test_the_variables_that_it_is_told_count() -> None:
    env = {"SUREFOOT_BOOTSTRAP_SERVERS": "here:1", "SUREFOOT_PARTITIONS": "none"}
    done = spare(json.dumps({"args": ["relay"], "env": env}) + "\n")
    assert done.returncode == 2
    assert "SUREFOOT_PARTITIONS" in done.stderr


def test_it_ends_when_nobody_can_tell_it_anything() -> None:
    done = spare("")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
