"""Keeps child processes running: starts them, and starts them again when they die.

A child that dies comes back with the same slot, so that it is the same static member of its
consumer group and gets its partitions back without a rebalance. A child that keeps dying is
started less and less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

#: a child that lived this long counts as having worked, in seconds
HEALTHY_S = 10.0
#: exit status of a process whose settings, topics or agents are wrong
EXIT_CONFIG = 2
#: and of one that Kafka has denied a right, for as long as it asks again
EXIT_DENIED = 77
#: why a child that has ended so is not started again
_NO_USE = {
    EXIT_CONFIG: "a setting, a topic or an agent's file is wrong; the child's last line names it",
    EXIT_DENIED: "Kafka denies a right; the child's last line names it and how to grant it",
}
#: tells a child who has started it
_SUPERVISOR = "SUREFOOT_SUPERVISOR_PID"
#: longest wait between two starts of a child that keeps dying, in seconds
WAIT_MOST_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process to keep running: `surefoot ARGS...`."""

    name: str
    args: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    #: its output is appended there; None: it goes where the supervisor's goes
    log_path: Path | None = None


def is_supervised() -> bool:
    """Whether this process is somebody's child here, and not started by a person or an init
    system: the shell that has started a server may end before it."""
    return os.environ.get(_SUPERVISOR) == str(os.getppid())


class Supervisor:
    """Runs children until it is asked to stop."""

    def __init__(self, children: Sequence[Child], *, grace_s: float) -> None:
        #: running processes by the name of the child
        self.running: dict[str, asyncio.subprocess.Process] = {}
        #: how often a child was started again
        self.restarts = 0
        self._children = children
        self._grace_s = grace_s
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask every child to finish (SIGTERM), kill it when the grace is over. Asked again: pass
        the second signal on, which makes them hurry."""
        self._stop.set()
        for process in self.running.values():
            _signal(process, signal.SIGTERM)

    async def run(self) -> int:
        """Run until stopped, or until a child ends by what no restart mends. Returns the worst exit
        status of the last run of each child, 0 when all ended well."""
        codes = await asyncio.gather(*(self._keep(child) for child in self._children))
        return max((abs(code) for code in codes), default=0)

    async def _keep(self, child: Child) -> int:
        wait_s = 0.0
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            process = await _spawn(child)
            self.running[child.name] = process
            log.info("process_started", child=child.name, pid=process.pid)
            if self._stop.is_set():  # it came too late to be asked with the others
                _signal(process, signal.SIGTERM)
            code = await self._wait(process)
            log.info("process_exited", child=child.name, pid=process.pid, code=code)
            if code in (EXIT_CONFIG, EXIT_DENIED) and not self._stop.is_set():
                log.error("all_stop", child=child.name, code=code, reason=_NO_USE[code])
                self.stop()
            if self._stop.is_set():
                # One that has not got as far as to listen to signals ends by the one that it was
                # sent, and has begun nothing.
                return 0 if code == -signal.SIGTERM else code
            healthy = loop.time() - started_s >= HEALTHY_S
            wait_s = 0.0 if healthy else min(WAIT_MOST_S, wait_s * 2 or 0.1)
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
    """Not `send_signal`, which first looks whether the process has ended: if it has just now, that
    takes its exit status away from asyncio, and it is reported as 255."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _spawn(child: Child) -> asyncio.subprocess.Process:
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(child.log_path.open("ab")) if child.log_path else None
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "surefoot",
            *child.args,
            env={**os.environ, **child.env, _SUPERVISOR: str(os.getpid())},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
