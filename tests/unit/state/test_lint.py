"""Wrong targets in a step's source are found when it is loaded, not when a run goes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from surefoot import (
    Agent,
    Approval,
    Approve,
    Call,
    ConfigError,
    Context,
    Done,
    Next,
    Parallel,
    Sleep,
    Wait,
    any_of,
)
from surefoot.infra.runtime.loader import load_agents
from surefoot.state.inspect.lint import lint_agent
from surefoot.state.steps import results


@dataclass
class Issue:
    title: str


@dataclass
class Urgent(Issue):
    pass


@dataclass
class Proposal:
    text: str


def stranger(ctx: Context, payload: Issue) -> Done:
    return Done()


async def propose(ctx: Context, payload: Proposal) -> Done:
    return Done()


async def read(ctx: Context, payload: Issue) -> Next | Done:
    return Next(read, payload)


def agent_with(*fns: Callable[..., Any]) -> Agent:
    agent = Agent("a")
    steps: list[Callable[..., Any]] = [*fns, propose, read]
    for fn in steps:
        agent.step(fn)
    return agent


async def to_stranger(ctx: Context, payload: Issue) -> Next:
    return Next(stranger, payload)


async def by_name(ctx: Context, payload: Issue) -> Next:
    return Next("propose", payload)  # type: ignore[arg-type]


async def to_a_class(ctx: Context, payload: Issue) -> Next:
    return Next(Proposal, payload)


async def wrong_payload(ctx: Context, payload: Issue) -> Next:
    if payload.title:
        return Next(read, payload)
    return Next(propose, Issue("not a proposal"))


async def wrong_by_keyword(ctx: Context, payload: Issue) -> Next:
    return Next(payload=Issue("not a proposal"), step=propose)


async def wrong_through_module(ctx: Context, payload: Issue) -> Next:
    return results.Next(propose, Issue("not a proposal"))


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (to_stranger, "Next names 'stranger', which is not a step of this agent"),
        (by_name, "Next needs the step function itself, not its name"),
        (to_a_class, "Next names 'Proposal', which is not a step"),
        (wrong_payload, r"Next\(propose, Issue\(...\)\): step 'propose' takes Proposal"),
        (wrong_by_keyword, "step 'propose' takes Proposal"),
        (wrong_through_module, "step 'propose' takes Proposal"),
    ],
)
def test_a_target_that_cannot_be(step: Callable[..., Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        lint_agent(agent_with(step))
    assert f"step {step.__name__!r}" in str(raised.value)


async def answered(ctx: Context, approval: Approval, what: Issue) -> Done:
    return Done()


async def sleep_to_stranger(ctx: Context, payload: Issue) -> Sleep:
    return Sleep("1h", stranger, payload)


async def wait_for_stranger(ctx: Context, payload: Issue) -> Wait:
    return Wait("go", then=stranger)


async def time_out_to_stranger(ctx: Context, payload: Issue) -> Wait:
    return Wait(any_of("go", "stop"), then=read, timeout="1h", on_timeout=stranger)


async def approve_by_name(ctx: Context, payload: Issue) -> Approve:
    return Approve(payload, "answered")  # type: ignore[arg-type]


async def approve_without_what(ctx: Context, payload: Issue) -> Approve:
    return Approve(payload, then=read)


async def fork_to_stranger(ctx: Context, payload: Issue) -> Parallel:
    return Parallel([(read, payload)], stranger)


async def call_to_stranger(ctx: Context, payload: Issue) -> Call:
    return Call("other", payload, then=stranger)


async def next_to_the_answer(ctx: Context, payload: Issue) -> Next:
    return Next(answered, payload)


async def time_out_to_the_answer(ctx: Context, payload: Issue) -> Approve:
    return Approve(payload, then=answered, expires="1h", on_timeout=answered)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (sleep_to_stranger, "Sleep names 'stranger', which is not a step"),
        (wait_for_stranger, "Wait names 'stranger', which is not a step"),
        (time_out_to_stranger, "Wait names 'stranger', which is not a step"),
        (approve_by_name, "Approve needs the step function itself, not its name"),
        (approve_without_what, r"'read' follows Approve, so it must take \(ctx, approval, what\)"),
        (fork_to_stranger, "Parallel names 'stranger', which is not a step"),
        (call_to_stranger, "Call names 'stranger', which is not a step"),
        (next_to_the_answer, "Next names 'answered', which takes a carry; only a wait has one"),
        (time_out_to_the_answer, "Approve names 'answered', which takes a carry; only a wait"),
    ],
)
def test_a_target_of_a_wait_that_cannot_be(step: Callable[..., Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        lint_agent(agent_with(step, answered))
    assert f"step {step.__name__!r}" in str(raised.value)


async def asks(ctx: Context, payload: Issue) -> Approve | Wait | Sleep | Parallel | Call:
    match payload.title:
        case "sleep":
            return Sleep("1h", read, payload)
        case "wait":
            return Wait("go", read, timeout="1h", on_timeout=None)
        case "fork":
            return Parallel([(stranger, payload)], join=read)
        case "call":
            return Call("other", payload, then=answered, carry=payload)
    return Approve(payload, then=answered, expires="1h", on_timeout=read)


def test_waits_that_are_right_are_let_through() -> None:
    lint_agent(agent_with(asks, answered))


def test_the_line_is_told() -> None:
    with pytest.raises(ConfigError) as raised:
        lint_agent(agent_with(wrong_payload))
    source = Path(__file__).read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(source) if "Next(propose, Issue(" in text)
    assert f"(line {line})" in str(raised.value)


async def right(ctx: Context, payload: Issue) -> Next:
    return Next(propose, Proposal("x")) if payload.title else Next(read, Urgent("a kind of Issue"))


async def from_a_variable(ctx: Context, payload: Issue) -> Next:
    target = propose
    return Next(target, Issue("checked when it returns"))


async def shadowed(ctx: Context, payload: Issue) -> Next:
    stranger = propose
    return Next(stranger, Proposal("x"))


async def unrelated(ctx: Context, payload: Issue) -> Done:
    return Done([next(iter(())), "Next(stranger, payload)"])


@pytest.mark.parametrize("step", [right, from_a_variable, shadowed, unrelated])
def test_what_is_right_or_cannot_be_told_is_let_through(step: Callable[..., Any]) -> None:
    lint_agent(agent_with(step))


def test_steps_made_in_a_function_are_read_too() -> None:
    agent = Agent("a")
    agent.step(propose)

    @agent.step
    async def inner(ctx: Context, payload: Issue) -> Next:
        text = """
