"""The agent loop in memory: what the model is asked, what is done, and what a crash leaves."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from surefoot import (
    Agent,
    Budget,
    ConfigError,
    Context,
    Cost,
    Done,
    Next,
    NotDone,
    Retry,
    RetryableError,
    TerminalError,
)
from surefoot.agents.messages import Message, storable, user
from surefoot.agents.tool_loop import (
    Ask,
    Reply,
    Tool,
    ToolCall,
    ToolError,
    Usage,
    agent_tool,
    plan_tools,
    tool,
    tool_loop,
)
from surefoot.infra.runtime.loader import load_agents
from surefoot.state.errors import ModelFailed
from surefoot.state.errors.catalogue import number_of
from surefoot.state.inspect.lint import lint_agent
from surefoot.testing import Refused, SimulatedRun, Simulation, check_crashes

ROOT = Path(__file__).parents[3]


def call(name: str, number: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"{name}-{number}", name=name, arguments=arguments)


def calls(*wanted: ToolCall) -> Reply:
    return Reply(tool_calls=wanted)


class Scripted:
    """A model that says one thing after the other: the n-th to a thread in which it has spoken n
    times. `thinks_s` is how long it takes."""

    def __init__(self, *script: Reply | str | Exception, thinks_s: float = 0.0) -> None:
        self.script: Sequence[Reply | str | Exception] = script
        self.asks: list[Ask] = []
        self.thinks_s = thinks_s

    async def __call__(self, ask: Ask) -> Reply | str:
        self.asks.append(ask)
        await asyncio.sleep(self.thinks_s)
        turn = sum(1 for each in ask.messages if each["role"] == "assistant")
        said = self.script[turn]
        if isinstance(said, Reply | str):
            return said
        raise said

    def told(self, ask: int = -1) -> list[Message]:
        """What tools had given by the time of that question."""
        return [each for each in self.asks[ask].messages if each["role"] == "tool"]


def ran(model: Any, *tools: Any, prompt: str = "go", **options: Any) -> SimulatedRun:
    with simulated(model, *tools, **options) as sim:
        return sim.run(prompt)


def looping(model: Any, *tools: Any, budget: Budget | None = None, **options: Any) -> Agent:
    agent = Agent("looper", budget=budget)
    tool_loop(agent, model=model, tools=tools, **options)
    lint_agent(agent)
    return agent


def simulated(model: Any, *tools: Any, **options: Any) -> Simulation:
    return Simulation(looping(model, *tools, **options))


# Thinking and acting -------------------------------------------------------------------------


def test_an_answer_without_tools_is_the_result() -> None:
    model = Scripted("42")
    run = ran(model, system="be brief", prompt="what is it?")
    assert (run.status, run.result, run.steps) == ("completed", "42", ["think", "hear"])
    (ask,) = model.asks
    assert (ask.system, ask.messages) == ("be brief", [user("what is it?")])
    assert (ask.tools, ask.partial) == ([], None)


def test_tools_are_run_and_their_results_told_in_the_order_of_the_calls() -> None:
    @tool
    def double(n: int) -> int:
        """Double it."""
        assert threading.current_thread() is not threading.main_thread()
        return 2 * n

    @tool
    async def shout(text: str, marks: int = 1) -> str:
        """Shout it."""
        return text.upper() + "!" * marks

    model = Scripted(calls(call("double", n=4), call("shout", text="hey")), "done")
    run = ran(model, double, shout)
    assert run.steps == ["think", "act", "hear", "think", "hear"]
    assert [each["name"] for each in model.asks[0].tools] == ["double", "shout"]
    assert model.asks[1].messages == [
        user("go"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "double-0", "name": "double", "arguments": {"n": 4}},
                {"id": "shout-0", "name": "shout", "arguments": {"text": "hey"}},
            ],
        },
        {"role": "tool", "tool_call_id": "double-0", "name": "double", "content": "8"},
        {"role": "tool", "tool_call_id": "shout-0", "name": "shout", "content": "HEY!"},
    ]


def test_the_calls_of_one_turn_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def meet(who: str) -> str:
        """Meet the other one."""
        await both.wait()
        return f"{who} met"

    model = Scripted(calls(call("meet", 0, who="a"), call("meet", 1, who="b")), "done")
    ran(model, meet)
    assert [each["content"] for each in model.told()] == ["a met", "b met"]


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of async."""

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


