"""What this process has started outside of it ends with it, also when it is killed."""

from __future__ import annotations

import subprocess


class WhenKilled:
    """Runs a shell script, with these arguments, when this process is gone without having called
    `cancel`: a shell waits for the end of a pipe, whose other end nobody else has."""

    def __init__(self, script: str, *arguments: str) -> None:
        # A session of its own: what is sent to the terminal's processes is not for it.
        self._shell = subprocess.Popen(
            ["sh", "-c", f"cat >/dev/null\n{script}", "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def cancel(self) -> None:
        """Doing it twice is doing it once."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None, "it is a pipe"
        self._shell.stdin.close()
