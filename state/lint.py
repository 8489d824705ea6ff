"""Reads the source of an agent's steps for targets that cannot work.

A step says where it goes in its body, `return Next(propose, Proposal(...))`, so a wrong target
would come to light only in the run that takes that way. Here it is an error when the agent is
loaded. What the source does not tell (a target from a variable, a payload from a call) is checked
when the step returns, before its result counts.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from surefoot.state.agent import Agent, Next, Step
from surefoot.state.errors import ConfigError


def check(agent: Agent) -> None:
    """Raises ConfigError for the first step that names a target or payload that cannot be."""
    _ = agent.start_step
    for step in agent.steps.values():
        for line, target, payload in _nexts(step):
            _check_next(agent, step, line, target, payload)


def _check_next(agent: Agent, step: Step, line: int, target: ast.expr, payload: ast.expr) -> None:
    where = f"step {step.name!r} of agent {agent.name!r} (line {line})"
    fn = _resolve(target, step)
    if fn is None:
        if isinstance(target, ast.Constant):
            raise ConfigError(f"{where}: Next takes the step function itself, not its name")
        return
    if not callable(fn) or agent.step_of(fn) is None:
        raise ConfigError(
            f"{where}: Next names {ast.unparse(target)!r}, which is not a step of this agent; "
            f"its steps are {', '.join(sorted(agent.steps))}"
        )
    wanted = agent.steps[fn.__name__].payload_type
    made = _resolve(payload.func, step) if isinstance(payload, ast.Call) else None
    if isinstance(made, type) and isinstance(wanted, type) and not issubclass(made, wanted):
        raise ConfigError(
            f"{where}: Next({fn.__name__}, {made.__name__}(...)): step {fn.__name__!r} takes "
            f"{wanted.__name__}"
        )


def _nexts(step: Step) -> Iterator[tuple[int, ast.expr, ast.expr]]:
    """Every `Next(target, payload)` in the source of a step."""
    try:
        lines, first = inspect.getsourcelines(step.fn)
    except (OSError, TypeError):  # defined where there is no source, in a REPL for one
        return
    if lines[0][0].isspace():  # a step declared inside of something
        lines, first = ["if True:\n", *lines], first - 1
    for node in ast.walk(ast.parse("".join(lines))):
        if not isinstance(node, ast.Call) or _resolve(node.func, step) is not Next:
            continue
        given = dict(zip(("step", "payload"), node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        if {"step", "payload"} <= given.keys():
            yield first + node.lineno - 1, given["step"], given["payload"]


def _resolve(node: ast.expr, step: Step) -> Any:
    """What a name in the step's source stands for at module level; None when it cannot be told."""
    if isinstance(node, ast.Name):
        code = step.fn.__code__
        if node.id in code.co_varnames or node.id in code.co_freevars:
            return _closure(step).get(node.id)
        return step.fn.__globals__.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(node.value, step), node.attr, None)
    return None


def _closure(step: Step) -> dict[str, Any]:
    found = {}
    for name, cell in zip(step.fn.__code__.co_freevars, step.fn.__closure__ or (), strict=True):
        with suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found
