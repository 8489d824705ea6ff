"""What a process says on stderr."""

from __future__ import annotations

import json

import pytest
import structlog

from surefoot.infra.logging import configure


def test_a_traceback_tells_the_line_and_no_local_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(json=True)
    secret = "hunter2"
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        structlog.get_logger("t").exception("went_wrong", run_id="r1")
    told = capsys.readouterr().err
    entry = json.loads(told)
    assert (entry["event"], entry["run_id"]) == ("went_wrong", "r1")
    assert entry["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert secret not in told
