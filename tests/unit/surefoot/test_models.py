"""The adapters of models: what providers are sent, and what is made of what they send.

What servers send differently is as their users report it; each case names one that does.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest

from surefoot import ConfigError, RetryableError, TerminalError
from surefoot.agents import provider
from surefoot.agents.anthropic_model import AnthropicModel
from surefoot.agents.messages import REPLY, Message, assistant, storable, tool_result, user
from surefoot.agents.openai_model import OpenAIModel
from surefoot.agents.tool_loop import Ask, Reply, ToolCall, Usage, tool
from surefoot.state.errors import ModelFailed, Parked
from surefoot.state.errors.catalogue import number_of
from tests.support.free_ports import deaf_port
from tests.support.model_server import Answer, Broken, Cut, Failing, ModelServer, Raw, model_server


def call(name: str, number: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"{name}-{number}", name=name, arguments=arguments)


async def add(a: float, b: int) -> float:
    """Add."""
    return a + b


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
THREAD: list[Message] = [
    user("go"),
    {"role": "assistant", "content": "", "extra": {"anthropic": [THOUGHT]}},
    {
        "role": "assistant",
        "content": "let me see",
        "tool_calls": [
            {"id": "a", "name": "add", "arguments": {"a": 1}},
            {"id": "b", "name": "add", "arguments": "{oops"},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "name": "add", "content": "2"},
    {"role": "tool", "tool_call_id": "b", "name": "add", "content": "no", "error": True},
    user("faster") | {"by": "ann"},
    {"role": "assistant", "content": ""},
    user("please"),
]
ASK = Ask(key="k1", system="be brief", messages=THREAD, tools=[tool(add).spec])


def openai_model(url: str) -> tuple[Any, Any]:
    client = openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1")
    return OpenAIModel("gpt", client=client, service_tier="auto"), client


def anthropic_model(url: str) -> tuple[Any, Any]:
    client = anthropic.AsyncAnthropic(api_key="none", base_url=url)
    return AnthropicModel("claude", client=client, service_tier="auto"), client


PROVIDERS = pytest.mark.parametrize("make", [openai_model, anthropic_model])


async def ask_it(
    make: Callable[[str], tuple[Any, Any]], answer: Answer
) -> tuple[list[Any], list[Any]]:
    """(pieces, what the server was asked)."""
    async with model_server(lambda _asked: answer) as server:
        model, client = make(server.url)
        async with client:
            try:
                pieces = [piece async for piece in model(ASK)]
            except (Exception, Parked) as error:  # noqa: BLE001  (looked at)
                pieces = [error]
        return pieces, server.book


@PROVIDERS
async def test_an_adapter_streams_text_and_puts_calls_and_usage_together(make: Any) -> None:
    wanted = (
        call("add", 0, a=1, b=2),
        call("add", 1, a=3, b=4),
        ToolCall(id="c", name="now", arguments={}),
    )
    sent = Reply(
        text="Hello there", tool_calls=wanted, usage=Usage(input_tokens=5, output_tokens=7)
    )
    pieces, book = await ask_it(make, sent)
    assert pieces == ["Hello", " there", sent]
    (asked,) = book
    assert asked.key == "k1"
    assert asked.body["service_tier"] == "auto"


async def test_what_openai_is_sent() -> None:
    _, (asked,) = await ask_it(openai_model, Reply(text="ok"))
    body = asked.body
    assert (body["model"], body["stream"]) == ("gpt", True)
    assert body["tools"] == [{"type": "function", "function": tool(add).spec}]
    function = {"name": "add", "arguments": '{"a": 1}'}
    # vLLM, SGLang and llama.cpp read what stands there, and refuse the thread if they cannot.
    no_json = '{"text": "{oops"}'
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": ""},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "a", "type": "function", "function": function},
                {"id": "b", "type": "function", "function": function | {"arguments": no_json}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        {"role": "tool", "tool_call_id": "b", "content": "no"},
        {"role": "user", "content": "faster"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "please"},
    ]


async def test_what_anthropic_is_sent() -> None:
    _, (asked,) = await ask_it(anthropic_model, Reply(text="ok"))
    body = asked.body
    assert (body["model"], body["system"], body["max_tokens"]) == ("claude", "be brief", 8192)
    (described,) = body["tools"]
    assert described["input_schema"] == tool(add).parameters
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": [
                THOUGHT,
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "b", "name": "add", "input": {"text": "{oops"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "2"},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "faster"},
                {"type": "text", "text": "please"},
            ],
        },
    ]


async def test_thinking_blocks_are_kept_to_be_sent_back() -> None:
    pieces, _ = await ask_it(anthropic_model, Reply(text="ok", extra=[THOUGHT]))
    assert pieces[-1].extra == {"anthropic": [THOUGHT, {"type": "text", "text": "ok"}]}
    assert pieces[-1].text == "ok"


@PROVIDERS
@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (Failing(429, {"Retry-After": "7"}), RetryableError, "429"),
        (Failing(500), RetryableError, "500"),
        (Failing(401), TerminalError, "401"),
        (Failing(400), TerminalError, "400"),
        (Broken("Hello"), RetryableError, "ended without a stop reason"),
        (Cut("Hello"), ModelFailed, "raise the adapter's token limit"),
    ],
)
async def test_what_an_error_of_a_provider_means(
    make: Any, answer: Answer, kind: type[Exception], message: str
) -> None:
    (error,), book = await ask_it(make, answer)
    assert type(error) is kind
    assert message in str(error)
    assert len(book) == 1
    waits_s = 7.0 if answer == Failing(429, {"Retry-After": "7"}) else None
    assert getattr(error, "retry_after_s", None) == waits_s


@PROVIDERS
async def test_no_connection_may_work_later(make: Any) -> None:
    with deaf_port() as port:
        model, client = make(f"http://127.0.0.1:{port}")
        async with client:
            with pytest.raises(RetryableError):
                _ = [piece async for piece in model(ASK)]


def chunks(*deltas: dict[str, Any], finish: str | None = "stop") -> Raw:
    """A stream of Chat Completions: a chunk for each delta, and one that says why it ends."""
    sent: list[Any] = [{"delta": delta} for delta in deltas]
    if finish is not None:
        sent.append({"delta": {}, "finish_reason": finish})
    return Raw([{"id": "c1", "choices": [{"index": 0, **each}]} for each in sent])


def part(name: str | None = None, arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    """A delta with one part of a call."""
    return {"tool_calls": [fields | {"function": {"name": name, "arguments": arguments}}]}


WEATHER = ("get_weather", {"city": "Oslo"})
TIME = ("get_time", {"zone": "CET"})


@pytest.mark.parametrize(
    ("deltas", "wanted"),
    [
        pytest.param(
            [
                part("get_weather", '{"city": "Oslo"}', **at),
                part("get_time", '{"zone": "CET"}', **at),
            ],
            [WEATHER, TIME],
            id=f"whole calls at {at}",
        )
        for at in ({}, {"index": None}, {"index": 0}, {"index": 0, "id": ""})
    ]
    + [
        pytest.param(
            [
                part("get_weather", '{"city": "Oslo"}', index=0, id="a"),
                part("get_weather", '{"city": "Bergen"}', index=0, id="b"),
            ],
            [WEATHER, ("get_weather", {"city": "Bergen"})],
            id="ids of their own at one index (Ollama)",
        ),
        pytest.param(
            [
                part("get_weather", '{"city": "Oslo"}'),
                part("get_weather", '{"city": "Bergen"}'),
            ],
            [WEATHER, ("get_weather", {"city": "Bergen"})],
            id="one tool twice, neither id nor index",
        ),
        pytest.param(
            [
                {
                    "tool_calls": [
                        *part("get_time")["tool_calls"],
                        *part("get_time", '{"zone": "CET"}')["tool_calls"],
                    ]
                }
            ],
            [("get_time", {}), TIME],
            id="two of one chunk, without anything",
        ),
        pytest.param(
            [
                part("get_weather", "", id="a"),
                part(None, '{"city": '),
                part(None, '"Oslo"}'),
                part("get_time", "", id="b"),
                part(None, '{"zone": '),
                part(None, '"CET"}'),
            ],
            [WEATHER, TIME],
            id="pieces without an index go to the latest",
        ),
        pytest.param(
            [
                part("get_weather", "", index=0, id="a"),
                part("get_time", "", index=1, id="b"),
                part(None, '{"zone": "CET"}', index=1),
                part(None, '{"city": "Oslo"}', index=0),
            ],
            [WEATHER, TIME],
            id="pieces side by side, by their index",
        ),
        pytest.param(
            [
                part("get_weather", '{"city": ', index=0, id="a"),
                part("get_weather", '"Oslo"', index=0, id="a"),
                part("get_weather", "}", index=0, id="a"),
                part("get_weather", "", index=0, id="a"),
            ],
            [WEATHER],
            id="id and name each time",
        ),
        pytest.param(
            [
                part("get_weather", "", index=0, id="a"),
                part(None, '{"city": ', index=0, id="b"),
                part(None, '"Oslo"}', index=0, id="c"),
            ],
            [WEATHER],
            id="an id made up for each part (vLLM)",
        ),
        pytest.param(
            [
                part("get_weather", '{"city": "Oslo"}', index=0, id="get_weather"),
                part("get_weather", '{"city": "Bergen"}', index=1, id="get_weather"),
            ],
            [WEATHER, ("get_weather", {"city": "Bergen"})],
            id="the name as the id",
        ),
        pytest.param(
            [
                part("get_weather", "{}", index=0, id="call_0"),
                part("get_time", "{}", index=1, id="call_0"),
            ],
            [("get_weather", {}), ("get_time", {})],
            id="one id for all",
        ),
        pytest.param(
            [
                part("get_weather", "", index=0, id="a"),
                part("get_weather", '{"city": "Oslo"}', index=1, id="a"),
            ],
            [WEATHER],
            id="one call at two indexes (LocalAI)",
        ),
        pytest.param(
            [part("ad", "", index=0, id="a"), part("d", '{"a": 1}', index=0)],
            [("add", {"a": 1})],
            id="a name in pieces",
        ),
        pytest.param(
            [part("get_weather", {"city": "Oslo"}, index=0, id="a")],  # type: ignore[arg-type]
            [WEATHER],
            id="arguments as an object",
        ),
    ],
)
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
async def test_streamed_calls_are_told_apart(
    deltas: list[dict[str, Any]], wanted: list[tuple[str, Any]], finish: str
) -> None:
    pieces, _ = await ask_it(openai_model, chunks(*deltas, finish=finish))
    reply = storable(pieces[-1], 4)
    assert [(each.name, each.arguments) for each in reply.tool_calls] == wanted
    assert len({each.id for each in reply.tool_calls}) == len(wanted)


async def sent_back(
    make: Callable[[str], tuple[Any, Any]], answer: Answer
) -> tuple[Reply, dict[str, Any]]:
    """(what the model said as the thread has it, that message in the next question). What the
    thread has went through its own JSON, as it does when another worker goes on."""
    pieces, _ = await ask_it(make, answer)
    assert isinstance(pieces[-1], Reply), pieces
    reply = storable(pieces[-1], 4)
    recorded = json.loads(json.dumps(REPLY.dump_python(reply, mode="json")))
    message = json.loads(json.dumps(assistant(REPLY.validate_python(recorded))))
    results = [tool_result(each, "ok") for each in reply.tool_calls]
    ask = replace(ASK, messages=[user("go"), message, *results])
    async with model_server(lambda _asked: Reply(text="ok")) as server:
        model, client = make(server.url)
        async with client:
            _ = [piece async for piece in model(ask)]
    (asked,) = server.book
    said = next(each for each in asked.body["messages"] if each["role"] == "assistant")
    return reply, said


ONE_CALL = {"id": "a", "type": "function"}
ITS_FUNCTION = {"name": "add", "arguments": '{"a":1,"b":2}'}


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        pytest.param(
            [
                {"role": "assistant", "content": None, "reasoning_content": ""},
                {"reasoning_content": "So "},
                {"reasoning_content": "add."},
                {"tool_calls": [{"index": 0, **ONE_CALL, "function": ITS_FUNCTION}]},
            ],
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "So add.",
                "tool_calls": [{**ONE_CALL, "function": ITS_FUNCTION}],
            },
            id="reasoning_content (DeepSeek)",
        ),
        pytest.param(
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "index": 0,
                            **ONE_CALL,
                            "function": ITS_FUNCTION,
                            "extra_content": {"google": {"thought_signature": "CpIB=="}},
                        }
                    ],
                },
                {"extra_content": {"google": {"thought_signature": "Zz8="}}},
            ],
            {
                "role": "assistant",
                "content": None,
                "extra_content": {"google": {"thought_signature": "Zz8="}},
                "tool_calls": [
                    {
                        **ONE_CALL,
                        "function": ITS_FUNCTION,
                        "extra_content": {"google": {"thought_signature": "CpIB=="}},
                    }
                ],
            },
            id="thought signatures (Gemini)",
        ),
        pytest.param(
            [
                {"reasoning_details": [{"type": "reasoning.text", "text": "So ", "index": 0}]},
                {"reasoning_details": [{"type": "reasoning.text", "text": "add.", "index": 0}]},
                {
                    "reasoning_details": [
                        {"type": "reasoning.text", "signature": "sig", "index": 0},
                        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
                    ]
                },
                {"content": "3", "oddity": {"of": ["a", "server"]}},
            ],
            {
                "role": "assistant",
                "content": "3",
                "oddity": {"of": ["a", "server"]},
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "So add.", "signature": "sig", "index": 0},
                    {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
                ],
            },
            id="reasoning items (OpenRouter), and what nobody knows",
        ),
        pytest.param(
            [
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "So "}]}]},
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "add."}]}]},
                {"content": [{"type": "text", "text": "It "}]},
                {"content": "is 3"},
            ],
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "So add."}]},
                    {"type": "text", "text": "It is 3"},
                ],
            },
            id="content in blocks (Mistral)",
        ),
        pytest.param(
            [{"content": "3", "annotations": [{"type": "url_citation", "url": "a"}] * 2}],
            {
                "role": "assistant",
                "content": "3",
                "annotations": [{"type": "url_citation", "url": "a"}] * 2,
            },
            id="items of one kind",
        ),
    ],
)
async def test_what_a_server_put_into_its_message_goes_back_as_it_was(
    deltas: list[dict[str, Any]], message: dict[str, Any]
) -> None:
    reply, said = await sent_back(openai_model, chunks(*deltas))
    assert said == message
    assert reply.extra == {"openai": message}
    content = message["content"]
    assert reply.text == ("It is 3" if isinstance(content, list) else content or "")


async def test_ids_that_had_to_be_made_up_are_those_that_tools_answer_to() -> None:
    parts = [part("add", '{"a":1}', extra=n, id="") for n in (1, 2)]
    reply, said = await sent_back(openai_model, chunks(*parts))
    assert [each["id"] for each in said["tool_calls"]] == ["call_4_0", "call_4_1"]
    assert [each["extra"] for each in said["tool_calls"]] == [1, 2]
    blocks = [{"type": "tool_use", "id": "a", "name": "add", "input": {"a": n}} for n in (1, 2)]
    reply, said = await sent_back(anthropic_model, blocks_of(*blocks, REDACTED))
    assert [each.id for each in reply.tool_calls] == ["call_4_0", "call_4_1"]
    assert [each.get("id") for each in said["content"]] == ["call_4_0", "call_4_1", None]


REDACTED = {"type": "redacted_thinking", "data": "EmwKAhgB"}


def blocks_of(*blocks: dict[str, Any], stop: str | None = "end_turn", **more: Any) -> Raw:
    """A stream of Anthropic's Messages, each block whole."""
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 0},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None, **more}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}})
    return Raw([*events, {"type": "message_stop"}])


