"""An archive process of a test, that kills itself at a named point: SIGKILL, as nothing is told.

python -m tests.chaos.processes.archive_child POINT
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from surefoot import Agent
from surefoot.infra.archive.store import S3Archive
from surefoot.infra.kafka.archive import KafkaArchiveLog
from surefoot.infra.processes.archive import run_archive
from surefoot.infra.runtime.logging import configure
from surefoot.infra.runtime.settings import load_settings

AGENT = "shop"
#: the method at which it ends, and whether that is before or after it
POINTS: dict[str, tuple[type[Any], str, bool]] = {
    "before-the-file": (S3Archive, "put_new", False),
    "file-made": (S3Archive, "put_new", True),
    "index-made": (S3Archive, "put", True),
    "committed": (KafkaArchiveLog, "commit", True),
}


def set_trap(point: str) -> None:
    owner, name, after = POINTS[point]
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def trapped(self: Any, *args: Any) -> Any:
        if args[0] == "probe":
            return await real(self, *args)
        done = await real(self, *args) if after else None
        os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(owner, name, trapped)


def main() -> int:
    configure(json=True)
    set_trap(sys.argv[1])
    return run_archive([Agent(AGENT)], load_settings(), once=False)[0]


if __name__ == "__main__":
    sys.exit(main())
