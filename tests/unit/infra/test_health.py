"""/health and /ready: what a process says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from surefoot import Agent
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.telemetry.health import Part, announced, beside
from surefoot.state.ports.log import Assignment

NOTHING: frozenset[int] = frozenset()


async def nothing_else(*_: Any) -> None:
    raise AssertionError("the metrics were asked")


async def told(path: str) -> tuple[int, Any]:
    transport = httpx.ASGITransport(app=beside(nothing_else))
    async with httpx.AsyncClient(transport=transport, base_url="http://process") as http:
        answer = await http.get(path)
        return answer.status_code, answer.json()


async def test_ready_once_every_part_is_in_service_and_only_as_long():
    assert await told("/ready") == (503, {"ready": False, "waiting": []})
    late = SimpleNamespace(in_service=False)
    with announced([Part("shop", lambda: True), Part("outbox", lambda: late.in_service)]):
        assert await told("/ready") == (503, {"ready": False, "waiting": ["outbox"]})
        late.in_service = True
        assert await told("/ready") == (200, {"ready": True, "waiting": []})
    assert (await told("/ready"))[0] == 503


async def test_health_says_only_that_the_process_lives():
    with announced([Part("shop", lambda: False)]):
        assert await told("/health") == (200, {"healthy": True})


async def test_everything_else_is_for_the_metrics():
    with pytest.raises(AssertionError, match="the metrics were asked"):
        await told("/metrics")


def test_a_worker_is_in_service_as_a_member_that_can_prove_it():
    log: Any = SimpleNamespace(lease_left_s=lambda: 1.0)
    unused: Any = None
    worker = Worker(
        agent=Agent("shop"),
        log=log,
        wire=unused,
        executor=unused,
        clock=SystemClock(),
        limits=unused,
        in_flight=1,
    )
    owners: Any = worker.owners

    def serves() -> bool:
        return worker.in_service

    assert not serves()  # not yet a member
    worker._changed(Assignment(gained=NOTHING, retained=NOTHING, lost=NOTHING))
    assert serves()  # stands by
    owners[0] = SimpleNamespace(ready=False)
    assert not serves()  # takes a partition over
    owners[0] = SimpleNamespace(ready=True)
    assert serves()
    log.lease_left_s = lambda: 0.0
    assert not serves()
