"""The server that every process with HTTP has."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from surefoot.infra.http.server import listen, server
from surefoot.state.egress.hosts import Hosts
from tests.support.eventually import until


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
