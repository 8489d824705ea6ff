"""Keeps child processes running: starts them, and restarts those that die.

A restarted child keeps its slot, so it is the same static member of its consumer group and gets its
partitions back without a rebalance. A child that keeps dying is restarted less and less often.

Most of a start is importing the engine. A spare process has that behind it when a child dies, and
becomes the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from surefoot.infra.runtime.exits import EXIT_CONFIG, EXIT_DENIED

log = structlog.get_logger(__name__)

#: a child that lived this long counts as healthy, in seconds
HEALTHY_S = 10.0
#: time beyond the children's own drain deadline before they are killed, in seconds
DRAIN_GRACE_S = 10.0
#: why a child with this exit status is not restarted
_NO_USE = {
    EXIT_CONFIG: "a setting, a topic or an agent's file is wrong; the child's last line names it",
    EXIT_DENIED: "Kafka denies a right, or a key is missing; the child's last line names it",
}
#: tells a child its supervisor's process id
_SUPERVISOR = "SUREFOOT_SUPERVISOR_PID"
#: the program of a spare process
_SPARE = ("surefoot.spare",)
#: longest wait before a child that keeps dying is restarted, in seconds
RESTART_WAIT_MOST_S = 30.0
#: a spare process starts after this long, so that it does not slow down the start of a child, in
#: seconds
SPARE_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process to keep running: `surefoot ARGS...`."""

    name: str
    args: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    #: file to which its output is appended; None: the supervisor's own output
    log_path: Path | None = None


def is_supervised() -> bool:
    """Whether a supervisor started this process, as opposed to a person or an init system.

    Only then may it end with its parent: a shell that starts a server may end before it."""
    return os.environ.get(_SUPERVISOR) == str(os.getppid())


class Spare:
    """One process that waits to become a child. It does not count as one until then."""

    def __init__(self) -> None:
        self._waiting: asyncio.subprocess.Process | None = None
        self._taken = asyncio.Event()

    async def keep(self) -> None:
        """Have a process wait, and another one once it is taken.

        Under cancellation: the one that waits is killed; it holds nothing."""
        try:
            while True:
                await asyncio.sleep(SPARE_AFTER_S)
                self._taken.clear()
                self._waiting = await _execute(_SPARE, stdin=asyncio.subprocess.PIPE)
                await self._taken.wait()
        finally:
            process, self._waiting = self._waiting, None
            if process is not None:
                _signal(process, signal.SIGKILL)
                await process.wait()

    def take(self, child: Child) -> asyncio.subprocess.Process | None:
        """Return the process, which becomes the child; None: there is none.

        One that is not ready yet becomes the child when it is."""
        process, self._waiting = self._waiting, None
        self._taken.set()
        if process is None or process.returncode is not None:
            return None
        told = {"args": [*child.args], "env": {**child.env}}
        assert process.stdin is not None, "it was made with a pipe"
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.close()
        return process


class Supervisor:
    """Runs children until it is told to stop."""

    def __init__(
        self, children: Sequence[Child], *, grace_s: float, spare: Spare | None = None
    ) -> None:
        """`spare` becomes a child without a `log_path`."""
        #: running processes by name of the child
        self.running: dict[str, asyncio.subprocess.Process] = {}
        #: how many restarts there were
        self.restarts = 0
        self._children = children
        self._grace_s = grace_s
        self._spare = spare
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask every child to finish (SIGTERM); kill it when the grace period is over.

        Called again: pass the second signal on, which makes the children hurry."""
        self._stop.set()
        for process in self.running.values():
            _signal(process, signal.SIGTERM)

    async def run(self) -> int:
        """Run until stopped, or until a child ends with an error that no restart fixes.

        Returns: the worst exit status of the children's last runs, 0 when all ended well."""
        keeping = [asyncio.create_task(self._spare.keep())] if self._spare is not None else []
        try:
            codes = await asyncio.gather(*(self._keep(child) for child in self._children))
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
        return max((abs(code) for code in codes), default=0)

    async def _keep(self, child: Child) -> int:
        wait_s = 0.0
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            spare = self._spare.take(child) if self._spare is not None else None
            process = spare or await _spawn(child)
            self.running[child.name] = process
            log.info("process_started", child=child.name, pid=process.pid)
            if self._stop.is_set():  # started too late for stop() to signal it
                _signal(process, signal.SIGTERM)
            code = await self._wait(process)
            log.info("process_exited", child=child.name, pid=process.pid, code=code)
            if code in (EXIT_CONFIG, EXIT_DENIED) and not self._stop.is_set():
                log.error("all_stop", child=child.name, code=code, reason=_NO_USE[code])
                self.stop()
            if self._stop.is_set():
                # A child that did not yet handle signals dies of SIGTERM itself, and has begun
                # nothing.
                return 0 if code == -signal.SIGTERM else code
            healthy = loop.time() - started_s >= HEALTHY_S
            wait_s = 0.0 if healthy else min(RESTART_WAIT_MOST_S, wait_s * 2 or 0.1)
            try:
                async with asyncio.timeout(wait_s):
                    await self._stop.wait()
            except TimeoutError:
                self.restarts += 1
            else:
                return code

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        exited = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({exited, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not exited.done():
            await asyncio.wait({exited}, timeout=self._grace_s)
        if not exited.done():
            log.warning("process_killed", pid=process.pid, grace_s=self._grace_s)
            _signal(process, signal.SIGKILL)
        return await exited


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal, if the process still runs.

    Not by `send_signal`, which first polls the process: if it has just ended, that takes the exit
    status away from asyncio, which then reports 255."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _spawn(child: Child) -> asyncio.subprocess.Process:
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(child.log_path.open("ab")) if child.log_path else None
        args = ["surefoot", *child.args]
        return await _execute(args, env=child.env, stdout=output, stderr=output)


async def _execute(
    args: Sequence[str], *, env: Mapping[str, str] | None = None, **streams: Any
) -> asyncio.subprocess.Process:
    """Start `python -m ARGS...`."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *args,
        env={**os.environ, **(env or {}), _SUPERVISOR: str(os.getpid())},
        start_new_session=True,
        **streams,
    )
