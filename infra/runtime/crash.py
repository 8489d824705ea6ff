"""The dashboard's button that crashes a worker, for as long as the demo runs.

The gateway is a child process of the demo and has nothing to say to it but one signal. The demo
then chooses a worker that works, and sends it SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

#: has the process id of the demo
VARIABLE = "SUREFOOT_DEMO_PID"
#: what the demo takes as "crash a worker"
SIGNAL = signal.SIGUSR1


def crasher(environ: Mapping[str, str]) -> Callable[[], None] | None:
    """Asks the demo to crash a worker; None in a gateway that is not a child of a demo."""
    demo = environ.get(VARIABLE)

    def crash() -> None:
        if demo == str(os.getppid()):  # it may have ended, and its number be somebody else's
            os.kill(os.getppid(), SIGNAL)

    return crash if demo == str(os.getppid()) else None