not indented
"""
        return Next(later, payload) if text else Next(stranger, payload)

    @agent.step
    async def later(ctx: Context, payload: Issue) -> Done:
        return Done()

    with pytest.raises(ConfigError, match="Next names 'stranger'"):
        lint_agent(agent)


def test_an_agent_without_steps() -> None:
    with pytest.raises(ConfigError, match="has no steps"):
        lint_agent(Agent("a"))


def test_a_step_without_source_is_let_through() -> None:
    scope: dict[str, Any] = {"Context": Context, "Done": Done}
    exec("async def f(ctx: Context, payload: int) -> Done: return Done()", scope)
    agent = Agent("a")
    agent.step(scope["f"])
    lint_agent(agent)


# Loading -------------------------------------------------------------------------------------


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


HEADER = """
from surefoot import Agent, Context, Done, Next
"""
GOOD = (
    HEADER
    + """
agent = Agent("good")

@agent.step
async def only(ctx: Context, payload: int) -> Done:
    return Done()
"""
)


def test_a_step_behind_a_decorator_a_partial_or_an_object_is_read_too() -> None:
    async def wrong(ctx: Context, payload: Issue) -> Next:
        return Next(stranger, payload)

    class Wrong:
        async def __call__(self, _ctx: Context, payload: Issue) -> Next:
            return Next(stranger, payload)

    def kept(fn: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any) -> Any:
            return fn(*given)

        return wraps(fn)(wrapper)

    for fn in (kept(wrong), partial(wrong), Wrong()):
        agent = Agent("a")
        agent.step(name="only")(fn)
        with pytest.raises(ConfigError, match="names 'stranger', which is not a step"):
            lint_agent(agent)


def test_a_lambda_is_no_source_to_read() -> None:
    agent = Agent("a")
    only = lambda _ctx, _payload: Done()  # noqa: E731
    only.__annotations__["_payload"] = Issue
    agent.step(
        only,
    )
    lint_agent(agent)


def test_all_agents_of_the_files_are_loaded(tmp_path: Path) -> None:
    other = write(tmp_path, GOOD.replace('"good"', '"other"'), "other.py")
    loaded = load_agents([write(tmp_path, GOOD), other])
    assert [agent.name for agent in loaded] == ["good", "other"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "defines no agent"),
        (GOOD.replace('"good"', '"outbox"'), "is reserved"),
        (GOOD + '\nagain = Agent("good")\n', "two agents are named 'good'"),
        (GOOD + '\nempty = Agent("empty")\n', "has no steps"),
        (GOOD.replace("return Done()", 'return Next("only", payload)'), "not its name"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_agents([write(tmp_path, text)])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_agents([tmp_path / "nowhere.py"])
