"""Which Host is ours, and that every server asks, before it reads anything else."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from surefoot import Agent, Context, Done
from surefoot.infra.http.server import listen, server
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.gateway import serve_gateway
from surefoot.infra.processes.views import serve_views
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.telemetry.metrics import serve_metrics
from surefoot.state.egress.hosts import Hosts, parse_hosts
from surefoot.state.errors import ConfigError
from surefoot.state.telemetry import metrics
from surefoot.state.telemetry.metrics import Nowhere
from tests.support.eventually import until

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8787",
        "LOCALHOST.",
        "a.localhost:1",
        "127.0.0.1",
        "127.9.8.7:80",
        "[::1]",
        "[::1]:8787",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]:1",
        "10.1.2.3:8787",
        "[::ffff:10.1.2.3]",
        "gateway.internal",
        "Gateway.Internal.:443",
        "a.example.com",
        "10.9.9.9",
        "[fd00::7]:1",
    ],
)
def test_ours(host: str) -> None:
    hosts = parse_hosts("gateway.internal, *.example.com,10.9.9.9,[FD00::7]").also("0.0.0.0", None)
    for here in ("10.1.2.3", "::ffff:10.1.2.3"):
        assert hosts.allow([host], here)


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["evil.example"],
        ["localhost.evil.example"],
        ["evil.example:8787"],
        ["example.com"],
        ["evilexample.com"],
        ["10.1.2.4"],
        ["2130706433"],
        ["0x7f.1"],
        [""],
        [":8787"],
        ["a b"],
        ["127.0.0.1@evil.example"],
        ["localhost:80:80"],
        ["localhost:eighty"],
        ["[::1"],
        ["localhost", "localhost"],
        ["localhost,evil.example"],
        ["evil.example/localhost"],
        ["ｌocalhost"],  # noqa: RUF001
        ["*.example.com"],
    ],
)
def test_not_ours(hosts: list[str]) -> None:
    assert not parse_hosts("*.example.com").allow(hosts, "10.1.2.3")


def test_any_if_somebody_says_so() -> None:
    assert parse_hosts("*").allow(["evil.example"], None)
    assert not Hosts().allow(["evil.example"], None)


@pytest.mark.parametrize("text", ["http://a", "a:80", "a b", "*x", "*.", "a/b", "[a]:1"])
def test_what_is_no_host_is_told_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SF1001: SUREFOOT_GATEWAY_HOSTS: .* must be a name"):
        load_settings(gateway_hosts=text)


@asynccontextmanager
async def serving(seen: list[str], hosts: Hosts) -> AsyncIterator[int]:
    """The port of an application that keeps what it was asked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        if scope["type"] == "http":
            await Request(scope, receive).body()
            await Response(b"taken")(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close"})

    with listen("127.0.0.1", 0, "SUREFOOT_GATEWAY") as listener:
        one = server(app, hosts, drain_s=10.0)
        running = asyncio.create_task(one.serve(sockets=[listener]))
        await until(lambda: one.started, what="the server")
        try:
            yield listener.getsockname()[1]
        finally:
            one.should_exit = True
            await running


async def answer_of(port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    try:
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_stranger_is_sent_away_before_the_body_has_come() -> None:
    seen: list[str] = []
    async with serving(seen, Hosts()) as port:
        for host in ("evil.example", f"evil.example:{port}", "192.0.2.1"):
            head = f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000\r\n\r\n"
            assert b" 421 " in await answer_of(port, head)
        url = f"http://127.0.0.1:{port}/"
        async with httpx.AsyncClient(trust_env=False) as client:
            told = await client.get(url, headers={"Host": "evil.example"})
            assert (told.status_code, json.loads(told.text)["error"][:7]) == (421, "SF5074:")
            assert told.headers["x-content-type-options"] == "nosniff"
            assert seen == []
            assert (await client.post(url, content=b"1")).text == "taken"
    assert seen == ["http"]


async def test_so_is_one_who_comes_with_a_websocket() -> None:
    seen: list[str] = []
    async with serving(seen, Hosts()) as port:
        strange = connect("ws://evil.example/ws", host="127.0.0.1", port=port, proxy=None)
        with pytest.raises(InvalidStatus) as refused:
            await strange
        assert refused.value.response.status_code == 421
        assert seen == []
        async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as socket:
            await socket.wait_closed()
    assert seen == ["websocket"]


async def test_what_looks_after_us_without_a_host_or_by_our_address_is_let_in() -> None:
    seen: list[str] = []
    async with serving(seen, Hosts()) as port:
        assert b" 200 " in await answer_of(port, "GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " not in await answer_of(port, "GET /health HTTP/1.1\r\n\r\n")
        assert b" 200 " in await answer_of(
            port, f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        )
    assert seen == ["http", "http"]


def test_metrics_ask_too() -> None:
    before = metrics.use_sink(Nowhere())
    try:
        url = serve_metrics(load_settings(metrics_port=0, gateway_hosts="metrics.internal"))
    finally:
        metrics.use_sink(before)
    assert url is not None
    for host, status in (("evil.example", 421), ("metrics.internal:9100", 200), (None, 200)):
        headers = {} if host is None else {"Host": host}
        assert httpx.get(url, headers=headers, trust_env=False, timeout=60).status_code == status


async def test_gateway_and_views_ask_with_what_they_are_told(tmp_path: Path) -> None:
    settings = load_settings(
        log=f"sqlite:///{tmp_path}/runs.db",
        partitions=1,
        gateway_port=0,
        views_port=0,
        gateway_hosts="hooks.example.com",
        views_address="http://views.internal:8788",
    )
    agent = Agent("hosted")

    @agent.step
    async def step(ctx: Context, payload: int) -> Done:
        return Done(payload)

    stop = asyncio.Event()
    urls: list[str] = []
    async with open_backend(settings, SystemClock(), owner=True) as backend:
        async with backend.topics() as topics:
            await topics.apply(specs_for(["hosted"], settings))
        running = [
            asyncio.create_task(serve_gateway([agent], settings, backend, stop, urls.append)),
            asyncio.create_task(
                serve_views(["hosted"], settings, backend, stop, lambda url, _: urls.append(url))
            ),
        ]
        await until(lambda: len(urls) == 2, what="both to listen")
        asked = [
            (url, host)
            for url in urls
            for host in ("localhost", "hooks.example.com", "views.internal:8788", "evil.example")
        ]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            told = [
                (
                    await client.get(f"{url}/health", headers={"Host": host} if host else {})
                ).status_code
                for url, host in asked
            ]
        stop.set()
        await asyncio.gather(*running)
    assert sorted([told[:4], told[4:]]) == [[200, 200, 200, 421], [200, 200, 421, 421]]


def test_nothing_serves_without_asking() -> None:
    rooms = ("consumers", "infra", "producers", "state", "surefoot/agents", "surefoot/commands")
    makers = re.compile(r"uvicorn\.(Config|run)|start_http_server|ThreadingHTTPServer|make_server")
    found = {
        path.relative_to(ROOT).as_posix()
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if makers.search(path.read_text())
    }
    assert found == {"infra/http/server.py"}