def with_a_loop_of_its_own(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(fn(*args, **kwargs))

    return inner


class Greeter:
    """Greets somebody."""

    async def __call__(self, who: str) -> str:
        return f"hello {who}"


async def greet(who: str, greeting: str, *, secret: str = "") -> str:
    """Greet somebody."""
    assert secret in ("", "s3cret")
    return f"{greeting} {who}"


def promising(who: str) -> Any:
    """Greet somebody, later."""
    return greet(who, "hello")


@pytest.mark.parametrize(
    "made",
    [
        tool(name="hi", description="Greet.")(logged(Greeter().__call__)),
        tool(name="hi", description="Greet.")(with_a_loop_of_its_own(Greeter().__call__)),
        tool(name="hi")(Greeter()),
        tool(name="hi")(functools.partial(greet, greeting="hello", secret="s3cret")),
        tool(name="hi", once=True)(promising),
    ],
    ids=["decorated", "its own loop", "an object", "a partial", "an awaitable"],
)
def test_what_can_be_awaited_is_and_what_a_partial_binds_is_not_told(made: Tool) -> None:
    assert list(made.parameters["properties"]) == ["who"]
    model = Scripted(calls(call("hi", who="you")), "done")
    assert ran(model, made).result == "done"
    assert [each["content"] for each in model.told()] == ["hello you"]


def test_a_partial_has_the_name_and_the_words_of_its_function() -> None:
    made = tool(functools.partial(greet, greeting="hello"))
    assert (made.name, made.description) == ("greet", "Greet somebody.")


async def refuse(why: str) -> str:
    """Refuse."""
    raise ValueError(why)


def test_what_an_awaited_tool_raises_is_told() -> None:
    model = Scripted(calls(call("refuse", why="no")), "done")
    assert ran(model, logged(refuse)).result == "done"
    assert model.told()[0]["content"] == "ValueError: no"


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


async def add(a: float, b: int) -> float:
    """Add."""
    return a + b


@pytest.mark.parametrize(
    ("wanted", "content"),
    [
        (call("multiply", a=1), "there is no tool 'multiply'; use one of: add, fail"),
        (
            call("add", a=1),
            "bad arguments: b: Field required",
        ),
        (
            call("add", a=[1], b=2),
            "bad arguments: a: Input should be a valid number",
        ),
        (call("add", a=1, b=2, c=3), "bad arguments: c: Extra inputs are not permitted"),
        (
            ToolCall(id="x", name="add", arguments="{oops"),
            "the arguments are not a JSON object",
        ),
        (call("fail", text="the disk is full"), "ValueError: the disk is full"),
    ],
)
def test_what_goes_wrong_with_a_call_is_told_to_the_model(wanted: ToolCall, content: str) -> None:
    model = Scripted(calls(wanted), "I see")
    run = ran(model, add, fail)
    assert run.result == "I see"
    (told,) = model.told()
    assert told["error"] is True
    assert told["content"] == content


def test_a_terminal_error_of_a_tool_fails_the_run_and_the_other_calls_come_to_their_end() -> None:
    ended: list[str] = []

    async def broken() -> str:
        """Never works."""
        raise TerminalError("no such account")

    async def slow() -> str:
        """Takes a minute."""
        await asyncio.sleep(60)
        ended.append("slow")
        return "ok"

    run = ran(Scripted(calls(call("broken"), call("slow"))), broken, slow)
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure["message"] == "no such account"
    assert ended == ["slow"]


def test_a_tool_that_may_work_later_is_tried_again_and_the_model_told_when_it_never_does() -> None:
    tried: Counter[str] = Counter()

    async def flaky() -> str:
        """Works the second time."""
        tried["flaky"] += 1
        if tried["flaky"] < 2:
            raise RetryableError("busy")
        return "ok"

    async def down() -> str:
        """Never works."""
        tried["down"] += 1
        raise RetryableError("down for the day")

    async def steady() -> str:
        """Works."""
        tried["steady"] += 1
        return "ok"

    model = Scripted(calls(call("flaky"), call("down"), call("steady")), "done")
    run = ran(model, flaky, down, steady, retry=Retry(attempts=3, initial_s=1))
    assert run.status == "completed"
    assert tried == {"flaky": 2, "down": 3, "steady": 1}
    assert [each["content"] for each in model.told()] == [
        "ok",
        "RetryableError: down for the day",
        "ok",
    ]


def test_too_many_turns_fail_the_run_and_the_message_says_what_to_do() -> None:
    model = Scripted(*[calls(call("add", n, a=n, b=n)) for n in range(9)])
    run = ran(model, add, max_turns=3)
    assert run.status == "failed"
    assert len(model.asks) == 3
    assert run.failure is not None
    assert "no answer after 3 turns" in run.failure["message"]
    assert "raise max_turns" in run.failure["message"]


def test_a_model_that_may_work_later_is_asked_again_and_one_that_never_will_is_not() -> None:
    model = Scripted(RetryableError("busy", retry_after_s=5.0))
    with simulated(model) as sim:
        sim.start("go")
        sim.advance("4s")
        assert len(model.asks) == 1
        model.script = ("ok",)
        assert sim.settle().result == "ok"
        assert len({ask.key for ask in model.asks}) == 1

    refusing = Scripted(TerminalError("bad key"))
    with simulated(refusing) as sim:
        assert sim.run("go").status == "failed"
        assert len(refusing.asks) == 1
        refusing.script = ("ok",)
        assert sim.retry().result == "ok"


def test_what_is_no_reply_fails_the_run() -> None:
    async def model(ask: Ask) -> Any:
        return {"text": "hello"}

    run = ran(model)
    assert run.failure is not None
    assert "must return a Reply" in run.failure["message"]


def test_a_reply_that_no_log_could_take_is_made_fit() -> None:
    reply = Reply(
        text="half \ud83d",
        tool_calls=(
            ToolCall(id="", name="f", arguments={"x": float("nan")}),
            ToolCall(id="a", name="g\udc00", arguments="\ud800"),
            ToolCall(id="a", name="h", arguments={}),
        ),
    )
    made = storable(reply, 7)
    assert made.text == "half �"
    assert [each.id for each in made.tool_calls] == ["call_7_0", "call_7_1", "call_7_2"]
    assert [each.arguments for each in made.tool_calls] == ["{'x': nan}", "�", {}]
    assert made.tool_calls[1].name == "g�"


def test_a_model_that_fails_for_good_gives_the_run_its_code_and_is_asked_again_by_a_retry() -> None:
    model = Scripted(ModelFailed("model_refused", "not that"))
    with simulated(model) as sim:
        run = sim.run("go")
        assert run.status == "failed"
        assert run.failure is not None
        assert (run.failure["code"], run.failure["message"]) == ("model_refused", "not that")
        assert len(model.asks) == 1
        model.script = ("ok",)
        assert sim.retry().result == "ok"


@pytest.mark.parametrize("nothing", ["", " \n", Reply(), Reply(extra={"openai": {"content": ""}})])
def test_an_end_without_a_word_waits_for_a_person(nothing: Reply | str) -> None:
    model = Scripted(nothing)
    with simulated(model) as sim:
        run = sim.run("go")
        assert run.status == "attention"
        assert run.failure is not None
        assert run.failure["code"] == "model_said_nothing"
        assert number_of("model_said_nothing")
        model.script = ("ok",)
        assert sim.retry().result == "ok"


def test_a_model_that_pauses_is_asked_as_it_is_until_it_has_ended() -> None:
    paused = Reply(text="Sear", goes_on=True, extra={"anthropic": [{"type": "server_tool_use"}]})
    model = Scripted(paused, Reply(text="ching: ", goes_on=True), "found")
    with simulated(model) as sim:
        run = sim.run("go")
        assert (run.status, run.result) == ("completed", "Searching: found")
        assert run.steps == ["think", "think", "think", "hear"]
    assert model.asks[1].messages == [
        user("go"),
        {"role": "assistant", "content": "Sear", "extra": paused.extra, "goes_on": True},
    ]
    assert len({ask.key for ask in model.asks}) == 3


def test_what_an_adapter_keeps_is_still_there_after_a_crash() -> None:
    kept = {"openai": {"role": "assistant", "reasoning_content": "So add.", "odd": [None, 1.5]}}

    async def slow() -> str:
        """Take a minute."""
        await asyncio.sleep(60)
        return "ok"

    model = Scripted(Reply(tool_calls=(call("slow"),), extra=kept), "done")
    with simulated(model, slow) as sim:
        sim.start("go")
        sim.advance("30s")
        sim.crash()
        assert sim.settle().result == "done"
    assert model.asks[-1].messages[1]["extra"] == kept


def test_a_pause_is_a_turn_and_calls_come_before_it() -> None:
    model = Scripted(*[Reply(text="x", goes_on=True)] * 9)
    run = ran(model, max_turns=3)
    assert run.status == "failed"
    assert len(model.asks) == 3
    both = Reply(text="let me ", goes_on=True, tool_calls=(call("add", a=1, b=1),))
    assert ran(Scripted(both, "two"), add).result == "two"


# Streaming -----------------------------------------------------------------------------------


def test_pieces_are_put_together_and_the_text_of_a_cut_off_attempt_is_offered() -> None:
    partials: list[str | None] = []

    async def model(ask: Ask) -> AsyncIterator[str | Reply]:
        partials.append(ask.partial)
        yield "Hello "
        await asyncio.sleep(2)
        yield "wor"
        await asyncio.sleep(60)
        yield "ld\ud800"

    with simulated(model) as sim:
        sim.start("go")
        sim.advance("30s")
        sim.crash()
        assert sim.settle().result == "Hello world�"
    assert partials == [None, "Hello wor"]


def test_a_streaming_model_may_end_with_more_than_text() -> None:
    async def model(ask: Ask) -> AsyncIterator[str | Reply]:
        if len(ask.messages) > 1:
            yield "three"
            return
        yield "let me see"
        yield Reply(text="let me see", tool_calls=(call("add", a=1, b=2),))

    assert ran(model, add).result == "three"


# At most once, and only if a person says so --------------------------------------------------


def test_a_tool_that_is_once_is_not_done_again_after_a_crash() -> None:
    charged: list[int] = []

    async def was_charged(cents: int) -> bool:
        return cents in charged

    @tool(once=True, probe=was_charged)
    async def charge(cents: int) -> str:
        """Charge."""
        charged.append(cents)
        await asyncio.sleep(60)
        return "charged"

    model = Scripted(calls(call("charge", cents=5)), "done")
    with simulated(model, charge) as sim:
        sim.start("go")
        sim.advance("30s")
        sim.crash()
        assert sim.settle().result == "done"
    assert charged == [5]
    assert model.told()[0]["content"] == "done"


def test_once_without_a_probe_waits_for_a_person_whose_word_is_its_result() -> None:
    charged: list[int] = []

    @tool(once=True)
    def charge(cents: int) -> str:
        """Charge."""
        charged.append(cents)
        raise ConnectionError("the line went dead")

    model = Scripted(calls(call("charge", cents=5)), "done")
    with simulated(model, charge) as sim:
        run = sim.run("go")
        assert run.status == "attention"
        assert sim.resolve("happened", {"receipt": 9}).result == "done"
    assert charged == [5]
    assert model.told()[0]["content"] == '{"receipt":9}'


def test_a_tool_error_of_a_tool_that_is_once_settles_the_matter() -> None:
    @tool(once=True)
    def charge(cents: int) -> str:
        """Charge."""
        raise ToolError("the card was declined")

    model = Scripted(calls(call("charge", cents=5)), "a pity")
    assert ran(model, charge).result == "a pity"
    assert model.told()[0]["content"] == "the card was declined"


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotDone("no line"), "completed"), (RetryableError("no answer"), "failed")],
)
def test_only_what_certainly_did_not_happen_is_told_when_no_attempt_is_left(
    error: Exception, status: str
) -> None:
    async def was_charged(cents: int) -> bool:
        return False

    @tool(once=True, probe=was_charged)
    async def charge(cents: int) -> str:
        """Charge."""
        raise error

    model = Scripted(calls(call("charge", cents=5)), "done")
    assert ran(model, charge, retry=Retry(attempts=2)).status == status


