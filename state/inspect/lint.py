"""Checks the source of an agent's steps for targets that cannot work.

A step names its targets in its body, `return Next(propose, Proposal(...))` or
`Wait("go", then=publish)`; a wrong one would otherwise fail only in a run that takes that path.
Here it is an error when the agent is loaded. What the source does not show (a target from a
variable, a payload from a call) is checked when the step returns, before its result counts.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any

from surefoot.state.declare.agent import Agent, Step
from surefoot.state.declare.annotations import plain_function
from surefoot.state.declare.callables import label
from surefoot.state.declare.stored_types import check_stored
from surefoot.state.errors import ConfigError
from surefoot.state.steps.journal import result_adapter
from surefoot.state.steps.results import Approve, Call, Next, Parallel, Sleep, Wait

#: per class of result: its parameters that name a step
_TARGETS: dict[Any, set[str]] = {
    Next: {"step"},
    Sleep: {"then"},
    Wait: {"then", "on_timeout"},
    Approve: {"then", "on_timeout"},
    Parallel: {"join"},
    Call: {"then"},
}
#: parameters whose step may take a third argument
_AFTER_A_WAIT = {(Wait, "then"), (Approve, "then"), (Parallel, "join"), (Call, "then")}


def lint_agent(agent: Agent) -> None:
    """Raise ConfigError for the first step with an impossible target or payload, or with types,
    its own or those of functions it calls, that cannot be stored."""
    _ = agent.start_step
    for step in agent.steps.values():
        where = f"step {step.name!r} of agent {agent.name!r}"
        check_stored(step.adapter, step.payload_type, where)
        if step.carry_adapter is not None:
            check_stored(step.carry_adapter, step.carry_type, where)
        for line, fn in _called(step):
            result_adapter(fn, f"function {label(fn)!r}, which {where} (line {line}) calls")
        for line, kind, given in returns(step, _TARGETS):
            where = f"step {step.name!r} of agent {agent.name!r} (line {line})"
            for parameter in sorted(_TARGETS[kind] & given.keys()):
                _check_target(agent, step, where, kind, parameter, given)


def _check_target(
    agent: Agent, step: Step, where: str, kind: Any, parameter: str, given: dict[str, ast.expr]
) -> None:
    target, name = given[parameter], kind.__name__
    fn = resolve_name(target, step)
    if fn is None:
        if isinstance(target, ast.Constant) and target.value is not None:
            raise ConfigError(
                "SF1117", f"{where}: {name} needs the step function itself, not its name"
            )
        return
    wanted = agent.step_of(fn) if callable(fn) else None
    if wanted is None:
        raise ConfigError(
            "SF1117",
            f"{where}: {name} names {ast.unparse(target)!r}, which is not a step of this agent; "
            f"its steps are {', '.join(sorted(agent.steps))}",
        )
    if wanted.carry_type is not None and (kind, parameter) not in _AFTER_A_WAIT:
        raise ConfigError(
            "SF1118",
            f"{where}: {name} names {wanted.name!r}, which takes a carry; only a wait has one",
        )
    if wanted.carry_type is None and kind is Approve and parameter == "then":
        raise ConfigError(
            "SF1118",
            f"{where}: {wanted.name!r} follows Approve, so it must take (ctx, approval, what)",
        )
    if kind is Next:
        _check_payload(where, step, wanted, given.get("payload"))


def _check_payload(where: str, step: Step, target: Step, payload: ast.expr | None) -> None:
    wanted = target.payload_type
    made = resolve_name(payload.func, step) if isinstance(payload, ast.Call) else None
    if isinstance(made, type) and isinstance(wanted, type) and not issubclass(made, wanted):
        raise ConfigError(
            "SF1118",
            f"{where}: Next({target.name}, {made.__name__}(...)): step {target.name!r} takes "
            f"{wanted.__name__}",
        )


def returns(step: Step, wanted: Collection[Any]) -> Iterator[tuple[int, Any, dict[str, ast.expr]]]:
    """Yield (line, class, arguments by parameter) of every call of a `wanted` class, such as
    `Next(...)`, in the source."""
    for line, node in _calls(step):
        kind = resolve_name(node.func, step)
        if isinstance(kind, type) and kind in wanted:
            yield line, kind, _given(node, [each.name for each in fields(kind)])


def _called(step: Step) -> Iterator[tuple[int, Callable[..., Any]]]:
    """Yield (line, function) of each `ctx.call("name", function)` or `ctx.once` that is known."""
    context = next(iter(inspect.signature(step.fn).parameters))
    for line, node in _calls(step):
        match node.func:
            case ast.Attribute(ast.Name(name), "call" | "once") if name == context:
                fn = _given(node, ["name", "fn"]).get("fn")
                found = None if fn is None else resolve_name(fn, step)
                if callable(found):
                    yield line, found


def _calls(step: Step) -> Iterator[tuple[int, ast.Call]]:
    """Yield (line, call) for every call in the step's source."""
    try:
        lines, first = inspect.getsourcelines(plain_function(step.fn))
        if lines[0][0].isspace():  # a nested step, so indented
            lines, first = ["if True:\n", *lines], first - 1
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):  # no source, as in a REPL; or part of a lambda
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield first + node.lineno - 1, node


def _given(call: ast.Call, names: list[str]) -> dict[str, ast.expr]:
    """Return a call's arguments by parameter name."""
    given = dict(zip(names, call.args, strict=False))
    return given | {word.arg: word.value for word in call.keywords if word.arg}


def resolve_name(node: ast.expr, step: Step) -> Any:
    """Return the object that a name in the step's source refers to; None if it is unknown."""
    if isinstance(node, ast.Name):
        fn = plain_function(step.fn)
        if node.id in fn.__code__.co_varnames or node.id in fn.__code__.co_freevars:
            return _closure(fn).get(node.id)
        return fn.__globals__.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        return getattr(resolve_name(node.value, step), node.attr, None)
    return None


def _closure(fn: Callable[..., Any]) -> dict[str, Any]:
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with suppress(ValueError):  # no value yet
            found[name] = cell.cell_contents
    return found