async def test_what_anthropic_put_into_its_message_goes_back_as_it_was() -> None:
    blocks: list[dict[str, Any]] = [
        THOUGHT,
        REDACTED,
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "web_search_result", "url": "u", "encrypted_content": "e"}],
        },
        {
            "type": "text",
            "text": "cited",
            "citations": [{"type": "web_search_result_location", "url": "u", "cited_text": "c"}],
        },
        {"type": "a_block_of_tomorrow", "anything": [1, {"b": None}]},
        {
            "type": "tool_use",
            "id": "t",
            "name": "add",
            "input": {"a": 1},
            "caller": {"type": "direct"},
        },
    ]
    empty = {"type": "text", "text": ""}  # which the API sends, and refuses
    reply, said = await sent_back(anthropic_model, blocks_of(*blocks, empty, stop="tool_use"))
    assert said == {"role": "assistant", "content": blocks}
    assert (reply.text, len(reply.tool_calls)) == ("cited", 1)


async def test_the_container_of_an_answer_is_named_in_the_next_question() -> None:
    container = {"id": "c1", "expires_at": "2026-01-01T00:00:00Z"}
    pieces, _ = await ask_it(
        anthropic_model, blocks_of({"type": "text", "text": "hm"}, container=container)
    )
    ask = replace(ASK, messages=[user("go"), assistant(pieces[-1]), user("on")])
    async with model_server(lambda _asked: Reply(text="ok")) as server:
        model, client = anthropic_model(server.url)
        async with client:
            _ = [piece async for piece in model(ask)]
    assert server.book[0].body["container"] == "c1"


