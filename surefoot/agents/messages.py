"""What goes between a tool loop, its model and its thread, in the words of no provider.

The thread of a run holds messages as JSON objects:

    {"role": "user", "content": text}                                 `by`: who said it, if known
    {"role": "assistant", "content": text, "tool_calls": [{"id", "name", "arguments"}, ...]}
                                                        `goes_on`: true, if the next one goes on
    {"role": "tool", "tool_call_id": id, "name": name, "content": text}     `error`: true, if so

`extra` of an assistant's message is what its adapter needs to see again, and nobody else reads: by
the adapter's name, the provider's own message, when it had more than these words can say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from surefoot.schemas.payload import Unserialisable, strict_json
from surefoot.schemas.text import whole
from surefoot.state.errors import Parked, TerminalError
from surefoot.state.steps.results import Signal

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What the model wants done."""

    #: of the provider; the tool's message names it
    id: str
    name: str
    #: an object, or the text itself when the model wrote no such thing
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one answer of the model has cost, in tokens."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model has said: an answer when it calls no tools."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: None: it is not known, and `reserve` is taken for it
    usage: Usage | None = None
    #: JSON that the adapter wants to see again with this message
    extra: Any = None
    #: the model has paused: it is asked again as it is, to go on from here
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question to the model."""

    #: the same on every attempt, and no other question's: an idempotency key
    key: str
    system: str | None
    #: the thread, oldest first
    messages: Sequence[Message]
    #: name, description and parameters (JSON schema) of each tool
    tools: Sequence[dict[str, Any]]
    #: what an attempt that was cut off had streamed of its answer; None: nothing
    partial: str | None = None


#: Asks a model: a function that returns the reply (or its text), `async def` or in a thread; or an
#: async generator that yields pieces of text as they come, and at last a Reply if there is more to
#: tell than the text. RetryableError is tried again; TerminalError fails the run. Any other
#: exception is retried too.
Model = Callable[[Ask], Awaitable[Reply | str] | AsyncIterator[str | Reply] | Reply | str]

REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
_CALLS: TypeAdapter[tuple[ToolCall, ...]] = TypeAdapter(tuple[ToolCall, ...])


def storable(reply: object, seq: int) -> Reply:
    """The reply as it can be recorded: text without lone surrogates, each call with an id of its
    own (`seq` tells those that are made up here from those of other turns). Pure.

    Raises: TerminalError for what is no reply at all; Parked for one that says nothing.
    """
    if isinstance(reply, str):
        reply = Reply(text=reply)
    if not isinstance(reply, Reply):
        raise TerminalError(
            f"the model returned {type(reply).__name__}; it must return a Reply, or text"
        )
    if not (reply.text.strip() or reply.tool_calls or reply.goes_on):
        raise Parked(
            "model_said_nothing",
            "the model ended its turn and said nothing: no text, no calls. Look at the run's "
            "thread; to ask again: `surefoot runs retry`, and to end it: `surefoot runs cancel`",
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
    """JSON that has come over the wire, as the log can take it."""
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


def _plain(arguments: dict[str, Any] | str) -> dict[str, Any] | str:
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
    """What a user has said by a signal: its payload when that is text, else the JSON of it."""
    message = user(_text(signal.payload))
    return message | {"by": signal.by} if signal.by is not None else message


def _text(payload: Any) -> str:
    return payload if isinstance(payload, str) else strict_json(payload).decode()


def said(payload: Any) -> Message:
    """The same, of the payload alone."""
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


def answer(messages: Sequence[Message]) -> str:
    """What the model has said in its latest turn, from where it was last asked something."""
    pieces: list[str] = []
    for message in reversed(messages):
        if pieces and not message.get("goes_on"):
            break
        pieces.append(message["content"])
    return "".join(reversed(pieces))


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The calls that an assistant's message asks for."""
    return _CALLS.validate_python(message.get("tool_calls") or ())


def told(call: ToolCall, content: str, *, error: bool = False) -> Message:
    """The answer to a tool call."""
    message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
    return message | {"error": True} if error else message


def unknown(message: Mapping[str, Any]) -> TerminalError:
    """For an adapter that meets a message that is none of these."""
    return TerminalError(
        f"the thread has a message of role {message.get('role')!r}; the roles are user, assistant "
        "and tool. What the model is always told goes into system=..."
    )
