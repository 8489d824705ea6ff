"""The server that every process with HTTP has."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from surefoot.infra.http.server import listen, server
from surefoot.state.egress.hosts import Hosts
from tests.support.eventually import until
from tests.support.long_deadlines import LONG_S
from tests.unit.state.test_hosts import answer_of, serving


async def answer_to(url: str) -> str:
    try:
        async with connect(url, proxy=None):
            return "accepted"
    except InvalidStatus as refused:
        return str(refused.response.status_code)
    except (InvalidMessage, OSError):
        return "gone"


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("answer", ["accept", "deny"])
async def test_who_is_refused_or_leaves_before_the_answer_is_no_error(
    answer: str, leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        if leaves:
            for connection in one.server_state.connections:
                connection.transport.close()  # as when the other side has gone
        try:
            if answer == "accept":
                await socket.accept()
                await socket.close()
            else:
                await socket.send_denial_response(Response(status_code=403))
        finally:
            over.set()

    with listen("127.0.0.1", 0, "SUREFOOT_GATEWAY") as listener:
        one = server(app, Hosts(), drain_s=10.0)
        running = asyncio.create_task(one.serve(sockets=[listener]))
        await until(lambda: one.started, what="the server")
        port = listener.getsockname()[1]
        told = await answer_to(f"ws://127.0.0.1:{port}/")
        await over.wait()
        one.should_exit = True
        await running
    assert told == ("gone" if leaves else {"accept": "accepted", "deny": "403"}[answer])
    assert [line.message for line in caplog.records if line.levelno >= logging.WARNING] == []


HEAD = "POST /a HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = f"{HEAD}Transfer-Encoding: chunked\r\n"
SECOND = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        f"{CHUNKED}Content-Length: 6\r\n\r\n0\r\n\r\n{SECOND}",
        f"{HEAD}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nSMUGGLED\r\n0\r\n\r\n",
        f"{CHUNKED}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n{SECOND}",
        f"{HEAD}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{SECOND}",
        f"{HEAD}Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{SECOND}",
        f"{HEAD}Content-Length: 2\r\nContent-Length: 0\r\n\r\nhi{SECOND}",
        f"{HEAD}Content-Length: +2\r\n\r\nhi",
        f"{HEAD}Content-Length: 2, 2\r\n\r\nhi",
        f"{CHUNKED}\r\n0x2\r\nhi\r\n0\r\n\r\n",
        f"{CHUNKED}\r\n2\nhi\n0\n\n",
        f"{CHUNKED}\r\n2;\n\r\nhi\r\n0\r\n\r\n",
        f"{HEAD}X-A: a\0b\r\n\r\n",
        f"{HEAD}X-A: a\rX-B: c\r\n\r\n",
        f"{HEAD}X-A: a\nX-B: c\r\n\r\n",
        f"{HEAD}X-A: a\r\n b\r\n\r\n",
        f"{HEAD}X\0A: a\r\n\r\n",
        "POST /a HTTP/1.1\nHost: localhost\n\n",
    ],
)
async def test_what_could_be_read_as_two_requests_or_headers_is_refused(request_: str) -> None:
    taken: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await Request(scope, receive).body()
            taken.append(scope["path"])
            await Response()(scope, receive, send)

    with listen("127.0.0.1", 0, "SUREFOOT_GATEWAY") as listener:
        one = server(app, Hosts(), drain_s=10.0)
        running = asyncio.create_task(one.serve(sockets=[listener]))
        await until(lambda: one.started, what="the server")
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(request_.encode())
        async with asyncio.timeout(LONG_S):
            told = await reader.read()  # to the end: the connection is closed
        writer.close()
        await writer.wait_closed()
        one.should_exit = True
        await running
    assert told.startswith(b"HTTP/1.1 400 ")
    assert told.count(b"HTTP/1.1 ") == 1
    assert taken == []


async def test_requests_that_never_end_hold_up_no_other() -> None:
    seen: list[str] = []
    async with serving(seen, Hosts()) as port, AsyncExitStack() as left:
        for number in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            left.callback(writer.close)
            body = "Content-Length: 9\r\n\r\n1" if number % 2 else ""
            writer.write(f"{HEAD}{body}".encode())
        head = f"{HEAD}Content-Length: 2\r\nConnection: close\r\n\r\nhi"
        assert b" 200 " in await answer_of(port, head)


async def test_no_line_has_the_query_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen: list[str] = []
    async with serving(seen, Hosts()) as port:
        head = "GET /?token=canary-4f1c HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert b" 200 " in await answer_of(port, head)
    assert "canary-4f1c" not in caplog.text