async def asked_for(model: Any, client: Any, server: ModelServer) -> dict[str, Any]:
    async with client:
        _ = [piece async for piece in model(ASK)]
    return server.book[-1].body


async def test_what_openai_is_sent_can_be_changed_or_left_out() -> None:
    answer = {
        "index": 0,
        "message": {"role": "assistant", "content": "ok"},
        "finish_reason": "stop",
    }

    def noted(request: dict[str, Any]) -> dict[str, Any]:
        for message in request["messages"]:
            if message["role"] == "system":
                message["role"] = "developer"
        return request | {"user": "me"}

    async with model_server(lambda _asked: Raw([{"choices": [answer]}])) as server:
        client = openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")
        model = OpenAIModel(
            "gpt",
            client=client,
            stream=False,
            stream_options=None,
            adjust=noted,
            tools=[{"type": "web_search"}],
            extra_headers={"Idempotency-Key": None, "X-Tenant": "t"},
        )
        body = await asked_for(model, client, server)
    assert (body["stream"], body["user"], "stream_options" in body) == (False, "me", False)
    assert body["messages"][0] == {"role": "developer", "content": "be brief"}
    assert [each["type"] for each in body["tools"]] == ["web_search", "function"]
    headers = server.book[-1].headers
    assert ("idempotency-key" in headers, headers["x-tenant"]) == (False, "t")


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": {"include_usage": False}}, {"include_usage": False}),
        ({"stream_options": None}, None),
    ],
)
async def test_stream_options_can_be_left_out(options: dict[str, Any], sent: Any) -> None:
    async with model_server(lambda _asked: Reply(text="ok")) as server:
        client = openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")
        body = await asked_for(OpenAIModel("gpt", client=client, **options), client, server)
    assert body.get("stream_options") == sent
    assert body["stream"] is True


