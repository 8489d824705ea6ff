"""Ends what this process has started outside of itself, also when the process is killed."""

from __future__ import annotations

import subprocess


class WhenKilled:
    """Runs a shell script, with these arguments, when this process ends without calling `cancel`.

    A shell waits for the end of a pipe whose other end only this process has."""

    def __init__(self, script: str, *arguments: str) -> None:
        # A session of its own: signals to the terminal's processes do not reach it.
        self._shell = subprocess.Popen(
            ["sh", "-c", f"cat >/dev/null\n{script}", "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def cancel(self) -> None:
        """End the shell without running the script. Safe to call twice."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None, "it is a pipe"
        self._shell.stdin.close()
