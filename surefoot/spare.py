"""A process that stands by for a service: `python -m surefoot.spare`.

Importing the engine is most of a start, so it is done ahead. A line on standard input then says
what to be, as JSON: the arguments of `surefoot`, and variables to set. An agent's own file is
imported only after that: what it does at its import, it does in a process that works.
"""

from __future__ import annotations

import json
import os
import sys

import surefoot.commands.services.worker
import surefoot.infra.processes.worker  # noqa: F401  (what a worker needs)
from surefoot.cli import app


def stand_by() -> None:
    """Wait to be told, then be it; end if whoever could tell has ended."""
    if line := sys.stdin.readline():
        told = json.loads(line)
        os.environ.update(told["env"])
        sys.argv = ["surefoot", *told["args"]]
        app()


if __name__ == "__main__":
    stand_by()
