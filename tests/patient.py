"""`python -m tests.patient ...`: the command line of surefoot, as patient as busy machines need."""

from __future__ import annotations

from surefoot.cli import app
from tests.patience import patience

if __name__ == "__main__":
    with patience():
        app()
