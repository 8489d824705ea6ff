"""The tutorial does what it says: its commands, in their order, on an agent that it changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.test_cli_end_to_end import ROOT, Service
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WELCOME = "Ctrl-C stops everything"
RESTARTED = "hello restarted"


class Reader:
    """Somebody who follows the page, in two terminals."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        program = folder / "bin" / "surefoot"
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.patient_cli "$@"\n'
        )
        program.chmod(0o755)
        path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        self.folder = folder
        self.port = str(unused_port())
        self.blocks = [(kind, text) for kind, text in _BLOCK.findall(PAGE)]
        self.dev: Service | None = None

    def next(self, kind: str, has: str) -> str:
        """The next block of the page."""
        found, text = self.blocks.pop(0)
        assert found == kind
        assert has in text
        return str(text).replace("8787", self.port)

    def types(self, has: str) -> str:
        return self._typed(self.next("sh", has))

    def types_until(self, has: str, shows: str) -> None:
        """A request that was not taken in time is sent again, as its answer says."""
        block = self.next("sh", has)
        until_sync(lambda: shows in self._typed(block), what=f"{block} to show {shows}")

    def _typed(self, block: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", block],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def starts_dev(self) -> None:
        """In the other terminal."""
        for name, value in re.findall(
            r"export (\w+)=(.*)", self.next("sh", "surefoot dev agent.py")
        ):
            self.env[name] = value
        self.dev = Service(("dev", "agent.py", "--port", self.port), self.env, self.folder)
        self.sees(WELCOME)

    def sees(self, text: str, times: int = 1) -> None:
        dev = self.dev
        assert dev is not None

        def there() -> bool:
            assert dev.process.poll() is None, dev.said()
            return dev.said().count(text) >= times

        until_sync(there, what=f"{times} x {text!r}")

    def changes(self, step: str, to: str | None = None, time: int = 1) -> None:
        """Put the block, or `to`, in the step's place."""
        file = self.folder / "agent.py"
        new = self.next("python", f"async def {step}") if to is None else to
        parts = file.read_text().split("@agent.step\n")
        (number,) = [n for n, part in enumerate(parts) if f"async def {step}" in part]
        parts[number] = new.removeprefix("@agent.step\n").rstrip() + "\n" * (
            3 if number == 1 else 1
        )
        made = self.folder / "written"
        made.write_text("@agent.step\n".join(parts))
        made.replace(file)  # at once, as an editor does
        self.sees(RESTARTED, times=time)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    if reader.dev is not None:
        reader.dev.kill()


def test_the_tutorial_goes_as_it_says(reader: Reader) -> None:
    reader.types("surefoot new hello")
    reader.folder /= "hello"
    agent = (reader.folder / "agent.py").read_text()
    assert reader.next("python", "from surefoot") == agent
    assert "2 passed" in reader.types("pytest")

    reader.starts_dev()
    reader.types_until("curl", '"run_id":"first"')
    reader.sees('first run.completed send "Hello, Ann!"')

    reader.changes("greet")
    reader.types("--run-id second")
    reader.sees("second step.completed greet -> send")
    assert "pkill -9 -f" in reader.next("sh", "surefoot dev")
    assert reader.dev is not None
    reader.dev.kill()
    shown = reader.types("surefoot runs show hello second")
    assert "No worker of agent hello runs" in shown
    reader.starts_dev()
    reader.sees('second run.completed send "Hello, Bob!"')
    assert "second step.completed greet" not in reader.dev.said()

    reader.changes("send")
    reader.types("--run-id third")
    reader.sees("third run.failed send SF1203 bad_return")
    assert "Write `return Done(value)`" in reader.types("surefoot explain SF1203")
    reader.changes("send", agent.rpartition("@agent.step\n")[2], time=2)
    reader.types("surefoot runs retry hello third")
    reader.sees('third run.completed send "Hello, Cid!"')
    assert reader.dev.stop() == 0
    assert reader.blocks == []