def test_a_tool_to_approve_is_asked_for_with_its_arguments_and_run_after_a_yes() -> None:
    done: list[str] = []

    @tool(approve=True, by=["ann"])
    def erase(name: str) -> str:
        """Erase."""
        done.append(name)
        return "erased"

    wanted = calls(call("erase", 0, name="a"), call("add", a=1, b=1), call("erase", 1, name="b"))
    model = Scripted(wanted, "done")
    with simulated(model, erase, add) as sim:
        run = sim.run("go")
        assert (run.asks["tool"], run.asks["arguments"]) == ("erase", {"name": "a"})
        with pytest.raises(Refused, match="not_allowed"):
            sim.approve(by="bob")
        assert done == []
        first = run.question
        run = sim.approve(by="ann")
        assert run.asks["arguments"] == {"name": "b"}
        assert run.question != first
        assert done == []
        run = sim.approve(False, by="ann", note="keep it")
        assert (run.result, done) == ("done", ["a"])
    told = model.told()
    assert [each["content"] for each in told] == ["erased", "2.0", "not done: ann refused: keep it"]
    assert [each.get("error", False) for each in told] == [False, False, True]


def test_what_nobody_approves_in_time_is_not_done_and_nonsense_is_not_asked() -> None:
    @tool(approve=True, expires="1h")
    def erase(name: str) -> str:
        """Erase."""
        raise AssertionError

    model = Scripted(calls(call("erase", 0, name="a"), call("erase", 1, nam="b")), "done")
    with simulated(model, erase) as sim:
        assert sim.run("go").asks["arguments"] == {"name": "a"}
        assert sim.advance("2h").result == "done"
    first, second = (each["content"] for each in model.told())
    assert first == "not done: nobody approved it in time"
    assert "Field required" in second


