"""Services as a person starts them: `surefoot worker FILE`, `surefoot relay`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from surefoot.infra.runtime.settings import Settings
from tests.chaos.processes.lives import ROOT
from tests.support.eventually import until


@dataclass(slots=True, kw_only=True)
class Service:
    """A supervisor, and the one process that it keeps running."""

    name: str
    process: asyncio.subprocess.Process
    log_path: Path

    async def child(self) -> psutil.Process:
        """The process that does the work; waits while there is none."""

        def found() -> psutil.Process | None:
            text = self.log_path.read_text()
            assert self.process.returncode is None, text[-4000:]
            lines = [line for line in text.split("\n")[:-1] if '"process_started"' in line]
            children = {each.pid: each for each in psutil.Process(self.process.pid).children()}
            return children.get(json.loads(lines[-1])["pid"]) if lines else None

        process = await until(found, what=f"{self.name} to run")
        assert process is not None
        return process

    async def joined(self) -> None:
        """Wait until its group has told it what its partitions are, if any."""
        await until(
            lambda: '"event": "assignment"' in self.log_path.read_text(),
            what=f"{self.name} to be a member",
        )

    async def kill(self) -> None:
        """The process, whose supervisor starts another one."""
        (await self.child()).kill()

    async def freeze(self) -> psutil.Process:
        process = await self.child()
        process.suspend()
        await until(
            lambda: process.status() == psutil.STATUS_STOPPED, what=f"{self.name} to freeze"
        )
        return process

    async def stop(self) -> int:
        """Both, as SIGTERM does; the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()

    async def end(self) -> None:
        """At once."""
        if self.process.returncode is None:
            children = psutil.Process(self.process.pid).children()
            self.process.kill()
            for child in children:
                child.kill()
            await self.process.wait()


@dataclass(slots=True)
class Services:
    """Starts services that share their settings; each has an identity of its own."""

    settings: Settings
    folder: Path
    env: Mapping[str, str]
    _all: list[Service] = field(default_factory=list)

    async def begin(self, *args: str, code: Path = ROOT) -> Service:
        """Start `surefoot ARGS`, imported from the folder `code`."""
        set_here = self.settings.model_dump(exclude_unset=True, exclude_none=True)
        set_here["instance"] = name = f"{args[0]}-{len(self._all)}"
        log_path = self.folder / f"{name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "surefoot", *args),
                cwd=code,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, (code, ROOT))),
                    **{f"SUREFOOT_{key.upper()}": str(value) for key, value in set_here.items()},
                    **self.env,
                },
                stdout=log,
                stderr=log,
            )
        service = Service(name=name, process=process, log_path=log_path)
        self._all.append(service)
        return service

    async def end(self) -> None:
        for service in self._all:
            await service.end()


@asynccontextmanager
async def services(
    settings: Settings, folder: Path, env: Mapping[str, str]
) -> AsyncIterator[Services]:
    made = Services(settings, folder, env)
    try:
        yield made
    finally:
        await made.end()
