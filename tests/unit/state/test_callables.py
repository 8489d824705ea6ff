"""What an author's function gives is awaited wherever it can be, however the function is made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from typing import Any

import pytest

from surefoot import Agent, ConfigError, Context, Done, Flow, Next
from surefoot.agents.messages import Ask, ToolCall
from surefoot.agents.tool_loop import tool, tool_loop
from surefoot.consumers.attempts.attempt import AttemptFailed, verify
from surefoot.infra.sources.starter import Mappings
from surefoot.producers.webhooks.mapping import by_source, planned
from surefoot.state.declare.agent import Resuming
from surefoot.state.declare.callables import is_async, label
from surefoot.state.declare.sources import QueueMessage
from surefoot.state.declare.subscriptions import RunEvent
from surefoot.state.declare.webhooks import Webhook
from surefoot.state.inspect.lint import lint_agent
from surefoot.state.machine.model import Complete, StepReturned
from surefoot.state.ports.sources import Received
from surefoot.testing import Simulation
from tests.support.fake_engine import FakeEngine, a_run
from tests.unit.consumers.test_attempt import prepared
from tests.unit.consumers.test_executor import Bench, bench

__all__ = ["bench"]

#: the thread in which the function of the test was called last
where: list[str] = []


async def double(x: int) -> int:
    await asyncio.sleep(0)
    where.append(threading.current_thread().name)
    return 2 * x


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as they are often written: no async, no functools.wraps."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def wrapping(fn: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(fn)(plain(fn))


def with_a_loop_of_its_own(fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(fn(*args, **kwargs))

    return wrapper


class Doubles:
    async def __call__(self, x: int) -> int:
        return await double(x)

    async def method(self, x: int) -> int:
        return await double(x)


def _called(x: int) -> Any:
    return double(x)


def both(_before: object, x: int) -> Any:
    return double(x)


WAYS: dict[str, Callable[..., Any]] = {
    "async": double,
    "plain decorator": plain(double),
    "decorator with wraps": wrapping(double),
    "a loop of its own": with_a_loop_of_its_own(double),
    "function": _called,
    "partial": partial(both, None),
    "partial of async": partial(double),
    "object": Doubles(),
    "method": Doubles().method,
}
each_way = pytest.mark.parametrize("fn", WAYS.values(), ids=WAYS.keys())


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (double, True),
        (partial(partial(double), 1), True),
        (Doubles(), True),
        (partial(Doubles()), True),
        (Doubles().method, True),
        (wrapping(double), False),
        (Doubles, False),
        (len, False),
        (None, False),
    ],
)
def test_what_is_declared_async(fn: Any, told: bool) -> None:
    assert is_async(fn) is told


def test_what_messages_call_a_function() -> None:
    assert [label(fn) for fn in (double, partial(double), Doubles(), Doubles().method)] == [
        "double",
        "double",
        "Doubles",
        "method",
    ]


# Steps and what they call -----------------------------------------------------------------------


@each_way
async def test_a_step(bench: Bench, fn: Callable[..., Any]) -> None:
    async def step(ctx: Context, payload: int) -> Any:
        return Done(await double(payload))

    made: dict[int, Callable[..., Any]] = {
        id(double): step,
        id(WAYS["decorator with wraps"]): wrapping(step),
        id(WAYS["a loop of its own"]): with_a_loop_of_its_own(step),
        id(WAYS["partial of async"]): partial(step),
    }

    def called(ctx: Context, payload: int) -> Any:
        value = fn(payload)
        return _done(value) if asyncio.iscoroutine(value) else Done(value)

    agent = Agent("a")
    agent.step(name="twice")(made.get(id(fn), called))
    lint_agent(agent)
    bench.submit_to(agent, "twice", "r", b"21")
    outcome = await bench_outcome(bench)
    assert isinstance(outcome, StepReturned)
    assert outcome.then == Complete(result=b"42")


async def _done(value: Any) -> Done:
    return Done(await value)


async def bench_outcome(bench: Bench) -> Any:
    from tests.support.eventually import until  # noqa: PLC0415

    await until(lambda: bench.outcomes, what="an outcome")
    return bench.outcomes[-1][1]


@each_way
async def test_a_call_and_a_probe_in_a_step(bench: Bench, fn: Callable[..., Any]) -> None:
    async def step(ctx: Context, payload: int) -> Done:
        called = await ctx.call("call", fn, payload, cost=None)
        return Done([called, await ctx.once("once", fn, payload, probe=fn)])

    outcome = await bench.outcome(step, b"21")
    assert isinstance(outcome, StepReturned), outcome
    assert outcome.then == Complete(result=b"[42,42]")


async def test_a_wrapper_with_a_loop_of_its_own_gets_a_thread_of_its_own(bench: Bench) -> None:
    async def step(ctx: Context, payload: int) -> Done:
        return Done(await ctx.call("call", WAYS["a loop of its own"], payload))

    await bench.outcome(step, b"21")
    assert where[-1] == "surefoot-step"


async def test_what_a_call_costs_may_be_asked_somewhere(bench: Bench) -> None:
    from surefoot import Cost  # noqa: PLC0415

    async def price(result: int) -> Cost:
        return Cost(tokens=result)

    async def step(ctx: Context, payload: int) -> Done:
        return Done(await ctx.call("call", double, payload, cost=price))

    assert isinstance(await bench.outcome(step, b"21"), StepReturned)
    assert [amount.amount for amount in bench.notes[-1].journaled.cost] == [42]


async def test_a_timeout_counts_what_is_awaited_after_the_thread_too(bench: Bench) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    def step(ctx: Context, payload: int) -> Any:
        return never()

    agent = Agent("a")
    agent.step(timeout=0.01)(step)
    bench.submit_to(agent, "step", "r", b"0")
    outcome = await bench_outcome(bench)
    assert isinstance(outcome, AttemptFailed)
    assert outcome.failure.code == "timeout"


async def test_a_check_and_an_upcast() -> None:
    seen: list[int] = []

    async def noted(run: Resuming) -> None:
        seen.append(await double(run.payload))

    async def up(step: str, payload: Any) -> tuple[str, Any]:
        return step, await double(payload)

    for made in (lambda fn: fn, plain, wrapping, with_a_loop_of_its_own, partial):
        agent = Agent("a", version=2)
        agent.verify(made(noted))
        agent.upcast(from_version=1)(made(up))

        @agent.step
        async def step(ctx: Context, payload: int) -> Done:
            return Done()

        run = a_run(step="step", payload=b"1", version=1)
        body = await prepared(agent, run)
        assert body.args[1] == 2
        await verify(body, FakeEngine(run))
    assert seen == [4] * 5


# What starts runs --------------------------------------------------------------------------------


def an_agent() -> Agent:
    agent = Agent("a")

    @agent.step
    async def step(ctx: Context, payload: int) -> Done:
        return Done()

    return agent


def of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, on whatever it is given."""
    return lambda _event: fn(21)


