"""Accounts at `surefoot views`: who may ask it, and how its instances and a gateway sign in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from surefoot.infra.http.server import listen, server, url_of
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.views.http import HttpViews, MergedViews, views_app
from surefoot.producers.access.gate import AccessControl
from surefoot.state.access.accounts import Account
from surefoot.state.access.withheld import parse_payload_roles
from surefoot.state.egress.hosts import parse_hosts
from surefoot.state.errors import Unavailable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.roles import ROLES, Role, includes
from surefoot.state.reading.statistics import PartitionStatistics
from tests.unit.producers.test_access import (
    VIEWS_REQUESTS,
    FakeAccounts,
    FakeAudit,
    filled,
    rule_of,
)

QUERY = "?limit=5&since=0&run_id=r&minutes=5"
#: a token of a viewer, with which the instances ask each other
SIGNED = {"Authorization": "Bearer viewer"}


class FakeShard:
    """Has one partition of two, and knows who has the other."""

    partitions = 2

    def __init__(self, mine: int, theirs: str | None = None) -> None:
        self._mine, self._theirs = mine, theirs

    def owners(self) -> Mapping[str | None, set[int]]:
        found: dict[str | None, set[int]] = {None: {self._mine}}
        return found if self._theirs is None else {**found, self._theirs: {1 - self._mine}}

    async def lag(self) -> Any:
        return self

    def json(self) -> Any:
        return {"events": 0, "ms": 0}

    async def opened(self) -> dict[int, PartitionStatistics]:
        return {self._mine: PartitionStatistics({})}

    def values(self, _partition: int) -> dict[bytes, bytes]:
        return {}


class Instance:
    def __init__(self, shards: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self.accounts, self.audit, clock = FakeAccounts(), FakeAudit(), SystemClock()
        # a view has no payload, so the instances can merge what a viewer is told
        access = AccessControl(
            accounts=self.accounts, audit=self.audit, payload_roles=parse_payload_roles("admin")
        )
        self.views = MergedViews(shards, clock, 60, headers or {})
        self.app = views_app(shards, self.views, clock, access)

    async def get(self, path: str, who: str | None, method: str = "GET") -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        headers = {} if who is None else {"Authorization": f"Bearer {who}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://views") as http:
            return await http.request(method, path, headers=headers)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        one = server(self.app, parse_hosts("127.0.0.1"), drain_s=1)
        with listen("127.0.0.1", 0, "SUREFOOT_VIEWS") as socket:
            serving = asyncio.create_task(one.serve(sockets=[socket]))
            yield url_of("127.0.0.1", socket)
            one.should_exit = True
            await serving


@pytest.mark.parametrize("who", [None, *ROLES])
async def test_each_request_is_for_whom_the_table_says(who: Role | None) -> None:
    instance = Instance({"triage": FakeShard(0)})
    for method, path in VIEWS_REQUESTS:
        needed = rule_of(method, path).role
        answer = await instance.get(filled(path) + QUERY, who, method)
        told = f"{method} {path}: {answer.status_code} {answer.text}"
        if needed is None:
            assert answer.status_code == 200, told
        elif who is None:
            assert answer.status_code == 401, told
        else:
            assert includes(who, needed) is True
            assert answer.status_code in (200, 404, 503), told


async def test_an_agent_out_of_scope_is_as_if_it_were_not_there() -> None:
    instance = Instance({"triage": FakeShard(0), "billing": FakeShard(0)})
    instance.accounts.all["bill"] = Account(name="bill", role="viewer", agents=("billing",))
    for path in ("/views/{}/summary", "/parts/{}/digest"):
        real = await instance.get(path.format("triage"), "bill")
        unreal = await instance.get(path.format("no-such"), "bill")
        assert (real.status_code, real.text) == (unreal.status_code, unreal.text)
        assert (real.status_code, "triage" in real.text) == (404, False)
    assert (await instance.get("/parts/billing/digest", "bill")).status_code == 200


@pytest.mark.parametrize("signed", [True, False])
async def test_an_instance_and_a_gateway_sign_in_to_another(*, signed: bool) -> None:
    headers = SIGNED if signed else {}
    run_id = next(name for name in map(str, range(99)) if partition_of(name, 2) == 1)
    other = Instance({"triage": FakeShard(1)})
    async with other.served() as url:
        here = Instance({"triage": FakeShard(0, url)}, headers)
        gateway = HttpViews(url, 60, headers)
        asked = (here.views.run("triage", run_id), here.views.summary("triage"))
        if signed:
            assert [(await each)["agent"] for each in asked] == ["triage"] * 2
            assert (await gateway.run("triage", run_id))["run"] is None
        else:
            for refused in (*asked, gateway.run("triage", run_id)):
                with pytest.raises(Unavailable, match="401"):
                    await refused
        await gateway.stop()
        await here.views.stop()
        await other.views.stop()
