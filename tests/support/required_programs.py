"""Programs of the system that a test runs."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str) -> str:
    """Its path. The test is skipped without it, and fails where it must not go untested:
    SUREFOOT_TEST_REQUIRE_ and the name is set."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not on the PATH"
        if os.environ.get(f"SUREFOOT_TEST_REQUIRE_{name.upper()}"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
