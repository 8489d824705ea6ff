"""The fixtures that surefoot brings to pytest.

It is loaded wherever surefoot is installed: the engine is imported by the tests that ask for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from surefoot.testing import CrashReport, Simulation


@pytest.fixture
def surefoot_sim() -> Callable[..., Simulation]:
    """Make a Simulation: `sim = surefoot_sim(agent)`."""
    from surefoot.testing import Simulation  # noqa: PLC0415

    return Simulation


@pytest.fixture
def crash_points() -> Callable[..., CrashReport]:
    """`surefoot.testing.check_crashes`: kill an agent at each of its commits in turn."""
    from surefoot.testing import check_crashes  # noqa: PLC0415

    return check_crashes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Close the simulations that the test has made and not closed."""
    del item
    simulation = sys.modules.get("surefoot.testing.simulation")
    before = simulation.open_now() if simulation is not None else []
    try:
        return (yield)
    finally:
        simulation = sys.modules.get("surefoot.testing.simulation")
        if simulation is not None:
            simulation.close_since(before)