# In the middle -------------------------------------------------------------------------------


def test_a_message_that_comes_while_tools_run_is_heard_before_the_model_is_asked_again() -> None:
    async def dig(where: str) -> str:
        """Dig."""
        await asyncio.sleep(60)
        return f"nothing {where}"

    model = Scripted(calls(call("dig", where="here")), "I stop")
    with simulated(model, dig, max_turns=1) as sim:
        sim.start("dig")
        sim.advance("30s")
        run = sim.signal("message", "it is over there", by="ann")
        assert run.result == "I stop"
    assert [each["role"] for each in model.asks[1].messages] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert model.asks[1].messages[-1] == user("it is over there") | {"by": "ann"}


def test_a_message_that_comes_while_the_model_writes_its_answer_is_answered_too() -> None:
    model = Scripted("Berlin", "Bonn", thinks_s=60)
    with simulated(model) as sim:
        sim.start("capital?")
        sim.advance("30s")
        run = sim.signal("message", {"meant": "in 1980"})
        assert (run.status, run.result) == ("completed", "Bonn")
        assert run.steps == ["think", "hear", "think", "hear"]
    assert model.asks[1].messages == [
        user("capital?"),
        {"role": "assistant", "content": "Berlin"},
        user('{"meant":"in 1980"}'),
    ]


