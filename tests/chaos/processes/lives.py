"""Child processes of a test: each life of one is started, watched through its log, and ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from surefoot.infra.runtime.settings import Settings
from tests.chaos.processes.agents import GATE, JOURNAL, SINK
from tests.support.eventually import until

ROOT = Path(__file__).resolve().parents[3]


@dataclass(slots=True, kw_only=True)
class Life:
    """One process, from start to end."""

    process: asyncio.subprocess.Process
    log_path: Path
    agents: Sequence[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self, event: str) -> list[dict[str, Any]]:
        """What it has said so far, of one kind."""
        lines = self.log_path.read_text().splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]
        return [line for line in told if line["event"] == event]

    async def says(self, event: str, times: int = 1, **fields: Any) -> None:
        """Wait for lines with that event and those fields."""

        def said() -> bool:
            assert self.process.returncode is None, self.log_path.read_text()[-4000:]
            found = [line for line in self.log(event) if fields.items() <= line.items()]
            return len(found) >= times

        await until(said, what=f"process {self.pid} to say {event} {fields}")

    async def ready(self) -> None:
        """Wait until every agent's partitions are served."""
        for agent in self.agents:
            await self.says("worker_ready", agent=agent)

    async def ended(self, timeout_s: float = 90.0) -> int:
        """Wait for its end; the exit status, or -N for signal N."""
        await until(
            lambda: self.process.returncode is not None,
            timeout_s=timeout_s,
            what=f"process {self.pid} to end",
        )
        assert self.process.returncode is not None
        return self.process.returncode

    async def frozen(self) -> None:
        """Wait until it has been stopped by SIGSTOP."""
        process = psutil.Process(self.pid)
        await until(
            lambda: process.status() == psutil.STATUS_STOPPED, what=f"process {self.pid} to freeze"
        )


@dataclass(slots=True)
class Lives:
    """Starts processes that share a journal, a gate and a sink."""

    settings: Settings
    folder: Path
    sink_url: str = ""
    _all: list[Life] = field(default_factory=list)

    async def begin(
        self,
        *agents: str,
        slot: int = 0,
        at: str | None = None,
        skip: int = 0,
        signal: str = "KILL",
        patient: bool = False,
        without: str | None = None,
    ) -> Life:
        """Start a process; `at` names the point at which it gets the signal, `without` the safety
        rule that it lacks. A `patient` one cuts nothing off that takes long."""
        log_path = self.folder / f"life-{len(self._all)}.log"
        command = [sys.executable, "-m", "tests.chaos.processes.child", "--agents", *agents]
        command += ["--slot", str(slot), "--signal", signal]
        command += ["--at", at, "--skip", str(skip)] if at else []
        command += ["--patient"] if patient else []
        command += ["--without", without] if without else []
        set_here = self.settings.model_dump(exclude_unset=True, exclude_none=True)
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env={
                    **os.environ,
                    **{f"SUREFOOT_{name.upper()}": str(value) for name, value in set_here.items()},
                    JOURNAL: str(self.folder / "journal"),
                    GATE: str(self.folder / "gate"),
                    SINK: self.sink_url,
                },
                stderr=log,
            )
        life = Life(process=process, log_path=log_path, agents=agents)
        self._all.append(life)
        return life

    def journal(self) -> list[list[str]]:
        """What all of them have noted, as words."""
        path = self.folder / "journal"
        if not path.exists():
            return []
        whole, _, _ = path.read_text().rpartition("\n")  # of the last line a part may be there
        return [line.split() for line in whole.splitlines()]

    def began(self, agent: str) -> list[tuple[str, int, int]]:
        """Attempts begun so far: (run_id, seq, attempt)."""
        return [
            (line[1], int(line[2]), int(line[3])) for line in self.journal() if line[0] == agent
        ]

    async def until_began(self, agent: str, times: int = 1) -> None:
        await until(
            lambda: len(self.began(agent)) >= times, what=f"{times} attempts of {agent} to begin"
        )

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    async def end(self) -> None:
        for life in self._all:
            if life.process.returncode is None:
                life.process.kill()
            await life.process.wait()


@asynccontextmanager
async def lives(settings: Settings, folder: Path, sink_url: str = "") -> AsyncIterator[Lives]:
    made = Lives(settings, folder, sink_url)
    try:
        yield made
    finally:
        await made.end()
