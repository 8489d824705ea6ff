"""Models with Anthropic's Messages API.

Needs the anthropic package: `pip install 'surefoot[anthropic]'`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from surefoot.agents.messages import Ask, Message, Reply, ToolCall, Usage, assistant, unknown
from surefoot.agents.provider import (
    Adjust,
    StopKind,
    adapter_extra,
    as_object,
    ends_of,
    judge_stop,
    missing,
    request,
    what_now,
)
from surefoot.schemas.payload import JsonObject
from surefoot.state.errors import RetryableError

#: key of what this adapter keeps in a message
ANTHROPIC = "anthropic"
#: meaning of each stop reason
_STOP_REASONS: Mapping[str, StopKind] = {
    "end_turn": "done",
    "stop_sequence": "done",
    "tool_use": "calls",
    "pause_turn": "goes_on",
    "max_tokens": "cut_off",
    "model_context_window_exceeded": "cut_off",
    "refusal": "refused",
}


class AnthropicModel:
    """A model for `tool_loop(agent, model=AnthropicModel("claude-sonnet-4-5"), ...)`.

    Answers are streamed; each question carries its key as Idempotency-Key. The SDK's own retries
    are off, since the step's are durable. The blocks of an answer (thinking and its signatures, the
    provider's own tools, citations) are kept in the thread and sent back unchanged. A turn that the
    provider pauses is continued.

    Args:    client: an anthropic.AsyncAnthropic; by default made at the first question, from
             ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. max_tokens: limit of one answer. ends: the
             meaning of further stop reasons, in the words of provider.StopKind. adjust: gets each
             request and returns the one to send. options: override fields of each request; None
             leaves a field out (thinking={...}, system=[...], ...); `tools` and `extra_headers` are
             added to the adapter's own
    Raises:  ConfigError - the anthropic package is missing, or `ends` is invalid
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        max_tokens: int = 8192,
        ends: Mapping[str, StopKind] | None = None,
        adjust: Adjust | None = None,
        **options: Any,
    ) -> None:
        try:
            import anthropic  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise missing("anthropic") from error
        self._sdk = anthropic
        self._client: Any = client
        self._ends = ends_of(_STOP_REASONS, ends)
        self._adjust = adjust
        self._options = {"model": model, "max_tokens": max_tokens, **options}

    async def __call__(self, ask: Ask) -> AsyncIterator[str | Reply]:
        """Ask the model: yields pieces of text, then the Reply.

        Raises: RetryableError, TerminalError (see provider.what_now), and what provider.judge_stop
                raises for an answer
        """
        ours = {
            "messages": _messages(ask.messages),
            "container": _container(ask.messages),
            **({"system": ask.system} if ask.system else {}),
            **({"tools": [_tool(each) for each in ask.tools]} if ask.tools else {}),
        }
        sent = request(ours, self._options, ask.key, self._adjust)
        try:
            if self._client is None:
                self._client = self._sdk.AsyncAnthropic()
            async with self._client.with_options(max_retries=0).messages.stream(**sent) as stream:
                async for text in stream.text_stream:
                    yield text
                message = await stream.get_final_message()
        except self._sdk.AnthropicError as error:
            raise what_now(error) from error
        except ValueError as error:  # from the SDK: a call's arguments are not JSON
            raise RetryableError(str(error)) from error
        yield _reply(message, self._ends)


def _reply(message: Any, ends: Mapping[str, StopKind]) -> Reply:
    """Convert an answer. Raises what provider.judge_stop raises."""
    answer = message.to_dict(mode="json", warnings=False)
    blocks = answer["content"]
    calls = tuple(
        ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    )
    details = answer.get("stop_details") or {}
    goes_on = judge_stop(
        answer.get("stop_reason"), ends, said=details.get("explanation") or "", calls=bool(calls)
    )
    used = message.usage
    cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    reply = Reply(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        tool_calls=calls,
        usage=Usage(input_tokens=used.input_tokens + cached, output_tokens=used.output_tokens),
        goes_on=goes_on,
    )
    container = answer.get("container")
    if container is None and blocks == _blocks(assistant(reply))[1]:
        return reply
    verbatim = {ANTHROPIC: blocks} | ({"container": container["id"]} if container else {})
    return replace(reply, extra=verbatim)


def _tool(spec: Mapping[str, Any]) -> JsonObject:
    return {
        "name": spec["name"],
        "description": spec["description"],
        "input_schema": spec["parameters"],
    }


def _messages(messages: Sequence[Message]) -> list[JsonObject]:
    """Convert to turns: consecutive messages from the same side become one."""
    made: list[JsonObject] = []
    for message in messages:
        role, blocks = _blocks(message)
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        elif blocks:
            made.append({"role": role, "content": blocks})
    return made


def _blocks(message: Message) -> tuple[str, list[JsonObject]]:
    content = message.get("content", "")
    # The API refuses an empty text.
    text = [{"type": "text", "text": content}] if content else []
    match message["role"]:
        case "user":
            return "user", text
        case "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": content,
            }
            return "user", [result | ({"is_error": True} if message.get("error") else {})]
        case "assistant":
            calls = message.get("tool_calls") or ()
            verbatim = adapter_extra(message, ANTHROPIC)
            if verbatim is None:
                return "assistant", text + [_call(call) for call in calls]
            ids = iter(call["id"] for call in calls)  # the ids that tool results refer to
            return "assistant", [
                {**block, "id": next(ids, block["id"])} if block["type"] == "tool_use" else block
                for block in verbatim
                if block != {"type": "text", "text": ""}
            ]
    raise unknown(message)


def _call(call: Mapping[str, Any]) -> JsonObject:
    return {
        "type": "tool_use",
        "id": call["id"],
        "name": call["name"],
        "input": as_object(call["arguments"]),
    }


def _container(messages: Sequence[Message]) -> str | None:
    """Return the container of the latest answer, in which code it started may still run."""
    said = [message for message in messages if message["role"] == "assistant"]
    return adapter_extra(said[-1], "container") if said else None