def test_a_pause_lets_the_thought_end_and_keeps_it() -> None:
    done: list[int] = []

    async def act_out(n: int) -> str:
        """Act."""
        done.append(n)
        return "ok"

    model = Scripted(calls(call("act_out", n=1)), "done", thinks_s=60)
    with simulated(model, act_out) as sim:
        sim.start("go")
        sim.advance("30s")
        run = sim.pause()
        run = sim.settle()
        assert (run.status, run.steps, done) == ("paused", ["think"], [])
        assert sim.resume().result == "done"
    assert len(model.asks) == 2


def test_a_cancel_ends_the_thought() -> None:
    model = Scripted("never said", thinks_s=3600)
    with simulated(model) as sim:
        sim.start("go")
        sim.advance("30s")
        run = sim.cancel()
        assert run.status == "cancelled"
    assert len(model.asks) == 1


def test_a_chat_goes_on_with_each_message_and_ends_when_nobody_says_more() -> None:
    model = Scripted("hello", "fine", "bye")
    with simulated(model, chat=True, idle="1h", max_turns=1) as sim:
        run = sim.run("hi")
        assert run.waits_for == ("message",)
        run = sim.signal("message", "how are you?")
        assert run.waits_for == ("message",)
        run = sim.signal("message", "see you")
        assert sim.advance("2h").result == "bye"
    assert [each["content"] for each in model.asks[2].messages] == [
        "hi",
        "hello",
        "how are you?",
        "fine",
        "see you",
    ]


