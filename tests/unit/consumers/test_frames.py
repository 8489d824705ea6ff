"""Where a step failed: the lines of the author's code, from the step to what was raised."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Retry
from surefoot.consumers.attempts.frames import FRAMES_MAX, frames
from surefoot.testing import Simulation

HERE = "tests/unit/consumers/test_frames.py"


def look_up(table: dict[str, int], key: str) -> int:
    return table[key]


async def price(key: str) -> int:
    return look_up({"tea": 3}, key)


async def pay(ctx: Context, key: str) -> Done:
    return Done(await ctx.call("price", price, key))


def pay_in_a_thread(ctx: Context, key: str) -> Done:
    return Done(look_up({}, key))


async def reword(ctx: Context, key: str) -> Done:
    try:
        await price(key)
    except KeyError as error:
        raise LookupError(f"no price for {key}") from error
    return Done()


async def side_by_side(ctx: Context, key: str) -> Done:
    async with asyncio.TaskGroup() as group:
        group.create_task(price(key))
    return Done()


async def waits(ctx: Context, key: str) -> Done:
    await asyncio.sleep(3600)
    return Done()


async def no_json(ctx: Context, key: str) -> Done:
    return Done(json.loads(key))


def functions(told: list[str]) -> list[str]:
    """Without the numbers of the lines."""
    return [each.partition(" in ")[2] or each for each in told]


@pytest.mark.parametrize(
    ("step", "kind", "expected"),
    [
        (pay, "KeyError", ["pay", "price", "look_up"]),
        (pay_in_a_thread, "KeyError", ["pay_in_a_thread", "look_up"]),
        (reword, "LookupError", ["reword", "from KeyError", "reword", "price", "look_up"]),
        (no_json, "JSONDecodeError", ["no_json"]),
    ],
)
def test_a_failure_names_the_class_and_the_lines_of_the_authors_code(
    step: Callable[..., Any], kind: str, expected: list[str]
) -> None:
    agent = Agent("shop")
    agent.step(retry=Retry(attempts=1))(step)
    with Simulation(agent) as sim, capture_logs() as logs:
        run = sim.run("coffee")
    assert run.failure is not None
    assert (run.status, run.failure["kind"]) == ("failed", kind)
    told = run.failure["frames"]
    assert functions(told) == expected
    line = step.__code__.co_firstlineno
    assert told[0].startswith(f"{HERE}:")
    assert line < int(told[0].partition(" in ")[0].rpartition(":")[2]) <= line + 5
    (said,) = [each for each in logs if each["event"] == "step_failed"]
    assert said["frames"] == told


@pytest.mark.parametrize(
    ("step", "expected"),
    [(side_by_side, ["side_by_side", "from KeyError", "price", "look_up"]), (waits, "waits")],
)
def test_what_a_group_or_a_time_limit_hides_is_told_too(
    step: Callable[..., Any], expected: Any
) -> None:
    agent = Agent("shop")
    agent.step(retry=Retry(attempts=1), timeout="5s")(step)
    with Simulation(agent) as sim:
        run = sim.run("coffee")
    assert run.failure is not None
    told = functions(run.failure["frames"])
    assert told == expected if isinstance(expected, list) else expected in told


def raised(fn: Callable[[], Any]) -> BaseException:
    try:
        fn()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


def test_the_innermost_frames_of_an_endless_recursion_are_kept() -> None:
    def deeper() -> Any:
        return deeper()

    told = frames(raised(deeper), "tests")
    assert len(told) == FRAMES_MAX
    assert all(each.endswith("deeper") for each in told)


def test_a_library_counts_only_if_it_is_the_authors_own() -> None:
    error = raised(lambda: json.loads("{"))
    assert functions(list(frames(error, "tests")))[-1].endswith("<lambda>")
    assert functions(list(frames(error, "json")))[-1].endswith("raw_decode")


def test_causes_in_a_circle_come_to_an_end() -> None:
    one, other = raised(lambda: look_up({}, "a")), raised(lambda: look_up({}, "b"))
    one.__cause__, other.__cause__ = other, one
    assert functions(list(frames(one, "tests"))).count("look_up") == 2
