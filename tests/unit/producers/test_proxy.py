"""A proxy that says who sends a request: whose word counts, and as whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import ConfigError
from surefoot.infra.http.server import listen, server, url_of
from surefoot.infra.runtime.settings import load_settings
from surefoot.producers.access.gate import PEER, AccessControl
from surefoot.state.access.accounts import Account
from surefoot.state.access.proxied import (
    PROXIED_MS,
    TrustedProxy,
    parse_networks,
    parse_roles,
)
from surefoot.state.egress.hosts import parse_hosts
from surefoot.state.errors import BadArgument
from surefoot.state.names.roles import ROLES, Role, includes
from tests.unit.producers.test_access import OWN, REQUESTS, Guarded, filled, rule_of
from tests.unit.producers.test_gateway import RUN

INSIDE, OUTSIDE = "10.1.2.3", "192.0.2.1"
PROXY = TrustedProxy(
    networks=parse_networks("10.1.0.0/16, fd00::/8"),
    name_header="x-forwarded-user",
    groups_header="x-forwarded-groups",
    agents_header=None,
    roles=parse_roles(",".join(f"the {role}s={role}" for role in ROLES)),
)
ANN = {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "staff, the operators"}


class Proxied(Guarded):
    """A gateway that trusts the proxy; `peer` makes the connections."""

    def __init__(self, proxy: TrustedProxy = PROXY, peer: str | None = INSIDE) -> None:
        self.proxy, self.peer = proxy, peer
        super().__init__()
        transport = httpx.ASGITransport(self.with_peer, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def access_of(self) -> AccessControl:
        return AccessControl(accounts=self.accounts, audit=self.audit, proxy=self.proxy)

    async def with_peer(self, scope: Any, receive: Any, send: Any) -> None:
        if self.peer is not None:
            scope[PEER] = self.peer
        await self.app(scope, receive, send)


@pytest.fixture
async def gateway() -> AsyncIterator[Proxied]:
    one = Proxied()
    async with one.http:
        yield one


@pytest.mark.parametrize("who", ROLES)
async def test_each_request_is_for_whom_the_table_says(gateway: Proxied, who: Role) -> None:
    headers = {"X-Forwarded-User": "ann", "X-Forwarded-Groups": f"the {who}s", **OWN}
    for method, path in REQUESTS:
        needed = None if method == "WS" else rule_of(method, path).role
        if needed is None:
            continue
        answer = await gateway.ask(method, filled(path), None, **headers)
        told = f"{method} {path}: {answer.status_code} {answer.text}"
        assert (answer.status_code == 403) is not includes(who, needed), told
        assert answer.status_code != 401, told


async def test_who_the_proxy_names_is_signed_in_and_recorded(gateway: Proxied) -> None:
    told = await gateway.ask("GET", "/session", None, **ANN)
    assert {name: told.json()[name] for name in ("name", "role", "agents")} == {
        "name": "ann",
        "role": "operator",
        "agents": ["*"],
    }
    assert (await gateway.ask("POST", f"/runs/triage/{RUN}/pause", None, **ANN, **OWN)).is_success
    assert [fields["by"] for *_, fields in gateway.commands.sent] == ["ann"]
    assert gateway.audit.told() == [("ann", "pause", 200)]


@pytest.mark.parametrize("peer", [OUTSIDE, None, "", "proxy", "10.2.0.1", "::ffff:192.0.2.1"])
async def test_the_headers_of_anybody_else_count_for_nothing(peer: str | None) -> None:
    gateway = Proxied(peer=peer)
    async with gateway.http:
        forwarded = {"X-Forwarded-For": INSIDE, "Forwarded": f"for={INSIDE}"}
        answer = await gateway.ask("GET", "/agents", None, **ANN, **forwarded)
        assert answer.status_code == 401
        told = await gateway.ask("GET", "/session", "viewer", **ANN)
        assert told.json()["name"] == "viewer"


async def test_the_proxys_word_comes_before_a_token_and_a_token_still_signs_in(
    gateway: Proxied,
) -> None:
    assert (await gateway.ask("GET", "/session", "admin", **ANN)).json()["name"] == "ann"
    assert (await gateway.ask("GET", "/session", "admin")).json()["name"] == "admin"
    assert (await gateway.ask("GET", "/session", None)).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-User": "ann"},
        {**ANN, "X-Forwarded-Groups": "staff"},
        {**ANN, "X-Forwarded-Groups": "the operators, the admins"},
        {**ANN, "X-Forwarded-Groups": "The Operators"},
        {**ANN, "X-Forwarded-User": ""},
        {**ANN, "X-Forwarded-User": "ann smith"},
        {**ANN, "X-Forwarded-User": "a" * 129},
    ],
)
async def test_who_has_not_exactly_one_role_is_refused(
    gateway: Proxied, headers: dict[str, str]
) -> None:
    # a token beside it does not help: whose request it is would be a guess
    answer = await gateway.ask("GET", "/agents", "admin", **headers)
    assert (answer.status_code, answer.json()["error"][:6]) == (403, "SF5085")
    [entry] = gateway.audit.entries
    name = headers["X-Forwarded-User"][:128]
    assert (entry.who, entry.status) == (None, 403)
    assert (repr(name) if name else "nobody") in str(entry.note)


@pytest.mark.parametrize("twice", ["X-Forwarded-User", "X-Forwarded-Groups"])
async def test_a_header_that_a_client_has_added_is_not_believed(
    gateway: Proxied, twice: str
) -> None:
    headers = [*ANN.items(), (twice, "the admins")]
    answer = await gateway.http.get("/agents", headers=headers)
    assert (answer.status_code, answer.json()["error"][:6]) == (403, "SF5085")


async def test_another_sites_page_cannot_use_the_proxys_session(gateway: Proxied) -> None:
    for told in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        # the last is no request at all: the gate refuses before anybody could forget to
        for path in (f"/runs/triage/{RUN}/pause", "/agents"):
            answer = await gateway.ask("POST", path, None, **ANN, **told)
            assert (answer.status_code, answer.json()["error"][:6]) == (403, "SF5033")
    assert gateway.commands.sent == []


def account(agents_header: str | None, *headers: tuple[str, str]) -> Account:
    proxy = TrustedProxy(
        networks=PROXY.networks,
        name_header="user",
        groups_header="groups",
        agents_header=agents_header,
        roles={"ops": "operator", "others": "operator"},
    )
    pairs = [("user", "jürgen"), ("groups", "ops,others"), *headers]
    return proxy.account([(name.encode(), value.encode()) for name, value in pairs], 1_000)


def test_an_account_holds_for_a_while_and_sees_the_agents_of_its_header() -> None:
    jurgen = Account(name="jürgen", role="operator", expires_ms=1_000 + PROXIED_MS, issuer="proxy")
    assert account(None) == jurgen
    assert account("agents").agents == ()
    assert account("agents", ("agents", "a, b-*")).agents == ("a", "b-*")
    assert account("agents", ("agents", "a"), ("agents", "b")).agents == ()


def test_an_ipv4_address_counts_as_such_over_ipv6_too() -> None:
    headers = [(b"x-forwarded-user", b"ann")]
    for peer in ("10.1.0.1", "::ffff:10.1.0.1", "fd00::1"):
        assert PROXY.vouches(peer, headers)
    for peer in ("10.2.0.1", "::ffff:10.2.0.1", "fe80::1", "10.1.0.1:80", "10.1.0.1, 10.1.0.1"):
        assert not PROXY.vouches(peer, headers)
    assert not PROXY.vouches("10.1.0.1", [])


names = st.sampled_from([b"x-forwarded-user", b"x-forwarded-groups", b"x-other"])
values = st.sampled_from([b"ann", b"the operators", b"the admins", b""]) | st.binary(max_size=20)


@given(st.lists(st.tuples(names, values), max_size=5))
def test_whatever_the_headers_are_they_name_one_account_or_are_refused(
    headers: list[tuple[bytes, bytes]],
) -> None:
    try:
        found = PROXY.account(headers, 0)
    except BadArgument:
        return
    [name] = [value for header, value in headers if header == b"x-forwarded-user"]
    [groups] = [value for header, value in headers if header == b"x-forwarded-groups"]
    assert found.name == name.decode()
    assert [f"the {found.role}s"] == [
        group for group in map(str.strip, groups.decode().split(",")) if group in PROXY.roles
    ]


@pytest.mark.parametrize(
    ("networks", "status"), [("127.0.0.0/8", 200), ("10.1.0.0/16", 401)], ids=["proxy", "stranger"]
)
async def test_no_header_says_who_has_made_a_connection(networks: str, status: int) -> None:
    """Over a real server, which puts what X-Forwarded-For says in place of the client."""
    proxy = TrustedProxy(
        networks=parse_networks(networks),
        name_header=PROXY.name_header,
        groups_header=PROXY.groups_header,
        agents_header=None,
        roles=PROXY.roles,
    )
    gateway = Proxied(proxy)
    one = server(gateway.app, parse_hosts("127.0.0.1"), drain_s=1)
    with listen("127.0.0.1", 0, "SUREFOOT_GATEWAY") as socket:
        serving = asyncio.create_task(one.serve(sockets=[socket]))
        url = url_of("127.0.0.1", socket)
        forwarded = {**ANN, "X-Forwarded-For": INSIDE, "Forwarded": f"for={INSIDE}"}
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=90) as http:
            assert (await http.get("/session", headers=forwarded)).status_code == status
        one.should_exit = True
        await serving


@pytest.mark.parametrize("parse", [parse_networks, parse_roles])
def test_nothing_said_is_nothing(parse: Callable[[str], Any]) -> None:
    assert len(parse("")) == len(parse(" , ")) == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"auth": "proxy"}, "SUREFOOT_PROXY_NETWORKS"),
        ({"auth": "proxy", "proxy_networks": "10.0.0.0/8"}, "SUREFOOT_PROXY_ROLES"),
        ({"proxy_networks": "10.0.0.1/8"}, "SUREFOOT_PROXY_NETWORKS.*host bits"),
        ({"proxy_networks": "0.0.0.0/0"}, "every address"),
        ({"proxy_networks": "::/0"}, "every address"),
        ({"proxy_networks": "proxy.example"}, "SUREFOOT_PROXY_NETWORKS"),
        ({"proxy_roles": "ops"}, "GROUP=ROLE"),
        ({"proxy_roles": "ops=root"}, "GROUP=ROLE"),
        ({"proxy_roles": "=admin"}, "GROUP=ROLE"),
        ({"proxy_roles": "ops=admin,ops=viewer"}, "twice"),
        ({"proxy_groups_header": "x-forwarded-user"}, "different headers"),
        ({"proxy_name_header": "X Forwarded User"}, "SUREFOOT_PROXY_NAME_HEADER"),
    ],
)
def test_whose_word_counts_has_to_be_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_settings(**settings)
