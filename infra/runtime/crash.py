"""The dashboard's button that crashes a worker, available while the demo runs.

The gateway is a child process of the demo and can only send it one signal. The demo then picks a
busy worker and sends it SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

#: environment variable with the process id of the demo
VARIABLE = "SUREFOOT_DEMO_PID"
#: the signal that asks the demo to crash a worker
SIGNAL = signal.SIGUSR1


def crasher(environ: Mapping[str, str]) -> Callable[[], None] | None:
    """Return a function that asks the demo to crash a worker; None outside of a demo."""
    demo = environ.get(VARIABLE)

    def crash() -> None:
        if demo == str(os.getppid()):  # the demo may have ended, and its number been reused
            os.kill(os.getppid(), SIGNAL)

    return crash if demo == str(os.getppid()) else None