@each_way
def test_a_webhook_and_its_filter(fn: Callable[..., Any]) -> None:
    agent = an_agent()
    agent.webhook("github", where=lambda _: fn(1))(of(fn))
    delivery = Webhook(source="github", id="1", event="x", headers={}, body=b"", json=None)
    plan = planned(by_source([agent])["github"], delivery)
    assert plan.errors == {}
    assert [start.payload for start in plan.starts] == [b"42"]

    async def no(_delivery: Webhook) -> bool:
        return False

    unwanted = an_agent()
    unwanted.webhook("github", where=no)(of(fn))
    assert planned(by_source([unwanted])["github"], delivery).starts == []


@each_way
def test_an_event_with_its_filter_and_its_key(fn: Callable[..., Any]) -> None:
    def mapping(event: int) -> Any:
        return fn(event)

    agent = an_agent()
    agent.on_event(topic="t", where=fn, key=fn)(mapping)
    received = Received(topic="t", partition=0, offset=0, timestamp_ms=0)
    assert agent.event_triggers["t"].begin(21, received) == ("42", 42)


@each_way
async def test_a_message_of_a_queue(fn: Callable[..., Any]) -> None:
    message = QueueMessage(queue="q", id="1", body="", attributes={})
    assert await Mappings("s").payload_of(an_agent(), of(fn), message) == b"42"


@each_way
def test_a_subscription(fn: Callable[..., Any]) -> None:
    agent = an_agent()
    agent.subscribe("crm", url="https://crm.example/", where=of(fn), data=of(fn))
    event: Any = dict.fromkeys(RunEvent.__slots__) | {
        "type": "run.completed",
        "agent": "a",
        "run_id": "r",
        "at_ms": 1,
    }
    message = agent.subscriptions["crm"].message(event, (0, 0))
    assert message is not None
    assert '"data":42' in message.body