async def test_what_anthropic_is_sent_can_be_changed_or_left_out() -> None:
    system = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    search = {"type": "web_search_20250305", "name": "web_search"}
    async with model_server(lambda _asked: Reply(text="ok")) as server:
        client = anthropic.AsyncAnthropic(api_key="none", base_url=server.url)
        model = AnthropicModel("claude", client=client, system=system, tools=[search], max_tokens=9)
        body = await asked_for(model, client, server)
        assert (body["system"], body["max_tokens"]) == (system, 9)
        assert [each["name"] for each in body["tools"]] == ["web_search", "add"]
        client = anthropic.AsyncAnthropic(api_key="none", base_url=server.url)
        model = AnthropicModel("claude", client=client, system=None, tools=None)
        body = await asked_for(model, client, server)
    assert "system" not in body
    assert "tools" not in body


def test_a_reason_to_stop_means_one_of_a_few_words() -> None:
    with pytest.raises(ConfigError, match=r"SF1186.*one of done, calls"):
        OpenAIModel("m", ends={"eos": "end"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("make", "answer", "kind", "code"),
    [
        (
            openai_model,
            chunks({"content": "ha"}, finish="content_filter"),
            ModelFailed,
            "model_filtered",
        ),
        (
            openai_model,
            chunks({"content": "ha"}, finish="content_filter: RECITATION"),
            ModelFailed,
            "model_filtered",
        ),
        (openai_model, chunks({"content": "ha"}, finish="SAFETY"), ModelFailed, "model_filtered"),
        (
            openai_model,
            chunks({"refusal": "I will"}, {"refusal": " not"}),
            ModelFailed,
            "model_refused",
        ),
        (
            openai_model,
            chunks({"content": "ha"}, finish="MAX_TOKENS"),
            ModelFailed,
            "model_cut_off",
        ),
        (openai_model, chunks(part("add", "{}"), finish="length"), ModelFailed, "model_cut_off"),
        (
            openai_model,
            chunks({"content": "ha"}, finish="insufficient_system_resource"),
            RetryableError,
            None,
        ),
        (openai_model, chunks({"content": "ha"}, finish="abort"), Parked, "model_stop_unknown"),
        (
            openai_model,
            chunks({"content": "I call"}, finish="tool_calls"),
            Parked,
            "model_stop_unknown",
        ),
        (openai_model, chunks({"content": "ha"}, finish=None), RetryableError, None),
        (
            anthropic_model,
            blocks_of(
                {"type": "text", "text": "ha"},
                stop="refusal",
                stop_details={"type": "refusal", "category": "cyber", "explanation": "not that"},
            ),
            ModelFailed,
            "model_refused",
        ),
        (
            anthropic_model,
            blocks_of({"type": "text", "text": "ha"}, stop="max_tokens"),
            ModelFailed,
            "model_cut_off",
        ),
        (
            anthropic_model,
            blocks_of({"type": "text", "text": "ha"}, stop="model_context_window_exceeded"),
            ModelFailed,
            "model_cut_off",
        ),
        (
            anthropic_model,
            blocks_of({"type": "text", "text": "ha"}, stop="a_new_one"),
            Parked,
            "model_stop_unknown",
        ),
        (
            anthropic_model,
            blocks_of({"type": "text", "text": "ha"}, stop="tool_use"),
            Parked,
            "model_stop_unknown",
        ),
        (
            anthropic_model,
            blocks_of({"type": "text", "text": "ha"}, stop=None),
            RetryableError,
            None,
        ),
    ],
)
async def test_an_end_that_is_none_is_told_by_its_own_code(
    make: Any, answer: Answer, kind: type[BaseException], code: str | None
) -> None:
    (*_, error), _ = await ask_it(make, answer)
    assert type(error) is kind
    assert getattr(error, "code", None) == code
    assert code is None or number_of(code)
    if code == "model_refused":
        assert any(each in str(error) for each in ("I will not", "not that"))


async def test_a_server_may_have_words_of_its_own_for_the_end() -> None:
    async with model_server(lambda _asked: chunks({"content": "ha"}, finish="Fin")) as server:
        client = openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")
        async with client:
            model = OpenAIModel("gpt", client=client, ends={"fin": "done"})
            assert [piece async for piece in model(ASK)] == ["ha", Reply(text="ha")]


def error_body(message: str, **fields: Any) -> Any:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize(
    ("make", "answer", "code"),
    [
        (
            openai_model,
            Failing(
                429,
                body=error_body(
                    "You exceeded your current quota",
                    type="insufficient_quota",
                    code="insufficient_quota",
                ),
            ),
            "model_quota_spent",
        ),
        (openai_model, Failing(402, body=error_body("Insufficient Balance")), "model_quota_spent"),
        (
            openai_model,
            Failing(
                429,
                body=error_body(
                    "Request too large for gpt-4 on tokens per min (TPM): "
                    "Limit 10000, Requested 12000.",
                    type="tokens",
                    code="rate_limit_exceeded",
                ),
            ),
            "model_request_too_large",
        ),
        (openai_model, Failing(413), "model_request_too_large"),
        (
            openai_model,
            Failing(400, body=error_body("too long", code="context_length_exceeded")),
            "model_request_too_large",
        ),
        (
            openai_model,
            Failing(400, body=error_body("no", code="content_filter")),
            "model_filtered",
        ),
        (
            openai_model,
            Raw([error_body("no more", code="insufficient_quota")]),
            "model_quota_spent",
        ),
        (
            anthropic_model,
            Failing(
                400, body=error_body("Your credit balance is too low", type="invalid_request_error")
            ),
            "model_quota_spent",
        ),
        (
            anthropic_model,
            Failing(413, body=error_body("no", type="request_too_large")),
            "model_request_too_large",
        ),
        (
            anthropic_model,
            Failing(
                400,
                body=error_body(
                    "prompt is too long: 210000 tokens > 200000 maximum",
                    type="invalid_request_error",
                ),
            ),
            "model_request_too_large",
        ),
    ],
)
async def test_what_waiting_does_not_mend_is_final_with_its_own_code(
    make: Any, answer: Answer, code: str
) -> None:
    (*_, error), book = await ask_it(make, answer)
    assert type(error) is ModelFailed, error
    assert error.code == code
    assert len(book) == 1
    assert number_of(code)


PER_MINUTE = error_body(
    "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 30000, Requested 2000.",
    type="tokens",
    code="rate_limit_exceeded",
)
EXHAUSTED = [
    {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota, please check your plan.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [
                {"@type": "type.googleapis.com/google.rpc.Help", "links": []},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26.5s"},
            ],
        }
    }
]