# With the rest of Surefoot -------------------------------------------------------------------


def test_steps_of_the_authors_own_come_before_and_after() -> None:
    agent = Agent("looper")
    model = Scripted("blue")

    @agent.step
    async def finish(ctx: Context, answer: str) -> Done:
        ctx.outbox.http("POST", "https://example.com/", json={"answer": answer})
        return Done({"answer": answer})

    loop = tool_loop(agent, model=model, then=finish, start=False)

    @agent.step(start=True)
    async def begin(ctx: Context, subject: int) -> Next:
        ctx.thread.append(user("you like colours"))
        return Next(loop.think, f"colour of {subject}?")

    lint_agent(agent)
    with Simulation(agent) as sim:
        run = sim.run(7)
    assert run.result == {"answer": "blue"}
    assert run.steps == ["begin", "think", "hear", "finish"]
    assert [effect.json for effect in run.effects] == [{"answer": "blue"}]
    assert [each["content"] for each in model.asks[0].messages] == [
        "you like colours",
        "colour of 7?",
    ]


def test_a_tool_with_the_context_is_part_of_the_step() -> None:
    async def notify(ctx: Context, text: str) -> str:
        """Tell the customer."""
        return ctx.outbox.http("POST", "https://example.com/", json=text)

    async def slow() -> str:
        """Takes a minute."""
        await asyncio.sleep(60)
        return "ok"

    wanted = calls(call("slow"), call("notify", text="hi"), call("unheard of"))
    model = Scripted(wanted, "done")
    with simulated(model, notify, slow) as sim:
        sim.start("go")
        sim.advance("30s")
        sim.crash()
        run = sim.settle()
    assert [effect.json for effect in run.effects] == ["hi"]
    assert [each["name"] for each in model.told()] == ["slow", "notify", "unheard of"]
    assert model.asks[0].tools[0]["parameters"]["required"] == ["text"]


def test_the_model_keeps_the_plan_of_the_run() -> None:
    model = Scripted(
        calls(call("plan_add", items=["look", "leap"])),
        calls(call("plan_tick", item_id="1.0"), call("plan_drop", item_id="1.1")),
        calls(call("plan_tick", item_id="9.9")),
        "done",
    )
    assert ran(model, *plan_tools()).result == "done"
    first, ticked, dropped, wrong = (each["content"] for each in model.told())
    assert first == (
        '[{"id":"1.0","text":"look","state":"open"},{"id":"1.1","text":"leap","state":"open"}]'
    )
    assert '"look","state":"done"' in ticked
    assert '"leap","state":"dropped"' in dropped
    assert "the plan has no item '9.9'" in wrong


@dataclass(frozen=True)
class Topic:
    #: what to read about
    name: str


