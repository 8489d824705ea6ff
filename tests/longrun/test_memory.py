"""A short run of what tests/longrun/memory.py does at length."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = 40_000
#: one payload that is kept of each run costs more than twice that
BYTES_A_RECORD = 80


def test_memory_does_not_grow_with_the_records_that_went_through() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.longrun.memory", "--records", str(RECORDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["records"] == RECORDS
    assert told["known"] == 0
    assert told["least_bytes_a_record"] < BYTES_A_RECORD, told