@PROVIDERS
@pytest.mark.parametrize(
    ("answer", "waits_s"),
    [
        (Failing(429, body=PER_MINUTE), None),
        (Failing(429, body=EXHAUSTED), 26.5),
        (Failing(429, {"Retry-After": "9"}, body=EXHAUSTED), 9.0),
        (Failing(429, {"retry-after-ms": "1500", "Retry-After": "9"}), 1.5),
        (Failing(503, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}), 86_400.0),
        (Failing(503, {"Retry-After": "inf"}), None),
        (Failing(529, body=error_body("busy", type="overloaded_error")), None),
    ],
)
async def test_what_waiting_mends_is_tried_when_the_provider_says(
    make: Any, answer: Answer, waits_s: float | None
) -> None:
    (*_, error), book = await ask_it(make, answer)
    assert type(error) is RetryableError
    assert error.retry_after_s == waits_s
    assert len(book) == 1


@pytest.mark.parametrize(
    ("make", "error", "kind"),
    [
        (openai_model, error_body("busy", code=502), RetryableError),
        (openai_model, error_body("no", code=400), TerminalError),
        (openai_model, error_body("busy", type="server_error"), RetryableError),
        (
            anthropic_model,
            {"type": "error", **error_body("busy", type="overloaded_error")},
            RetryableError,
        ),
        (
            anthropic_model,
            {"type": "error", **error_body("no", type="invalid_request_error")},
            TerminalError,
        ),
    ],
)
async def test_an_error_in_the_middle_of_a_stream_is_what_it_says(
    make: Any, error: Any, kind: type[Exception]
) -> None:
    (*_, raised), _ = await ask_it(make, Raw([error]))
    assert type(raised) is kind


