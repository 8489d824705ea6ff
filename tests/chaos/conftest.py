"""Fixtures of the tests that break things."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from surefoot.infra.broker.config import STORAGE, Storage
from tests.chaos.faults.networked import Networked, start_networked


def networked_broker(storage: Storage) -> Iterator[Networked]:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed; a broker in Docker has one listener")
    with start_networked(storage) as started:
        yield started


@pytest.fixture(scope="module")
def networked() -> Iterator[Networked]:
    """A broker of the module's own, behind a proxy."""
    yield from networked_broker(STORAGE)
