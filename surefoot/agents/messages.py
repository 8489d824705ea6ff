"""Messages between a tool loop, its model and its thread, independent of any provider.

The thread of a run holds messages as JSON objects:

    {"role": "user", "content": text}                                 `by`: who said it, if known
    {"role": "assistant", "content": text, "tool_calls": [{"id", "name", "arguments"}, ...]}
                                                        `goes_on`: true, if the next continues it
    {"role": "tool", "tool_call_id": id, "name": name, "content": text}     `error`: true, if so

`extra` of an assistant's message is for its adapter only: by the adapter's name, the provider's own
message, if it has more than the fields above can hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from surefoot.schemas.payload import JsonObject, Unserialisable, strict_json
from surefoot.schemas.text import whole
from surefoot.state.errors import Parked, TerminalError
from surefoot.state.steps.results import Signal

#: a message of the conversation, in the form that the thread keeps
Message = JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that the model asks for."""

    #: the provider's id; the tool's message refers to it
    id: str
    name: str
    #: an object, or the raw text if the model did not write one
    arguments: JsonObject | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens used by one answer of the model."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model said; a final answer if it calls no tools."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: None: unknown; `reserve` counts instead
    usage: Usage | None = None
    #: JSON that the adapter needs to see again with this message
    extra: Any = None
    #: the model has paused: ask it again, unchanged, to continue from here
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question to the model."""

    #: idempotency key: the same on every attempt, different for every question
    key: str
    system: str | None
    #: the thread, oldest first
    messages: Sequence[Message]
    #: name, description and parameters (JSON schema) of each tool
    tools: Sequence[JsonObject]
    #: what an interrupted attempt had streamed of its answer; None: nothing
    partial: str | None = None


#: Asks a model: a function, `async def` or run in a thread, that returns the reply (or its text);
#: or an async generator that yields pieces of text as they arrive, and a Reply last if there is
#: more than text. TerminalError fails the run; RetryableError and any other exception are retried.
Model = Callable[[Ask], Awaitable[Reply | str] | AsyncIterator[str | Reply] | Reply | str]

REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
_CALLS: TypeAdapter[tuple[ToolCall, ...]] = TypeAdapter(tuple[ToolCall, ...])


def storable(reply: object, seq: int) -> Reply:
    """Return the reply in a form that can be recorded: without lone surrogates, and with a unique
    id for each call (`seq` distinguishes ids made here from those of other turns). Pure.

    Raises: TerminalError - not a reply; Parked - the reply says nothing
    """
    if isinstance(reply, str):
        reply = Reply(text=reply)
    if not isinstance(reply, Reply):
        raise TerminalError(
            f"the model returned {type(reply).__name__}; it must return a Reply or text"
        )
    if not (reply.text.strip() or reply.tool_calls or reply.goes_on):
        raise Parked(
            "model_said_nothing",
            "the model ended its turn with neither text nor tool calls. Look at the run's "
            "thread, then `surefoot runs retry` to ask again or `surefoot runs cancel` to end it",
        )
    ids = Counter(call.id for call in reply.tool_calls)
    calls = tuple(
        ToolCall(
            id=whole(call.id) if call.id and ids[call.id] == 1 else f"call_{seq}_{index}",
            name=whole(call.name),
            arguments=_plain(call.arguments),
        )
        for index, call in enumerate(reply.tool_calls)
    )
    return replace(reply, text=whole(reply.text), tool_calls=calls, extra=_cleaned(reply.extra))


def _cleaned(value: Any) -> Any:
    """Return JSON from the wire as the log accepts it."""
    match value:
        case str():
            return whole(value)
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {_cleaned(key): _cleaned(item) for key, item in value.items()}
        case list():
            return [_cleaned(item) for item in value]
    return value


def _plain(arguments: JsonObject | str) -> JsonObject | str:
    if isinstance(arguments, dict):
        try:
            strict_json(arguments)
        except Unserialisable:
            return whole(str(arguments))
        return arguments
    return whole(arguments)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def heard(signal: Signal) -> Message:
    """Return what a user said by a signal: its payload if that is text, else its JSON."""
    message = user(_text(signal.payload))
    return message | {"by": signal.by} if signal.by is not None else message


def _text(payload: Any) -> str:
    return payload if isinstance(payload, str) else strict_json(payload).decode()


def said(payload: Any) -> Message:
    """Return what a user said, from the payload alone; see `heard`."""
    return user(_text(payload))


def assistant(reply: Reply) -> Message:
    message: Message = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = _CALLS.dump_python(reply.tool_calls, mode="json")
    if reply.extra is not None:
        message["extra"] = reply.extra
    if reply.goes_on:
        message["goes_on"] = True
    return message


def answer_text(messages: Sequence[Message]) -> str:
    """Return what the model said in its latest turn, from the last question to it."""
    pieces: list[str] = []
    for message in reversed(messages):
        if pieces and not message.get("goes_on"):
            break
        pieces.append(message["content"])
    return "".join(reversed(pieces))


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """Return the calls in an assistant's message."""
    return _CALLS.validate_python(message.get("tool_calls") or ())


def tool_result(call: ToolCall, content: str, *, error: bool = False) -> Message:
    """Return the answer to a tool call."""
    message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
    return message | {"error": True} if error else message


def unknown(message: Mapping[str, Any]) -> TerminalError:
    """Return the error for a message with an unknown role."""
    return TerminalError(
        f"the thread has a message of role {message.get('role')!r}; the roles are user, assistant "
        "and tool. Put instructions for the model into system=..."
    )
