"""Whatever the headers of a request are: it is never an error of the gateway, and never somebody
else's session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from surefoot.infra.http.server import server
from surefoot.producers.access.gate import AccessControl
from surefoot.producers.access.session import COOKIE
from surefoot.state.access.accounts import Account
from surefoot.state.access.proxied import TrustedProxy, parse_networks
from surefoot.state.egress.hosts import parse_hosts
from tests.unit.producers.test_access import Guarded

#: by their secrets
ACCOUNTS = {
    "sft_ann-s3cret": Account(name="ann", role="viewer"),
    "sft_bob-s3cret": Account(name="bob", role="admin"),
}
#: who the proxy names, which has the address of PROXY
PROXIED, PROXY, STRANGER = "pat", "10.1.2.3", "192.0.2.9"


class Site(Guarded):
    """As a server serves it: with the Host guard, and what uvicorn makes of X-Forwarded-For."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts.all = dict(ACCOUNTS)
        config = server(self.app, parse_hosts("gateway"), drain_s=1).config
        config.load()
        self.served = config.loaded_app

    def access_of(self) -> AccessControl:
        proxy = TrustedProxy(
            networks=parse_networks(PROXY),
            name_header="x-forwarded-user",
            groups_header="x-forwarded-groups",
            agents_header=None,
            roles={"ops": "operator"},
        )
        return AccessControl(accounts=self.accounts, audit=self.audit, proxy=proxy)

    async def answer(
        self, peer: str, headers: list[tuple[bytes, bytes]], method: str, path: str
    ) -> tuple[int, bytes]:
        """Status and body; 101 of a WebSocket that is accepted."""
        kind = "websocket" if method == "WS" else "http"
        scope = {
            "type": kind,
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"gateway"), *headers],
            "client": (peer, 1),
            "server": ("127.0.0.1", 80),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        told = asyncio.Queue[Any]()
        told.put_nowait(
            {"type": "websocket.connect"}
            if method == "WS"
            else {"type": "http.request", "body": b"{}", "more_body": False}
        )
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.served(scope, told.get, send)
        return sent[0].get("status", 101), b"".join(each.get("body", b"") for each in sent)


SITE = Site()