async def test_arguments_that_are_no_json_are_kept_or_asked_for_again() -> None:
    answer = Reply(tool_calls=(ToolCall(id="a", name="add", arguments="{oops"),))
    pieces, _ = await ask_it(openai_model, answer)
    assert pieces[-1].tool_calls == answer.tool_calls
    pieces, _ = await ask_it(anthropic_model, answer)
    assert isinstance(pieces[-1], RetryableError)


@PROVIDERS
async def test_a_message_of_another_role_is_refused(make: Any) -> None:
    ask = Ask(key="k", system=None, messages=[{"role": "system", "content": "x"}], tools=[])
    model, client = make("http://127.0.0.1:1")
    async with client:
        with pytest.raises(TerminalError, match="the roles are user, assistant and tool"):
            _ = [piece async for piece in model(ask)]


@pytest.mark.parametrize(
    ("make", "extra"), [(OpenAIModel, "openai"), (AnthropicModel, "anthropic")]
)
def test_an_sdk_that_is_not_there_is_told_at_once(
    make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'surefoot[{extra}]'")):
        make("m")


def test_an_answer_without_an_end_may_work_later() -> None:
    class Odd(Exception):
        status_code = 200
        response = type("Response", (), {"headers": {}})

    assert type(provider.what_now(Odd())) is RetryableError
    assert type(provider.what_now(ValueError("no key"))) is TerminalError