def test_an_agent_is_a_tool_and_its_run_a_child() -> None:
    reader = Agent("reader")

    @reader.step(retry=Retry(attempts=1))
    async def read(ctx: Context, topic: Topic) -> Done:
        if topic.name == "nothing":
            raise ValueError("no books on nothing")
        return Done({"about": topic.name})

    counter = Agent("counter")

    @counter.step
    async def count(ctx: Context, n: int) -> Done:
        return Done(n + 1)

    wanted = calls(
        call("reader", 0, name="whales"),
        call("add", a=1, b=1),
        call("reader", 1, name="nothing"),
        call("counter", input=4),
        call("counter", 1, n=4),
    )
    model = Scripted(wanted, "done")
    agent = looping(
        model, add, agent_tool(reader, description="Read."), agent_tool(counter, description="Add.")
    )
    with Simulation(agent, reader, counter) as sim:
        run = sim.run("go")
        assert run.steps == ["think", "act", "acted", "hear", "think", "hear"]
        assert len(sim.runs()) == 4
    told = {each["tool_call_id"]: each for each in model.told()}
    assert told["reader-0"]["content"] == '{"about":"whales"}'
    assert told["add-0"]["content"] == "2.0"
    assert told["counter-0"]["content"] == "5"
    assert told["reader-1"]["error"] is True
    assert "no books on nothing" in told["reader-1"]["content"]
    assert "input: Field required" in told["counter-1"]["content"]


USED = Usage(input_tokens=60, output_tokens=30)


@pytest.mark.parametrize(
    ("budget", "usage"),
    [
        (Budget(tokens=100), USED),
        (Budget(tokens=100), None),  # what is reserved is taken for it
        (Budget(money=0.1), USED),
    ],
)
def test_what_the_model_uses_counts_against_the_budget(budget: Budget, usage: Usage | None) -> None:
    model = Scripted(
        Reply(tool_calls=(call("add", a=1, b=1),), usage=usage), Reply(text="done", usage=usage)
    )
    reserve = Cost(tokens=60, money=0.05)
    with simulated(
        model, add, budget=budget, reserve=reserve, price=lambda usage: usage.tokens / 1000
    ) as sim:
        run = sim.run("go")
        assert (run.status, len(model.asks)) == ("waiting", 1)
        assert sim.approve().result == "done"


def test_killed_at_any_commit_it_comes_to_the_same_end() -> None:
    refunds: list[str] = []
    asked: Counter[str] = Counter()

    async def was_refunded(order: str) -> bool:
        return order in refunds

    @tool(once=True, probe=was_refunded, approve=True)
    async def refund(order: str) -> str:
        """Refund."""
        refunds.append(order)
        return "ok"

    async def notify(ctx: Context, text: str) -> str:
        """Tell the customer."""
        return ctx.outbox.http("POST", "https://example.com/", json=text)

    script = Scripted(
        calls(call("add", a=1, b=1), call("refund", order="17"), call("notify", text="hi")),
        "what else?",
        "bye",
    )

    async def model(ask: Ask) -> Reply | str:
        asked[ask.key] += 1
        return await script(ask)

    def scenario(sim: Simulation) -> None:
        sim.run("go")
        sim.approve(by="ann")
        sim.signal("message", "that is all")
        sim.advance("2h")

    def reset() -> None:
        # A question whose answer was committed is never asked again: twice at most, when the
        # process dies with the answer in the air.
        assert max(asked.values(), default=0) <= 2
        refunds.clear()
        asked.clear()

    report = check_crashes(
        looping(model, add, refund, notify, chat=True, idle="1h"),
        scenario=scenario,
        setup=reset,
        observe=lambda: list(refunds),
    )
    assert report.kills > 20


# Declaring -----------------------------------------------------------------------------------


def test_the_schema_is_that_of_the_function() -> None:
    @tool
    def search(
        query: Annotated[str, Field(description="what to look for")],
        json: dict[str, int] | None = None,
        schema: list[Topic] = [],  # noqa: B006
    ) -> None:
        """Search.

        In all there is.
        """
        assert query
        assert json == {"a": 1}
        assert schema == [Topic("x")]

    assert search.spec["description"] == "Search.\n\nIn all there is."
    parameters = search.spec["parameters"]
    assert parameters["properties"]["query"] == {
        "description": "what to look for",
        "type": "string",
    }
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    assert parameters["$defs"]["Topic"]["properties"] == {"name": {"type": "string"}}
    search.body(call("search", query="q", json={"a": 1}, schema=[{"name": "x"}]))
    search(query="q", json={"a": 1}, schema=[Topic("x")])


