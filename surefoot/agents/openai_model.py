"""Models with OpenAI's Chat Completions API: OpenAI's own, and most other servers.

Needs the openai package: `pip install 'surefoot[openai]'`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
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
    parse_arguments,
    request,
    what_now,
)
from surefoot.schemas.payload import JsonObject

#: key of what this adapter keeps in a message
OPENAI = "openai"
#: meaning of each stop reason, including those that other servers add (Mistral, DeepSeek, GLM, TGI,
#: OpenRouter), and Gemini's, which come in capitals
_STOP_REASONS: Mapping[str, StopKind] = {
    "stop": "done",
    "end_turn": "done",
    "stop_sequence": "done",
    "eos": "done",
    "eos_token": "done",
    "tool_calls": "calls",
    "length": "cut_off",
    "model_length": "cut_off",
    "max_tokens": "cut_off",
    "refusal": "refused",
    "content_filter": "filtered",
    "sensitive": "filtered",
    "safety": "filtered",
    "recitation": "filtered",
    "blocklist": "filtered",
    "prohibited_content": "filtered",
    "spii": "filtered",
    "error": "again",
    "network_error": "again",
    "insufficient_system_resource": "again",
    "malformed_function_call": "again",
}


class OpenAIModel:
    """A model for `tool_loop(agent, model=OpenAIModel("gpt-5"), ...)`.

    Answers are streamed; each question carries its key as Idempotency-Key. The SDK's own retries
    are off, since the step's are durable. The model's whole message, including reasoning and
    signatures, is kept in the thread and sent back unchanged.

    Args:    client: an openai.AsyncOpenAI; by default made at the first question, from
             OPENAI_API_KEY and OPENAI_BASE_URL. ends: the meaning of a server's own stop reasons,
             in the words of provider.StopKind. adjust: gets each request and returns the one to
             send. options: override fields of each request; None leaves a field out
             (temperature=0, stream_options=None, stream=False, ...); `tools` and `extra_headers`
             are added to the adapter's own
    Raises:  ConfigError - the openai package is missing, or `ends` is invalid
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        ends: Mapping[str, StopKind] | None = None,
        adjust: Adjust | None = None,
        **options: Any,
    ) -> None:
        try:
            import openai  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise missing("openai") from error
        self._sdk = openai
        self._client: Any = client
        self._ends = ends_of(_STOP_REASONS, ends)
        self._adjust = adjust
        self._options = {"model": model, **options}

    async def __call__(self, ask: Ask) -> AsyncIterator[str | Reply]:
        """Ask the model: yields pieces of text, then the Reply.

        Raises: RetryableError, TerminalError (see provider.what_now), and what provider.judge_stop
                raises for an answer
        """
        ours = {
            "messages": [*_system(ask), *map(_message, ask.messages)],
            **({"tools": [_tool(each) for each in ask.tools]} if ask.tools else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = request(ours, self._options, ask.key, self._adjust)
        try:
            if self._client is None:
                self._client = self._sdk.AsyncOpenAI()
            answer = _Answer({each["name"] for each in ask.tools})
            told = await self._client.with_options(max_retries=0).chat.completions.create(**sent)
            if sent.get("stream"):
                async with told as chunks:
                    async for chunk in chunks:
                        if text := answer.add(chunk):
                            yield text
            elif text := answer.add(told):
                yield text
        except self._sdk.OpenAIError as error:
            raise what_now(error) from error
        yield answer.reply(self._ends)


class _Call:
    """One tool call, as far as it has arrived."""

    def __init__(self, chunk: int) -> None:
        #: number of the chunk that began it
        self.chunk = chunk
        self.index: Any = None
        self.id = ""
        self.name = ""
        self.arguments = ""
        #: its other fields
        self.rest: JsonObject = {}

    @property
    def read(self) -> JsonObject | str:
        return parse_arguments(self.arguments or "{}")

    @property
    def whole(self) -> bool:
        """Whether its arguments are complete."""
        return bool(self.arguments) and isinstance(self.read, dict)

    def verbatim(self) -> JsonObject:
        function = {
            **self.rest.get("function", {}),
            "name": self.name,
            "arguments": self.arguments if self.whole else _dumped(as_object(self.read)),
        }
        return {**self.rest, "id": self.id, "type": "function", "function": function}


class _Answer:
    """One answer, assembled from its chunks, or from the single one if not streamed.

    Reads plain objects: servers omit fields that the SDK's types require, and add others.
    """

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._chunks = 0
        self._text: list[str] = []
        #: content blocks, if the content comes as blocks
        self._blocks: list[Any] = []
        self._refusal = ""
        self._calls: list[_Call] = []
        #: the message's other fields
        self._rest: JsonObject = {}
        self._finish: str | None = None
        self._usage: Usage | None = None

    def add(self, chunk: Any) -> str:
        """Add a chunk. Returns the new text."""
        told = chunk.to_dict(mode="json", warnings=False)
        self._chunks += 1
        if used := told.get("usage"):
            self._usage = Usage(
                input_tokens=used.get("prompt_tokens") or 0,
                output_tokens=used.get("completion_tokens") or 0,
            )
        text = ""
        for choice in told.get("choices") or ():
            if choice.get("index"):  # of several answers, only the first one counts
                continue
            self._finish = choice.get("finish_reason") or self._finish
            rest = dict(choice.get("delta") or choice.get("message") or {})
            text += self._add_content(rest.pop("content", None))
            self._refusal += rest.pop("refusal", None) or ""
            for part in rest.pop("tool_calls", None) or ():
                self._add_call(dict(part))
            self._rest = _joined(self._rest, rest)
        return text

    def _add_content(self, content: Any) -> str:
        if isinstance(content, list):
            if not self._blocks and self._text:
                self._blocks = [{"type": "text", "text": "".join(self._text)}]
            self._blocks = _joined(self._blocks, content)
            content = "".join(
                each.get("text") or ""
                for each in content
                if isinstance(each, dict) and each.get("type") == "text"
            )
        elif content and self._blocks:
            self._blocks = _joined(self._blocks, [{"type": "text", "text": content}])
        self._text.append(content or "")
        return content or ""

    def _add_call(self, part: JsonObject) -> None:
        function = dict(part.pop("function", None) or {})
        index, identity = part.pop("index", None), part.pop("id", None) or ""
        name, arguments = function.pop("name", None) or "", function.pop("arguments", None) or ""
        if not isinstance(arguments, str):
            arguments = _dumped(arguments)
        call = self._call_at(index, identity, name)
        if call is None or self._is_another(call, identity, name, arguments):
            call = _Call(self._chunks)
            self._calls.append(call)
        elif name and call.whole and arguments == call.arguments:
            arguments = ""  # the same call, sent again
        call.index = index if call.index is None else call.index
        call.id = call.id or identity
        call.name += name if name != call.name else ""
        call.arguments += arguments
        call.rest = _joined(call.rest, {**part, **({"function": function} if function else {})})

    def _call_at(self, index: Any, identity: str, name: str) -> _Call | None:
        """Return the call that a part may belong to: by its id, else its index, else the latest."""
        latest = self._calls[::-1]
        found = [each for each in latest if identity and each.id == identity]
        found += [each for each in latest if index is not None and each.index == index]
        if not found and not identity and (index is None or not name):
            found = latest
        return found[0] if found else None

    def _is_another(self, call: _Call, identity: str, name: str, arguments: str) -> bool:
        """Whether a part that may belong to `call` begins another one.

        Servers send index 0, or none, for every call; no id, one per tool, or one per part; the
        name once, or each time.
        """
        if not name or not call.name:
            return False
        if call.chunk == self._chunks or (identity and call.id and identity != call.id):
            return True
        if name != call.name:
            in_pieces = any(each.startswith(call.name + name) for each in self._tools)
            return bool(call.arguments) or not in_pieces
        if identity and identity == call.id:
            return call.whole and bool(arguments) and arguments != call.arguments
        return call.whole or not arguments

    def reply(self, ends: Mapping[str, StopKind]) -> Reply:
        """Return the whole answer. Raises what provider.judge_stop raises."""
        finish = "refusal" if self._refusal and self._finish == "stop" else self._finish
        goes_on = judge_stop(finish, ends, said=self._refusal, calls=bool(self._calls))
        text = "".join(self._text)
        calls = tuple(
            ToolCall(id=call.id, name=call.name, arguments=call.read) for call in self._calls
        )
        reply = Reply(text=text, tool_calls=calls, usage=self._usage, goes_on=goes_on)
        verbatim = {
            **self._rest,
            "role": "assistant",
            "content": self._blocks or text or (None if calls else ""),
            **({"tool_calls": [call.verbatim() for call in self._calls]} if calls else {}),
        }
        told = verbatim == _message(assistant(reply))
        return reply if told else replace(reply, extra={OPENAI: verbatim})


#: fields that each part repeats in full
_WHOLE = frozenset({"role", "name", "type", "id", "index", "format", "signature"})
#: fields of blocks that continue where the previous part ended
_FLOWING = frozenset({"type", "text", "thinking"})


def _joined(old: Any, new: Any) -> Any:
    """Merge the next part into a value: texts are appended, objects merged, list items matched by
    their index; otherwise the latest wins."""
    match old, new:
        case _, None:
            return old
        case dict(), dict():
            told = {name: value for name, value in new.items() if value is not None}
            return old | {
                name: value if name in _WHOLE else _joined(old.get(name), value)
                for name, value in told.items()
            }
        case str(), str():
            return old + new
        case list(), list():
            return _listed(old, new)
    return new


def _listed(old: list[Any], new: list[Any]) -> list[Any]:
    made = list(old)
    for number, item in enumerate(new):
        place = next((at for at in range(len(old)) if _same_item(made[at], item)), None)
        if place is not None:
            made[place] = _joined(made[place], item)
        elif number == 0 and made and _flows(made[-1], item):
            made[-1] = _joined(made[-1], item)
        else:
            made.append(item)
    return made


def _same_item(old: Any, new: Any) -> bool:
    if not isinstance(old, dict) or not isinstance(new, dict) or new.get("index") is None:
        return False
    return all(old.get(name) == new.get(name) for name in ("index", "type"))


def _flows(old: Any, new: Any) -> bool:
    both = isinstance(old, dict) and isinstance(new, dict)
    return both and old.get("type") == new.get("type") and old.keys() | new.keys() <= _FLOWING


def _system(ask: Ask) -> list[JsonObject]:
    return [{"role": "system", "content": ask.system}] if ask.system else []


def _tool(spec: Mapping[str, Any]) -> JsonObject:
    return {"type": "function", "function": dict(spec)}


def _message(message: Message) -> JsonObject:
    content = message.get("content", "")
    match message["role"]:
        case "user":
            return {"role": "user", "content": content}
        case "tool":
            return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content}
        case "assistant":
            calls = message.get("tool_calls") or ()
            made = adapter_extra(message, OPENAI)
            if made is None:
                made = {"role": "assistant", "content": content or (None if calls else "")}
                told = [_call(call) for call in calls]
            else:  # with the thread's ids, which the tool results refer to
                told = [
                    {**verbatim, "id": call["id"]}
                    for verbatim, call in zip(made.get("tool_calls", ()), calls, strict=True)
                ]
            return {**made, **({"tool_calls": told} if told else {})}
    raise unknown(message)


def _call(call: Mapping[str, Any]) -> JsonObject:
    function = {"name": call["name"], "arguments": _dumped(as_object(call["arguments"]))}
    return {"id": call["id"], "type": "function", "function": function}


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
