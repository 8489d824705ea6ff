"""Fixtures of the tests that break things."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.chaos.faults.networked import Networked, start_networked


@pytest.fixture(scope="module")
def networked() -> Iterator[Networked]:
    """A broker of the module's own, behind a proxy."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed; a broker in Docker has one listener")
    with start_networked() as started:
        yield started
