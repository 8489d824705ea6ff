"""Keeps payloads from who may not see them: in every answer, and in every event of a stream.

It stands between the application and the client, so that no handler can forget it, and goes by what
is sent, whatever route that is of: JSON, server-sent events, or messages of a WebSocket. Anything
else is not sent at all.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from surefoot.schemas.payload import BadPayload, parse_json, strict_json
from surefoot.state.access.withheld import WITHHELD, withhold


class Withholding:
    """ASGI `send` for one request of somebody who may not see payloads."""

    def __init__(self, send: Send) -> None:
        self._send = send
        #: what begins an answer that is whole only at its end; None: it is a stream
        self._start: Message | None = None
        self._rest = b""

    async def __call__(self, message: Message) -> None:
        kind = message["type"].removeprefix("websocket.")  # the refusal of a WebSocket too
        if kind == "http.response.start":
            await self._begin(message)
        elif kind == "http.response.body":
            body, more = message.get("body", b""), message.get("more_body", False)
            if self._start is None:
                await self._send({**message, "body": self._lines(body)})
                return
            self._rest += body
            if not more:
                await self._end(self._start, message)
        elif kind == "send":
            await self._send({"type": message["type"], "text": _withheld(_content(message))})
        else:
            await self._send(message)

    async def _begin(self, message: Message) -> None:
        if MutableHeaders(scope=message).get("content-type", "").startswith("text/event-stream"):
            await self._send(message)
        else:
            self._start = message

    async def _end(self, start: Message, message: Message) -> None:
        headers = MutableHeaders(scope=start)
        body = _withheld(self._rest).encode() if self._rest else b""
        if body:
            headers["content-type"] = "application/json"
            headers["content-length"] = str(len(body))
        await self._send(start)
        await self._send({**message, "body": body})

    def _lines(self, chunk: bytes) -> bytes:
        """Return the lines that are now complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return b"".join(_line(line) + b"\n" for line in lines)


def _line(line: bytes) -> bytes:
    """Return a line of server-sent events; each event's data is on one line."""
    field, _, value = line.partition(b":")
    return b"data: " + _withheld(value).encode() if field == b"data" else line


def _content(message: Message) -> bytes:
    text: str | None = message.get("text")
    return message["bytes"] if text is None else text.encode()


def _withheld(content: bytes) -> str:
    try:
        return strict_json(withhold(parse_json(content))).decode()
    except BadPayload:
        return strict_json(WITHHELD).decode()
