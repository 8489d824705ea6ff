"""Models that speak OpenAI's Chat Completions: OpenAI's own, and most local servers.

Needs the openai package: `pip install 'surefoot[openai]'`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from surefoot.agents.messages import Ask, Message, Reply, ToolCall, Usage, unknown
from surefoot.agents.provider import cut_off, missing, parsed, what_now
from surefoot.state.errors import RetryableError


class OpenAIModel:
    """`tool_loop(agent, model=OpenAIModel("gpt-5"), ...)`.

    `client` is an openai.AsyncOpenAI; without one it is made at the first question, from
    OPENAI_API_KEY and OPENAI_BASE_URL. `options` go into each request (temperature=0, ...). The
    SDK's own retries are off: the step's are durable. An answer is streamed; a question carries its
    key as Idempotency-Key.

    Raises: ConfigError when the openai package is not there.
    """

    def __init__(self, model: str, *, client: Any = None, **options: Any) -> None:
        try:
            import openai  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise missing("openai") from error
        self._sdk = openai
        self._client: Any = client
        self._request = {**options, "model": model}

    async def __call__(self, ask: Ask) -> AsyncIterator[str | Reply]:
        """Raises: RetryableError, TerminalError (see provider.what_now)."""
        try:
            if self._client is None:
                self._client = self._sdk.AsyncOpenAI()
            answer = _Answer()
            async with await self._client.with_options(max_retries=0).chat.completions.create(
                **self._request,
                messages=[*_system(ask), *map(_message, ask.messages)],
                **({"tools": [_tool(each) for each in ask.tools]} if ask.tools else {}),
                stream=True,
                stream_options={"include_usage": True},
                extra_headers={"Idempotency-Key": ask.key},
            ) as chunks:
                async for chunk in chunks:
                    if text := answer.add(chunk):
                        yield text
            yield answer.reply()
        except self._sdk.OpenAIError as error:
            raise what_now(error) from error


class _Answer:
    """One answer, put together from its chunks."""

    def __init__(self) -> None:
        self._text: list[str] = []
        #: [id, name, arguments] of each call, by its index
        self._calls: dict[int, list[str]] = {}
        self._finish: str | None = None
        self._usage: Usage | None = None

    def add(self, chunk: Any) -> str:
        """Returns the text that is new."""
        if chunk.usage is not None:
            self._usage = Usage(
                input_tokens=chunk.usage.prompt_tokens, output_tokens=chunk.usage.completion_tokens
            )
        if not chunk.choices:
            return ""
        (choice, *_) = chunk.choices
        self._finish = choice.finish_reason or self._finish
        for part in choice.delta.tool_calls or ():
            call = self._calls.setdefault(part.index, ["", "", ""])
            call[0] = part.id or call[0]
            if part.function is not None:
                call[1] += part.function.name or ""
                call[2] += part.function.arguments or ""
        text = (choice.delta.content or "") + (choice.delta.refusal or "")
        self._text.append(text)
        return text

    def reply(self) -> Reply:
        """Raises: RetryableError, TerminalError when it has not come to its end."""
        if self._finish is None:
            raise RetryableError("the model's answer broke off")
        if self._finish == "length":
            raise cut_off("finish_reason length")
        calls = tuple(
            ToolCall(id=identity, name=name, arguments=parsed(arguments or "{}"))
            for _, (identity, name, arguments) in sorted(self._calls.items())
        )
        return Reply(text="".join(self._text), tool_calls=calls, usage=self._usage)


def _system(ask: Ask) -> list[dict[str, Any]]:
    return [{"role": "system", "content": ask.system}] if ask.system else []


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": dict(spec)}


def _message(message: Message) -> dict[str, Any]:
    content = message.get("content", "")
    match message["role"]:
        case "user":
            return {"role": "user", "content": content}
        case "tool":
            return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content}
        case "assistant":
            made: dict[str, Any] = {"role": "assistant", "content": content}
            if message.get("tool_calls"):
                made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
            return made
    raise unknown(message)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": call["name"], "arguments": text}
    return {"id": call["id"], "type": "function", "function": function}