def test_a_long_result_is_cut_and_any_result_is_text() -> None:
    @tool(chars_max=100)
    def read() -> str:
        """Read."""
        return "x" * 1000

    text = read.body(call("read"))
    assert len(text) == 100
    assert text.endswith("\n[cut short: it has 1000 characters]")
    assert read.text(text) == text
    loop: list[Any] = []
    loop.append(loop)
    assert read.text(loop) == "[[...]]"
    assert read.text(None) == "done"
    assert read.text({"at": b"\xff", "x": float("inf"), "o": Topic("t")}) == (
        '{"at":"_w==","x":Infinity,"o":{"name":"t"}}'
    )


def undocumented(text: str) -> str:
    return text


def untyped(text) -> str:
    """It says nothing of its argument."""
    return str(text)


def starred(*texts: str) -> str:
    """It takes any number."""
    return "".join(texts)


def of_a_stream(stream: AsyncIterator[str]) -> str:
    """It takes what is no JSON."""
    return str(stream)


def with_context(ctx: Context) -> str:
    """It takes part in the step."""
    return ctx.run_id


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: tool(undocumented), "write a docstring"),
        (lambda: tool(untyped), "annotate 'text'"),
        (lambda: tool(starred), "name each argument"),
        (lambda: tool(of_a_stream), "cannot be read from JSON"),
        (lambda: tool(description="x")(lambda: 1), "set name= to a letter"),
        (lambda: looping(Scripted(), "add"), "is not a function"),
        (lambda: looping(Scripted(), Greeter), "is not a function"),
        (lambda: looping(Scripted(), Greeter()), "set name="),
        (lambda: tool(once=True)(with_context), "call ctx.once in it instead"),
        (lambda: tool(probe=add)(add), "a probe needs once=True"),
        (lambda: tool(expires="soon")(add), "a duration must look like"),
        (lambda: tool(chars_max=1)(add), "chars_max must be 100 or more"),
        (lambda: looping(Scripted(), add, add), "two tools are named 'add'"),
        (lambda: looping(Scripted(), max_turns=0), "max_turns must be 1 or more"),
        (lambda: looping(Scripted(), idle="1h"), "needs chat=True"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(
    declare: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        declare()


# What is shown -------------------------------------------------------------------------------


def test_the_example_looks_up_asks_and_refunds() -> None:
    (agent,) = load_agents([ROOT / "examples" / "tool_loop" / "agent.py"])
    with Simulation(agent) as sim:
        run = sim.run("Order 17 came broken, I want my money back")
        assert run.asks["arguments"] == {"order": "17", "cents": 4900}
        assert sim.approve(by="ann").result == "Done: 4900 cents were paid back."
        assert sim.run("Where is it?").result == "Which order is it about?"
        assert sim.run("Order 99?").result == "I cannot help: there is no order 99."


def test_the_code_of_the_how_to_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "tool-loop.md").read_text()
    path = tmp_path / "page.py"
    path.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    agents = {agent.name: agent for agent in load_agents([path])}
    assert set(agents) == {"weather", "desk", "support", "librarian", "editor"}
    with Simulation(agents["weather"]) as sim:
        assert sim.run("What is it like in Oslo?").result == "In Oslo it rains."
    with Simulation(agents["desk"]) as sim:
        run = sim.run("refund 17")
        assert run.asks["arguments"] == {"order": "17"}
        assert sim.approve(by="ann").result == "refunded"
    with Simulation(agents["support"]) as sim:
        run = sim.run("hello")
        assert run.waits_for == ("message",)
        assert sim.signal("message", "hello again").waits_for == ("message",)
        assert sim.advance("1h").status == "completed"
    with Simulation(agents["editor"], agents["librarian"]) as sim:
        run = sim.run({"title": "Whales"})
        assert run.result == "two books on whales"
        assert [effect.json for effect in run.effects] == [{"text": "two books on whales"}]


def test_a_tool_is_what_tool_makes() -> None:
    assert isinstance(tool(add), Tool)
