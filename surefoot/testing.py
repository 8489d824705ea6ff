"""For tests of agents: run them in memory, under virtual time, and crash them at every commit.

    from surefoot.testing import Simulation, check_crashes

    def test_an_order_is_shipped_once():
        report = check_crashes(agent, payload={"order": 7}, signals=[("paid", {"amount": 10})])
        assert report.kills > 10

See docs/how-to/testing.md. With pytest, `surefoot_sim` and `crash_points` are the same as fixtures.
"""

from surefoot.crash_points import CrashFound, CrashReport, check_crashes
from surefoot.simulation import (
    DeliveredEffect,
    Refused,
    SimulatedRun,
    Simulation,
    SimulationError,
)
from surefoot.state.ports import HttpRequest, HttpResponse

__all__ = [
    "CrashFound",
    "CrashReport",
    "DeliveredEffect",
    "HttpRequest",
    "HttpResponse",
    "Refused",
    "SimulatedRun",
    "Simulation",
    "SimulationError",
    "check_crashes",
]
