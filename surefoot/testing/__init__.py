"""Tests of agents: run them in memory, under virtual time, and crash them at every commit.

    from surefoot.testing import Simulation, check_crashes

    def test_an_order_is_shipped_once():
        report = check_crashes(agent, payload={"order": 7}, signals=[("paid", {"amount": 10})])
        assert report.kills > 10

See docs/how-to/testing.md. With pytest, the fixtures `surefoot_sim` and `crash_points` do the same.
"""

from surefoot.state.declare.topics import Unusable
from surefoot.state.errors import Refused
from surefoot.state.ports.http import HttpRequest, HttpResponse
from surefoot.testing.crash_points import CrashFound, CrashReport, check_crashes
from surefoot.testing.events import AskedFor, from_event
from surefoot.testing.simulation import DeliveredEffect, SimulatedRun, Simulation, SimulationError

__all__ = [
    "AskedFor",
    "CrashFound",
    "CrashReport",
    "DeliveredEffect",
    "HttpRequest",
    "HttpResponse",
    "Refused",
    "SimulatedRun",
    "Simulation",
    "SimulationError",
    "Unusable",
    "check_crashes",
    "from_event",
]
