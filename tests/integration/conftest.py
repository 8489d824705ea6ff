"""What holds for every module here, its own fixtures included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.long_deadlines import patience


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    with patience():
        yield
