"""The engine as it would be with the author's code on the loop of the Kafka clients.

Only to measure what the executor's own thread costs: here, a step that blocks starves heartbeats.

    python -m benchmarks.one_loop           until SIGTERM; settings from SUREFOOT_... variables
"""

from __future__ import annotations

import asyncio
import sys
from typing import TypeVar
from unittest.mock import patch

from benchmarks.agents import agent
from surefoot.consumers.attempts.claim_check import ClaimCheck
from surefoot.consumers.attempts.executor import Executor, Mailbox
from surefoot.infra.processes import worker as worker_main
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.ports.clock import Clock

T = TypeVar("T")


class Direct(Mailbox[T]):
    """Sender and receiver are on one loop: a plain call."""

    def post(self, item: T) -> None:
        self._receive(item)


class OneLoopExecutor(Executor):
    """Runs async steps as tasks of the engine's loop."""

    def __init__(self, clock: Clock, claims: ClaimCheck) -> None:
        super().__init__(clock, claims)
        self._loop.close()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in ("_calls", "_cancels", "_outcomes", "_notes", "_outputs", "_recorded"):
            setattr(self, name, Direct(self._loop, self._loop, getattr(self, name)._receive))

    def stop(self) -> None:
        """Nothing of its own to stop."""


if __name__ == "__main__":
    logging.configure()
    with patch.object(worker_main, "Executor", OneLoopExecutor):
        sys.exit(worker_main.run_worker([agent], load_settings(), slot=0))
