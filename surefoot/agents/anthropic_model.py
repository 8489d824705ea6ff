"""Models that speak Anthropic's Messages API.

Needs the anthropic package: `pip install 'surefoot[anthropic]'`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from surefoot.agents.messages import Ask, Message, Reply, ToolCall, Usage, unknown
from surefoot.agents.provider import cut_off, missing, what_now
from surefoot.state.errors import RetryableError

#: reasons to stop that leave an answer unfinished
_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})
#: blocks that the thread's own words can say
_PLAIN = frozenset({"text", "tool_use"})


class AnthropicModel:
    """`tool_loop(agent, model=AnthropicModel("claude-sonnet-4-5"), ...)`.

    `client` is an anthropic.AsyncAnthropic; without one it is made at the first question, from
    ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. `max_tokens` is the limit of one answer; `options` go
    into each request (thinking={...}, ...). The SDK's own retries are off: the step's are durable.
    An answer is streamed; a question carries its key as Idempotency-Key. Thinking blocks are kept
    in the thread and sent back as they were, which the API asks for.

    Raises: ConfigError when the anthropic package is not there.
    """

    def __init__(
        self, model: str, *, client: Any = None, max_tokens: int = 8192, **options: Any
    ) -> None:
        try:
            import anthropic  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise missing("anthropic") from error
        self._sdk = anthropic
        self._client: Any = client
        self._request = {**options, "model": model, "max_tokens": max_tokens}

    async def __call__(self, ask: Ask) -> AsyncIterator[str | Reply]:
        """Raises: RetryableError, TerminalError (see provider.what_now)."""
        try:
            if self._client is None:
                self._client = self._sdk.AsyncAnthropic()
            async with self._client.with_options(max_retries=0).messages.stream(
                **self._request,
                messages=_messages(ask.messages),
                **({"system": ask.system} if ask.system else {}),
                **({"tools": [_tool(each) for each in ask.tools]} if ask.tools else {}),
                extra_headers={"Idempotency-Key": ask.key},
            ) as stream:
                async for text in stream.text_stream:
                    yield text
                answer = await stream.get_final_message()
            yield _reply(answer)
        except self._sdk.AnthropicError as error:
            raise what_now(error) from error
        except ValueError as error:  # the SDK's, of a call whose arguments are no JSON
            raise RetryableError(str(error)) from error


def _reply(answer: Any) -> Reply:
    """Raises: RetryableError, TerminalError when it has not come to its end."""
    if answer.stop_reason is None:
        raise RetryableError("the model's answer broke off")
    if answer.stop_reason in _CUT_OFF:
        raise cut_off(f"stop_reason {answer.stop_reason}")
    used = answer.usage
    cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    blocks = [block.to_dict(mode="json") for block in answer.content]
    return Reply(
        text="".join(block.text for block in answer.content if block.type == "text"),
        tool_calls=tuple(
            ToolCall(id=block.id, name=block.name, arguments=block.input)
            for block in answer.content
            if block.type == "tool_use"
        ),
        usage=Usage(input_tokens=used.input_tokens + cached, output_tokens=used.output_tokens),
        extra=None if {block["type"] for block in blocks} <= _PLAIN else {"anthropic": blocks},
    )


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": spec["name"],
        "description": spec["description"],
        "input_schema": spec["parameters"],
    }


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """In turns: what comes from the same side is one message."""
    made: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = _blocks(message)
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        elif blocks:
            made.append({"role": role, "content": blocks})
    return made


def _blocks(message: Message) -> tuple[str, list[dict[str, Any]]]:
    content = message.get("content", "")
    # An empty text is refused.
    text = [{"type": "text", "text": content}] if content else []
    match message["role"]:
        case "user":
            return "user", text
        case "tool":
            result = {
                "type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content
            }  # fmt: skip
            return "user", [result | ({"is_error": True} if message.get("error") else {})]
        case "assistant":
            if "anthropic" in (message.get("extra") or {}):
                return "assistant", list(message["extra"]["anthropic"])
            return "assistant", text + [_call(call) for call in message.get("tool_calls") or ()]
    raise unknown(message)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    # An input is an object, also when the model wrote none.
    given = {"text": arguments} if isinstance(arguments, str) else arguments
    return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": given}
