"""A local HTTP server that speaks as the providers of models do: OpenAI's Chat Completions and
Anthropic's Messages, both streamed. It keeps a book of what it was asked.

Source: platform.openai.com/docs/api-reference/chat-streaming; docs.anthropic.com, "Streaming
messages"
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from surefoot.agents.messages import Reply, ToolCall


@dataclass(frozen=True, slots=True)
class Failing:
    """An answer with an error status."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    #: None: an error that says nothing
    body: Any = None


@dataclass(frozen=True, slots=True)
class Broken:
    """An answer that begins and ends before its end."""

    text: str


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer that has reached the limit of tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Raw:
    """What the server sends, as it is: the data of each event; not streamed, the one object."""

    events: list[dict[str, Any]]


Answer = Reply | Failing | Broken | Cut | Raw


@dataclass(frozen=True, slots=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def turn(self) -> int:
        """How often the model has answered in the conversation that it is given."""
        return sum(message["role"] == "assistant" for message in self.body["messages"])


@dataclass(slots=True)
class ModelServer:
    """`async with model_server(answer) as server: ... server.url`."""

    answer: Callable[[Asked], Answer]
    url: str = ""
    #: every question, in order
    book: list[Asked] = field(default_factory=list)
    #: questions are answered only while it is set
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def keys(self) -> list[str]:
        return [asked.key for asked in self.book]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            asked = await _request(reader)
            self.book.append(asked)
            await self.gate.wait()
            for part in _response(asked, self.answer(asked)):
                writer.write(part)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side was killed
        finally:
            self._serving.discard(task)
            writer.close()


@asynccontextmanager
async def model_server(answer: Callable[[Asked], Answer]) -> AsyncIterator[ModelServer]:
    made = ModelServer(answer)
    made.gate.set()
    server = await asyncio.start_server(made._serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        made.gate.set()
        server.close()
        await asyncio.gather(*made._serving)
        await server.wait_closed()


async def _request(reader: asyncio.StreamReader) -> Asked:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    headers = {name.lower(): value for name, value in headers.items()}
    body = await reader.readexactly(int(headers["content-length"]))
    return Asked(lines[0].split()[1], headers, json.loads(body))


def _response(asked: Asked, answer: Answer) -> Iterator[bytes]:
    if isinstance(answer, Failing):
        more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        said = (
            {"error": {"type": "an_error", "message": "no"}} if answer.body is None else answer.body
        )
        body = json.dumps(said).encode()
        yield (
            f"HTTP/1.1 {answer.status} No\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body
        return
    streamed = asked.body.get("stream", False)
    kind = b"text/event-stream" if streamed else b"application/json"
    yield b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n\r\n" % kind
    if not isinstance(answer, Raw):
        chat = asked.path.endswith("/chat/completions")
        yield from _openai(answer) if chat else _anthropic(answer)
    elif streamed:
        for event in answer.events:
            head = f"event: {event['type']}\n" if "type" in event else ""
            yield f"{head}data: {json.dumps(event)}\n\n".encode()
    else:
        yield json.dumps(answer.events[0]).encode()


def _pieces(text: str) -> list[str]:
    """Two, so that somebody has to put them together."""
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _openai(answer: Reply | Broken | Cut) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({"choices": [choice], "usage": None})

    def _data(fields: dict[str, Any]) -> bytes:
        head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: %s\n\n" % json.dumps(head | fields).encode()

    for piece in _pieces(answer.text):
        yield chunk({"role": "assistant", "content": piece})
    if isinstance(answer, Broken):
        return
    calls = answer.tool_calls if isinstance(answer, Reply) else ()
    for index, call in enumerate(calls):
        first = {"name": call.name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": first}]}
        )
        for piece in _pieces(_arguments(call)):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    finish = "length" if isinstance(answer, Cut) else "tool_calls" if calls else "stop"
    yield chunk({}, finish)
    if isinstance(answer, Reply) and answer.usage is not None:
        prompt, completion = answer.usage.input_tokens, answer.usage.output_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": completion}
        yield _data({"choices": [], "usage": counts | {"total_tokens": prompt + completion}})
    yield b"data: [DONE]\n\n"


def _anthropic(answer: Reply | Broken | Cut) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, **fields})
        return f"event: {kind}\ndata: {data}\n\n".encode()

    calls = answer.tool_calls if isinstance(answer, Reply) else ()
    used = answer.usage if isinstance(answer, Reply) else None
    thoughts = (answer.extra or []) if isinstance(answer, Reply) else []
    tokens = {"input_tokens": used.input_tokens if used else 0, "output_tokens": 0}
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": tokens,
    }
    yield event("message_start", message=message)
    index = 0
    for block in thoughts:
        yield event("content_block_start", index=index, content_block=block)
        yield event("content_block_stop", index=index)
        index += 1
    if answer.text:
        block = {"type": "text", "text": ""}
        yield event("content_block_start", index=index, content_block=block)
        for piece in _pieces(answer.text):
            delta = {"type": "text_delta", "text": piece}
            yield event("content_block_delta", index=index, delta=delta)
        if isinstance(answer, Broken):
            return
        yield event("content_block_stop", index=index)
        index += 1
    for call in calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield event("content_block_start", index=index, content_block=block)
        for piece in _pieces(_arguments(call)):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
        index += 1
    reason = "max_tokens" if isinstance(answer, Cut) else "tool_use" if calls else "end_turn"
    output = {"output_tokens": used.output_tokens if used else 0}
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=output)
    yield event("message_stop")