@each_way
def test_a_tool(fn: Callable[..., Any]) -> None:
    made = tool(name="double", description="Doubles.")(
        _typed(fn) if fn is WAYS["plain decorator"] else fn
    )
    call = ToolCall(id="1", name="double", arguments={"x": 21})

    async def asked() -> tuple[Any, Any]:
        engine = FakeEngine(a_run())
        body = await engine.invoke(made.body, (call,))
        once = tool(name="d", description="D.", once=True, probe=made.fn)(made.fn or double)
        assert once.look is not None
        return body, await engine.invoke(once.look, (call,))

    assert asyncio.run(asked()) == ("42", "42")


def test_a_model() -> None:
    async def answers(asked: Ask) -> str:
        return f"{await double(len(asked.messages))}"

    async def streams(asked: Ask) -> AsyncIterator[str]:
        yield f"{await double(len(asked.messages))}"

    models: list[Any] = [
        answers,
        streams,
        plain(answers),
        plain(streams),
        with_a_loop_of_its_own(answers),
    ]
    for model in (*models, partial(streams), lambda asked: f"{2 * len(asked.messages)}"):
        agent = Agent("a")
        tool_loop(agent, model=model)
        assert Simulation(agent).run("hello").result == "2"


def _typed(fn: Callable[..., Any]) -> Callable[..., Any]:
    def typed(x: int) -> Any:
        return fn(x)

    return typed


def test_a_tool_that_is_given_the_context_may_run_a_loop_of_its_own() -> None:
    @tool
    @with_a_loop_of_its_own
    async def note(ctx: Context, x: int) -> int:
        """Note it."""
        return await double(x)

    async def asked() -> str:
        ctx = FakeEngine(a_run()).attempt()
        return await note.in_step(ctx, ToolCall(id="1", name="note", arguments={"x": 21}))

    assert asyncio.run(asked()) == "42"


# Names -------------------------------------------------------------------------------------------


def test_a_partial_or_an_object_needs_a_name_as_a_step() -> None:
    agent = Agent("a")

    class Begins:
        async def __call__(self, _ctx: Context, payload: int) -> Next:
            return Next(second, payload)

    async def either(rate: int, ctx: Context, payload: int) -> Done:
        return Done()

    for fn, told in ((Begins(), "Begins"), (partial(either, 1), "either")):
        with pytest.raises(ConfigError, match=rf"{told} has no name; .*name=\"\.\.\.\""):
            agent.step(fn)
    first = agent.step(name="first")(Begins())
    second = agent.step(name="second")(partial(either, 1))
    assert agent.step_of(first) is agent.steps["first"]
    assert agent.step_of(second) is agent.steps["second"]
    with pytest.raises(ConfigError, match="is the same function as step 'first'"):
        agent.step(name="third")(first)
    lint_agent(agent)


def test_a_flow_is_asked_at_once() -> None:
    for name in ("key", "id", "priority"):
        given: dict[str, Any] = {name: double}
        with pytest.raises(ConfigError, match=f"Flow: {name} cannot be an async function"):
            Flow(concurrency=1, **given)
    agent = Agent("a", flow=Flow(key=lambda x: x))

    @agent.step
    async def step(ctx: Context, payload: int) -> Done:
        return Done()

    waits = Agent("b", flow=Flow(key=plain(double)))
    waits.step(step)
    assert agent.name_run("r", b"7") == "7=r"
    with pytest.raises(ValueError, match="cannot be async"):
        waits.name_run("r", b"7")


def taking_anything(fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def taking_what_it_takes(fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(ctx, payload):
        return fn(ctx, payload)

    return wrapper


async def greet(ctx: Context, name: str) -> Done:
    return Done(name)


def untyped(ctx: Context, name) -> Done:
    return Done(name)


DECLARED: dict[str, Callable[[Callable[..., Any]], object]] = {
    "step": lambda fn: Agent("a").step(fn),
    "on_event": Agent("a").on_event(topic="t"),
    "queue": Agent("a").sqs("q"),
    "folder": Agent("a").files("in/*"),
    "tool": tool,
}


@pytest.mark.parametrize("declare", DECLARED.values(), ids=DECLARED)
@pytest.mark.parametrize("decorator", [taking_anything, taking_what_it_takes])
def test_what_hides_the_arguments_is_told_with_the_refusal(
    declare: Callable[[Callable[..., Any]], object],
    decorator: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    with pytest.raises(ConfigError, match=r"wrapper.*use @functools\.wraps in the decorator"):
        declare(decorator(greet))


def test_a_function_that_hides_nothing_is_not_taken_for_a_decorators() -> None:
    with pytest.raises(ConfigError, match="annotate 'name'") as refused:
        Agent("a").step(untyped)
    assert "functools" not in str(refused.value)