secrets = st.sampled_from([*map(str.encode, ACCOUNTS), b"sft_nobody", b"", b'"', b"\xff"])
noise = st.binary(max_size=12) | st.sampled_from(
    [b";", b"; ", b"=", b'"', b"\\", b",", b" ", b"\xa0", b"\t", b"%3B", b"\x00", b"\xe2\x80\xa8"]
)
cookie = st.tuples(
    noise | st.just(b""),
    st.sampled_from([COOKIE.encode(), b"$" + COOKIE.encode(), COOKIE.upper().encode(), b"other"]),
    st.sampled_from([b"=", b"=", b"=", b" = ", b""]),
    secrets,
    noise | st.just(b""),
).map(b"".join)
addresses = st.sampled_from([b"10.1.2.3", b"127.0.0.1", b"[::1]:80", b"for=10.1.2.3", b"_x", b""])
forwarded = st.lists(addresses | noise, max_size=4).map(b", ".join) | st.just(b"9" * 5_000)
bearer = st.tuples(
    st.sampled_from([b"Bearer ", b"bearer ", b"Bearer", b"Basic ", b""]), secrets, noise
).map(b"".join)
header = st.one_of(
    st.tuples(st.just(b"cookie"), st.lists(cookie, max_size=3).map(b"; ".join)),
    st.tuples(st.just(b"authorization"), bearer),
    st.tuples(
        st.sampled_from([b"forwarded", b"x-forwarded-for", b"x-real-ip", b"x-client-ip"]), forwarded
    ),
    st.tuples(
        st.sampled_from([b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port"]),
        noise | st.sampled_from([b"https", b"ws", b"gateway, evil.example"]),
    ),
    st.tuples(
        st.sampled_from([b"x-forwarded-user", b"x-forwarded-groups", b"x_forwarded_user"]),
        noise | st.sampled_from([PROXIED.encode(), b"ops", b"ann"]),
    ),
    st.tuples(
        st.sampled_from([b"origin", b"sec-fetch-site", b"content-type", b"last-event-id"]),
        noise | st.sampled_from([b"http://gateway", b"http://[", b"same-origin", b"null"]),
    ),
)
ANN, BOB = (f"{COOKIE}={secret}".encode() for secret in ACCOUNTS)


@given(
    peer=st.sampled_from([PROXY, STRANGER, "127.0.0.1", "::1", "", "unix"]),
    headers=st.lists(header, max_size=5),
    request=st.sampled_from(
        [("GET", "/session"), ("POST", "/session"), ("GET", "/agents"), ("WS", "/ws/events")]
    ),
)
@example(peer=STRANGER, headers=[(b"cookie", ANN), (b"cookie", BOB)], request=("GET", "/session"))
@example(peer=STRANGER, headers=[(b"cookie", ANN + b";" + BOB)], request=("GET", "/session"))
@example(
    peer="127.0.0.1",
    headers=[
        (b"x-forwarded-for", PROXY.encode()),
        (b"x-forwarded-user", b"pat"),
        (b"x-forwarded-groups", b"ops"),
    ],
    request=("GET", "/session"),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_headers_are_a_session_is_ones_own(
    peer: str, headers: list[tuple[bytes, bytes]], request: tuple[str, str]
) -> None:
    status, body = asyncio.run(SITE.answer(peer, headers, *request))
    told = f"{status} {body!r}"
    assert status in (101, 200, 400, 401, 403, 415), told
    if status != 200 or request[1] != "/session":
        assert status not in (101, 200) or may_be_signed_in(peer, headers), told
        return
    told_by_proxy = [value for header, value in headers if header == b"x-forwarded-user"]
    if told_by_proxy and peer == PROXY:
        assert len(told_by_proxy) == 1
        assert told_by_proxy[0].decode() in body.decode()
        return
    shown = {
        account.name
        for secret, account in ACCOUNTS.items()
        for header, value in headers
        if header in (b"cookie", b"authorization") and secret.encode() in value
    }
    assert any(f'"name":"{name}"' in body.decode() for name in shown), told


def may_be_signed_in(peer: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the headers have the secret of somebody, or are of the proxy."""
    given = b" ".join(value for _, value in headers)
    return peer == PROXY or any(secret.encode() in given for secret in ACCOUNTS)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"cookie", ANN), (b"cookie", BOB)],
        [(b"cookie", ANN + b"; " + BOB)],
        [(b"cookie", BOB + b"; x=1; " + ANN)],
        [
            (b"authorization", b"Bearer sft_ann-s3cret"),
            (b"authorization", b"Bearer sft_bob-s3cret"),
        ],
    ],
)
async def test_of_two_sessions_none_counts(headers: list[tuple[bytes, bytes]]) -> None:
    status, body = await SITE.answer(STRANGER, headers, "GET", "/session")
    assert (status, b"two credentials" in body) == (401, True)
    same = [(b"cookie", ANN + b"; " + ANN)]
    assert (await SITE.answer(STRANGER, same, "GET", "/session"))[0] == 200


async def test_a_cookie_of_another_name_is_no_session() -> None:
    for name in (b"x" + ANN, b"\xa0" + ANN, ANN.upper(), b"a=" + ANN, ANN.replace(b"=", b" = ")):
        assert (await SITE.answer(STRANGER, [(b"cookie", name)], "GET", "/session"))[0] == 401
    assert (await SITE.answer(STRANGER, [(b"cookie", b"a=1;" + ANN)], "GET", "/session"))[0] == 200


async def test_the_audit_trail_keeps_no_more_of_an_address_than_it_needs() -> None:
    site = Site()
    longest = [(b"x-forwarded-for", b"9" * 60_000)]
    assert (await site.answer("127.0.0.1", longest, "GET", "/agents"))[0] == 401
    assert [entry.origin for entry in site.audit.entries] == ["9" * 256]
