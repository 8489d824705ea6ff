"""`python -m tests.support.patient_cli ...`: surefoot's command line, as patient as busy machines
need."""

from __future__ import annotations

from surefoot.cli import app
from tests.support.long_deadlines import patience

if __name__ == "__main__":
    with patience():
        app()
